"""Sums and exact quantiles by group."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from traceable.trace.model import NULL, Bool, Int64

QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
"""Which quantiles are reported, by the word in the column's name."""


def totals(group: Int64, values: Int64, groups: int) -> Int64:
    """Return the sum of the int64 `values` of each of the groups 0..groups-1, exact."""
    sums = np.zeros(groups, np.int64)
    np.add.at(sums, group, values)
    return sums


def maxima(group: Int64, values: Int64, groups: int) -> Int64:
    """Return the maximum of `values` in each group; NULL for an empty group or one that holds only NULL."""
    found = np.full(groups, NULL, np.int64)
    np.maximum.at(found, group, values)
    return found


def spread_of(prefix: str, group: Int64, values: Int64, use: Bool, groups: int) -> dict[str, NDArray[np.generic]]:
    """Return mean, minimum, quantiles, maximum and deviation of int64 values in ns, by group, as columns of a table.

    Args:
        prefix: columns are named `<prefix>_mean_ns` and so on.
        group: group of each value, 0..groups-1.
        use: which values count. A group without any has absent values.

    Quantiles are exact: linear interpolation between the sorted values, as numpy's default method. The deviation is
    the sample's (n - 1), and 0 for a single value, as nsys has it.
    """
    which = np.flatnonzero(use)
    group, ranked = _ranked(group[which], values[which], groups)
    number = np.bincount(group, minlength=groups)
    first = np.cumsum(number) - number
    some = number > 0
    columns: dict[str, NDArray[np.generic]] = {}
    mean = np.full(groups, np.nan)
    np.divide(totals(group, ranked, groups), number, out=mean, where=some)
    columns[f"{prefix}_mean_ns"] = mean
    columns[f"{prefix}_min_ns"] = _picked(ranked, first, some)
    for word, quantile in QUANTILES.items():
        columns[f"{prefix}_{word}_ns"] = _quantiles(ranked, first, number, quantile)
    columns[f"{prefix}_max_ns"] = _picked(ranked, first + number - 1, some)
    deviation = np.full(groups, np.nan)
    squares = np.bincount(group, weights=(ranked - mean[group]) ** 2, minlength=groups)
    np.divide(squares, np.maximum(1, number - 1), out=deviation, where=some)
    columns[f"{prefix}_stddev_ns"] = np.sqrt(deviation)
    return columns


def _ranked(group: Int64, values: Int64, groups: int) -> tuple[Int64, Int64]:
    """Return groups and values sorted by group and then by value."""
    if not len(values):
        return group, values
    low = int(values.min())
    width = int(values.max()) - low + 1
    if width * groups < 1 << 62:
        # One number for both: sorting numbers is several times faster than sorting an order of them.
        keys = np.sort(group * width + (values - low))
        return keys // width, keys % width + low
    order = np.lexsort((values, group))
    return group[order], values[order]


def _picked(ranked: Int64, at: Int64, some: Bool) -> Int64:
    found = np.full(len(at), NULL, np.int64)
    found[some] = ranked[at[some]]
    return found


def _quantiles(ranked: Int64, first: Int64, number: Int64, quantile: float) -> NDArray[np.float64]:
    """Interpolate at rank quantile * (n - 1), in the order of operations that numpy uses, so that results are equal."""
    found = np.full(len(first), np.nan)
    some = number > 0
    rank = quantile * (number[some] - 1)
    below = np.floor(rank).astype(np.int64)
    above = np.minimum(below + 1, number[some] - 1)
    low, high = ranked[first[some] + below], ranked[first[some] + above]
    part = rank - below
    step = (high - low).astype(np.float64)
    found[some] = np.where(part >= 0.5, high - step * (1 - part), low + step * part)
    return found
