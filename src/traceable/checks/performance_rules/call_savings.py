"""How much wall time can be saved at most if some calls took no time. docs/findings.md explains the bound."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from traceable.analysis.context import Context
from traceable.analysis.gpus import compute_timelines
from traceable.analysis.intervals import Union, contains, merge_intervals
from traceable.analysis.sync import find_waiting_calls
from traceable.trace.model import Int64, NDArray, distinct, expand_slices

TYPE_CHECKING = False
if TYPE_CHECKING:
    from traceable.checks.performance_rules.evidence import Evidence


def max_saving_ns(evidence: Evidence, thread: NDArray[np.integer], start_ns: Int64, end_ns: Int64) -> tuple[int, int]:
    """Return how much wall time can be saved at most if some calls took no time, in the scope.

    Without a call its thread goes on that much earlier. That saves time only where the GPU then gets work that it is
    idle for, and only until the thread waits for the GPU again: from there on the two are in step as before. So the
    saving is at most

    - the time in which any of the calls lasted,
    - the time in which a GPU of the process was idle without work between the start of any of the calls and the
      end of the next wait of its thread (`sync.find_waiting_calls`), or the end of the recording where none follows.
      Idle time at which an operation of the process had been launched for that GPU and had not begun counts for the
      moment of that launch (of several operations the earliest): an operation launched before a call does not
      wait for it,
    - the host's maximum saving (`Evidence.max_host_saving_ns`).

    Times are unions: overlapping calls, GPUs and processes count once. It is a bound as long as an operation that was
    launched later does not run in the place of one that was launched before.

    Args:
        thread: of each call, an index into `Trace.threads`.
        start_ns, end_ns: when it lasted.

    Returns:
        The bound in ns, and the second of the three times.
    """
    process = evidence.process_of_thread[thread]
    until = _next_wait_ns(evidence.context, thread, start_ns)
    starts, ends = [start_ns[:0]], [start_ns[:0]]
    processes = distinct(process).tolist()
    for one in processes:
        mine = process == one
        period = merge_intervals(start_ns[mine], until[mine])
        for lane, users in enumerate(evidence.active_gpus.processes):
            if one in users:
                idle = _idle(evidence, one, lane)
                _, free_start, free_end = _shared(idle.start_ns, np.minimum(idle.end_ns, idle.launched_ns), period)
                queued = np.flatnonzero(idle.launched_ns < idle.end_ns)
                caused = queued[contains(period, idle.launched_ns[queued])]
                starts += [free_start, np.maximum(idle.start_ns[caused], idle.launched_ns[caused])]
                ends += [free_end, idle.end_ns[caused]]
    idle_ns = evidence.union_in_scope_ns(np.concatenate(starts), np.concatenate(ends))
    room = max((evidence.max_host_saving_ns(one) for one in processes), default=0)
    return max(0, min(evidence.union_in_scope_ns(start_ns, end_ns), idle_ns, room)), idle_ns


@dataclass(frozen=True)
class _Idle:
    """When a GPU was idle, and from when on work of one process was queued for it, as equally long columns.

    Attributes:
        start_ns, end_ns: of the idle time.
        launched_ns: the earliest start of a launch call of the operations of the process that start on the GPU after
            that; the largest int64 where there is none.
    """

    start_ns: Int64
    end_ns: Int64
    launched_ns: Int64


def _idle(evidence: Evidence, process: int, lane: int) -> _Idle:
    """Return when a GPU was idle, from the first event of the recording to the end of its last.

    The time between windows is left out: nothing is known of it.
    """
    trace, gpu = evidence.context.trace, evidence.context.gpu
    when, first, last = compute_timelines(evidence.context), *evidence.extent_ns
    mine = when.gaps.lane == lane
    start = np.concatenate([[first], when.gaps.start_ns[mine], when.last_ns[lane : lane + 1]])
    end = np.concatenate([when.first_ns[lane : lane + 1], when.gaps.end_ns[mine], [last]])
    own = gpu.by_start[((evidence.gpu_of_operation == lane) & (gpu.process == process))[gpu.by_start]]
    call = evidence.context.launches.call_of[own]
    never = np.iinfo(np.int64).max
    begun = np.full(len(own), never)
    begun[call >= 0] = evidence.context.launches.calls.start_ns[call[call >= 0]]
    earliest = np.append(np.minimum.accumulate(begun[::-1])[::-1], never)
    launched = earliest[np.searchsorted(gpu.start_ns[own], end, "left")]
    closed, opened = trace.windows.find_gaps()
    recorded = merge_intervals(np.append(first, opened), np.append(closed, last))
    row, start, end = _shared(start, end, recorded)
    return _Idle(start, end, launched[row])


def _next_wait_ns(context: Context, thread: NDArray[np.integer], start_ns: Int64) -> Int64:
    """Return when the first wait ends that a thread starts after each of these times; the largest int64 for none."""
    waits = find_waiting_calls(context)
    of_wait = context.trace.calls.thread[waits.call]
    until = np.full(len(thread), np.iinfo(np.int64).max)
    for one in distinct(thread).tolist():
        # The waits of a thread come by start.
        mine = of_wait == one
        rows = thread == one
        ends = np.append(waits.end_ns[mine], np.iinfo(np.int64).max)
        until[rows] = ends[np.searchsorted(waits.start_ns[mine], start_ns[rows], "right")]
    return until


def _shared(start_ns: Int64, end_ns: Int64, within: Union) -> tuple[Int64, Int64, Int64]:
    """Intersect intervals with those of a union of one lane: the rows of the intervals, starts and ends."""
    first = np.searchsorted(within.end_ns, start_ns, "right")
    number = np.maximum(0, np.searchsorted(within.start_ns, end_ns, "left") - first)
    number[end_ns <= start_ns] = 0
    row, other = np.repeat(np.arange(len(start_ns)), number), expand_slices(first, number)
    return row, np.maximum(start_ns[row], within.start_ns[other]), np.minimum(end_ns[row], within.end_ns[other])
