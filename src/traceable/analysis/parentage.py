"""What each instance lies inside: by the nesting on its thread, or by its identity, which names what it began in.

A child task runs on its own turn of the event loop, and a function handed to `to_thread` on another thread: there the
thread says nothing of the request that they belong to, or only what encloses the whole loop. Identities do.
"""

from __future__ import annotations

import numpy as np

from traceable.trace.emitted import number_of, parent_number_of
from traceable.trace.model import NULL, Bool, Int64
from traceable.trace.rows import distinct

DEEPEST = 128
"""How many identities are followed from an instance to its outermost; there the path begins anew.

A task that starts its successor, which starts its own, and so on for as long as a server lives, would otherwise make
paths of millions of names.
"""


def parents_of(*, nested: Int64, start_ns: Int64, end_ns: Int64, process: Int64, identity: Int64) -> Int64:
    """Return the parent of each instance, -1 for none. A parent always begins first or, at the same time, ends later.

    Args:
        nested: the instance that encloses it on the thread where it began, -1 for none.
        process: any number of the process.
        identity: see `Instances`.

    The instance that the identity names is the parent where the thread gives none. Where it gives one, the parent is of
    the two the one that began last: `request`, not the `serve` around the loop; and in a `with` block inside of
    `request` the block.
    """
    order = np.lexsort((-end_ns, start_ns))
    rank = np.empty(len(nested), np.int64)
    rank[order] = np.arange(len(nested))
    nested_rank = np.where(nested >= 0, rank[nested], -1)
    nested_rank[nested_rank >= rank] = -1
    named_rank = _named(rank, order, start_ns, end_ns, process, identity)
    by_name = named_rank > nested_rank
    chosen = np.where(by_name, named_rank, nested_rank)
    parent: Int64 = np.where(chosen >= 0, order[chosen], -1)
    if by_name.any():
        parent[by_name & (_above(parent, by_name) % DEEPEST == 0)] = -1
    return parent


def _named(rank: Int64, order: Int64, start_ns: Int64, end_ns: Int64, process: Int64, identity: Int64) -> Int64:
    """Return the rank of the instance that each identity names as parent, -1 for none.

    Numbers come again after 2**30, and a parent may have ended before its child began: it is the last instance of that
    number and process to begin before the child, if it was still open then.
    """
    found = np.full(len(rank), -1, np.int64)
    known = np.flatnonzero(identity != NULL)
    children = known[parent_number_of(identity[known]) > 0]
    if not len(children):
        return found
    processes = int(process.max()) + 1
    who = number_of(identity[known]) * processes + process[known]
    whose = parent_number_of(identity[children]) * processes + process[children]
    kinds = distinct(who)
    keys = np.sort(np.searchsorted(kinds, who) * len(rank) + rank[known])
    kind = np.minimum(np.searchsorted(kinds, whose), len(kinds) - 1)
    at = np.searchsorted(keys, kind * len(rank) + rank[children], "left") - 1
    last = keys[np.maximum(at, 0)]
    parent = order[last % len(rank)]
    fits = (at >= 0) & (kinds[kind] == whose) & (last // len(rank) == kind) & (end_ns[parent] >= start_ns[children])
    found[children[fits]] = rank[parent[fits]]
    return found


def _above(parent: Int64, counts: Bool) -> Int64:
    """Return how many of each instance and its ancestors count, by doubling the stride that follows them."""
    number = counts.astype(np.int64)
    ancestor = parent.copy()
    while True:
        deeper = np.flatnonzero(ancestor >= 0)
        if not len(deeper):
            return number
        at = ancestor[deeper]
        number[deeper] += number[at]
        ancestor[deeper] = ancestor[at]
