"""What each step did: its operations, and what they and its thread took. `step_detection` says where the steps are."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from traceable.analysis.context import Context
from traceable.analysis.enclosure import slices, spread
from traceable.analysis.gpus import lanes_by, streams_of
from traceable.analysis.grouping import distinct_pairs
from traceable.analysis.instances import Stretches
from traceable.analysis.intervals import Lanes, Union, covered_ns, lanes_of, merged, union
from traceable.analysis.naming import ALLOCATING, SYNCHRONISING
from traceable.analysis.operations import COPY, GRAPH
from traceable.analysis.shared import calls_like, nccl_kernels, once
from traceable.analysis.statistics import totals
from traceable.analysis.step_detection import BOUNDARY, RANGE, SEQUENCE, Steps, steps_of
from traceable.analysis.table import integers, ratios
from traceable.analysis.waits import waits_by_thread
from traceable.trace.model import NULL, Int64, NDArray
from traceable.trace.rows import distinct


@dataclass(frozen=True)
class Work:
    """The operations of the steps, as pairs by step and start.

    Attributes:
        step, operation: index of the step, and into the operations of the trace.
        bounds: the pairs of step i are those from `bounds[i]` until `bounds[i + 1]`.
        added_ns: by how much the operation makes the union of those before it in its step longer: what a step was busy
            is the sum of it, however its operations are grouped.
        waits: when each thread was in a call that waits for the GPU; its lanes are the threads.
        lanes: all operations by the lanes of the steps.
    """

    step: Int64
    operation: Int64
    bounds: Int64
    added_ns: Int64
    waits: Union
    lanes: Lanes

    def total(self, values: Int64) -> Int64:
        """Return the sum of one value a pair, by step."""
        until = np.zeros(len(values) + 1, np.int64)
        np.cumsum(values, out=until[1:])
        return np.diff(until[self.bounds])


def work_of(context: Context, found: Steps) -> Work:
    """Return the operations of each step."""
    lanes = lanes_by(context, _lane_of_stream(context, found), len(found.process))
    step, operation = _of_ranges(context, found, lanes) if found.kind == RANGE else _between(context, found, lanes)
    bounds = np.searchsorted(step, np.arange(len(found) + 1, dtype=step.dtype))
    added = _added(step, context.gpu.start_ns[operation], context.gpu.end_ns[operation])
    return Work(step, operation, bounds, added, waits_by_thread(context), lanes)


@once
def inferred(context: Context) -> tuple[Steps, Work]:
    """Return the steps that repetition shows, and the operations of each; raises as `steps_of`."""
    found = steps_of(context, None, None)
    return found, work_of(context, found)


def _between(context: Context, found: Steps, lanes: Lanes) -> tuple[Int64, Int64]:
    """Return pairs (step, operation) of what starts, or of SEQUENCE whose launch call starts, in each step."""
    gpu, calls = context.gpu, context.launched.calls
    step_of = np.full(len(gpu), -1, np.int64)
    bounds = np.searchsorted(found.lane, np.arange(len(found.process) + 1)).tolist()
    for rows, (low, high) in zip(lanes, pairwise(bounds), strict=True):
        time = gpu.start_ns[rows]
        if found.kind == SEQUENCE:
            call = context.launched.call_of[rows]
            called = np.flatnonzero(call >= 0)
            time[called] = calls.start_ns[call[called]]
        at = low + np.searchsorted(found.start_ns[low:high], time, "right") - 1
        inside = np.flatnonzero((at >= low) & (time < found.end_ns[at]))
        step_of[rows[inside]] = at[inside]
    return _by_step(step_of, gpu.by_start, lanes)


def _of_ranges(context: Context, found: Steps, lanes: Lanes) -> tuple[Int64, Int64]:
    """Return what `Context.operation_pairs` has of the steps' ranges, without making the pairs of all others."""
    step, stretches = _stretches(context, found)
    events = context.attribution.links.events
    where = slices(stretches, events)
    event = spread(where.first, where.number)
    step = np.repeat(step, where.number)
    if not where.whole.all():
        inside = np.flatnonzero(events.end_ns[event] <= np.repeat(stretches.end_ns, where.number))
        event, step = event[inside], step[inside]
    operation = events.item[event]
    step_of = np.full(events.items, -1, np.int64)
    step_of[operation] = step
    if (step_of[operation] == step).all():
        return _by_step(step_of, events.order, lanes)
    # Steps lie inside one another, so that an operation may be of several.
    rank = np.empty(events.items, np.int64)
    rank[events.order] = np.arange(events.items)
    step, place = distinct_pairs(step, rank[operation], events.items)
    return step, events.order[place]


