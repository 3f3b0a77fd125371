"""Lanes of a timeline: where intervals of one track overlap, they are drawn on several lanes of it.

On a lane that nests, each interval lies inside those that are open when it begins: a call in a range. On a lane that
does not, no two overlap: the operations of a stream, of which one that lies in the time of another is no part of it.
"""

from __future__ import annotations

import heapq

import numpy as np

from traceable.analysis.instances import find_nested_parents
from traceable.trace.model import Int64, NDArray


def assign_lanes(
    track: NDArray[np.integer], start_ns: Int64, end_ns: Int64, *, nested: bool
) -> tuple[Int64, NDArray[np.int32]]:
    """Return the intervals in drawing order, and the lane of each within its track: the lowest with room for it.

    Args:
        track: any number a track, shape (n,).
        start_ns, end_ns: shape (n,), in any order; no interval ends before it starts.
        nested: whether an interval may lie inside another one on a lane.

    Returns:
        The order by track, start and end (the longer one first), and the lane of each interval in that order.
    """
    order = np.lexsort((-end_ns, start_ns, track))
    start, end, tracks = start_ns[order], end_ns[order], track[order]
    lane = np.zeros(len(order), np.int32)
    bounds = np.flatnonzero(np.diff(tracks, prepend=-1, append=-1))
    for first, last in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        starts, ends = start[first:last], end[first:last]
        if nested:
            if find_nested_parents(starts, ends) is None:
                lane[first:last] = _assign_nested(starts, ends)
        elif (starts[1:] < ends[:-1]).any():
            lane[first:last] = _assign_flat(starts, ends)
    return order, lane


def _assign_nested(start_ns: Int64, end_ns: Int64) -> list[int]:
    open_ends: list[list[int]] = []
    lanes = []
    for start, end in zip(start_ns.tolist(), end_ns.tolist(), strict=True):
        lane = 0
        while lane < len(open_ends):
            ends = open_ends[lane]
            while ends and ends[-1] <= start:
                ends.pop()
            if not ends or ends[-1] >= end:
                break
            lane += 1
        if lane == len(open_ends):
            open_ends.append([])
        open_ends[lane].append(end)
        lanes.append(lane)
    return lanes


def _assign_flat(start_ns: Int64, end_ns: Int64) -> list[int]:
    busy: list[tuple[int, int]] = []
    free: list[int] = []
    lanes = []
    for start, end in zip(start_ns.tolist(), end_ns.tolist(), strict=True):
        while busy and busy[0][0] <= start:
            heapq.heappush(free, heapq.heappop(busy)[1])
        lane = heapq.heappop(free) if free else len(busy)
        heapq.heappush(busy, (end, lane))
        lanes.append(lane)
    return lanes
