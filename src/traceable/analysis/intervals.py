"""Unions of intervals, in lanes: a GPU's operations are one lane, or a stream's, or a thread's calls.

Intervals are closed and in int64 ns; those that touch are one. What lies between the intervals of a union are the gaps
of its lane. A lane is a number from 0; all work is done lane by lane, so the numbers of lanes should be those of GPUs,
streams and threads, not of events. No column of a table is made here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from traceable.trace.model import Bool, Int64


@dataclass(frozen=True)
class Lanes:
    """Rows in the order of their lane and start.

    Attributes:
        order: indices of the rows, those of no lane first.
        bounds: the rows of lane i are `order[bounds[i]:bounds[i + 1]]`; shape (lanes + 1,).
    """

    order: Int64
    bounds: Int64

    def __iter__(self) -> Iterator[Int64]:
        """Yield the rows of each lane, by start."""
        for first, last in zip(self.bounds[:-1].tolist(), self.bounds[1:].tolist(), strict=True):
            yield self.order[first:last]


def lanes_of(lane: Int64, count: int, order: Int64) -> Lanes:
    """Return the rows by lane and, within it, in the order given.

    Args:
        lane: of each row, 0..count-1, or -1 for a row that is left out.
        count: how many lanes there are.
        order: indices of rows; those not in it are left out.
    """
    lane = lane[order]
    bounds = np.cumsum(np.bincount(lane + 1, minlength=count + 1))
    if count == 1 and not bounds[0]:
        return Lanes(order, bounds)
    # numpy sorts 16-bit numbers by counting.
    narrow = lane.astype(np.int16) if count < 1 << 15 else lane
    return Lanes(order[np.argsort(narrow, kind="stable")], bounds)


@dataclass(frozen=True)
class Union:
    """Disjoint intervals that do not touch, by lane and start.

    Attributes:
        start_ns, end_ns: the intervals.
        bounds: the intervals of lane i are those from `bounds[i]` until `bounds[i + 1]`; shape (lanes + 1,).
    """

    start_ns: Int64
    end_ns: Int64
    bounds: Int64

    def __len__(self) -> int:
        """Return the number of lanes."""
        return len(self.bounds) - 1

    def lane(self, i: int) -> tuple[Int64, Int64]:
        """Return the starts and ends of the intervals of a lane."""
        here = slice(int(self.bounds[i]), int(self.bounds[i + 1]))
        return self.start_ns[here], self.end_ns[here]

    def lane_of(self) -> Int64:
        """Return the lane of each interval."""
        return np.repeat(np.arange(len(self)), np.diff(self.bounds))

    def total_ns(self) -> Int64:
        """Return the summed length of each lane, shape (lanes,)."""
        lanes = (self.lane(i) for i in range(len(self)))
        return np.array([int((end - start).sum()) for start, end in lanes], np.int64)


def union(start_ns: Int64, end_ns: Int64, lanes: Lanes) -> Union:
    """Return the union of the intervals of each lane."""
    starts, ends, sizes = [start_ns[:0]], [end_ns[:0]], [0]
    for rows in lanes:
        start = start_ns[rows]
        latest = np.maximum.accumulate(end_ns[rows])
        begins = np.flatnonzero(_apart(start, latest))
        sizes.append(len(begins))
        starts.append(start[begins])
        ends.append(latest[np.append(begins[1:] - 1, len(rows) - 1)] if len(rows) else latest)
    return Union(np.concatenate(starts), np.concatenate(ends), np.cumsum(sizes))


@dataclass(frozen=True)
class Between:
    """What lies between the intervals of a union: in each lane from first to last, by lane and time.

    Attributes:
        lane: of each gap.
        before: the row that ended last before it (of several the first to start).
        after: the row that begins at its end (of several the first).
        start_ns, end_ns: of the gap, never empty.
    """

    lane: Int64
    before: Int64
    after: Int64
    start_ns: Int64
    end_ns: Int64

    def __len__(self) -> int:
        return len(self.lane)

    def take(self, which: Bool | Int64) -> Between:
        """Return some of the gaps."""
        return Between(
            self.lane[which], self.before[which], self.after[which], self.start_ns[which], self.end_ns[which]
        )


def between(start_ns: Int64, end_ns: Int64, lanes: Lanes) -> Between:
    """Return the gaps between the intervals of each lane."""
    nothing = start_ns[:0]
    found: list[tuple[Int64, ...]] = [(nothing.astype(np.int64),) * 5]
    for lane, rows in enumerate(lanes):
        start, end = start_ns[rows], end_ns[rows]
        latest = np.maximum.accumulate(end)
        after = np.flatnonzero(_apart(start, latest))[1:]
        grows = np.zeros(len(rows), np.int64)
        later = np.flatnonzero(end[1:] > latest[:-1]) + 1
        grows[later] = later
        before = np.maximum.accumulate(grows)[after - 1]
        found.append((np.full(len(after), lane), rows[before], rows[after], latest[after - 1], start[after]))
    return Between(*(np.concatenate(column) for column in zip(*found, strict=True)))


def touched(gaps: Between, start_ns: Int64, end_ns: Int64) -> Bool:
    """Return which gaps, of whatever lane, overlap any of the intervals.

    To pass over what needs no closer look: its cost grows with the number of intervals more than with that of gaps.
    """
    change = np.zeros(len(gaps) + 1, np.int64)
    if not len(start_ns) or not len(gaps):
        return change[:-1] > 0
    bounds = np.flatnonzero(np.diff(gaps.lane, prepend=-1, append=-1)).tolist()
    for low, high in pairwise(bounds):
        first = np.searchsorted(gaps.end_ns[low:high], start_ns, "right")
        last = np.searchsorted(gaps.start_ns[low:high], end_ns, "left")
        some = last > first
        np.add.at(change, low + first[some], 1)
        np.add.at(change, low + last[some], -1)
    return np.cumsum(change[:-1]) > 0


def covered_ns(within: Union, lane: Int64, start_ns: Int64, end_ns: Int64) -> Int64:
    """Return how much of each interval from `start_ns` to `end_ns` its lane of `within` covers, in ns.

    An interval of lane -1, and one whose end is not after its start, has 0.
    """
    covered = np.zeros(len(lane), np.int64)
    asked = np.flatnonzero((end_ns > start_ns) & (lane >= 0))
    for i, rows in enumerate(lanes_of(lane, len(within), asked)):
        starts, ends = within.lane(i)
        if len(starts) and len(rows):
            covered[rows] = _covered(starts, ends, start_ns[rows], end_ns[rows])
    return covered


def beneath(start_ns: Int64, end_ns: Int64, lanes: Lanes) -> tuple[Int64, Int64, Lanes]:
    """Return the time in which intervals of a lane overlap: what is left when their union is taken away once.

    Where n of the intervals are open at a time, n - 1 of the returned ones are. So the union of the result is the time
    in which at least two are open, and that of the result of the result, the time of at least three.

    Returns:
        The starts and ends of the intervals that are left, and their lanes.
    """
    starts, ends, sizes = [start_ns[:0]], [end_ns[:0]], [0]
    for rows in lanes:
        start, end = start_ns[rows][1:], end_ns[rows]
        # Each interval prolongs the union from its latest end so far, and what it shares with that is left.
        until = np.minimum(end[1:], np.maximum.accumulate(end)[:-1])
        left = np.flatnonzero(until > start)
        starts.append(start[left])
        ends.append(until[left])
        sizes.append(len(left))
    return np.concatenate(starts), np.concatenate(ends), Lanes(np.arange(sum(sizes)), np.cumsum(sizes))


def _apart(start: Int64, latest: Int64) -> Bool:
    """Return which rows begin after all before them ended: the first does; `latest` is the running latest end."""
    apart = np.ones(len(start), np.bool_)
    apart[1:] = start[1:] > latest[:-1]
    return apart


def _covered(starts: Int64, ends: Int64, since_ns: Int64, until_ns: Int64) -> Int64:
    """Return the summed length of disjoint sorted intervals from `since_ns` until `until_ns`."""
    whole = np.concatenate([[0], np.cumsum(ends - starts)])

    def before(time_ns: Int64) -> Int64:
        begun = np.searchsorted(starts, time_ns, "right")
        overhang = np.maximum(0, ends[np.maximum(begun - 1, 0)] - time_ns)
        length: Int64 = whole[begun] - np.where(begun > 0, overhang, 0)
        return length

    return before(until_ns) - before(since_ns)