def _by_step(step_of: Int64, by_start: Int64, lanes: Lanes) -> tuple[Int64, Int64]:
    """Return pairs (step, operation) by step and start, given the step of each operation; -1 for none."""
    # Steps come by lane and start as well, so that nothing is left to sort where all of one precede all of the next.
    for order in (lanes.order, by_start) if len(lanes.order) == len(by_start) else (by_start,):
        step = step_of[order]
        some = np.flatnonzero(step >= 0)
        step, operation = step[some], order[some]
        if (step[1:] >= step[:-1]).all():
            return step, operation
    # Sorting one number for both is several times faster than sorting an order.
    step, place = distinct_pairs(step, np.arange(len(step)), len(step))
    return step, operation[place]


def _lane_of_stream(context: Context, found: Steps) -> Int64:
    """Return the lane of the steps that the operations of each stream are in; -1 for none."""
    streams = streams_of(context)
    lane = np.full(len(streams), -1, np.int64)
    for i in range(len(found.process)):
        here = streams.process == found.process[i]
        lane[here & (streams.device == found.device[i]) if found.kind == BOUNDARY else here] = i
    return lane


def _stretches(context: Context, found: Steps) -> tuple[Int64, Stretches]:
    """Return where on which thread the ranges that are steps ran, and the step of each such stretch."""
    stretches = context.found.stretches
    step_of = np.full(len(context.found), -1, np.int64)
    step_of[found.instance] = np.arange(len(found))
    step = step_of[stretches.owner]
    here = step >= 0
    ours = Stretches(stretches.owner[here], stretches.thread[here], stretches.start_ns[here], stretches.end_ns[here])
    return step[here], ours


def _added(step: Int64, start_ns: Int64, end_ns: Int64) -> Int64:
    """Return the ns by which each operation makes the union of those before it in its step longer.

    Operations stand by step and start. The times of each step are put after those of all steps before, so that one
    running maximum of the ends serves all of them. The arrays given are used up.
    """
    if not len(step):
        return np.empty(0, np.int64)
    low, high = int(start_ns.min()), int(end_ns.max())
    if (high - low + 1) * (int(step[-1]) + 1) > 2**62:
        parts = np.split(np.arange(len(step)), np.flatnonzero(np.diff(step)) + 1)
        return np.concatenate([_added_in_order(start_ns[rows], end_ns[rows]) for rows in parts])
    later = step * (high - low + 1)
    later -= low
    start_ns += later
    end_ns += later
    return _added_in_order(start_ns, end_ns)


def _added_in_order(start: Int64, end: Int64) -> Int64:
    latest = np.maximum.accumulate(end)
    np.maximum(start[1:], latest[:-1], out=start[1:])
    added = np.subtract(end, start, out=latest)
    return np.maximum(added, 0, out=added)


