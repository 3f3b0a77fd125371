"""When steps follow one another: how evenly, and how much of the time is waiting for data."""

from __future__ import annotations

from typing import Any

import numpy as np

from traceable.analysis.context import Context
from traceable.analysis.grouping import ranked
from traceable.analysis.intervals import covered_ns, lanes_of, union
from traceable.analysis.step_detection import Steps
from traceable.analysis.table import integers, ratios
from traceable.analysis.unrecorded import unrecorded_ns
from traceable.trace.model import Bool, Int64, NDArray
from traceable.trace.rows import distinct

WAIT = "step.wait"
"""The range in which `traceable.steps` waits for the next item."""


def loader_waits(context: Context) -> Int64:
    """Return the instances that wait for the next batch: of `traceable.steps`, or of torch's own DataLoader.

    torch names a range `enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__`. One inside another is left out.
    """
    found, names = context.found, context.trace.names
    named = np.zeros(len(names), np.bool_)
    for index in distinct(found.name).tolist():
        name = names[index]
        named[index] = name == WAIT or (name.startswith("enumerate(DataLoader)#") and name.endswith(".__next__"))
    waits: Bool = named[found.name] & found.entered
    above = np.append(waits, False)[found.parent]
    return np.flatnonzero(waits & ~above)


def rhythm(context: Context, found: Steps, steady: Bool, elapsed_ns: Int64) -> dict[str, NDArray[Any]]:
    """Return of each lane the time from one steady step's begin to the next one's, and the waits for data.

    Args:
        steady: which steps are.
        elapsed_ns: of each lane the time from its first steady step to the end of its last.
    """
    lanes = len(found.process)
    pair = np.flatnonzero((found.lane[1:] == found.lane[:-1]) & steady[1:] & steady[:-1])
    begin, following = found.start_ns[pair], found.start_ns[pair + 1]
    # Between two windows lie steps that nobody saw.
    seen = unrecorded_ns(context.trace, begin, following) == 0
    spread = ranked(found.lane[pair], following - begin, lanes, seen).summary("interval")
    waits = loader_waits(context)
    processes = np.array([thread.process for thread in context.trace.threads], np.int64)
    process = processes[context.found.thread[waits]]
    waited = np.zeros(lanes, np.int64)
    if len(waits):
        start, end = context.found.start_ns[waits], context.found.end_ns[waits]
        when = union(start, end, lanes_of(process, len(context.trace.processes), np.argsort(start, kind="stable")))
        first, last = np.full(lanes, np.iinfo(np.int64).max), np.zeros(lanes, np.int64)
        np.minimum.at(first, found.lane[steady], found.start_ns[steady])
        np.maximum.at(last, found.lane[steady], found.end_ns[steady])
        waited = covered_ns(when, found.process, first, last)
    known = np.isin(found.process, process) & (elapsed_ns > 0)
    return {
        **{name: spread[name] for name in ("interval_p50_ns", "interval_p99_ns", "interval_max_ns")},
        "interval_stddev_ns": spread["interval_stddev_ns"],
        "wait_total_ns": integers(waited, known),
        "wait_share": np.where(known, ratios(waited, elapsed_ns), np.nan),
    }
