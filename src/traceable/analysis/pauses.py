"""Pauses of the event loop: which of its recorded callbacks blocked it.

The process records every callback, as a start/end range in the domain `traceable.loop` with the threshold in ns as its
payload (`annotation/pauses.py`). Only here is it known how long each lasted.
"""

from __future__ import annotations

import dataclasses

from traceable.analysis.select import select_part
from traceable.trace.model import START_END, Ranges, Trace

LOOP_DOMAIN = "traceable.loop"
"""The domain of the callbacks: what `annotation.pauses` writes."""


def drop_short_callbacks(trace: Trace) -> tuple[Trace, int]:
    """Return `trace` without the event loop's callbacks that ended before their threshold, and how many those were.

    One that was cut by the end of the capture stays: its full length is unknown, and in a program that was
    killed it is what the loop was doing.
    """
    if LOOP_DOMAIN not in trace.names:
        return trace, 0
    if trace.cut is not None:
        # The whole has the full length of each callback.
        whole, _ = drop_short_callbacks(trace.cut.whole)
        part = select_part(whole, time_ns=(trace.cut.first_ns, trace.cut.last_ns))
        return part, len(trace.ranges) - len(part.ranges)
    ranges = trace.ranges
    is_callback = (ranges.domain == trace.names.index(LOOP_DOMAIN)) & (ranges.style == START_END) & ranges.has_payload
    is_short = is_callback & ~ranges.clipped & (ranges.end_ns - ranges.start_ns < ranges.payload)
    return dataclasses.replace(trace, ranges=Ranges(**ranges.take(~is_short))), int(is_short.sum())