def columns_of(context: Context, found: Steps, work: Work) -> dict[str, NDArray[Any]]:
    """Return what each step took; what the trace can't tell is absent."""
    trace, gpu = context.trace, context.gpu
    wall = found.end_ns - found.start_ns
    has_gpu = np.full(len(found), len(gpu) > 0)
    steps, operations = len(found), np.diff(work.bounds)
    # The kernels, which stand first among the operations, are what is left when all else is counted.
    other = np.flatnonzero(work.operation >= len(trace.kernels))
    kind = gpu.kind[work.operation[other]]
    idle = wall - _occupied(context, found, work)
    columns: dict[str, NDArray[Any]] = {
        "start_ns": found.start_ns,
        "end_ns": found.end_ns,
        "wall_ns": wall,
        "gpu_busy_ns": work.total(work.added_ns),
        "gpu_sum_ns": work.total((gpu.end_ns - gpu.start_ns)[work.operation]),
        "operations": operations,
        "kernels": operations - np.bincount(work.step[other], minlength=steps),
        "graph_launches": np.bincount(work.step[other[kind == GRAPH]], minlength=steps),
        "copy_ns": _union_of(context, work, other[kind == COPY]),
        "nccl_ns": _union_of(context, work, _nccl(context, work)),
        "idle_ns": idle,
    }
    for name in list(columns)[3:]:
        columns[name] = integers(columns[name], has_gpu)
    has_calls = np.full(len(found), len(trace.calls) > 0)
    return {
        **columns,
        "utilisation_share": np.where(has_gpu, ratios(wall - idle, wall), np.nan),
        "launch_ns": integers(_launching(context, found), has_calls & has_gpu),
        "sync_ns": integers(_waiting(context, found), has_calls),
        "allocations": _allocating(context, found),
    }


def _occupied(context: Context, found: Steps, work: Work) -> Int64:
    """Return for how long of each step any operation of its process (and device) ran, whichever step it is of."""
    busy = union(context.gpu.start_ns, context.gpu.end_ns, work.lanes)
    return covered_ns(busy, found.lane, found.start_ns, found.end_ns)


def _nccl(context: Context, work: Work) -> Int64:
    """Return the pairs whose operation is a kernel of NCCL."""
    kernels = nccl_kernels(context)
    if not len(kernels):
        return kernels
    is_nccl = np.zeros(len(context.gpu), np.bool_)
    is_nccl[kernels] = True
    return np.flatnonzero(is_nccl[work.operation])


def _union_of(context: Context, work: Work, pairs: Int64) -> Int64:
    """Return the union of those of the steps' operations that count, by step."""
    step, operation = work.step[pairs], work.operation[pairs]
    added = _added(step, context.gpu.start_ns[operation], context.gpu.end_ns[operation])
    return totals(step, added, len(work.bounds) - 1)


def _launching(context: Context, found: Steps) -> Int64:
    """Return for how long of each step a thread of its process was in a launch call for its process (and device)."""
    calls, launched = context.launched.calls, context.launched
    leading = np.flatnonzero(launched.leads)
    lane = _lane_of_stream(context, found)[streams_of(context).of_operation[leading]]
    call = launched.call_of[leading]
    start, end = calls.start_ns[call], calls.end_ns[call]
    busy = union(start, end, lanes_of(lane, len(found.process), np.argsort(start, kind="stable")))
    return covered_ns(busy, found.lane, found.start_ns, found.end_ns)


def _waiting(context: Context, found: Steps) -> Int64:
    """Return for how long of each step a thread of its process was in a call that waits for the GPU."""
    calls = context.trace.calls
    waiting = calls_like(context, SYNCHRONISING)
    process = _process_of_call(context, waiting)
    waits = np.zeros(len(found), np.int64)
    for one in distinct(process).tolist():
        call = waiting[process == one]
        busy = merged(calls.start_ns[call], calls.end_ns[call])
        rows = np.flatnonzero(found.process[found.lane] == one)
        waits[rows] = covered_ns(busy, np.zeros(len(rows), np.int64), found.start_ns[rows], found.end_ns[rows])
    return waits


def _allocating(context: Context, found: Steps) -> Int64:
    """Return how many calls that allocate or release memory began in each step, on any thread of its process.

    NULL where the trace holds no API calls.
    """
    calls = context.trace.calls
    allocating = calls_like(context, ALLOCATING)
    process = _process_of_call(context, allocating)
    number = np.full(len(found), NULL if not len(calls) else 0, np.int64)
    for one in distinct(process).tolist():
        times = calls.start_ns[allocating[process == one]]
        rows = np.flatnonzero(found.process[found.lane] == one)
        before = np.searchsorted(times, found.start_ns[rows], "left")
        number[rows] = np.maximum(0, np.searchsorted(times, found.end_ns[rows], "left") - before)
    return number


def _process_of_call(context: Context, calls: Int64) -> Int64:
    trace = context.trace
    return np.array([thread.process for thread in trace.threads], np.int64)[trace.calls.thread[calls]]
