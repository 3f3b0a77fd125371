"""The part of a trace that is asked about: of some processes, of some GPUs, of a time. Read before any question is.

A part is a trace like any other: the indices in it keep their meaning, times are not cut. What a GPU operation belongs
to is the same in the part as in the whole, so whatever that rests on stays, even from before the time asked about.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from decimal import ROUND_HALF_UP, Decimal
from fnmatch import fnmatchcase
from typing import TypeVar

import numpy as np

from traceable.errors import UnanswerableError, UsageError
from traceable.trace.emitted import ACTIVE_DOMAIN, number_of, parent_number_of
from traceable.trace.model import NULL, PUSH_POP, START_END, Bool, Events, Int32, Int64, Operations, Trace

_OPERATIONS = ("kernels", "copies", "memsets", "graph_launches")
_WITH_DEVICE = (*_OPERATIONS, "synchronisations", "allocations")
_WITH_PROCESS = (*_WITH_DEVICE, "overheads", "counters")
_WITH_THREAD = ("ranges", "marks", "calls", "graph_nodes")
_BY_START = (*_WITH_PROCESS, "marks")

_UNITS = {"": 10**9, "s": 10**9, "ms": 10**6, "us": 10**3, "µs": 10**3, "ns": 1}
_TIME = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*(s|ms|us|µs|ns|)")

_Kind = TypeVar("_Kind", bound=Events)


def parse_time(text: str) -> int:
    """Return the ns that a text like `1.5s`, `200ms`, `3us`, `70ns` or `2` (seconds, as nsys's --delay) says.

    Raises:
        UsageError: it says none.
    """
    found = _TIME.fullmatch(text.strip())
    if found is None or len(text) > 40:
        raise UsageError(f"{text[:40]!r} is no time", "write a number and ns, us, ms or s, as in 1.5s")
    return int((Decimal(found[1]) * _UNITS[found[2]]).to_integral_value(ROUND_HALF_UP))


def parse_time_span(text: str) -> tuple[int | None, int | None]:
    """Return the ns that `A:B` says; None for a side that is empty, which is open. Raises as `parse_time`."""
    first, colon, last = text.partition(":")
    if not colon:
        raise UsageError(f"{text[:40]!r} is no span of time", "write A:B, A: or :B, as in 1.5s:2s")
    span = tuple(parse_time(side) if side.strip() else None for side in (first, last))
    if span[0] is not None and span[1] is not None and span[0] >= span[1]:
        raise UsageError(f"the span of time {text[:40]!r} ends before it begins", "write the earlier time first")
    return span[0], span[1]


def selected(
    trace: Trace,
    *,
    processes: Sequence[str] | None = None,
    devices: Sequence[int] | None = None,
    time_ns: tuple[int | None, int | None] | None = None,
) -> Trace:
    """Return the part of `trace` that is of these processes and of these GPUs and in this time; None is for all.

    Args:
        processes: pids, or globs over the name of the process or its last part (`python*`). All else goes.
        devices: nsys's numbers of GPUs (`Device.number`). Operations, allocations and synchronisations of others go;
            calls and ranges stay. A synchronisation whose GPU was not recorded stays.
        time_ns: from A until before B, an open side None. Operations, calls, marks, counters, synchronisations,
            allocations and overheads stay whose start lies in it, and the launch calls of operations that stay. Ranges
            stay that overlap it; also those that such an earlier call or a captured graph node may lie in, what they
            began in, and all stretches of a coroutine that stays. A range that is not wholly inside is clipped. Graph
            nodes stay.

    Raises:
        UnanswerableError: a process or GPU asked about is not in the trace.
    """
    if processes is not None:
        trace = _of_processes(trace, _matching(trace, processes))
    if devices is not None:
        trace = _of_devices(trace, devices)
    if time_ns is not None:
        trace = _in_time(trace, *time_ns)
    return trace


def gpu_number(trace: Trace, process: Int32, device: Int32) -> Int64:
    """Return nsys's number of the GPU of each event, given its process and CUDA's number; -1 where that is unknown."""
    number = device.astype(np.int64)
    for (pid, cuda), gpu in trace.cuda_devices.items():
        for index, one in enumerate(trace.processes):
            if one.pid == pid and gpu != cuda:
                number[(process == index) & (device == cuda)] = gpu
    return number


def _matching(trace: Trace, patterns: Sequence[str]) -> Bool:
    """Return which processes match any of the patterns; every pattern must match one."""
    chosen = np.zeros(len(trace.processes) + 1, np.bool_)
    for pattern in patterns:
        matches = [
            index
            for index, process in enumerate(trace.processes)
            if pattern == str(process.pid)
            or any(fnmatchcase(name, pattern) for name in (process.name, re.split(r"[/\\]", process.name)[-1]) if name)
        ]
        if not matches:
            there = ", ".join(f"{process.pid} ({process.name or 'no name'})" for process in trace.processes[:20])
            raise UnanswerableError(
                f"no process {pattern!r} in the trace", f"there {'are ' + there if there else 'is none at all'}"
            )
        chosen[matches] = True
    return chosen


def _of_processes(trace: Trace, chosen: Bool) -> Trace:
    # The last of `chosen` is False: what index -1, a process that was not recorded, finds.
    of_thread = np.array([chosen[thread.process] for thread in trace.threads] + [False], np.bool_)
    tables = {name: _taken(getattr(trace, name), chosen[getattr(trace, name).process]) for name in _WITH_PROCESS}
    tables |= {name: _taken(getattr(trace, name), of_thread[getattr(trace, name).thread]) for name in _WITH_THREAD}
    return replace(trace, **tables)


def _of_devices(trace: Trace, devices: Sequence[int]) -> Trace:
    tables, seen = {}, {device.number for device in trace.devices}
    for name in _WITH_DEVICE:
        events = getattr(trace, name)
        number = gpu_number(trace, events.process, events.device)
        seen.update(np.unique(number[number >= 0]).tolist())
        kept = np.isin(number, np.array(devices, np.int64))
        tables[name] = _taken(events, kept | (number < 0) if name == "synchronisations" else kept)
    for device in devices:
        if device not in seen:
            there = ", ".join(map(str, sorted(seen)))
            raise UnanswerableError(f"no GPU {device} in the trace", f"there {'are ' + there if there else 'is none'}")
    return replace(trace, **tables)


def _in_time(trace: Trace, first_ns: int | None, last_ns: int | None) -> Trace:
    limits = np.iinfo(np.int64)
    first = limits.min if first_ns is None else max(first_ns, limits.min)
    last = limits.max if last_ns is None else min(last_ns, limits.max)
    tables = {name: _taken(getattr(trace, name), _starting(getattr(trace, name), first, last)) for name in _BY_START}
    kept: list[Operations] = [tables[name] for name in _OPERATIONS]
    calls = _starting(trace.calls, first, last)
    early = _launches_of(trace, kept) & ~calls
    ranges = _ranges_in_time(trace, first, last, early, any((of.graph_node != NULL).any() for of in kept))
    outside = (trace.ranges.start_ns < first) | (trace.ranges.end_ns > last)
    clipped = replace(trace.ranges, clipped=trace.ranges.clipped | outside)
    return replace(trace, **tables, calls=_taken(trace.calls, calls | early), ranges=_taken(clipped, ranges))


def _starting(events: Events, first: int, last: int) -> Bool:
    found: Bool = (events.start_ns >= first) & (events.start_ns < last)
    return found


def _launches_of(trace: Trace, operations: list[Operations]) -> Bool:
    """Return which calls put one of the operations on the GPU: equal correlationId in the same process."""
    process = np.array([thread.process for thread in trace.threads], np.int64)[trace.calls.thread]
    found = np.zeros(len(trace.calls), np.bool_)
    for index in range(len(trace.processes)):
        ids = np.concatenate([of.correlation[of.process == index] for of in operations])
        here = np.flatnonzero((process == index) & (trace.calls.correlation != NULL))
        found[here] = np.isin(trace.calls.correlation[here], ids[ids != NULL])
    return found


def _ranges_in_time(trace: Trace, first: int, last: int, early: Bool, nodes: bool) -> Bool:
    """Return which ranges stay: those of the time, and those without which an operation or a range loses its place."""
    ranges = trace.ranges
    process_of_thread = np.array([thread.process for thread in trace.threads], np.int64)
    process = process_of_thread[ranges.thread]
    # Ranges are closed: an operation that begins as a range ends may be its own.
    kept: Bool = (ranges.start_ns < last) & (ranges.end_ns >= first)
    places = [(process_of_thread[trace.calls.thread[early]], trace.calls.start_ns[early])]
    if nodes:
        places.append((process_of_thread[trace.graph_nodes.thread], trace.graph_nodes.start_ns))
    for of_process, time in places:
        kept |= _open_at(trace, process, of_process, time)
    while True:
        more = kept | _said_to_belong(trace, process, kept)
        new = more & ~kept
        if not new.any():
            return kept
        kept = more | _open_at(trace, process, process[new], ranges.start_ns[new])


def _open_at(trace: Trace, process: Int64, of_process: Int64, time_ns: Int64) -> Bool:
    """Return which ranges are open at one of these times in their process."""
    ranges = trace.ranges
    found = np.zeros(len(ranges), np.bool_)
    for index in np.unique(of_process).tolist():
        times = np.sort(time_ns[of_process == index])
        here = np.flatnonzero(process == index)
        before = np.searchsorted(times, ranges.start_ns[here], "left")
        found[here] = np.searchsorted(times, ranges.end_ns[here], "right") > before
    return found


def _said_to_belong(trace: Trace, process: Int64, kept: Bool) -> Bool:
    """Return which ranges the kept ones began in, and which are stretches of the same coroutine, by what they say."""
    ranges = trace.ranges
    found = np.zeros(len(ranges), np.bool_)
    active = trace.names.index(ACTIVE_DOMAIN) if ACTIVE_DOMAIN in trace.names else -2
    stretch = (ranges.domain == active) & (ranges.style == PUSH_POP) & ranges.has_payload
    named = ranges.identity != NULL
    # Where the user gave a coroutine a number, only its name and time tie the whole to its stretches.
    unnamed = (ranges.style == START_END) & ~named & np.isin(ranges.name, ranges.name[stretch])
    for index in np.unique(process[kept & (named | stretch | unnamed)]).tolist():
        here = np.flatnonzero(process == index)
        ours = here[kept[here]]
        identities = ranges.identity[ours[named[ours]]]
        wanted = np.concatenate([parent_number_of(identities), number_of(identities)])
        found[here] = named[here] & np.isin(number_of(ranges.identity[here]), wanted)
        pieces, wholes = here[stretch[here]], ours[unnamed[ours]]
        found[pieces] |= np.isin(ranges.payload[pieces], ranges.payload[ours[stretch[ours]]])
        for name in np.unique(ranges.name[wholes]).tolist():
            of_name, around = pieces[ranges.name[pieces] == name], wholes[ranges.name[wholes] == name]
            starts, ends = ranges.start_ns[around], np.maximum.accumulate(ranges.end_ns[around])
            before = np.searchsorted(starts, ranges.start_ns[of_name], "right")
            found[of_name] |= (before > 0) & (ends[before - 1] >= ranges.start_ns[of_name])
    return found


def _taken(events: _Kind, which: Bool) -> _Kind:
    """Return the events `which`; those themselves where that is all of them, to copy nothing."""
    return events if which.all() else type(events)(**events.take(which))
