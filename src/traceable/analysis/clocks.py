"""The clocks of the sides of a run: how far they are apart, and how well that is known (docs/sides.md).

Each trace knows the wall clock of its time 0. Sides under one kernel share the clock. Of other hosts the offset is
bounded by requests: whatever a server does for a request lies between the client's sending it and having its answer.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from traceable.analysis.select import parse_time
from traceable.errors import Message, TraceError, UsageError
from traceable.protocol.untrusted import LATEST_NS
from traceable.trace.model import Int64, Trace
from traceable.units import format_count, format_duration

REQUEST_ID = "request_id"
"""The field of a range that belongs to a request (`traceable.request`)."""

SAME_HOST, REQUEST_PAIRS, GIVEN = "same_host", "request_pairs", "given"
"""How an offset is known: the clocks are one; estimated from requests; given by the user."""

BY_REQUESTS, BY_WINDOWS, BY_COLLECTOR = "requests", "windows", "collector"
"""Where an uncertainty is from: measured with requests that both sides recorded; measured with the times at which the
processes opened their windows; typical of the collector, and not measured in this run."""

_ALL = slice(None)
_REQUESTS_PER_LATE_END = 100
_PAIRS_MIN = 8
"""How many pairs each half must have before the two are compared: fewer bound too little to prove a drift."""

_ID = re.compile(rf'"{REQUEST_ID}"\s*:\s*(?:"([^"\\]*)"|(-?\d+)\s*[,}}])')


@dataclass(frozen=True)
class SideClock:
    """One side and its clock.

    Attributes:
        name: of the side.
        host: its name; None where it was not recorded.
        boot: identifies the kernel that ran it, and so its clock; None where it was not recorded.
        collector: the product that recorded it; empty where unknown.
        processes: number of its processes with events.
        epoch_error_ns: how far the wall clock of its trace may be off by itself; None if unknown.
        epoch_source: BY_WINDOWS or BY_COLLECTOR; None if unknown.
        offset_ns: what was added to its wall clock to get that of the first side.
        uncertainty_ns: by how much that may be wrong; None if unknown, 0 for the first side.
        uncertainty_source: BY_REQUESTS, BY_WINDOWS or BY_COLLECTOR; None for the first side, and if unknown.
        clock: SAME_HOST, REQUEST_PAIRS or GIVEN; None for the first side, whose clock is that of the recording.
        pairs: number of requests that it and the side that it was compared with both recorded.
    """

    name: str
    host: str | None
    boot: str | None
    collector: str
    processes: int
    epoch_error_ns: int | None = None
    epoch_source: str | None = None
    offset_ns: int = 0
    uncertainty_ns: int | None = 0
    uncertainty_source: str | None = None
    clock: str | None = None
    pairs: int = 0


@dataclass(frozen=True)
class Requests:
    """The requests that a side recorded, one row each; those that the recording cut or that are ambiguous are left out.

    Attributes:
        ids: distinct, sorted.
        start_ns, end_ns: of the outermost range of each, by the side's own wall clock.
    """

    ids: tuple[str, ...]
    start_ns: Int64
    end_ns: Int64


@dataclass(frozen=True)
class RequestPairs:
    """Requests that two sides recorded, one row each, by the time of the outer range.

    Attributes:
        outer_start_ns, outer_end_ns: of the side that asked, by its wall clock.
        inner_start_ns, inner_end_ns: of the side that answered, by its own.
        first_is_outer: whether the first of the two sides is the one that asked.
    """

    outer_start_ns: Int64
    outer_end_ns: Int64
    inner_start_ns: Int64
    inner_end_ns: Int64
    first_is_outer: bool

    def __len__(self) -> int:
        return len(self.outer_start_ns)

    def bound_offset(self, which: slice = _ALL) -> tuple[int, int]:
        """Return the least and the largest offset of the second side that its requests allow, in ns.

        It is added to the wall clock of the second side to get that of the first. Each inner range lies inside of the
        outer one, except that of 100 requests one may end late: a server that is interrupted right after it has
        answered. Where the first is larger than the second, no offset agrees with the requests.
        """
        late = len(self.outer_start_ns[which]) // _REQUESTS_PER_LATE_END
        slack = np.partition(self.outer_end_ns[which] - self.inner_end_ns[which], late)
        return self._orient(self._find_low(which), int(slack[late]))

    def bound_offset_by_starts(self) -> tuple[int, int]:
        """Return the same, with nothing assumed about when inner ranges end: they begin inside of the outer ones."""
        return self._orient(self._find_low(_ALL), int((self.outer_end_ns - self.inner_start_ns).min()))

    def _find_low(self, which: slice) -> int:
        return int((self.outer_start_ns[which] - self.inner_start_ns[which]).max())

    def _orient(self, low: int, high: int) -> tuple[int, int]:
        """Return the bounds of the second side's offset, given those of the inner one's."""
        return (low, high) if self.first_is_outer else (-high, -low)


def find_requests(trace: Trace) -> Requests:
    """Return the requests of a trace: the outermost range of each id.

    A request is left out if one of its ranges was cut by the recording, or if none of them spans the others: then the
    id occurred twice. The trace must have a wall clock.
    """
    ranges = trace.ranges
    carrying = np.flatnonzero(ranges.fields >= 0)
    texts, of_row = np.unique(ranges.fields[carrying], return_inverse=True)
    index: dict[str, int] = {}
    numbers = np.array(
        [
            -1 if (one := _parse_request_id(trace.names[text])) is None else index.setdefault(one, len(index))
            for text in texts
        ],
        np.int64,
    )
    number = numbers[of_row.reshape(-1)] if len(texts) else np.empty(0, np.int64)
    carrying, number = carrying[number >= 0], number[number >= 0]
    start, end = ranges.start_ns[carrying], ranges.end_ns[carrying]
    order = np.lexsort((-end, start, number))
    carrying, number, start, end = carrying[order], number[order], start[order], end[order]
    first = np.flatnonzero(np.append(True, number[1:] != number[:-1])) if len(number) else np.empty(0, np.int64)
    if len(first):
        is_known = (np.maximum.reduceat(end, first) == end[first]) & ~np.logical_or.reduceat(
            ranges.clipped[carrying], first
        )
        first = first[is_known]
    names = list(index)
    ids = [names[one] for one in number[first].tolist()]
    by_id = sorted(range(len(ids)), key=ids.__getitem__)
    epoch_ns = trace.utc_epoch_ns or 0
    return Requests(tuple(ids[one] for one in by_id), epoch_ns + start[first][by_id], epoch_ns + end[first][by_id])


def _parse_request_id(text: str) -> str | None:
    """Return the request id in the fields of a range; None for none. A number is the same id as its digits."""
    if f'"{REQUEST_ID}"' not in text:
        return None
    if text.count("{") == 1 and (match := _ID.search(text)):
        return match[1] if match[1] is not None else match[2]
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):
        return None
    value = fields.get(REQUEST_ID) if isinstance(fields, dict) else None
    if isinstance(value, bool) or not isinstance(value, str | int):
        return None
    return str(value)


def pair_requests(first: Requests, second: Requests) -> RequestPairs:
    """Return the requests that two sides have in common; the side whose ranges last longer is the one that asked."""
    places = {one: place for place, one in enumerate(second.ids)}
    common = np.array([(place, places[one]) for place, one in enumerate(first.ids) if one in places], np.int64).reshape(
        -1, 2
    )
    common = common[np.argsort(first.start_ns[common[:, 0]], kind="stable")]
    own, other = common[:, 0], common[:, 1]
    a, b = (first.start_ns[own], first.end_ns[own]), (second.start_ns[other], second.end_ns[other])
    longer = int(((a[1] - a[0]) > (b[1] - b[0])).sum()) - int(((a[1] - a[0]) < (b[1] - b[0])).sum())
    return RequestPairs(*a, *b, True) if longer >= 0 else RequestPairs(*b, *a, False)


def align_clocks(
    sides: Sequence[SideClock], requests: Sequence[Requests], given: Mapping[str, int]
) -> tuple[tuple[SideClock, ...], tuple[Message, ...]]:
    """Return the sides with their offsets to the clock of the first, and notes on what contradicts them.

    Args:
        sides: the sides, offsets unset.
        requests: of each side.
        given: offsets in ns by the name of the side, which override all else.

    Raises:
        TraceError: the clock of a side is another one, and no requests tell its offset, or they contradict each other.
    """
    first = sides[0]
    aligned = {0: replace(first, offset_ns=given[first.name], clock=GIVEN) if first.name in given else first}
    notes: list[Message] = []

    @cache
    def pair(reference: int, number: int) -> RequestPairs:
        return pair_requests(requests[reference], requests[number])

    def rank(number: int, reference: int) -> tuple[bool, bool, int]:
        """A side with a known offset comes before one that has to be estimated, and is compared with the most alike."""
        is_given, is_same = sides[number].name in given, _is_same_host(sides[number], sides[reference])
        return not is_given, not is_same, -len(pair(reference, number))

    while len(aligned) < len(sides):
        waiting = [number for number in range(len(sides)) if number not in aligned]
        number, reference = min(itertools.product(waiting, aligned), key=lambda one: rank(*one))
        side = sides[number]
        aligned[number], found = _align_side(side, aligned[reference], pair(reference, number), given.get(side.name))
        notes += found
    return tuple(aligned[number] for number in range(len(sides))), tuple(notes)


def _is_same_host(one: SideClock, other: SideClock) -> bool:
    """Whether two sides ran under the same kernel. Containers have names of their own and share the boot id."""
    if one.boot is not None and other.boot is not None:
        return one.boot == other.boot
    return one.host is not None and one.host == other.host


def _align_side(
    side: SideClock, reference: SideClock, pairs: RequestPairs, given_ns: int | None
) -> tuple[SideClock, list[Message]]:
    """Return a side with its offset, from one that has it."""
    base_ns = reference.offset_ns
    if given_ns is not None:
        placed = replace(side, offset_ns=given_ns, uncertainty_ns=None, clock=GIVEN, pairs=len(pairs))
    elif _is_same_host(side, reference):
        placed = replace(side, offset_ns=base_ns, uncertainty_ns=None, clock=SAME_HOST, pairs=len(pairs))
        if side.epoch_error_ns is not None and reference.epoch_error_ns is not None:
            sources = {side.epoch_source, reference.epoch_source}
            placed = replace(
                placed,
                uncertainty_ns=side.epoch_error_ns + reference.epoch_error_ns,
                uncertainty_source=BY_COLLECTOR if BY_COLLECTOR in sources else BY_WINDOWS,
            )
    else:
        return _estimate_offset(side, reference, pairs), []
    if not len(pairs):
        return _add_uncertainty(placed, reference), []
    relative_ns, known_ns = placed.offset_ns - base_ns, placed.uncertainty_ns
    low, high = pairs.bound_offset_by_starts()
    outside_ns = max(low - relative_ns, relative_ns - high)
    if outside_ns > (known_ns or 0):
        text = (
            f"the clocks of {side.name} and {reference.name} are apart by {format_duration(outside_ns)} or more: of "
            f"{format_count(len(pairs), 'request')} that both recorded, one is served while it is not being asked; "
            "times between the two sides are wrong by that"
        )
        placed = replace(placed, uncertainty_ns=outside_ns, uncertainty_source=BY_REQUESTS)
        return _add_uncertainty(placed, reference), [Message("requests_contradict_clocks", text)]
    low, high = pairs.bound_offset()
    if low <= relative_ns <= high:
        error_ns = max(relative_ns - low, high - relative_ns)
        # What was measured in this run is better than what is typical of a collector.
        if known_ns is None or error_ns < known_ns or placed.uncertainty_source == BY_COLLECTOR:
            placed = replace(placed, uncertainty_ns=error_ns, uncertainty_source=BY_REQUESTS)
    return _add_uncertainty(placed, reference), []


def _add_uncertainty(side: SideClock, reference: SideClock) -> SideClock:
    """Return a side whose offset was told from another one, with the uncertainty of that one added."""
    if side.uncertainty_ns is None or reference.uncertainty_ns is None:
        return replace(side, uncertainty_ns=None, uncertainty_source=None)
    return replace(side, uncertainty_ns=side.uncertainty_ns + reference.uncertainty_ns)


def _estimate_offset(side: SideClock, reference: SideClock, pairs: RequestPairs) -> SideClock:
    """Return a side of another host, with the middle of the offsets that the requests allow.

    Raises:
        TraceError: there are no pairs, or no offset agrees with all of them.
    """
    remedy = f"give the offset with --clock-offset {side.name}=+12.5ms, or report on each side alone"
    hosts = f"{side.name} ran on {side.host or 'an unknown host'} and {reference.name} on {reference.host or 'another'}"
    if not len(pairs):
        raise TraceError(
            "clocks_unknown",
            f"{hosts}, and they have no requests in common (ranges with the field {REQUEST_ID}) from which to tell how "
            "far their clocks are apart",
            remedy,
        )
    low, high = pairs.bound_offset()
    if low > high:
        half = len(pairs) // 2
        halves = [pairs.bound_offset(which) for which in (slice(None, half), slice(half, None)) if half >= _PAIRS_MIN]
        if halves and all(first <= last for first, last in halves):
            ends = [f"{_format_offset(first)} to {_format_offset(last)}" for first, last in halves]
            raise TraceError(
                "clocks_drift",
                f"{hosts}, and their clocks drift: the offset of {side.name} is {ends[0]} in the first half of their "
                f"{len(pairs)} requests and {ends[1]} in the second",
                f"record a shorter window, or give a mean offset with --clock-offset {side.name}="
                f"{_format_offset(round(sum(map(sum, halves)) / 4))}",
            )
        raise TraceError(
            "requests_contradict",
            f"{hosts}, and no offset of their clocks agrees with their {format_count(len(pairs), 'request')}: one "
            f"needs {_format_offset(low)} or more, one {_format_offset(high)} or less; ids may have been used twice",
            remedy,
        )
    placed = replace(
        side,
        offset_ns=reference.offset_ns + (low + high) // 2,
        uncertainty_ns=(high - low + 1) // 2,
        uncertainty_source=BY_REQUESTS,
        clock=REQUEST_PAIRS,
        pairs=len(pairs),
    )
    return _add_uncertainty(placed, reference)


def parse_clock_offset(text: str) -> tuple[str, int]:
    """Return the side and the offset in ns of a text like `client=+12.5ms`.

    Raises:
        UsageError: it is not one.
    """
    side, equals, time = text.rpartition("=")
    digits = time.strip().lstrip("+-")
    try:
        offset_ns = parse_time(digits)
    except UsageError:
        offset_ns = None
    if not side or not equals or offset_ns is None or len(time.strip()) - len(digits) > 1 or offset_ns >= LATEST_NS:
        raise UsageError(
            "clock_offset_malformed", f"--clock-offset {text[:80]!r} is not SIDE=TIME", "for example: client=+12.5ms"
        )
    return side, -offset_ns if time.strip().startswith("-") else offset_ns


def _format_offset(offset_ns: int) -> str:
    """Return an offset as --clock-offset takes it."""
    return f"{offset_ns / 1e6:+.6g}ms"


def measure_epoch_error(trace: Trace, opened_wall_ns: Mapping[str, int]) -> int | None:
    """Return how far the wall clock of a trace is off at most, in ns; None where that was not measured.

    Args:
        trace: of one side, its windows as recorded.
        opened_wall_ns: by the id of a window, the wall clock of the process right after it opened the window.
    """
    if trace.utc_epoch_ns is None:
        return None
    errors = [
        abs(trace.utc_epoch_ns + start_ns - wall_ns)
        for name, start_ns in zip(trace.windows.name.tolist(), trace.windows.start_ns.tolist(), strict=True)
        if (wall_ns := opened_wall_ns.get(trace.names[name])) is not None
    ]
    return max(errors, default=None)
