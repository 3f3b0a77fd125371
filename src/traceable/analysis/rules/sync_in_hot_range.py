"""Findings about a host that waits: synchronisation inside hot ranges, and allocation in the steady state.

docs/findings.md explains each bound.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from traceable.analysis.context import Context
from traceable.analysis.enclosure import spread
from traceable.analysis.gpus import timelines
from traceable.analysis.grouping import numbered
from traceable.analysis.intervals import Union, merged
from traceable.analysis.named import call_name, operation_labels, operation_name
from traceable.analysis.naming import ALLOCATING, COPYING
from traceable.analysis.rules.evidence import Evidence, Finding, Rule, Threshold, Values, merged_ns, share_of
from traceable.analysis.rules.loads import Loads
from traceable.analysis.rules.words import listed, named
from traceable.analysis.shared import calls_like
from traceable.analysis.statistics import totals
from traceable.analysis.sync import Waits, waited_for, waiting_calls
from traceable.analysis.units import count, share, time
from traceable.analysis.unrecorded import unrecorded
from traceable.errors import UnanswerableError
from traceable.trace.model import Bool, Int64, NDArray
from traceable.trace.rows import distinct


def sync_in_hot_range(evidence: Evidence, values: Values) -> list[Finding]:
    """Return in which ranges waits for the GPU take much of a range that takes much of the time.

    A range is hot if its instances last `hot` of the time or longer in all. It is reported if the waits in which it is
    the innermost range take `wait` of that time or more. What waits is the same as for `sync`; copies from or to
    pageable memory that do not recur (`Loads`) are left out.

    won_ns: the bound of `winnable_ns` for these waits.
    """
    evidence.need_calls()
    evidence.need_ranges()
    context = evidence.context
    waits = waiting_calls(context)
    if not len(waits):
        return []
    cpu_ns = _lasting_ns(evidence)
    label = evidence.labels.of_instance[context.innermost_around_calls(waits.call)]
    loads = Loads(evidence)
    found = []
    for one in distinct(label[label >= 0]).tolist():
        mine = np.flatnonzero(label == one)
        mine = mine[~loads.one_off(waits.own[mine])]
        waited = int(evidence.inside_ns(waits.start_ns[mine], waits.end_ns[mine]).sum())
        cpu = int(cpu_ns[one])
        if waited and waited >= values["wait"] * cpu and cpu >= values["hot"] * evidence.window_ns:
            found.append(_waiting(evidence, one, waits.take(mine), waited, cpu))
    return found


def _waiting(evidence: Evidence, label: int, waits: Waits, waited: int, cpu: int) -> Finding:
    names, calls = evidence.context.trace.names, evidence.context.trace.calls
    name, domain = evidence.labels.names[label]
    inside = evidence.inside_ns(waits.start_ns, waits.end_ns)
    some = inside > 0
    by_call: dict[str, int] = {}
    for index, ns in zip(calls.name[waits.call[some]].tolist(), inside[some].tolist(), strict=True):
        by_call[call_name(names[index])] = by_call.get(call_name(names[index]), 0) + ns
    most = sorted(by_call, key=lambda call: (-by_call[call], call))
    won, idle = winnable_ns(evidence, calls.thread[waits.call], waits.start_ns, waits.end_ns)
    operation, of_range = _longest_operation(evidence, waits.take(some))
    if operation is None:
        whom = "none of the operations that they wait for ran meanwhile"
    else:
        whom = f"mostly for {named(operation)}" + (f" of {named(of_range)}" if of_range is not None else "")
    return Finding(
        sentence=(
            f"{named(name)}: {count(int(some.sum()), 'wait')} in {listed(most[:3])} {_take(some)} {time(waited)}, "
            f"{share(waited / max(1, cpu))} of the range's time, {whom}; from these waits to the next ones the GPU is "
            f"idle {time(idle)} with no work queued"
        ),
        advice=_instead(most[0], operation),
        won_ns=won,
        total_ns=int((waits.end_ns - waits.start_ns).sum()),
        before_steady_ns=evidence.before_steady(int(evidence.before_ns(waits.start_ns, waits.end_ns).sum())),
        range=name,
        domain=domain,
        call=most[0],
        count=int(some.sum()),
    )


def _take(some: Bool) -> str:
    return "takes" if np.count_nonzero(some) == 1 else "take"


def _lasting_ns(evidence: Evidence) -> Int64:
    """Return how long the instances of each range last in all, by its number in `Labels`."""
    found, labels = evidence.context.found, evidence.labels
    real = np.flatnonzero(found.entered)
    lasting = evidence.inside_ns(found.start_ns[real], found.end_ns[real])
    return totals(labels.of_instance[real], lasting, len(labels.names))


def _longest_operation(evidence: Evidence, waits: Waits) -> tuple[str | None, str | None]:
    """Return the name of the operation that these waits were longest for, and its range; None where nothing ran."""
    context, labels = evidence.context, evidence.labels
    pieces = waited_for(context, waits)
    if not len(pieces.operation):
        return None, None
    name = operation_labels(context, pieces.operation)
    label = labels.of_instance[context.innermost[pieces.operation]]
    group, first = numbered(label, name)
    most = first[int(totals(group, pieces.ns, len(first)).argmax())]
    return operation_name(context.trace, int(name[most])), labels.names[label[most]][0]


def _instead(call: str, operation: str | None) -> str:
    if COPYING.match(call):
        return "copy from and to pinned memory, asynchronously, and wait only where the data is used"
    if operation is None:
        return "remove the wait: what it waits for is over by then"
    return "remove the wait, or wait later: an event, or the result one step later, lets the host run ahead"


# -- the bound


def winnable_ns(evidence: Evidence, thread: NDArray[np.integer], start_ns: Int64, end_ns: Int64) -> tuple[int, int]:
    """Return how much wall time can be saved at most if some calls took no time, in the part that bounds are of.

    Without a call its thread goes on that much earlier. That saves time only where the GPU then gets work that it is
    idle for, and only until the thread waits for the GPU again: from there on the two are in step as before. So the
    saving is at most

    - the time in which any of the calls lasted,
    - the time in which a GPU of the process was idle for want of work between the begin of any of the calls and the
      end of the next wait of its thread (`blocking.waiting_calls`), or the end of the recording where none follows.
      Idle time at which an operation of the process had been launched for that GPU and had not begun counts for the
      moment of that launch (of several operations the earliest): what was launched before a call does not wait for it,
    - what the GPU leaves (`Evidence.room_ns`).

    Times are unions: overlapping calls, GPUs and processes count once. It is a bound as long as an operation that was
    launched later does not run in the place of one that was launched before.

    Args:
        thread: of each call, an index into `Trace.threads`.
        start_ns, end_ns: when it lasted.

    Returns:
        The bound in ns, and the second of the three times.
    """
    trace = evidence.context.trace
    process = np.array([one.process for one in trace.threads], np.int64)[thread]
    until = _next_wait_ns(evidence.context, thread, start_ns)
    starts, ends = [start_ns[:0]], [start_ns[:0]]
    processes = distinct(process).tolist()
    for one in processes:
        mine = process == one
        period = merged(start_ns[mine], until[mine])
        for lane, users in enumerate(evidence.used.processes):
            if one in users:
                idle = _idle(evidence, one, lane)
                _, free_start, free_end = _shared(idle.start_ns, np.minimum(idle.end_ns, idle.launched_ns), period)
                queued = np.flatnonzero(idle.launched_ns < idle.end_ns)
                caused = queued[_contains(period, idle.launched_ns[queued])]
                starts += [free_start, np.maximum(idle.start_ns[caused], idle.launched_ns[caused])]
                ends += [free_end, idle.end_ns[caused]]
    idle_ns = evidence.any_ns(np.concatenate(starts), np.concatenate(ends))
    room = max((evidence.room_ns(one) for one in processes), default=0)
    return max(0, min(evidence.any_ns(start_ns, end_ns), idle_ns, room)), idle_ns


@dataclass(frozen=True)
class _Idle:
    """When a GPU was idle, and from when on work of one process was queued for it, as equally long columns.

    Attributes:
        start_ns, end_ns: of the idle time.
        launched_ns: the earliest begin of a launch call of the operations of the process that begin on the GPU after
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
    when, first, last = timelines(evidence.context), *evidence.extent_ns
    mine = when.gaps.lane == lane
    start = np.concatenate([[first], when.gaps.start_ns[mine], when.last_ns[lane : lane + 1]])
    end = np.concatenate([when.first_ns[lane : lane + 1], when.gaps.end_ns[mine], [last]])
    own = gpu.by_start[((evidence.gpu_of_operation == lane) & (gpu.process == process))[gpu.by_start]]
    call = evidence.context.launched.call_of[own]
    never = np.iinfo(np.int64).max
    begun = np.full(len(own), never)
    begun[call >= 0] = evidence.context.launched.calls.start_ns[call[call >= 0]]
    earliest = np.append(np.minimum.accumulate(begun[::-1])[::-1], never)
    launched = earliest[np.searchsorted(gpu.start_ns[own], end, "left")]
    closed, opened = unrecorded(trace)
    recorded = merged(np.append(first, opened), np.append(closed, last))
    row, start, end = _shared(start, end, recorded)
    return _Idle(start, end, launched[row])


