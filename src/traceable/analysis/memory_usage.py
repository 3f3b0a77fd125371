"""How much memory CUDA allocated: over time, at most, and inside which ranges. Needs `--cuda-memory-usage=true`.

A capture tells what was allocated and released while it ran, so usage is counted from 0 at its beginning. What a
release takes off is the size of the allocation of the same process and address that came last before it. A release
without one (the memory is older than the capture, or the address was not recorded) takes nothing off and is counted
apart. Where an address is allocated again without a release, the release was not seen: it counts as of that moment.
An allocation without an address stays; records that say neither allocation nor release are left out.
A caching allocator (that of torch) takes blocks from CUDA and keeps them: what is counted here is the blocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from traceable.analysis.context import Context
from traceable.analysis.enclosure import Reduction, pairs, sorted_events
from traceable.analysis.grouping import numbered
from traceable.analysis.matching import first_match
from traceable.analysis.named import range_columns, range_labels
from traceable.analysis.select import gpu_number
from traceable.analysis.statistics import totals
from traceable.analysis.table import Table, integers, objects
from traceable.errors import Message, UnanswerableError
from traceable.trace.model import NULL, Int64, NDArray, Trace

MEMORY_KINDS = ("pageable", "pinned", "device", "array", "managed", "device static", "managed static")
"""CUPTI's kinds of memory, by their number."""

_ALLOCATION, _RELEASE = 0, 1


@dataclass(frozen=True)
class _Steps:
    """How usage changed, as equally long columns, in order of time.

    Attributes:
        event: the record of `Trace.allocations` that changed it.
        group: of which process, GPU and kind of memory: that of the allocation.
        change, usage: by how many bytes, and the bytes of the group after it.
        group_of_event: the group of each record by what it says itself; first_of_group: a record of each group.
        gpu: nsys's number of the GPU of each record; negative where unknown.
    """

    event: Int64
    group: Int64
    change: Int64
    usage: Int64
    group_of_event: Int64
    first_of_group: Int64
    gpu: Int64

    @property
    def groups(self) -> int:
        return len(self.first_of_group)


def usage_over_time(context: Context) -> Table:
    """Return the memory that CUDA had allocated over time: one row a change.

    Raises:
        UnanswerableError: no allocation was recorded.
    """
    trace = context.trace
    if not len(trace.allocations):
        raise UnanswerableError(
            "memory_usage_not_recorded", "no device memory data in the trace", "record with --cuda-memory-usage=true"
        )
    steps = _steps(trace)
    call = _calls(trace)[steps.event]
    innermost = context.innermost_around_calls(call)
    return Table(
        {
            "time_ns": trace.allocations.start_ns[steps.event],
            **_identity(trace, steps, steps.group),
            "change_bytes": steps.change,
            "usage_bytes": steps.usage,
            **range_columns(trace, context.found, innermost),
        },
        notes=_notes(trace, steps),
    )


def usage(context: Context) -> Table | None:
    """Return the memory allocated by process, GPU and kind of memory, the highest peak first; None if not recorded."""
    trace = context.trace
    if not len(trace.allocations):
        return None
    steps = _steps(trace)
    groups = steps.groups
    some = np.bincount(steps.group, minlength=groups) > 0
    peak = np.zeros(groups, np.int64)
    np.maximum.at(peak, steps.group, steps.usage)
    at_peak = np.flatnonzero(steps.usage == peak[steps.group])[::-1]
    peak_at, end = np.full(groups, NULL, np.int64), np.full(groups, NULL, np.int64)
    peak_at[steps.group[at_peak]] = trace.allocations.start_ns[steps.event[at_peak]]
    end[steps.group] = steps.usage
    unmatched = _unmatched(trace, steps)
    begun = np.flatnonzero(trace.allocations.release == _ALLOCATION)
    number = np.bincount(steps.group_of_event[begun], minlength=groups)
    columns = {
        **_identity(trace, steps, np.arange(groups)),
        "peak_bytes": integers(peak, some),
        "peak_at_ns": peak_at,
        "end_bytes": end,
        "allocations": number,
        "allocated_bytes": totals(steps.group, np.maximum(steps.change, 0), groups),
        "releases": np.bincount(steps.group, minlength=groups) - number,
        "released_bytes": totals(steps.group, np.maximum(-steps.change, 0), groups),
        "unmatched_releases": np.bincount(steps.group_of_event[unmatched], minlength=groups),
    }
    order = np.argsort(-np.where(some, peak, -1), kind="stable")
    return Table(columns, notes=_notes(trace, steps)).take(order)


