"""What each step did: its operations, and what they and its thread took. `step_detection` says where the steps are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traceable.analysis.context import Context
from traceable.analysis.enclosure import slices, spread
from traceable.analysis.instances import Stretches
from traceable.analysis.intervals import Union, covered_ns, lanes_of, union
from traceable.analysis.naming import ALLOCATING, NCCL, SYNCHRONISING, names_like
from traceable.analysis.operations import COPY, GRAPH, KERNEL
from traceable.analysis.statistics import totals
from traceable.analysis.step_detection import BOUNDARY, CYCLE, RANGE, Steps
from traceable.analysis.table import integers, ratios
from traceable.trace.model import Bool, Int64


@dataclass(frozen=True)
class Work:
    """The operations of the steps, as pairs by step and start.

    Attributes:
        step, operation: index of the step, and into the operations of the trace.
        bounds: the pairs of step i are those from `bounds[i]` until `bounds[i + 1]`.
        added_ns: by how much the operation makes the union of those before it in its step longer: what a step was busy
            is the sum of it, however its operations are grouped.
        waits: when each thread was in a call that waits for the GPU; its lanes are the threads.
    """

    step: Int64
    operation: Int64
    bounds: Int64
    added_ns: Int64
    waits: Union

    def total(self, values: Int64 | Bool) -> Int64:
        """Return the sum of one value a pair, by step."""
        until = np.concatenate([[0], np.cumsum(values, dtype=np.int64)])
        return np.diff(until[self.bounds])


def work_of(context: Context, found: Steps) -> Work:
    """Return the operations of each step."""
    step, operation = members(context, found)
    bounds = np.concatenate([[0], np.cumsum(np.bincount(step, minlength=len(found)))])
    added = _added(step, context.gpu.start_ns[operation], context.gpu.end_ns[operation])
    return Work(step, operation, bounds, added, _waits_by_thread(context))


def members(context: Context, found: Steps) -> tuple[Int64, Int64]:
    """Return pairs (step, operation), by step and start of the operation."""
    gpu = context.gpu
    if found.kind == RANGE:
        return _of_ranges(context, found)
    time = gpu.start_ns.copy()
    if found.kind == CYCLE:
        called = context.launched.call_of >= 0
        time[called] = context.trace.calls.start_ns[context.launched.call_of[called]]
    step = np.full(len(gpu), -1, np.int64)
    for lane in range(len(found.process)):
        here = gpu.process == found.process[lane]
        if found.kind == BOUNDARY:
            here &= gpu.device == found.device[lane]
        low, high = np.searchsorted(found.lane, [lane, lane + 1])
        rows = np.flatnonzero(here)
        at = low + np.searchsorted(found.start_ns[low:high], time[rows], "right") - 1
        inside = (at >= low) & (time[rows] < found.end_ns[at])
        step[rows[inside]] = at[inside]
    operation = gpu.by_start[step[gpu.by_start] >= 0]
    step = step[operation]
    by_step = np.argsort(step.astype(np.int16) if len(found) < 1 << 15 else step, kind="stable")
    return step[by_step], operation[by_step]


def _of_ranges(context: Context, found: Steps) -> tuple[Int64, Int64]:
    """Return what `Context.operation_pairs` has of the steps' ranges, without making the pairs of all others."""
    step, stretches = _stretches(context, found)
    events = context.attribution.links.events
    where = slices(stretches, events)
    event = spread(where.first, where.number)
    inside = events.end_ns[event] <= np.repeat(stretches.end_ns, where.number)
    rank = np.empty(events.items, np.int64)
    rank[events.order] = np.arange(events.items)
    key = np.repeat(step, where.number)[inside] * max(1, events.items) + rank[events.item[event[inside]]]
    key.sort()
    key = key[np.diff(key, prepend=-1) > 0]
    step = key // max(1, events.items)
    return step, events.order[key - step * events.items]


def _stretches(context: Context, found: Steps) -> tuple[Int64, Stretches]:
    """Return where on which thread the steps ran, and the step of each such stretch."""
    if found.kind != RANGE:
        step = np.flatnonzero(found.thread >= 0)
        thread = found.thread[step].astype(np.int32)
        return step, Stretches(step, thread, found.start_ns[step], found.end_ns[step])
    stretches = context.found.stretches
    step_of = np.full(len(context.found), -1, np.int64)
    step_of[found.instance] = np.arange(len(found))
    step = step_of[stretches.owner]
    here = step >= 0
    ours = Stretches(stretches.owner[here], stretches.thread[here], stretches.start_ns[here], stretches.end_ns[here])
    return step[here], ours


def _added(step: Int64, start_ns: Int64, end_ns: Int64) -> Int64:
    """Return the ns by which each operation makes the union of those before it in its step longer.

    Operations stand by step and start. Times count from the first start of their step; to that comes the length of all
    steps before, so that one running maximum of the ends serves all of them.
    """
    if not len(step):
        return np.empty(0, np.int64)
    first = np.flatnonzero(np.diff(step, prepend=-1))
    number = np.diff(np.append(first, len(step)))
    start = start_ns - np.repeat(start_ns[first], number)
    end = end_ns - np.repeat(start_ns[first], number)
    length = np.maximum.reduceat(end, first) + 1
    if float(length.sum(dtype=np.float64)) > 2**62:
        parts = np.split(np.arange(len(step)), first[1:])
        return np.concatenate([_added_in_one(start[rows], end[rows]) for rows in parts])
    before = np.repeat(np.cumsum(length) - length, number)
    latest = np.maximum.accumulate(before + end)
    covered = np.concatenate([[0], latest[:-1]]) - before
    added: Int64 = np.maximum(0, end - np.maximum(start, covered))
    return added


