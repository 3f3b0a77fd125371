"""Rows by group, fast: numbering the groups, counting what differs within them, and the spread of their values.

What sorts here sorts one packed int64 a row, which numpy does some ten times faster than sorting by two keys (1 M rows:
9 ms against 175 ms). No reading of a trace and no table here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traceable.analysis.statistics import QUANTILES
from traceable.trace.model import NULL, Bool, Float64, Int64

_WIDEST = 2**62
"""What a packed key stays below."""


def numbered(*keys: NDArray[Any]) -> tuple[Int64, Int64]:
    """Number the distinct combinations of equally long integer columns.

    Returns:
        The group of each row, numbered from 0 in ascending order of the keys (the first key above the second), and of
        each group its first row.
    """
    rows = len(keys[0])
    code = np.zeros(rows, np.int64)
    groups = 1
    for key in keys:
        column, width = _from_zero(key)
        if width == 1:
            continue
        if groups * width > _dense(rows):
            code, groups = _without_gaps(code, groups)
        if groups * width >= _WIDEST:
            column = np.unique(column, return_inverse=True)[1].reshape(-1)
            width = int(column.max(initial=0)) + 1
        code = code * width + column if groups > 1 else column
        groups *= width
    code, groups = _without_gaps(code, groups)
    first = np.zeros(groups if rows else 0, np.int64)
    # Written from the last to the first, so that the first row of each group stays.
    first[code[::-1]] = np.arange(rows)[::-1]
    return code, first


def distinct_counts(group: Int64, item: NDArray[Any], groups: int) -> Int64:
    """Return how many different items each of the groups 0..groups-1 holds."""
    code, width = _from_zero(item)
    if groups * 2 * width >= _WIDEST:
        code = np.unique(code, return_inverse=True)[1].reshape(-1)
        width = int(code.max(initial=0)) + 1
    counts: Int64 = np.bincount(distinct_pairs(group, code, width)[0], minlength=groups)
    return counts


def distinct_pairs(group: Int64, item: Int64, items: int) -> tuple[Int64, Int64]:
    """Return each pair of group and item (one of 0..items-1) once, sorted by both."""
    # Bits, because dividing a million numbers takes longer than sorting them.
    bits = items.bit_length()
    key = np.sort(group << bits | item)
    if len(key):
        key = key[np.append(True, key[1:] != key[:-1])]
    return key >> bits, key & ((1 << bits) - 1)


def only_value(group: Int64, value: NDArray[Any], groups: int) -> tuple[Int64, Int64]:
    """Return how many different values that are not negative each group holds, and the value where it is one.

    The value is NULL where a group has none or several.
    """
    group, value = _known(group, value)
    first = numbered(group, value)[1]
    of_pair = group[first]
    number = np.bincount(of_pair, minlength=groups)
    single = np.full(groups, NULL, np.int64)
    single[of_pair] = value[first]
    single[number != 1] = NULL
    return number, single


def commonest(group: Int64, value: NDArray[Any], groups: int) -> tuple[Int64, Int64, Int64]:
    """Return of each group how many different values it holds, the commonest, and how often that occurs.

    Of equally common values the smallest. Negative values do not count; a group without any has 0, NULL and 0.
    """
    group, value = _known(group, value)
    pair, first = numbered(group, value)
    of_pair, value_of_pair = group[first], value[first]
    count = np.bincount(pair, minlength=len(first))
    found = np.full(groups, NULL, np.int64)
    often = np.zeros(groups, np.int64)
    # Written from the rarest to the commonest, so that the commonest stays.
    order = np.lexsort((-value_of_pair.astype(np.int64), count))
    found[of_pair[order]] = value_of_pair[order]
    often[of_pair[order]] = count[order]
    return np.bincount(of_pair, minlength=groups), found, often


def _known(group: Int64, value: NDArray[Any]) -> tuple[Int64, NDArray[Any]]:
    """Leave out the rows whose value is negative."""
    known = value >= 0
    return (group, value) if known.all() else (group[known], value[known])


@dataclass(frozen=True)
class Ranked:
    """Values sorted within their groups, the groups one after another.

    Attributes:
        values: int64.
        number: how many of them each group has.
    """

    values: Int64
    number: Int64

    def spread(self, prefix: str) -> dict[str, NDArray[Any]]:
        """Return mean, minimum, quantiles and maximum as columns `<prefix>_mean_ns` and so on.

        Absent for a group without values. Quantiles are exact: linear interpolation, as numpy's default method.
        """
        first = np.cumsum(self.number) - self.number
        columns: dict[str, NDArray[Any]] = {f"{prefix}_mean_ns": self.means()}
        columns[f"{prefix}_min_ns"] = self._at(first)
        for word, quantile in QUANTILES.items():
            columns[f"{prefix}_{word}_ns"] = self._quantile(first, quantile)
        columns[f"{prefix}_max_ns"] = self._at(first + self.number - 1)
        return columns

    def totals(self) -> Int64:
        """Return the sum of each group, exact."""
        before = np.concatenate([[0], np.cumsum(self.values)])
        ends = np.cumsum(self.number)
        sums: Int64 = before[ends] - before[ends - self.number]
        return sums

    def means(self) -> Float64:
        """Return the mean of each group, NaN where it has no values."""
        mean = np.full(len(self.number), np.nan)
        np.divide(self.totals(), self.number, out=mean, where=self.number > 0)
        return mean

    def deviations(self) -> Float64:
        """Return the sample standard deviation (n - 1) of each group, 0 for one value and NaN for none."""
        group = np.repeat(np.arange(len(self.number)), self.number)
        squares = np.bincount(group, (self.values - self.means()[group]) ** 2, len(self.number))
        deviation = np.sqrt(squares / np.maximum(1, self.number - 1))
        return np.where(self.number > 0, deviation, np.nan)

    def _at(self, index: Int64) -> Int64:
        some = self.number > 0
        found = np.full(len(index), NULL, np.int64)
        found[some] = self.values[index[some]]
        return found

    def _quantile(self, first: Int64, quantile: float) -> Float64:
        """Interpolate at rank quantile * (n - 1), in the order of operations that numpy uses."""
        some = self.number > 0
        rank = quantile * (self.number[some] - 1)
        below = np.floor(rank).astype(np.int64)
        above = np.minimum(below + 1, self.number[some] - 1)
        low, high = self.values[first[some] + below], self.values[first[some] + above]
        part = rank - below
        step = (high - low).astype(np.float64)
        found = np.full(len(first), np.nan)
        found[some] = np.where(part >= 0.5, high - step * (1 - part), low + step * part)
        return found


def ranked(group: Int64, values: Int64, groups: int, use: Bool | None = None) -> Ranked:
    """Sort values within the groups 0..groups-1; `use` says which of them count, None that all do."""
    if use is not None:
        group, values = group[use], values[use]
    number = np.bincount(group, minlength=groups)
    if not len(values):
        return Ranked(values, number)
    lowest = int(values.min())
    bits = (int(values.max()) - lowest).bit_length()
    if bits + groups.bit_length() > 62:
        return Ranked(values[np.lexsort((values, group))], number)
    key = group << bits
    key |= values - lowest
    key.sort()
    key &= (1 << bits) - 1
    key += lowest
    return Ranked(key, number)


def _from_zero(key: NDArray[Any]) -> tuple[Int64, int]:
    """Return the column less its minimum, and one more than its maximum then is.

    Numbers too far apart for that are replaced by their ranks.
    """
    if not len(key):
        return key.astype(np.int64), 1
    lowest, highest = int(key.min()), int(key.max())
    if highest - lowest >= _WIDEST:
        rank = np.unique(key, return_inverse=True)[1].reshape(-1)
        return rank, int(rank.max()) + 1
    return key.astype(np.int64) - lowest, highest - lowest + 1


def _without_gaps(code: Int64, width: int) -> tuple[Int64, int]:
    """Replace codes below `width` by their rank; return it and how many there are, at least 1."""
    if width <= _dense(len(code)):
        present = np.bincount(code, minlength=width) > 0
        rank: Int64 = np.cumsum(present) - 1
        return rank[code], max(1, int(present.sum()))
    kinds, place = np.unique(code, return_inverse=True)
    return place.reshape(-1), max(1, len(kinds))


def _dense(rows: int) -> int:
    """Return how many numbers a lookup table for so many rows may have."""
    return max(1 << 16, 4 * rows)
