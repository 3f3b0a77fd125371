"""Whether a recording is complete: the ranges that its processes counted, compared with those recorded.

Each process counts the ranges that it opens while its collector is certain to record (`annotation/range_counts.py`), so
a difference is a loss, never the edge of a window. The comparison is by name: ranges that other libraries emit are not
counted, and those of one name don't make up for lost ones of another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from traceable.errors import Message
from traceable.protocol.nvtx import WINDOW_DOMAIN

if TYPE_CHECKING:
    from traceable.protocol.run_records import EmittedCounts
    from traceable.trace.model import Int64, Trace

RANGES_MISSING = "ranges_missing"
EVENTS_DROPPED = "events_dropped"
NAMES_LOST = "names_lost"
FILES_CUT = "files_cut"
"""What a process lost: emitted ranges are not in the recording; the recorder had no space for events (a range is two);
or for names; its files were truncated."""

COMPLETE, INCOMPLETE, UNKNOWN = "complete", "incomplete", "unknown"

_CHUNK_RANGES = 1 << 20
_MAX_COMBINATIONS = 1 << 24
_MAX_NOTES = 8

KeyFunction = Callable[[str | None, str | None], bytes | None]
DomainAndName = tuple[str | None, str | None]


@dataclass(frozen=True)
class CollectorLoss:
    """The losses of a process that the collector itself reports.

    Attributes:
        pid: of the process.
        text: the same as a message.
        codes: EVENTS_DROPPED, NAMES_LOST or FILES_CUT, each with how much: events, names, bytes.
        reason: as a code (docs/diagnosis.md); None if not known.
    """

    pid: int
    text: Message
    codes: Mapping[str, int]
    reason: str | None = None


@dataclass(frozen=True)
class ProcessCount:
    """One process.

    Attributes:
        pid, name: of the process; the name may be empty.
        emitted: ranges that it counted; None for one that does not count.
        recorded: ranges of it in the recording.
        missing: how many of those that it emitted are missing, at least.
        losses: by code, how much.
        reason: as of `CollectorLoss`.
    """

    pid: int
    name: str
    emitted: int | None
    recorded: int
    missing: int = 0
    losses: Mapping[str, int] = field(default_factory=dict)
    reason: str | None = None


@dataclass(frozen=True)
class Completeness:
    """Whether the emitted ranges were recorded.

    Attributes:
        processes: those that emitted, recorded or lost anything, by what is missing of them.
        idle_pids: pids of those that count and emitted nothing.
        not_compared: why counts can't be compared with this recording, as a code; None if they can.
        notes: a sentence for each process with missing ranges, for the first ones.
    """

    processes: tuple[ProcessCount, ...] = ()
    not_compared: str | None = None
    notes: tuple[Message, ...] = ()
    idle_pids: frozenset[int] = frozenset()

    @property
    def incomplete_processes(self) -> tuple[ProcessCount, ...]:
        """The processes of which something is missing."""
        return tuple(one for one in self.processes if one.losses)

    @property
    def state(self) -> str:
        """COMPLETE, INCOMPLETE or UNKNOWN: no process counted, or what it counted can't be compared."""
        if self.incomplete_processes:
            return INCOMPLETE
        counted = any(one.emitted is not None for one in self.processes) or bool(self.idle_pids)
        return COMPLETE if counted and self.not_compared is None else UNKNOWN

    def count_missing(self, pid: int) -> int | None:
        """Return how many ranges of a process are missing; None where it did not count, or counts are not compared."""
        if self.not_compared is not None:
            return None
        known = {one.pid: one.missing for one in self.processes if one.emitted is not None}
        return 0 if pid in self.idle_pids else known.get(pid)


def check_completeness(
    trace: Trace | None,
    emitted: Sequence[EmittedCounts],
    lost: Sequence[CollectorLoss],
    key: KeyFunction,
    not_compared: str | None = None,
) -> Completeness:
    """Compare the emitted ranges with the recorded ones.

    Args:
        trace: the whole recording, with names as recorded; None for nothing.
        emitted: the counts of the processes; one that executed another program has several.
        lost: the losses that the collector reports.
        key: returns the key of a domain and a name in `EmittedCounts.names`.
        not_compared: why `emitted` can't be compared; None if it can.
    """
    names = {one.pid: one.name for one in trace.processes} if trace is not None else {}
    by_process = {} if trace is None or not (emitted or lost) else count_recorded_ranges(trace)
    if not emitted and not lost:
        return Completeness(not_compared=not_compared)
    pids = dict.fromkeys((*(one.pid for one in emitted), *by_process, *(one.pid for one in lost)))
    rows = [
        _row(
            pid,
            names.get(pid, ""),
            [one for one in emitted if one.pid == pid],
            [one for one in lost if one.pid == pid],
            by_process.get(pid, {}),
            key,
            not_compared is None,
        )
        for pid in pids
    ]
    shown = [one for one in rows if one.emitted or one.recorded or one.losses]
    shown.sort(key=_most_missing)
    idle = frozenset(one.pid for one in rows if one.emitted == 0)
    return Completeness(tuple(shown), not_compared, _notes(shown, [one.text for one in lost]), idle)


