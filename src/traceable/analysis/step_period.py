"""Whether a sequence of operations repeats, and after how many of them. What that means for steps is decided elsewhere.

Two answers, which are never mixed:

- `exact_period`: the smallest lag at which at least EXACT of all operations have the label of the operation one lag
  later. A layer that comes 32 times in a pass does not meet that: what lies around the layers of each pass does not
  repeat after one layer. The pass does.
- `approximate_period`: the lag that explains most of what recurs, where none explains all.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from traceable.analysis.grouping import numbered, ranked
from traceable.trace.model import Int64, NDArray

EXACT = 0.995
"""Share of the operations that must be the same one lag later for the lag to be that of an exact repetition."""

FEWEST = 3
"""How often a kernel must come to be taken for one that comes again and again."""

EXPLAINED = 0.5
"""Share of the operations, of those that are not the same by chance, that the best approximate period must explain."""

AS_GOOD = 1 - EXACT
"""By how much a shorter period may explain less than the best one and still be taken."""

_MOST_PERIODS = 256
"""How many approximate periods are tried, those of most kernels first: each costs one comparison of the sequence."""

_FEW = 2048
"""Up to so many operations, every lag is compared."""

_GRAM = 16
"""How many operations in a row are looked up together to find the lags that are worth a comparison."""

_PLACES = 64
"""From how many places such rows are looked up."""

_PLACES_ALIKE = 40
"""From how many of the places a lag must lead to an equal row.

Where EXACT of all operations repeat, at most 1 % of those in the first half do not, so that a row of 16 is the same one
lag later in 84 % of the places or more: of 64 places at random fewer than 40 are with a probability below 1e-5.
"""

_LONGEST = 1 << 20
"""The longest lag that is compared."""

_AT_ONCE = 1 << 17
"""How many operations are compared until it is clear that too many differ."""

_MOST_LAGS = 512
"""How many lags are compared in full at most, the smallest first."""


def exact_period(label: NDArray[np.integer]) -> tuple[int, float] | None:
    """Return the smallest lag after which a sequence repeats exactly, and the share of it that does; None for none.

    At a lag L the share is that of the places i, of all with a place i + L, where both have the same label. Lags up to
    half the sequence count, so that all of it occurs twice, and up to 2**20. Of long sequences only lags are compared
    that lead from most of some places to the same 16 labels in a row, and of those the first 512.

    Args:
        label: what each operation is, any numbers.
    """
    longest = min(len(label) // 2, _LONGEST)
    label = numbered(label)[0].astype(np.int32)
    lags = range(1, longest + 1) if len(label) <= _FEW else _promising_lags(label, longest)
    for lag in lags:
        number = len(label) - lag
        alike = number
        for at in range(0, number, _AT_ONCE):
            until = min(number, at + _AT_ONCE)
            alike -= int(np.count_nonzero(label[at:until] != label[at + lag : until + lag]))
            if alike / number < EXACT:
                break
        else:
            return lag, alike / number
    return None


def alike_share(label: NDArray[np.integer], lag: int) -> float:
    """Return the share of the labels, of those that have one a lag later, that are the same as that one."""
    return int(np.count_nonzero(label[lag:] == label[:-lag])) / (len(label) - lag)


def _promising_lags(label: NDArray[np.integer], longest: int) -> Iterable[int]:
    """Return the smallest lags that lead from most of _PLACES to an equal row of _GRAM labels."""
    # Multiplied modulo 2**64 by powers of an odd number; rows of equal sums are most likely equal, and lags
    # that are not those of the sequence are dismissed when it is compared.
    factor = 0x9E3779B97F4A7C15
    rows = label.astype(np.uint64) * np.uint64(0xD6E8FEB86659FD93)
    rows ^= rows >> np.uint64(32)
    size = 1
    while size < _GRAM:
        rows = rows[:-size] * np.uint64(pow(factor, size, 1 << 64)) + rows[size:]
        size *= 2
    rows = (rows >> np.uint64(32)).astype(np.uint32)
    longest = min(longest, len(rows) - 1)
    # Multiples of the golden ratio spread evenly and in step with no period; numpy.random takes 10 ms to import.
    places = ((np.arange(1, _PLACES + 1) * 0.6180339887498949 % 1) * (len(rows) - longest)).astype(np.int64)
    alike = np.zeros(longest, np.uint8)
    for place in places.tolist():
        alike += rows[place + 1 : place + 1 + longest] == rows[place]
    lags: list[int] = (np.flatnonzero(alike >= _PLACES_ALIKE)[:_MOST_LAGS] + 1).tolist()
    return lags


def approximate_period(label: NDArray[np.integer]) -> tuple[int, float, list[int]] | None:
    """Return after how many operations a sequence nearly repeats, how well, and what comes once a period.

    A period is the median distance between two of one kind. It explains the share of the operations that are the same
    one period later. Of the periods of two operations and more that explain within AS_GOOD of what the best explains,
    the shortest is it. None if the best explains less than EXPLAINED of what chance does not: two operations drawn
    from the sequence are the same with the probability that chance explains.

    Args:
        label: what each operation is, any numbers.

    Returns:
        The period, the share, and the labels whose median distance it is, by first place.
    """
    if not len(label):
        return None
    kind, _ = numbered(label)
    order = np.argsort(kind, kind="stable")
    distance = np.diff(order)[np.diff(kind[order]) == 0]
    of_kind = kind[order][1:][np.diff(kind[order]) == 0]
    gaps = ranked(of_kind, distance, int(kind.max()) + 1)
    often = np.flatnonzero(gaps.number >= FEWEST - 1)
    median = gaps.values[(np.cumsum(gaps.number) - gaps.number)[often] + (gaps.number[often] - 1) // 2]
    periods, support = np.unique(median[(median >= 2) & (median * 2 <= len(label))], return_counts=True)
    periods = np.sort(periods[np.argsort(-support, kind="stable")][:_MOST_PERIODS])
    alike = [alike_share(label, period) for period in periods.tolist()]
    chance = float(((np.bincount(kind) / len(kind)) ** 2).sum())
    if not alike or max(alike) - chance < EXPLAINED * (1 - chance) or chance == 1:
        return None
    best = next(i for i, share in enumerate(alike) if share >= max(alike) - AS_GOOD)
    once = often[median == periods[best]]
    places = sorted(int(order[np.searchsorted(kind[order], one)]) for one in once.tolist())
    return int(periods[best]), alike[best], [int(label[place]) for place in places]


def first_kept(labels: Int64, period: int) -> int:
    """Return the place of the period in which the fewest labels differ from those one period later.

    Args:
        labels: at least two periods of them.
    """
    differs = np.append(0, np.cumsum(labels[:-period] != labels[period:]))
    number = differs[period:] - differs[:-period] if len(differs) > period else differs[-1:]
    return int(np.argmin(number))