def _next_wait_ns(context: Context, thread: NDArray[np.integer], start_ns: Int64) -> Int64:
    """Return when the first wait ends that a thread begins after each of these times; the largest int64 for none."""
    waits = waiting_calls(context)
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
    """Return what intervals share with those of a union of one lane: the rows of the intervals, starts and ends."""
    first = np.searchsorted(within.end_ns, start_ns, "right")
    number = np.maximum(0, np.searchsorted(within.start_ns, end_ns, "left") - first)
    number[end_ns <= start_ns] = 0
    row, other = np.repeat(np.arange(len(start_ns)), number), spread(first, number)
    return row, np.maximum(start_ns[row], within.start_ns[other]), np.minimum(end_ns[row], within.end_ns[other])


def _contains(within: Union, at_ns: Int64) -> Bool:
    """Return which times lie in a union of one lane, the ends of its intervals not included."""
    if not len(within.start_ns):
        return np.zeros(len(at_ns), np.bool_)
    last = np.searchsorted(within.start_ns, at_ns, "right") - 1
    found: Bool = (last >= 0) & (at_ns < within.end_ns[np.maximum(last, 0)])
    return found


# -- allocation


def allocation_in_steady_state(evidence: Evidence, values: Values) -> list[Finding]:
    """Return which processes allocate or release memory in the steps after the warm-up.

    Calls that allocate or release memory and begin during a steady step of their process, on whichever of its threads;
    `per_step` of them a steady step, or more. What steps are and which are steady is the question of steps.

    won_ns: the bound of `winnable_ns` for these calls.
    """
    evidence.need_calls()
    trace, calls = evidence.context.trace, evidence.context.trace.calls
    allocating = calls_like(evidence.context, ALLOCATING)
    if not len(allocating):
        return []
    steps = evidence.steps.values
    steady = steps["steady"]
    if not steady.any():
        raise UnanswerableError("no_steady_step", "no step is in the steady state", "record more steps")
    pid = np.array([trace.processes[thread.process].pid for thread in trace.threads], np.int64)
    of_call = pid[calls.thread[allocating]]
    found = []
    for one in distinct(steps["pid"][steady]).tolist():
        mine = steady & (steps["pid"] == one)
        inside = _contains(merged(steps["start_ns"][mine], steps["end_ns"][mine]), calls.start_ns[allocating])
        call, number = allocating[inside & (of_call == one)], int(mine.sum())
        if len(call) and len(call) >= values["per_step"] * number:
            found.append(_allocation(evidence, one, call, number))
    return found