def merge_completeness(parts: Sequence[Completeness]) -> Completeness:
    """Return the completeness of a recording that consists of several, such as one for each rank."""
    rows = sorted((row for one in parts for row in one.processes), key=_most_missing)
    reasons = [one.not_compared for one in parts]
    not_compared = reasons[0] if reasons and None not in reasons else None
    idle = frozenset(pid for one in parts for pid in one.idle_pids)
    return Completeness(tuple(rows), not_compared, tuple(note for one in parts for note in one.notes), idle)


def _most_missing(row: ProcessCount) -> tuple[int, bool, int]:
    return -row.missing, not row.losses, row.pid


def _row(
    pid: int,
    name: str,
    emitted: Sequence[EmittedCounts],
    lost: Sequence[CollectorLoss],
    recorded: Mapping[DomainAndName, int],
    key: KeyFunction,
    compare: bool,
) -> ProcessCount:
    losses: dict[str, int] = {}
    for one in lost:
        for code, number in one.codes.items():
            losses[code] = losses.get(code, 0) + number
    total = sum(recorded.values())
    counted = sum(one.rest + sum(one.names.values()) for one in emitted) if emitted else None
    missing = _missing(emitted, recorded, key, by_name=NAMES_LOST not in losses) if compare else 0
    if missing:
        losses = {RANGES_MISSING: missing, **losses}
    reason = next((one.reason for one in lost if one.reason), None)
    return ProcessCount(pid, name, counted if compare else None, total, missing, losses, reason)


def _missing(
    emitted: Sequence[EmittedCounts], recorded: Mapping[DomainAndName, int], key: KeyFunction, *, by_name: bool
) -> int:
    """Return how many of the emitted ranges are missing at least.

    Args:
        emitted: what a process counted.
        recorded: how many ranges of each name were recorded of it.
        key: as of `check_completeness`.
        by_name: False where the collector lost names, so that only the sums can be compared.
    """
    expected: dict[bytes, int] = {}
    for one in emitted:
        for text, number in one.names.items():
            expected[text] = expected.get(text, 0) + number
    rest = sum(one.rest for one in emitted)
    if not by_name:
        return max(0, sum(expected.values()) + rest - sum(recorded.values()))
    matched = dict.fromkeys(expected, 0)
    others = 0
    for (domain, name), number in recorded.items():
        known = key(domain, name)
        if known is not None and known in matched:
            matched[known] += number
        else:
            others += number
    return sum(max(0, number - matched[text]) for text, number in expected.items()) + max(0, rest - others)


def count_recorded_ranges(trace: Trace) -> dict[int, dict[DomainAndName, int]]:
    """Return how many ranges were recorded of each process, by domain and name; those of windows are not among them."""
    # Not at the top: the completeness of a run that recorded nothing needs neither.
    import numpy as np

    ranges, counts_by_pid = trace.ranges, dict[int, dict[DomainAndName, int]]()
    if not len(ranges):
        return counts_by_pid
    process_of = np.array([one.process for one in trace.threads], np.int64)
    domains = np.flatnonzero(np.bincount(ranges.domain.astype(np.int64) + 1, minlength=1))
    place = np.zeros(int(domains[-1]) + 1, np.int64)
    place[domains] = np.arange(len(domains))
    names = len(trace.names) + 1
    counts: Int64 | dict[int, int] = {}
    combinations = len(trace.processes) * len(domains) * names
    if combinations <= _MAX_COMBINATIONS:
        counts = np.zeros(combinations, np.int64)
    for first in range(0, len(ranges), _CHUNK_RANGES):
        part = slice(first, first + _CHUNK_RANGES)
        code = process_of[ranges.thread[part]] * len(domains) + place[ranges.domain[part].astype(np.int64) + 1]
        code = code * names + ranges.name[part] + 1
        if isinstance(counts, dict):
            for one, number in zip(*(column.tolist() for column in np.unique(code, return_counts=True)), strict=True):
                counts[one] = counts.get(one, 0) + number
        else:
            counts += np.bincount(code, minlength=combinations)
    if not isinstance(counts, dict):
        there = np.flatnonzero(counts)
        counts = dict(zip(there.tolist(), counts[there].tolist(), strict=True))
    for code_of, number in counts.items():
        rest, name = divmod(code_of, names)
        process, domain = divmod(rest, len(domains))
        of_process = counts_by_pid.setdefault(trace.processes[process].pid, {})
        domain_and_name = _text(trace, int(domains[domain]) - 1), _text(trace, name - 1)
        if domain_and_name[0] != WINDOW_DOMAIN:
            of_process[domain_and_name] = of_process.get(domain_and_name, 0) + number
    return counts_by_pid


def _text(trace: Trace, index: int) -> str | None:
    return None if index < 0 else trace.names[index]


def _notes(rows: Iterable[ProcessCount], reports: Iterable[Message]) -> tuple[Message, ...]:
    notes = []
    missing = [one for one in rows if one.missing]
    for one in missing[:_MAX_NOTES]:
        name = f" ({one.name})" if one.name else ""
        assert one.emitted is not None
        notes.append(
            Message(
                "ranges_missing",
                f"process {one.pid}{name} emitted {one.emitted} ranges, and {one.missing} of them are not in the "
                "recording",
            )
        )
    more = missing[_MAX_NOTES:]
    if more:
        notes.append(
            Message(
                "ranges_missing",
                f"{len(more)} more processes emitted {sum(one.emitted or 0 for one in more)} ranges, and "
                f"{sum(one.missing for one in more)} of them are not in the recording",
            )
        )
    return (*notes, *dict.fromkeys(reports))