def _added_in_one(start: Int64, end: Int64) -> Int64:
    latest = np.concatenate([start[:1], np.maximum.accumulate(end)[:-1]])
    added: Int64 = np.maximum(0, end - np.maximum(start, latest))
    return added


def columns_of(context: Context, found: Steps, work: Work) -> dict[str, NDArray[Any]]:
    """Return what each step took; what the trace can't tell is absent."""
    trace, gpu = context.trace, context.gpu
    wall = found.end_ns - found.start_ns
    has_gpu = np.full(len(found), len(gpu) > 0)
    kind = gpu.kind[work.operation]
    nccl = np.zeros(len(gpu), np.bool_)
    nccl[: len(trace.kernels)] = names_like(trace, NCCL, trace.kernels.name)[trace.kernels.name]
    idle = wall - _occupied(context, found)
    columns: dict[str, NDArray[Any]] = {
        "start_ns": found.start_ns,
        "end_ns": found.end_ns,
        "wall_ns": wall,
        "gpu_busy_ns": work.total(work.added_ns),
        "gpu_sum_ns": work.total((gpu.end_ns - gpu.start_ns)[work.operation]),
        "operations": np.diff(work.bounds),
        "kernels": work.total(kind == KERNEL),
        "graph_launches": work.total(kind == GRAPH),
        "copy_ns": _union_of(context, work, kind == COPY),
        "nccl_ns": _union_of(context, work, nccl[work.operation]),
        "idle_ns": idle,
    }
    for name in list(columns)[3:]:
        columns[name] = integers(columns[name], has_gpu)
    has_calls = np.full(len(found), len(trace.calls) > 0)
    blocked, allocations, known = _on_the_thread(context, found, work.waits)
    return {
        **columns,
        "utilisation_share": np.where(has_gpu, ratios(wall - idle, wall), np.nan),
        "launch_ns": integers(_launching(context, work), has_calls & has_gpu),
        "sync_ns": integers(blocked, has_calls & known),
        "allocations": integers(allocations, has_calls & known),
    }


def _occupied(context: Context, found: Steps) -> Int64:
    """Return for how long of each step any operation of its process (and device) ran, whichever step it is of."""
    gpu = context.gpu
    lane = np.full(len(gpu), -1, np.int64)
    for i in range(len(found.process)):
        here = gpu.process == found.process[i]
        lane[here & (gpu.device == found.device[i]) if found.kind == BOUNDARY else here] = i
    busy = union(gpu.start_ns, gpu.end_ns, lanes_of(lane, len(found.process), gpu.by_start))
    return covered_ns(busy, found.lane, found.start_ns, found.end_ns)


def _union_of(context: Context, work: Work, which: Bool) -> Int64:
    """Return the union of those of the steps' operations that count, by step."""
    step, operation = work.step[which], work.operation[which]
    added = _added(step, context.gpu.start_ns[operation], context.gpu.end_ns[operation])
    return totals(step, added, len(work.bounds) - 1)


def _launching(context: Context, work: Work) -> Int64:
    """Return the summed time of the launch calls of each step; a call counts where the operation that leads it does."""
    call = context.launched.call_of[work.operation]
    counts = context.launched.leads[work.operation] & (call >= 0)
    calls = context.trace.calls
    time = np.zeros(len(call), np.int64)
    time[counts] = calls.end_ns[call[counts]] - calls.start_ns[call[counts]]
    return work.total(time)


def _on_the_thread(context: Context, found: Steps, waits: Union) -> tuple[Int64, Int64, Bool]:
    """Return how long the thread of each step was blocked in synchronising calls, how many calls that allocate began
    on it, and whether there is a thread to know it of.
    """
    trace = context.trace
    step, stretches = _stretches(context, found)
    thread, start, end = stretches.thread.astype(np.int64), stretches.start_ns, stretches.end_ns
    blocked, begun = np.zeros(len(found), np.int64), np.zeros(len(found), np.int64)
    np.add.at(blocked, step, covered_ns(waits, thread, start, end))
    calls = trace.calls
    allocating = np.flatnonzero(names_like(trace, ALLOCATING, calls.name)[calls.name])
    for one in np.unique(calls.thread[allocating]).tolist():
        times = calls.start_ns[allocating[calls.thread[allocating] == one]]
        rows = np.flatnonzero(thread == one)
        before = np.searchsorted(times, start[rows], "left")
        np.add.at(begun, step[rows], np.maximum(0, np.searchsorted(times, end[rows], "left") - before))
    known = np.zeros(len(found), np.bool_)
    known[step] = True
    return blocked, begun, known


def _waits_by_thread(context: Context) -> Union:
    trace, calls = context.trace, context.trace.calls
    waiting = np.flatnonzero(names_like(trace, SYNCHRONISING, calls.name)[calls.name])
    lanes = lanes_of(calls.thread.astype(np.int64), len(trace.threads), waiting)
    return union(calls.start_ns, calls.end_ns, lanes)
