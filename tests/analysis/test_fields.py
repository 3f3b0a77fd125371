"""Named fields, summed up by row, against counting them one instance at a time."""

from __future__ import annotations

import json
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from traceable.analysis.fields import DEPTH_MAX, FIELDS_MAX, TEXT_MAX, VALUES_MAX, summarize_fields

values = st.one_of(
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.booleans(),
    st.none(),
    st.text(max_size=3),
    st.lists(st.integers(0, 2), max_size=2),
)
instances = st.lists(
    st.tuples(st.integers(0, 2), st.one_of(st.none(), st.dictionaries(st.sampled_from("abc"), values, min_size=1))),
    max_size=30,
)


def sum_fields(carried: list[tuple[int, str | None]], groups: int = 3) -> list[Any]:
    texts = sorted({text for _, text in carried if text is not None})
    index = np.array([-1 if text is None else texts.index(text) for _, text in carried], np.int32)
    return summarize_fields(texts, index, np.array([group for group, _ in carried], np.int64), groups)


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


@given(instances)
def test_every_field_equals_the_oracle(carried: list[tuple[int, dict[str, Any] | None]]) -> None:
    result = sum_fields([(group, None if fields is None else json.dumps(fields)) for group, fields in carried])
    for group in range(3):
        own = [fields for of, fields in carried if of == group and fields is not None]
        assert (result[group] is None) == (not own)
        names = sorted({name for fields in own for name in fields})
        assert list(result[group] or {}) == names
        for name in names:
            check(result[group][name], [fields[name] for fields in own if name in fields])


def check(field: dict[str, Any], own: list[Any]) -> None:
    numbers = [value for value in own if is_number(value)]
    others = [json.dumps(value) for value in own if not is_number(value)]
    assert field["count"] == len(own)
    assert ("mean" in field) == bool(numbers)
    if numbers:
        assert (field["min"], field["max"]) == (min(numbers), max(numbers))
        assert float(min(numbers)) <= field["mean"] <= float(max(numbers))
        exact = sum(map(Fraction, numbers)) / len(numbers)
        assert abs(Fraction(field["mean"]) - exact) <= max(abs(Fraction(value)) for value in numbers) / 10**9
    assert ("values" in field) == bool(others)
    if others:
        assert field["distinct"] == len(set(others))
        assert len(field["values"]) == min(VALUES_MAX, len(set(others)))
        assert all(one["count"] == others.count(json.dumps(one["value"])) for one in field["values"])
        left = sorted((others.count(value) for value in set(others)), reverse=True)
        assert [one["count"] for one in field["values"]] == left[:VALUES_MAX]


def test_means_of_small_numbers_are_exact() -> None:
    (result,) = sum_fields([(0, '{"n":1,"x":0.5}'), (0, '{"n":2,"x":0.25}'), (0, '{"n":6,"x":0.75}')], 1)
    assert result == {
        "n": {"count": 3, "min": 1, "max": 6, "mean": 3.0},
        "x": {"count": 3, "min": 0.25, "max": 0.75, "mean": 0.5},
    }


def test_what_is_long_or_too_much_is_cut() -> None:
    many = json.dumps({f"field {n:02}": n for n in range(100)})
    long = json.dumps({"t" * 500: "x" * 500, "list": list(range(500))})
    (first, second) = sum_fields([(0, many), (1, long)], 2)
    assert list(first) == [f"field {n:02}" for n in range(FIELDS_MAX)]
    assert second["t" * TEXT_MAX + "..."]["values"][0]["value"] == "x" * TEXT_MAX + "..."
    assert second["list"]["values"][0]["value"].startswith("[0, 1, 2, ")


@pytest.mark.parametrize("text", ["", "{", "[1]", "7", "[" * 100_000, '{"a":' + "9" * 5000 + "}"])
def test_what_no_annotation_wrote_is_no_field_that_breaks_the_report(text: str) -> None:
    (result,) = sum_fields([(0, text)], 1)
    json.dumps(result, allow_nan=False)
    assert result is None or list(result) == ["a"]


def test_fields_are_read_up_to_a_depth_whatever_the_stack() -> None:
    """Of deeper ones it depends on the stack whether they can be read, and then be written."""
    for depth in range(1, 1100):
        (result,) = sum_fields([(0, '{"a":' + "[" * depth + "]" * depth + "}")], 1)
        assert (result is not None) == (depth < DEPTH_MAX)
    (result,) = sum_fields([(0, json.dumps({"a": "[" * 99, "b": [[]] * 99}))], 1)
    assert list(result) == ["a", "b"]


def test_numbers_that_json_can_not_say_are_no_numbers() -> None:
    (result,) = sum_fields([(0, '{"a":NaN,"b":1e999}')], 1)
    assert json.loads(json.dumps(result, allow_nan=False))["a"]["values"] == [{"value": None, "count": 1}]
    assert result["b"]["count"] == 1
