"""What is refused, where, and in which words; and which colours there are."""

from __future__ import annotations

import pickle
from typing import Any

import numpy
import pytest

from traceable.annotation.arguments import normalize_payload, parse_color


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"message": 3}, TypeError),
        ({"message": b"bytes"}, TypeError),
        ({"color": "no colour"}, ValueError),
        ({"color": "#12345"}, ValueError),
        ({"color": -1}, ValueError),
        ({"color": 1 << 32}, ValueError),
        ({"color": [1, 0, 0]}, TypeError),
        ({"color": (2.0, 0, 0)}, ValueError),
        ({"domain": 1}, TypeError),
        ({"category": 1.5}, TypeError),
        ({"category": -1}, ValueError),
        ({"payload": "text"}, TypeError),
        ({"payload": object()}, TypeError),
        ({"payload": 1 << 63}, ValueError),
        ({"payload": {1}}, TypeError),
    ],
)
def test_a_wrong_argument_is_refused_by_its_name_when_the_range_is_made(
    api: Any, arguments: dict[str, Any], error: type[Exception]
) -> None:
    (name,) = arguments
    for make in (api.annotate, api.mark, api.push_range, api.start_range):
        with pytest.raises(error, match=f"^{name} "):
            make(**arguments)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"work": 3}, TypeError),
        ({"work": {"flops": "many"}}, TypeError),
        ({"work": {"bytes": True}}, TypeError),
        ({"work": {"dtype": 16}}, TypeError),
        ({"work": {"flop": 1}}, ValueError),
        ({"work": {1: 1}}, ValueError),
        ({"work": {"flops": -1}}, ValueError),
        ({"work": {"flops": float("nan")}}, ValueError),
        ({"work": {"bytes": 10**400}}, ValueError),
        ({"work": {"flops": 1}, "payload": 3}, TypeError),
        ({"work": {"flops": 1}, "payload": [1]}, TypeError),
        ({"work": {"flops": 1}, "payload": {"flops": 1}}, ValueError),
    ],
)
def test_wrong_work_is_refused_when_the_range_is_made(
    api: Any, arguments: dict[str, Any], error: type[Exception]
) -> None:
    for make in (api.annotate, api.push_range, api.start_range):
        with pytest.raises(error, match=r"^work\b"):
            make("name", **arguments)


def test_work_is_fields_of_the_payload(api: Any) -> None:
    for work in (
        {"flops": 2.5, "bytes": 3, "dtype": "bf16"},
        {"flops": numpy.float32(2.5), "bytes": 3, "dtype": "bf16"},
    ):
        range_ = api.annotate("name", work=work)
        assert range_._arguments[4] == {"flops": 2.5, "bytes": 3, "dtype": "bf16"}
        assert repr(pickle.loads(pickle.dumps(range_))) == repr(range_)
    assert api.annotate("name", payload={"k": 1}, work={"flops": 1 << 70})._arguments[4] == {"k": 1, "flops": 2.0**70}
    for none in (None, {}, {"flops": None}):
        assert api.annotate("name", work=none)._arguments[4] is None
        assert api.annotate("name", payload=7 if none is None else {"k": 1}, work=none)._arguments[4] is not None
    assert api.annotate("function", work={"flops": 1})(len)([1, 2]) == 2


def test_what_can_not_be_called_is_not_decorated(api: Any) -> None:
    with pytest.raises(TypeError, match="decorates functions"):
        api.annotate("name")(3)


def test_what_start_range_did_not_return_can_not_be_ended(api: Any) -> None:
    api.end_range(None)
    with pytest.raises(TypeError, match="range_id"):
        api.end_range(5)


@pytest.mark.parametrize(
    ("color", "expected"),
    [
        (None, 0x0000FF),
        ("blue", 0x0000FF),
        ("rapids", 0x7400FF),
        ("Orange", 0xFFA500),
        ("rebeccapurple", 0xFF663399),
        ("darkslategrey", 0xFF2F4F4F),
        ("#f0a", 0xFFFF00AA),
        ("#102030", 0xFF102030),
        ("#10203040", 0x40102030),
        (0x80102030, 0x80102030),
        ((1, 0, 0), 0xFFFF0000),
        ((0.0, 1.0, 0.0, 0.5), 0x8000FF00),
    ],
)
def test_colours_by_name_hex_number_and_channels(color: Any, expected: int) -> None:
    assert parse_color(color) == expected


@pytest.mark.parametrize("value", [True, numpy.int32(7), numpy.uint8(255), numpy.float32(0.5), numpy.float64(1.5)])
def test_numpy_scalars_and_bools_are_payloads(value: Any) -> None:
    number = normalize_payload(value)
    assert number == value
    assert type(number) in (int, float)
