"""Which instances enclose which events: an event belongs to every instance that ran on its thread all around it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from traceable.analysis.instances import Instances, Stretches
from traceable.trace.model import Bool, Int32, Int64

_PAIRS_AT_ONCE = 1 << 21
"""How many pairs of instance and event are held at once: about 100 MB."""


@dataclass(frozen=True)
class Events:
    """Where things happened on the threads, as equally long columns, sorted by thread and start.

    Attributes:
        thread, start_ns, end_ns: where and when.
        item: index of what it stands for; one thing may happen at several places, or at none.
        items: how many things there are.
        order: the things in the order in which pairs are wanted.
    """

    thread: Int32
    start_ns: Int64
    end_ns: Int64
    item: Int64
    items: int
    order: Int64


def sorted_events(thread: Int32, start_ns: Int64, end_ns: Int64, item: Int64, order: Int64) -> Events:
    """Return the events sorted as `Events` asks; `order` holds every item once."""
    by_place = np.lexsort((item, start_ns, thread))
    return Events(thread[by_place], start_ns[by_place], end_ns[by_place], item[by_place], len(order), order)


@dataclass(frozen=True)
class Slices:
    """For each stretch the slice of the events that start inside it, as equally long columns.

    Attributes:
        first, number: index of the first event and how many follow it, itself included.
        whole: whether all of them end inside as well. Else they must be compared one by one: events may lie inside
            one another (a runtime call that makes a driver call) and cross the end of a range.
    """

    first: Int64
    number: Int64
    whole: Bool


def slices(stretches: Stretches, events: Events) -> Slices:
    """Return where the events of each stretch are."""
    first = np.zeros(len(stretches.owner), np.int64)
    number = np.zeros(len(stretches.owner), np.int64)
    by_thread = np.argsort(stretches.thread, kind="stable")
    threads = stretches.thread[by_thread]
    for thread in np.unique(stretches.thread).tolist():
        low, high = np.searchsorted(events.thread, [thread, thread + 1])
        here = by_thread[slice(*np.searchsorted(threads, [thread, thread + 1]))]
        starts = events.start_ns[low:high]
        first[here] = low + np.searchsorted(starts, stretches.start_ns[here], "left")
        number[here] = low + np.searchsorted(starts, stretches.end_ns[here], "right") - first[here]
    return Slices(first, number, over_slices(np.maximum, events.end_ns, first, number, 0) <= stretches.end_ns)


def over_slices(reduce: np.ufunc, values: Int64, first: Int64, number: Int64, empty: int) -> Int64:
    """Return `reduce` over each slice of `values`; `empty` for slices without values. Slices may lie in one another.

    `reduceat` reduces from each index to the next one, so that every other result is that of a slice; those between
    are thrown away, and are short while the slices come in order.
    """
    found = np.full(len(first), empty, np.int64)
    some = np.flatnonzero(number > 0)
    some = some[np.argsort(first[some], kind="stable")]
    if len(some):
        bounds = np.stack([first[some], first[some] + number[some]], axis=1).reshape(-1)
        # One value more, so that the end of the last slice is an index.
        found[some] = reduce.reduceat(np.append(values, empty), bounds)[::2]
    return found


def pairs(stretches: Stretches, events: Events) -> Iterator[tuple[Int64, Int64]]:
    """Yield pairs (instance, item), sorted by instance and the order of the items, no pair twice.

    All pairs of an instance come in one piece.
    """
    return pairs_of(stretches, events, slices(stretches, events))


def pairs_of(stretches: Stretches, events: Events, where: Slices) -> Iterator[tuple[Int64, Int64]]:
    """Yield what `pairs` yields, given the slices; a number of 0 leaves a stretch out."""
    first, number = where.first, where.number
    useful = np.flatnonzero(number > 0)
    useful = useful[np.argsort(stretches.owner[useful], kind="stable")]
    owner = stretches.owner[useful]
    bounds = np.append(np.flatnonzero(np.diff(owner, prepend=-1)), len(owner))
    sizes = np.concatenate([[0], np.cumsum(number[useful])])[bounds]
    rank = np.empty_like(events.order)
    rank[events.order] = np.arange(events.items)
    stride = max(1, events.items)
    at = 0
    while at < len(bounds) - 1:
        until = max(at + 1, int(np.searchsorted(sizes, sizes[at] + _PAIRS_AT_ONCE, "right")) - 1)
        here = useful[bounds[at] : bounds[until]]
        at = until
        event = spread(first[here], number[here])
        instance = np.repeat(stretches.owner[here], number[here])
        if not where.whole[here].all():
            inside = events.end_ns[event] <= np.repeat(stretches.end_ns[here], number[here])
            event, instance = event[inside], instance[inside]
        key = instance * stride + rank[events.item[event]]
        if not (np.diff(key) > 0).all():
            # np.unique hashes since numpy 2.3, which takes several times as long as a sort.
            key.sort()
            key = key[np.diff(key, prepend=-1) > 0]
        yield key // stride, events.order[key % stride]


def innermost_around(found: Instances, events: Events) -> Int64:
    """Return, for each item of the events, the instance that began last of those around it; -1 for none."""
    rank = _by_beginning(found)
    return _ranked(_latest(found.stretches, events, rank), rank)


def _by_beginning(found: Instances) -> Int64:
    """Return the rank of each instance by its beginning; of those that begin together the longest is first."""
    order = np.lexsort((-found.end_ns, found.start_ns))
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    return rank


def _ranked(ranks: Int64, rank: Int64) -> Int64:
    """Return the instances that have these ranks; -1 stays."""
    order = np.empty(len(rank) + 1, np.int64)
    order[rank] = np.arange(len(rank))
    order[-1] = -1
    chosen: Int64 = order[ranks]
    return chosen


def _latest(stretches: Stretches, events: Events, rank: Int64) -> Int64:
    """Return, for each item, the highest `rank` (one an owner, from 0) of the stretches around it; -1 for none."""
    where = slices(stretches, events)
    found = np.full(events.items, -1, np.int64)
    of_stretch = rank[stretches.owner]
    simple = where.whole & (where.number > 0)
    highest = _painted(where.first[simple], where.number[simple], of_stretch[simple], len(events.item))
    np.maximum.at(found, events.item, highest)
    for i in np.flatnonzero(~where.whole).tolist():
        here = slice(int(where.first[i]), int(where.first[i] + where.number[i]))
        item = events.item[here][events.end_ns[here] <= stretches.end_ns[i]]
        np.maximum.at(found, item, of_stretch[i])
    return found


def _painted(first: Int64, number: Int64, value: Int64, length: int) -> Int64:
    """Return, for each of `length` places, the highest value of the slices that hold it; -1 for none.

    A slice is the union of two overlapping blocks whose length is a power of two; the values of blocks are handed
    down from each power to the half, so that no slice is written out.
    """
    power = np.frexp(number)[1] - 1
    above = np.full(length, -1, np.int64)
    for level in range(int(power.max(initial=0)), -1, -1):
        size = 1 << level
        here = np.flatnonzero(power == level)
        if level < int(power.max(initial=0)):
            handed_down = above.copy()
            handed_down[size:] = np.maximum(above[size:], above[:-size])
            above = handed_down
        np.maximum.at(above, first[here], value[here])
        np.maximum.at(above, first[here] + number[here] - size, value[here])
    return above


def spread(first: Int64, number: Int64) -> Int64:
    """Return first[0], first[0]+1, ... (number[0] of them), first[1], ...: the indices of many slices in a row."""
    ends = np.cumsum(number)
    total = int(ends[-1]) if len(ends) else 0
    spread_out: Int64 = np.arange(total) + np.repeat(first - (ends - number), number)
    return spread_out
