"""What tables share that have rows by range: how the range is written, what lies outside every range, and the order."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from traceable.analysis.instances import Instances
from traceable.analysis.named import range_columns
from traceable.analysis.table import objects
from traceable.trace.model import PUSH_POP, Int64, Trace

OUTSIDE = -1
"""The number of the range of what lies outside every range."""

_STYLES = ("push_pop", "start_end")


def range_and_style(trace: Trace, found: Instances, first: Int64, number: Int64) -> dict[str, NDArray[Any]]:
    """Return the columns `range`, `range_domain` and `style`, absent for OUTSIDE.

    Args:
        first: an instance of each range.
        number: the range of each row, an index into `first` or OUTSIDE.
    """
    instance = np.append(first, OUTSIDE)[number]
    styles = [_STYLES[int(found.style[one] != PUSH_POP)] if one != OUTSIDE else None for one in instance.tolist()]
    return {**range_columns(trace, found, instance), "style": objects(styles)}


def in_order(number: Int64, total: Int64) -> Int64:
    """Return the rows by range, that of the largest total first, and by total within; OUTSIDE comes last."""
    of_range = np.zeros(int(number.max(initial=0)) + 2, np.int64)
    np.add.at(of_range, number, total)
    of_range[OUTSIDE] = -1
    return np.lexsort((-total, number, -of_range[number]))
