"""Counters: each sample a mark in a domain of their own."""

from __future__ import annotations

import pickle
from typing import Any

import numpy
import pytest

from traceable.protocol.nvtx import COUNTER_DOMAIN

from .conftest import Listen, NvtxLog

PROGRAM = """
from traceable import Counter, counter, mark
depth = Counter("queue_depth", domain="server")
for value in (3, 0, -5, 1 << 40): depth.sample(value)
counter("batch_size", 8)
counter("load", 0.25, "server")
counter("load", 0.75, domain="server")
Counter("flag").sample(True)
mark("no counter", payload=1)
"""


def samples(nvtx_log: NvtxLog) -> list[tuple[str | None, float | None, bool]]:
    result = [event for event in nvtx_log.events if event.domain == COUNTER_DOMAIN]
    assert {event.kind for event in result} == {"mark"}
    return [(event.name, event.payload, bool(event.category)) for event in result]


EXPECTED = [
    ("queue_depth", 3, True), ("queue_depth", 0, True), ("queue_depth", -5, True), ("queue_depth", 1 << 40, True),
    ("batch_size", 8, False), ("load", 0.25, True), ("load", 0.75, True), ("flag", 1, False),
]  # fmt: skip


def test_each_sample_is_a_mark_with_the_value_and_the_domain_as_category(listen: Listen) -> None:
    assert samples(listen(PROGRAM)) == EXPECTED


def test_nsys_records_counters(listen_nsys: Any) -> None:
    assert samples(listen_nsys(PROGRAM)) == EXPECTED


def test_numpy_scalars_are_values(listen: Listen) -> None:
    nvtx_log = listen("""
import numpy
from traceable import Counter
for value in (numpy.int16(-3), numpy.float32(0.5), numpy.uint8(255)): Counter("c").sample(value)
""")
    assert [value for _, value, _ in samples(nvtx_log)] == [-3, 0.5, 255]


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ((3, 1), TypeError, "^name must be"),
        ((None, 1), TypeError, "^name must be"),
        (([], 1), TypeError, "^name must be"),
        (("c", "text"), TypeError, "^value must be"),
        (("c", None), TypeError, "^value must be"),
        (("c", {"a": 1}), TypeError, "^value must be"),
        (("c", 1 << 63), ValueError, "^value 9223372036854775808 does not fit"),
        (("c", numpy.ones(2)), TypeError, "^value must be"),
        (("c", 1, 5), TypeError, "^domain must be"),
    ],
)
def test_what_is_no_counter_is_refused_by_name(api: Any, arguments: Any, error: Any, words: str) -> None:
    with pytest.raises(error, match=words):
        api.counter(*arguments)


def test_a_counter_says_what_it_is_and_can_be_pickled(api: Any) -> None:
    made = api.Counter("queue_depth", "server", level=2)
    again = pickle.loads(pickle.dumps(made))
    assert (again.name, again.domain, again._range) == ("queue_depth", "server", made._range)
    assert repr(made) == "Counter('queue_depth', domain='server')"
