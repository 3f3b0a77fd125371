"""Whether a sequence of kernels repeats, and after how many of them. What that means for steps is decided elsewhere."""

from __future__ import annotations

import numpy as np

from traceable.analysis.grouping import numbered, ranked
from traceable.trace.model import Int64

FEWEST = 3
"""How often a kernel must come to be taken for one that comes again and again."""

EXPLAINED = 0.5
"""Share of the operations that the best period must explain."""

AS_GOOD = 0.01
"""By how much a shorter period may explain less than the best one and still be taken: layers lie within steps."""

_MOST_PERIODS = 256
"""How many different periods are tried, those of most kernels first: each costs one comparison of the sequence."""


def period_of(token: Int64) -> tuple[int, float, list[int]] | None:
    """Return after how many operations a sequence repeats, how well, and what comes once a period, by first place.

    A period is the median distance between two of one kind. It explains the share of the operations that are the same
    one period later. Of the periods of two operations and more that explain within AS_GOOD of what the best explains,
    the shortest is it; None if the best explains less than EXPLAINED.

    Args:
        token: what each operation is, any numbers.
    """
    if not len(token):
        return None
    kind, _ = numbered(token)
    order = np.argsort(kind, kind="stable")
    distance = np.diff(order)[np.diff(kind[order]) == 0]
    of_kind = kind[order][1:][np.diff(kind[order]) == 0]
    gaps = ranked(of_kind, distance, int(kind.max()) + 1)
    often = np.flatnonzero(gaps.number >= FEWEST - 1)
    median = gaps.values[(np.cumsum(gaps.number) - gaps.number)[often] + (gaps.number[often] - 1) // 2]
    periods, support = np.unique(median[(median >= 2) & (median * 2 <= len(token))], return_counts=True)
    periods = np.sort(periods[np.argsort(-support, kind="stable")][:_MOST_PERIODS])
    alike = [float((token[period:] == token[:-period]).mean()) for period in periods.tolist()]
    if not alike or max(alike) < EXPLAINED:
        return None
    best = next(i for i, share in enumerate(alike) if share >= max(alike) - AS_GOOD)
    once = often[median == periods[best]]
    places = sorted(int(order[np.searchsorted(kind[order], one)]) for one in once.tolist())
    return int(periods[best]), alike[best], [int(token[place]) for place in places]
