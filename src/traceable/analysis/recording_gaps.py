"""The time between windows, of which a trace of several holds nothing: it is neither idle nor part of a rate."""

from __future__ import annotations

import numpy as np

from traceable.trace.model import Int64, Trace


def find_unrecorded_spans(trace: Trace) -> tuple[Int64, Int64]:
    """Return the starts and ends of the gaps between the windows, in ns; empty with fewer than two.

    Windows of several processes may overlap: what one of them recorded is not unrecorded.
    """
    windows = trace.windows
    if len(windows) < 2:
        empty = np.empty(0, np.int64)
        return empty, empty
    order = np.argsort(windows.start_ns, kind="stable")
    start, until = windows.start_ns[order], np.maximum.accumulate(windows.end_ns[order])
    apart = start[1:] > until[:-1]
    return until[:-1][apart], start[1:][apart]


def measure_unrecorded_ns(trace: Trace, start_ns: Int64, end_ns: Int64) -> Int64:
    """Return how much of each time from `start_ns` to `end_ns` lies between windows."""
    begins, ends = find_unrecorded_spans(trace)
    inside = np.minimum(end_ns[:, None], ends[None, :]) - np.maximum(start_ns[:, None], begins[None, :])
    total: Int64 = np.maximum(inside, 0).sum(axis=1)
    return total
