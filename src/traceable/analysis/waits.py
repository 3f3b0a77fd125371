"""How long each range's thread was blocked in API calls that wait for the GPU."""

from __future__ import annotations

import re

import numpy as np

from traceable.analysis.instances import Instances
from traceable.trace.model import NULL, Int64, Trace

_WAITING = re.compile(r"cu(da)?(Thread|Device|Ctx|Context|Stream|Event)Synchronize(_ptsz)?(_v\d+)?$")
"""The synchronising calls of the runtime (cuda...) and the driver API (cu...)."""


def sync_waits(trace: Trace, found: Instances) -> Int64:
    """Return the ns that each instance's thread spent in synchronising calls while it ran, shape (len(found),).

    Calls inside one another count once, and a call that the range's edge cuts counts with what lies inside. NULL where
    the trace holds no API calls, or the range ended on another thread than it began.
    """
    waits = np.full(len(found), NULL, np.int64)
    if not len(trace.calls):
        return waits
    waiting = np.array([_WAITING.match(name) is not None for name in trace.names], np.bool_)
    calls = np.flatnonzero(waiting[trace.calls.name])
    stretches = found.stretches
    blocked = np.zeros(len(stretches.owner), np.int64)
    for thread in np.unique(trace.calls.thread[calls]).tolist():
        here = calls[trace.calls.thread[calls] == thread]
        of_thread = np.flatnonzero(stretches.thread == thread)
        starts, ends = union(trace.calls.start_ns[here], trace.calls.end_ns[here])
        until = _blocked_until(starts, ends, stretches.end_ns[of_thread])
        blocked[of_thread] = until - _blocked_until(starts, ends, stretches.start_ns[of_thread])
    waits[stretches.owner] = 0
    np.add.at(waits, stretches.owner, blocked)
    return waits


def union(start_ns: Int64, end_ns: Int64) -> tuple[Int64, Int64]:
    """Return the union of closed intervals as disjoint intervals in order."""
    order = np.argsort(start_ns, kind="stable")
    start = start_ns[order]
    latest = np.maximum.accumulate(end_ns[order])
    if not len(order):
        return start, latest
    begins = np.append(True, start[1:] > latest[:-1])
    return start[begins], latest[np.append(np.flatnonzero(begins)[1:] - 1, len(order) - 1)]


def _blocked_until(starts: Int64, ends: Int64, time_ns: Int64) -> Int64:
    """Return the summed length of disjoint sorted intervals before each time, in ns."""
    before = np.searchsorted(starts, time_ns, "right")
    whole = np.concatenate([[0], np.cumsum(ends - starts)])
    last = np.maximum(before - 1, 0)
    overhang = np.where(before > 0, np.maximum(0, ends[last] - time_ns), 0)
    until: Int64 = whole[before] - overhang
    return until
