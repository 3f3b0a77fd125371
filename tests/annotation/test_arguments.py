"""What is refused, where, and in which words; and which colours there are."""

from __future__ import annotations

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
