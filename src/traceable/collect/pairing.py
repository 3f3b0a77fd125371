"""Finds the end of every range: push with pop within a thread and domain, start with end by id. Arrays to arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def pair_push_pop(domain: NDArray[np.integer[Any]], is_push: NDArray[np.bool_]) -> NDArray[np.intp]:
    """Pair the pushes and pops of one thread, which nest separately in each domain.

    Args:
        domain: shape (n,), the domain of each event, in the order in which the events happened.
        is_push: shape (n,), True for a push, False for a pop.

    Returns:
        Shape (n,): for a push the index of its pop, for a pop the index of its push, -1 for a push that stayed open and
        for a pop that found nothing to pop (which NVTX ignores).

    A push that is followed by a pop is paired with it, and both are taken out: after a few rounds little is left of
    what programs do. What is nested deeper is paired by depth.
    """
    partner = np.full(len(is_push), -1, np.intp)
    if not len(domain):
        return partner
    several = bool((domain != domain[0]).any())
    order = _sorted(domain) if several else np.arange(len(domain))
    push = is_push[order] if several else is_push
    for _ in range(_ROUNDS):
        inner = push[:-1] > push[1:]
        if several:
            ordered = domain[order]
            inner &= ordered[:-1] == ordered[1:]
        first = np.flatnonzero(inner)
        if not len(first):
            return partner
        pushes, pops = order[first], order[first + 1]
        partner[pushes], partner[pops] = pops, pushes
        left = np.ones(len(order), np.bool_)
        left[first] = left[first + 1] = False
        order, push = order[left], push[left]
    _pair_by_depth(order, domain[order], push, partner)
    return partner


_ROUNDS = 10


def _pair_by_depth(
    order: NDArray[np.intp], domain: NDArray[np.integer[Any]], push: NDArray[np.bool_], partner: NDArray[np.intp]
) -> None:
    """Pair events that are sorted by domain; `order` is where they stand in `partner`.

    The depth of the stack is a running sum; a pop that finds it empty is where the sum falls below its running minimum.
    At one depth pushes and pops then alternate, so each push pairs with the next event of its depth.
    """
    count = len(push)
    if not count:
        return
    first = np.empty(count, np.bool_)
    first[0] = True
    first[1:] = domain[1:] != domain[:-1]
    group = np.cumsum(first) - 1
    # Domains are laid one below the other, further apart than any depth, so one running minimum serves all of them.
    ground = -group * (2 * count + 2)
    step = np.where(push, 1, -1)
    total = np.cumsum(step)
    total += ground - (total - step)[np.flatnonzero(first)][group]
    low = np.minimum(np.minimum.accumulate(total), ground)
    low_before = np.where(first, ground, np.concatenate((ground[:1], low[:-1])))
    stray = ~push & (low < low_before)
    level = np.where(push, total - low, total - low + 1)
    kept = np.flatnonzero(~stray)
    by_level = kept[np.lexsort((level[kept], ground[kept]))]
    same = (level[by_level][1:] == level[by_level][:-1]) & (ground[by_level][1:] == ground[by_level][:-1])
    paired = same & push[by_level][:-1] & ~push[by_level][1:]
    pushes, pops = order[by_level[:-1][paired]], order[by_level[1:][paired]]
    partner[pushes] = pops
    partner[pops] = pushes


def _sorted(keys: NDArray[np.integer[Any]]) -> NDArray[np.intp]:
    """Return the stable order of whole numbers from 0 on; of small ones numpy finds it several times faster."""
    small = not len(keys) or int(keys.max()) <= np.iinfo(np.uint16).max
    return np.argsort(keys.astype(np.uint16) if small else keys, kind="stable")


def pair_ids(starts: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.intp]:
    """Return for each id of `starts` (unique) the index of the first equal one in `ends`, or -1."""
    if not len(ends):
        return np.full(len(starts), -1, np.intp)
    order = np.argsort(ends, kind="stable")
    found = np.minimum(np.searchsorted(ends[order], starts), len(ends) - 1)
    return np.where(ends[order][found] == starts, order[found], -1)
