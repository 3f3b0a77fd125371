"""Sums and maxima by group, and which quantiles are told."""

from __future__ import annotations

import numpy as np

from traceable.trace.model import NULL, Int64

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
