"""The reader of request ids: the C extension against the definition, whatever the texts hold."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.skips import skip_unless_ci

from traceable.trace import request_fields
from traceable.trace.request_fields import (
    group_by_id,
    group_by_id_in_python,
    parse_request_fields,
    read_request_fields,
    read_request_fields_in_python,
)

ids = st.one_of(
    st.sampled_from(["a", "b", "", 7, "7", -0, True, None, 1.5, "é", '"', "\\", 10**700]), st.text(max_size=20)
)
scalars = st.one_of(ids, st.floats(), st.integers())
values = st.one_of(scalars, st.lists(scalars, max_size=5), st.lists(st.lists(scalars, max_size=2), max_size=2))
keys = st.sampled_from(["request_id", "requests", "phase", "batch", "x y"])
objects = st.one_of(st.dictionaries(keys, values, max_size=4), st.dictionaries(keys, st.dictionaries(keys, ids)))


@st.composite
def texts(draw: Any) -> str:
    """JSON as programs write it, and what a damaged recording holds."""
    separators = draw(st.sampled_from([(",", ":"), (", ", ": ")]))
    text = json.dumps(draw(objects), separators=separators, ensure_ascii=draw(st.booleans()))
    at = draw(st.integers(0, len(text)))
    return draw(st.sampled_from([text, text, text, text[:at], text[:at] + draw(st.text(max_size=2)) + text[at:]]))


@pytest.fixture(autouse=True)
def _built() -> None:
    if request_fields._fields is None:
        skip_unless_ci("the extension is not built")


@given(st.lists(texts(), min_size=1, max_size=5), st.data())
@example(['{"requests":["a","b","a"],"request_id":"b"}', '{"request_id":1,"request_id":2}', '{"request_id":-0}'], None)
@example(["{}", "[]", "", "{", '{"request_id":"a"', '{"request_id":"a"}x', ' {"request_id" : "a" } ', "null"], None)
@example(
    ['{"request_id":01}', '{"request_id":1e3}', '{"request_id":NaN}', '{"requests":"ab"}', '{"requests":[[1]]}'], None
)
def test_the_extension_reads_what_the_definition_says(names: list[str], data: Any) -> None:
    rows = [*range(len(names)), -1]
    if data is not None:
        rows = data.draw(st.lists(st.sampled_from(rows), max_size=8))
    fields = np.array(rows, np.int32)
    fast, slow = (read(tuple(names), fields) for read in (read_request_fields, read_request_fields_in_python))
    assert fast.ids == slow.ids
    for column in ("own", "first", "listed"):
        assert getattr(fast, column).tolist() == getattr(slow, column).tolist()
        assert getattr(fast, column).dtype == getattr(slow, column).dtype


def test_many_ids_are_numbered_in_the_order_of_their_first_occurrence() -> None:
    """More than the table of ids begins with, of every length."""
    texts = [str(number) * (1 + number % 11) for number in range(20_000)]
    distinct = list(dict.fromkeys(texts))
    names = tuple(json.dumps({"requests": [texts[i], texts[i // 2]]}) for i in range(len(texts)))
    result = read_request_fields(names, np.arange(len(names), dtype=np.int32))
    assert result.ids == tuple(distinct)
    number = {text: i for i, text in enumerate(distinct)}
    expected = [number[one] for i in range(len(texts)) for one in dict.fromkeys([texts[i], texts[i // 2]])]
    assert result.listed.tolist() == expected


@given(st.lists(st.lists(st.integers(0, 4), unique=True, max_size=4), max_size=12))
def test_steps_are_grouped_by_id_in_order(steps: list[list[int]]) -> None:
    listed = np.array([one for ids in steps for one in ids], np.int32)
    counts = np.array([len(ids) for ids in steps], np.int64)
    for group in (group_by_id, group_by_id_in_python):
        first, step = group(5, listed, counts)
        groups = [step[first[i] : first[i + 1]].tolist() for i in range(5)]
        assert groups == [[number for number, ids in enumerate(steps) if i in ids] for i in range(5)]
        assert step.dtype == np.int32


def test_columns_that_do_not_fit_are_rejected() -> None:
    with pytest.raises(IndexError):
        read_request_fields(("{}",), np.array([1], np.int32))
    with pytest.raises(ValueError, match="fit"):
        group_by_id(1, np.array([1], np.int32), np.array([1], np.int64))


@pytest.mark.parametrize(
    ("text", "own", "listed"),
    [
        ('{"request_id": 7, "requests": ["7", 7, "x", true, null, 1.0]}', "7", ["7", "x"]),
        ('{"request_id": true, "requests": {"a": 1}}', None, []),
        ('{"request_id": "\\ud800"}', "?", []),
        ("[" * 100_000, None, []),
    ],
)
def test_what_an_id_is(text: str, own: str | None, listed: list[str]) -> None:
    assert parse_request_fields(text) == (own, listed)
