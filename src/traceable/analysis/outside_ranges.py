"""How much of each thread's wall time lies in no range: code without annotations, or no work."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from traceable.analysis.context import Context, cache_per_context
from traceable.analysis.intervals import merge_intervals
from traceable.analysis.table import Table, objects, ratios
from traceable.protocol.nvtx import LOOP_DOMAIN
from traceable.trace.model import Int64


@cache_per_context
def measure_outside_ranges(context: Context) -> Table:
    """Return one row a thread that opened ranges, the most time in no range first.

    `wall_ns` is the time from its first range to the end of its last, without that between windows; `outside_ns` the
    part of it in which no range that began on the thread was open, and `outside_share` its share. A suspended coroutine
    counts as open. Callbacks of an event loop do not count as ranges here: they are recorded without annotations of the
    program.
    """
    trace, instances = context.trace, context.instances
    apart = trace.windows.find_gaps()
    rows = np.flatnonzero(instances.entered & (instances.domain != trace.name_index(LOOP_DOMAIN)))
    rows = rows[np.argsort(instances.thread[rows], kind="stable")]
    bounds = np.flatnonzero(np.diff(instances.thread[rows], prepend=-1, append=-1)).tolist()
    threads = [int(instances.thread[rows[first]]) for first in bounds[:-1]]
    values = [outside_ns(instances.start_ns[here], instances.end_ns[here], apart) for here in _parts(rows, bounds)]
    start, end, wall, outside = np.array(values, np.int64).reshape(-1, 4).T
    of = [trace.threads[thread] for thread in threads]
    processes = [trace.processes[thread.process] for thread in of]
    table = Table(
        {
            "pid": np.array([process.pid for process in processes], np.int64),
            "process": objects(process.name or None for process in processes),
            "tid": np.array([thread.tid for thread in of], np.int64),
            "thread": objects(thread.name or None for thread in of),
            "start_ns": start,
            "end_ns": end,
            "wall_ns": wall,
            "outside_ns": outside,
            "outside_share": ratios(outside, wall),
        }
    )
    return table.take(np.argsort(-outside, kind="stable"))


def _parts(rows: Int64, bounds: list[int]) -> list[Int64]:
    return [rows[first:last] for first, last in pairwise(bounds)]


def outside_ns(start_ns: Int64, end_ns: Int64, apart: tuple[Int64, Int64]) -> tuple[int, int, int, int]:
    """Return the first start and the last end of some ranges, the time between these, and that in none of the ranges.

    Args:
        start_ns, end_ns: the ranges, one or more.
        apart: starts and ends of times that do not count.
    """
    first, last = int(start_ns.min()), int(end_ns.max())
    gone = np.clip(apart[0], first, last), np.clip(apart[1], first, last)
    unseen = int(merge_intervals(*gone).total_ns()[0])
    covered = int(merge_intervals(np.append(start_ns, gone[0]), np.append(end_ns, gone[1])).total_ns()[0])
    return first, last, last - first - unseen, last - first - covered