def _allocation(evidence: Evidence, pid: int, call: Int64, steps: int) -> Finding:
    trace, calls = evidence.context.trace, evidence.context.trace.calls
    start, end = calls.start_ns[call], calls.end_ns[call]
    took = merged_ns(start, end)
    name, first = numbered(calls.name[call])
    total = totals(name, end - start, len(first))
    order = np.argsort(-total, kind="stable")
    names = [call_name(trace.names[calls.name[call[first[i]]]]) for i in order.tolist()]
    often = np.bincount(name)[order].tolist()
    label = evidence.labels.of_instance[evidence.context.innermost_around_calls(call)]
    around, of_range = numbered(label)
    most = int(totals(around, end - start, len(of_range)).argmax())
    range_name, domain = evidence.labels.names[label[of_range[most]]]
    which = listed([f"{count(number)} of {one}" for one, number in list(zip(names, often, strict=True))[:3]])
    where = f", most of it in {named(range_name)}" if range_name is not None else ""
    return Finding(
        sentence=(
            f"process {pid} allocates or releases memory {count(len(call), 'time')} in "
            f"{count(steps, 'steady step')}, {len(call) / steps:.3g} a step ({which}), which takes {time(took)}{where}"
        ),
        advice="allocate before the steps and reuse it, or use a caching allocator",
        won_ns=winnable_ns(evidence, calls.thread[call], start, end)[0],
        range=range_name,
        domain=domain,
        pid=pid,
        call=names[0],
        count=len(call),
        start_ns=int(start.min()),
        end_ns=int(end.max()),
    )


SYNC_IN_HOT_RANGE = Rule(
    "sync_in_hot_range",
    "waits for the GPU inside ranges that take much of the time",
    (
        Threshold("hot", 0.1, "share", "a range is hot from this share of the time on"),
        Threshold("wait", 0.1, "share", "least share of the range's time that is waited"),
        share_of(0.005),
    ),
    sync_in_hot_range,
)

ALLOCATION_IN_STEADY_STATE = Rule(
    "allocation_in_steady_state",
    "memory allocated or released in steps after the warm-up",
    (
        Threshold("per_step", 1, "count", "fewest such calls a steady step"),
        share_of(0.001),
    ),
    allocation_in_steady_state,
)
