"""Which columns of a table are read, and its rows in memory: as few bytes a row as its columns need. Reads nothing.

A column in which all rows hold the same value is an array with a stride of 0: it takes no memory, and can't be written.
What is looked up later (names, threads, launch geometries) comes as `EncodedColumn`: a small number a row and, once,
the value of each number, so that a lookup is one over the distinct values and not one over the rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from traceable.trace.model import NULL, Int32, Int64, NDArray

Column: TypeAlias = NDArray[Any]
_ROWS_AT_ONCE = 1 << 17


@dataclass(frozen=True)
class ColumnSpec:
    """Columns of a table by the form in which they are needed; a column is listed once. Each may be absent.

    Attributes:
        integers: as int64, with `model.NULL` for NULL.
        small: as int32, with -1 for NULL, negative numbers and those beyond an int32.
        reals: as float64, with NaN for NULL.
        keys: several columns of integers as one `EncodedColumn`, by a name for it; `model.NULL` for NULL.
        texts: as `EncodedColumn`, with the code -1 for NULL.
    """

    integers: tuple[str, ...] = ()
    small: tuple[str, ...] = ()
    reals: tuple[str, ...] = ()
    keys: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    texts: tuple[str, ...] = ()

    def names(self) -> tuple[str, ...]:
        """Return the names of all columns."""
        members = [name for key in self.keys.values() for name in key]
        return (*self.integers, *self.small, *self.reals, *members, *self.texts)


@dataclass(frozen=True)
class EncodedColumn:
    """A column of numbers that represent values.

    Attributes:
        codes: one a row; -1 for no value.
        values: the value of each code: int64 of shape (codes, columns) for a key, or a list of str for a text.
    """

    codes: Int32
    values: Any

    def map_values(self, values: Column) -> Column:
        """Return for each row `values[code]`; every row must have a code."""
        return take_values(values, self.codes)


@dataclass(frozen=True)
class Rows:
    """Rows of one table. `columns`: integers, small and reals by name; `encoded`: keys and texts by name."""

    count: int
    columns: dict[str, Column]
    encoded: dict[str, EncodedColumn]

    def __getitem__(self, name: str) -> Column:
        return self.columns[name]

    def texts(self, name: str) -> list[str | None]:
        """Return one column of texts, None for NULL."""
        known = [*self.encoded[name].values, None]
        return [known[code] for code in self.encoded[name].codes.tolist()]

    def take(self, which: Any) -> Rows:
        """Return the rows `which`: an order or a mask."""
        count = int(which.sum()) if which.dtype == bool else len(which)
        return Rows(
            count,
            {name: select_values(column, which, count) for name, column in self.columns.items()},
            {
                name: EncodedColumn(select_values(one.codes, which, count), one.values)
                for name, one in self.encoded.items()
            },
        )

    def sort(self, order: Int64) -> None:
        """Bring the rows into `order`. Columns are sorted in place: new ones would leave holes in memory."""
        for name, column in self.columns.items():
            self.columns[name] = _sorted(column, order)
        for name, one in self.encoded.items():
            self.encoded[name] = EncodedColumn(_sorted(one.codes, order), one.values)

    def drop_unused_codes(self) -> Rows:
        """Return the same rows, with only the codes and values that some row has."""
        return Rows(self.count, self.columns, {name: _without_unused(one) for name, one in self.encoded.items()})


def make_empty_rows(spec: ColumnSpec) -> Rows:
    """Return no rows."""
    encoded = {
        name: EncodedColumn(np.empty(0, np.int32), np.empty((0, len(key)), np.int64)) for name, key in spec.keys.items()
    }
    encoded |= {name: EncodedColumn(np.empty(0, np.int32), []) for name in spec.texts}
    return Rows(0, make_null_columns(spec, frozenset(), 0), encoded)


def make_constant_column(value: float, count: int, dtype: Any) -> Column:
    """Return a column of `count` rows that all hold `value`."""
    return np.broadcast_to(np.array(value, dtype), (count,))


def is_constant(column: Column) -> bool:
    """Return whether the column is known to hold one value in all rows."""
    return len(column) > 0 and column.strides == (0,)


def fold_constant(column: Column) -> Column:
    """Return the column, without memory a row where all rows hold the same value."""
    if not len(column) or is_constant(column) or column[0] != column[-1] or not bool((column == column[0]).all()):
        return column
    return make_constant_column(column[0], len(column), column.dtype)


def distinct(values: Column) -> Column:
    """Return the different values of a column of numbers, in order.

    As np.unique does, which since numpy 2.3 hashes: 50 times slower where most values differ, and it loads numpy.ma.
    """
    ordered = np.sort(values)
    first: Column = ordered[np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)]]
    return first


def concatenate_columns(columns: Sequence[Column]) -> Column:
    """Return columns of one type, one after another: the array that they are parts of, if `pack_columns` made them.

    The result may share memory with the columns: do not write to it.
    """
    filled = [column for column in columns if len(column)]
    count = sum(map(len, filled))
    if not filled:
        return columns[0]
    if len(filled) == 1:
        return filled[0]
    if all(is_constant(column) and column[0] == filled[0][0] for column in filled):
        return make_constant_column(filled[0][0], count, filled[0].dtype)
    whole = filled[0].base
    if isinstance(whole, np.ndarray) and whole.shape == (count,) and whole.strides == filled[0].strides:
        first = np.cumsum([0, *map(len, filled)])[:-1] * whole.itemsize + whole.ctypes.data
        if all(column.base is whole and column.ctypes.data == at for column, at in zip(filled, first, strict=True)):
            return whole
    return np.concatenate(columns)


def pack_columns(columns: Sequence[Column]) -> list[Column]:
    """Return the same columns as parts of one array, which `concatenate_columns` returns without a copy."""
    whole = concatenate_columns(columns)
    # Its parts have many readers, of whom one may take it for an array of its own.
    whole.flags.writeable = False
    return np.split(whole, np.cumsum([len(column) for column in columns])[:-1])


def take_values(values: Column, index: Column) -> Column:
    """Return `values[index]`, without memory a row where all rows hold the same value."""
    if len(index) and (is_constant(index) or (len(values) and bool((values == values[0]).all()) and index.min() >= 0)):
        return make_constant_column(values[index[0]], len(index), values.dtype)
    return np.take(values, index, axis=0)  # Half the time of an index, where that is int32.


def argsort_by_start(start: Int64, end: Int64) -> Int64 | None:
    """Return the order by start, the longer of two first, stable; None if they are in order."""
    if _in_order(start, end):
        return None
    order = np.argsort(start, kind="stable")  # Fast on long ordered runs, which lexsort is not.
    ordered = start[order]
    tied = ordered[1:] == ordered[:-1]
    if tied.any():
        which = np.zeros(len(order), bool)
        which[1:] = tied
        which[:-1] |= tied
        among = order[which]
        order[which] = among[np.lexsort((-end[among], start[among]))]
    return order


def _in_order(start: Int64, end: Int64) -> bool:
    for at in range(0, len(start), _ROWS_AT_ONCE):
        starts, ends = start[at : at + _ROWS_AT_ONCE + 1], end[at : at + _ROWS_AT_ONCE + 1]
        before, after, keys = starts[:-1], starts[1:], -ends
        if not bool(((before < after) | ((before == after) & (keys[:-1] <= keys[1:]))).all()):
            return False
    return True


def to_int32(values: Int64) -> Int32:
    """Return int32 numbers; -1 for NULL, negative numbers and those beyond an int32."""
    if is_constant(values):
        return make_constant_column(
            int(values[0]) if 0 <= values[0] <= np.iinfo(np.int32).max else -1, len(values), np.int32
        )
    return np.where((values < 0) | (values > np.iinfo(np.int32).max), -1, values).astype(np.int32)


def make_null_columns(spec: ColumnSpec, names: frozenset[str], count: int) -> dict[str, Column]:
    """Return the columns of integers, small numbers and reals that are not among `names`: NULL in every row."""
    columns: dict[str, Column] = {
        name: make_constant_column(NULL, count, np.int64) for name in spec.integers if name not in names
    }
    columns |= {name: make_constant_column(-1, count, np.int32) for name in spec.small if name not in names}
    columns |= {name: make_constant_column(np.nan, count, np.float64) for name in spec.reals if name not in names}
    return columns


def select_values(column: Column, which: Any, count: int) -> Column:
    """Return `column[which]`, which has `count` rows."""
    if is_constant(column):
        return make_constant_column(column[0], count, column.dtype)
    if which.dtype == bool:
        return column if count == len(column) else column[which]
    selected: Column = np.take(column, which)
    return selected


def _sorted(column: Column, order: Int64) -> Column:
    """Return the column in `order`, in its own memory where it can be written to."""
    if is_constant(column) or not column.flags.writeable:
        return select_values(column, order, len(column))
    column[:] = np.take(column, order)
    return column


def _without_unused(one: EncodedColumn) -> EncodedColumn:
    used = np.bincount(one.codes[one.codes >= 0], minlength=len(one.values)) > 0
    number = np.append(np.cumsum(used) - 1, -1).astype(np.int32)
    used_codes = np.flatnonzero(used).tolist()
    values = one.values[used] if isinstance(one.values, np.ndarray) else [one.values[code] for code in used_codes]
    return EncodedColumn(number[one.codes], values)