def usage_by_range(context: Context, *, range_name: str | None = None) -> Table:
    """Return the peak while a range was open, and what calls inside it allocated and released.

    One row a range (by domain and name), process, GPU and kind of memory, the highest peak first; only where memory
    was in use or was released. A range is open from its start to its end whatever thread it ends on; a call is inside
    if it is on the range's thread, and counts once for all ranges of one name around it.

    Raises:
        UnanswerableError: no range of that name.
    """
    trace, found = context.trace, context.found
    steps = _steps(trace)
    label, first_of_label = range_labels(found)
    labels, groups = len(first_of_label), steps.groups
    real = found.entered
    if range_name is not None:
        real &= context.instances_of(range_name)
    peak = np.zeros(labels * groups, np.int64)
    count = np.zeros(labels * groups, np.int64)
    process_of_thread = np.array([thread.process for thread in trace.threads], np.int64)
    process = process_of_thread[found.thread] if len(found) else np.empty(0, np.int64)
    for group, owner in enumerate(trace.allocations.process[steps.first_of_group].tolist()):
        here = np.flatnonzero(real & (process == owner))
        row = label[here] * groups + group
        np.add.at(count, row, 1)
        np.maximum.at(peak, row, _peaks(trace, steps, group, found.start_ns[here], found.end_ns[here]))
    step, of_label = _steps_inside(context, steps, label, real)
    row = of_label * groups + steps.group[step]
    change = steps.change[step]
    allocated = totals(row, np.maximum(change, 0), labels * groups)
    released = totals(row, np.maximum(-change, 0), labels * groups)
    rows = np.flatnonzero((peak > 0) | (np.bincount(row, minlength=labels * groups) > 0))
    columns = {
        **range_columns(trace, found, first_of_label[rows // groups] if groups else rows),
        **_identity(trace, steps, rows % max(1, groups)),
        "count": count[rows],
        "peak_bytes": peak[rows],
        "allocated_bytes": allocated[rows],
        "released_bytes": released[rows],
        "net_bytes": allocated[rows] - released[rows],
    }
    return Table(columns).take(np.argsort(-peak[rows], kind="stable"))


def _steps(trace: Trace) -> _Steps:
    events = trace.allocations
    gpu = gpu_number(trace, events.process, events.device)
    group, first_of_group = numbered(events.process, gpu, events.memory_kind)
    begins = np.flatnonzero(events.release == _ALLOCATION)
    ended, by = _ends(trace)
    event = np.concatenate([begins, by])
    change = np.concatenate([events.size_bytes[begins], -events.size_bytes[ended]])
    of_group = group[np.concatenate([begins, ended])]
    # What an allocation at the same address ends is gone before that allocation counts.
    order = np.argsort(2 * event + (np.arange(len(event)) < len(begins)), kind="stable")
    event, change, of_group = event[order], change[order], of_group[order]
    by_group = np.argsort(of_group, kind="stable")
    running = np.cumsum(change[by_group])
    sizes = np.bincount(of_group, minlength=len(first_of_group))
    before = np.concatenate([[0], running])[np.cumsum(sizes) - sizes]
    usage_after = np.empty(len(event), np.int64)
    usage_after[by_group] = running - np.repeat(before, sizes)
    return _Steps(event, of_group, change, usage_after, group, first_of_group, gpu)


def _ends(trace: Trace) -> tuple[Int64, Int64]:
    """Return the allocations that ended, and the record that ended each: the next at the address in its process."""
    events = trace.allocations
    told = np.flatnonzero((events.address != NULL) & (events.release >= 0))
    place = numbered(events.process[told], events.address[told])[0]
    order = np.argsort(place, kind="stable")
    by_place = told[order]
    follows = np.flatnonzero((np.diff(place[order]) == 0) & (events.release[by_place[:-1]] == _ALLOCATION))
    return by_place[follows], by_place[follows + 1]


def _unmatched(trace: Trace, steps: _Steps) -> Int64:
    releases = trace.allocations.release == _RELEASE
    releases[steps.event[steps.change <= 0]] = False
    return np.flatnonzero(releases)


def _calls(trace: Trace) -> Int64:
    """Return the API call that made each record, -1 for none."""
    calls, events = trace.calls, trace.allocations
    process_of_thread = np.array([thread.process for thread in trace.threads], np.int64)
    # Few calls allocate: what the others are called need not be matched.
    ids = events.correlation[events.correlation != NULL]
    some = np.flatnonzero(np.isin(calls.correlation, ids))
    process, correlation = process_of_thread[calls.thread[some]], calls.correlation[some]
    return np.append(some, -1)[first_match(events.process, events.correlation, process, correlation)]


def _steps_inside(context: Context, steps: _Steps, label: Int64, real: NDArray[np.bool_]) -> tuple[Int64, Int64]:
    """Return pairs of a step and the number of a range name around the call that made it, no pair twice."""
    trace = context.trace
    call = _calls(trace)[steps.event]
    made = np.flatnonzero(call >= 0)
    calls, at = context.launched.calls, call[made]
    every = np.arange(len(made))
    found = list(
        pairs(
            context.found.stretches, sorted_events(calls.thread[at], calls.start_ns[at], calls.end_ns[at], every, every)
        )
    )
    if not found:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    instance, item = (np.concatenate(part) for part in zip(*found, strict=True))
    instance, item = instance[real[instance]], item[real[instance]]
    once = numbered(label[instance], item)[1]
    return made[item[once]], label[instance[once]]


def _peaks(trace: Trace, steps: _Steps, group: int, start: Int64, end: Int64) -> Int64:
    """Return the highest usage of a group in each closed interval, that at its start included."""
    here = np.flatnonzero(steps.group == group)
    times = trace.allocations.start_ns[steps.event[here]]
    # A 0 before the first step, so that the last step before each start has an index.
    values = np.append(0, steps.usage[here])
    first = np.searchsorted(times, start, "left")
    return Reduction(first, np.searchsorted(times, end, "right") + 1 - first)(np.maximum, values, 0)


def _identity(trace: Trace, steps: _Steps, group: Int64) -> dict[str, NDArray[Any]]:
    first = steps.first_of_group[group]
    process = [trace.processes[p] if p >= 0 else None for p in trace.allocations.process[first].tolist()]
    gpu = steps.gpu[first]
    kinds = trace.allocations.memory_kind[first].tolist()
    return {
        "pid": np.array([one.pid if one else NULL for one in process], np.int64),
        "process": objects((one.name or None) if one else None for one in process),
        "device": integers(gpu, gpu >= 0),
        "memory_kind": objects(MEMORY_KINDS[kind] if 0 <= kind < len(MEMORY_KINDS) else None for kind in kinds),
    }


def _notes(trace: Trace, steps: _Steps) -> tuple[Message, ...]:
    notes = [
        Message(
            "memory_counted_from_capture",
            "memory usage counts from the beginning of the capture: what was allocated before is not in it",
        )
    ]
    unmatched = len(_unmatched(trace, steps))
    if unmatched:
        notes.append(
            Message(
                "allocations_not_recorded",
                f"{unmatched} releases are of memory whose allocation was not recorded: they take nothing off",
            )
        )
    unclear = int((trace.allocations.release < 0).sum())
    if unclear:
        notes.append(
            Message(
                "memory_records_unclear",
                f"{unclear} memory records say neither allocation nor release and are left out",
            )
        )
    return tuple(notes)
