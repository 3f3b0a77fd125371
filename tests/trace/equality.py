"""Whether two readings of a file say the same, to the last bit."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from traceable.trace.lazy import Lazy
from traceable.trace.sqlite import EncodedColumn, Rows


def differences(one: Any, other: Any, where: str = "") -> list[str]:
    """Return where two traces, or the rows of two tables, differ."""
    if type(one) is not type(other):
        return [f"{where}: {type(one).__name__} and {type(other).__name__}"]
    if isinstance(one, Rows):
        return _of_rows(one, other, where)
    if isinstance(one, Lazy):
        return differences(one.get(), other.get(), where)
    if dataclasses.is_dataclass(one):
        names = [field.name for field in dataclasses.fields(one)]
        return [d for name in names for d in differences(getattr(one, name), getattr(other, name), f"{where}.{name}")]
    if isinstance(one, np.ndarray):
        same = one.dtype == other.dtype and np.array_equal(one, other, equal_nan=one.dtype.kind == "f")
    else:
        same = one == other
    return [] if same else [f"{where}: {str(one)[:200]} and {str(other)[:200]}"]


def _of_rows(one: Rows, other: Rows, where: str) -> list[str]:
    if (one.count, set(one.columns), set(one.encoded)) != (other.count, set(other.columns), set(other.encoded)):
        return [f"{where}: {one.count} rows and {other.count}"]
    result = [d for name in one.columns for d in differences(one[name], other[name], f"{where}.{name}")]
    return result + [
        d for name in one.encoded for d in _of_coded(one.encoded[name], other.encoded[name], f"{where}.{name}")
    ]


def _of_coded(one: EncodedColumn, other: EncodedColumn, where: str) -> list[str]:
    # Equal texts may have several codes: bytes that are not UTF-8 become the same text as the escapes they turn into.
    return differences(_looked_up(one), _looked_up(other), where)


def _looked_up(coded: EncodedColumn) -> list[Any]:
    values = [*(coded.values.tolist() if isinstance(coded.values, np.ndarray) else coded.values), None]
    return [values[code] for code in coded.codes.tolist()]
