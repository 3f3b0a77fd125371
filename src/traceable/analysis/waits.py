"""How long each range's thread was blocked in API calls that wait for the GPU."""

from __future__ import annotations

import numpy as np

from traceable.analysis.context import Context
from traceable.analysis.intervals import Union, covered_ns, lanes_of, union
from traceable.analysis.naming import SYNCHRONISING
from traceable.analysis.shared import calls_like, once
from traceable.trace.model import NULL, Int64


@once
def waits_by_thread(context: Context) -> Union:
    """Return when each thread was in a synchronising call; the lanes are the threads."""
    calls = context.trace.calls
    waiting = calls_like(context, SYNCHRONISING)
    lanes = lanes_of(calls.thread[waiting], len(context.trace.threads), np.arange(len(waiting)))
    return union(calls.start_ns[waiting], calls.end_ns[waiting], lanes)


def sync_waits(context: Context) -> Int64:
    """Return the ns that each instance's thread spent in synchronising calls while it ran, one value an instance.

    Calls inside one another count once, and a call that the range's edge cuts counts with what lies inside. NULL where
    the trace holds no API calls, the range ended on another thread than it began, or it lies outside the time that the
    trace was cut to.
    """
    waits = np.full(len(context.found), NULL, np.int64)
    if not len(context.trace.calls):
        return waits
    stretches = context.found.stretches
    blocked = covered_ns(waits_by_thread(context), stretches.thread, stretches.start_ns, stretches.end_ns)
    waits[stretches.owner] = 0
    np.add.at(waits, stretches.owner, blocked)
    waits[context.found.outside] = NULL
    return waits
