"""Columns of several tables as parts of one array: the same values, without a copy where none is needed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from traceable.trace.model import Column, concatenate_columns, is_constant, make_constant_column, pack_columns


@st.composite
def columns(draw: st.DrawFn) -> list[Column]:
    """Return a few columns of one type, some of them of one value in all rows."""
    dtype = draw(st.sampled_from([np.int8, np.int32, np.int64]))
    value = st.integers(int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))
    alike = st.tuples(value, st.integers(0, 3)).map(lambda one: make_constant_column(one[0], one[1], dtype))
    different = st.lists(value, max_size=4).map(lambda values: np.array(values, dtype))
    return draw(st.lists(alike | different, min_size=1, max_size=5))


@given(columns())
def test_columns_end_to_end_hold_what_each_of_them_holds(given: list[Column]) -> None:
    expected = [value for column in given for value in column.tolist()]
    parts = pack_columns(given)
    assert [part.tolist() for part in parts] == [column.tolist() for column in given]
    assert concatenate_columns(given).tolist() == expected
    whole = concatenate_columns(parts)
    assert whole.tolist() == expected
    assert {part.dtype for part in parts} == {whole.dtype} == {given[0].dtype}
    assert not len(whole) or is_constant(whole) or np.shares_memory(whole, next(part for part in parts if len(part)))


@given(columns(), st.data())
def test_parts_in_another_order_or_number_are_not_taken_for_the_whole(given: list[Column], data: st.DataObject) -> None:
    parts = pack_columns(given)
    choice = data.draw(st.lists(st.sampled_from(parts), min_size=1, max_size=6))
    pieces = [part[data.draw(st.integers(0, 1)) :] for part in choice]
    assert concatenate_columns(pieces).tolist() == [value for part in pieces for value in part.tolist()]


def test_a_value_that_all_rows_have_takes_no_memory() -> None:
    parts = pack_columns(
        [make_constant_column(7, 3, np.int64), np.empty(0, np.int64), make_constant_column(7, 2, np.int64)]
    )
    assert all(is_constant(part) for part in (parts[0], parts[2], concatenate_columns(parts)))


def test_a_part_can_not_be_written_to() -> None:
    first, _ = pack_columns([np.array([1, 2]), np.array([3])])
    with pytest.raises(ValueError, match="read-only"):
        first[0] = 0
