"""Named fields as payload: said in a mark right before the range, matched to it by the identity that both carry."""

from __future__ import annotations

import json
from typing import Any

import numpy
import pytest

from traceable.annotation.arguments import normalize_payload
from traceable.protocol.nvtx import ACTIVE_DOMAIN, ANNOUNCES, GENERATOR_DOMAIN, NO_FIELDS, PAYLOAD_DOMAIN, is_identity

from .conftest import Event, Listen, NvtxLog

PROGRAM = """
import asyncio
from traceable import annotate, end_range, get_domain, mark, pop_range, push_range, start_range
fields = lambda n: {"kind": n, "tokens": 512}
with annotate("with", payload=fields("with")): pass
push_range("push", payload=fields("push"), domain="d"); pop_range("d")
end_range(start_range("start", payload=fields("start")))
mark("mark", payload=fields("mark"))
get_domain("d").mark(message="domain", payload=fields("domain"))
kept = annotate("kept", payload=fields("kept"))
for _ in range(2):
    with kept:
        with kept: pass
@annotate(payload=fields("function"))
def function(): return 1
@annotate("coroutine", payload=fields("coroutine"))
async def coroutine():
    await asyncio.sleep(0)
    async with annotate("block", payload=fields("block")): await asyncio.sleep(0)
@annotate("generator", payload=fields("generator"))
def generator(): yield
assert function() == 1
asyncio.run(coroutine()); list(generator())
with annotate("bare"): pass
with annotate("number", payload=5): pass
with annotate("empty", payload={}): pass
"""


def fields_of(nvtx_log: NvtxLog) -> list[tuple[Event, dict[str, Any]]]:
    """Fold the companion marks into their ranges, by the rule that `emission` gives."""
    output: dict[float, str] = {}
    for event in nvtx_log.events:
        if event.domain == PAYLOAD_DOMAIN:
            assert event.payload not in output
            assert event.payload is not None and event.name is not None
            output[event.payload] = event.name
    ranges = [
        event for event in nvtx_log.events if event.domain not in (PAYLOAD_DOMAIN, ACTIVE_DOMAIN, GENERATOR_DOMAIN)
    ]
    return [(event, json.loads(output[event.payload]) if event.payload in output else {}) for event in ranges]


def test_fields_find_their_range_however_it_is_made(listen: Listen) -> None:
    result = fields_of(listen(PROGRAM))
    assert len(result) == 16
    for event, fields in result:
        if event.name in ("bare", "number", "empty"):
            assert fields == {}
            assert event.payload == (5 if event.name == "number" else None)
        else:
            assert fields == {"kind": event.name, "tokens": 512}


def test_work_is_recorded_as_fields(listen: Listen) -> None:
    result = fields_of(
        listen("""
from traceable import annotate, end_range, pop_range, push_range, start_range
@annotate("function", work={"flops": 10, "dtype": "bf16"})
def function(): pass
for size in (1, 2):
    with annotate("with", work={"flops": 2.0 * size, "bytes": size}): function()
push_range("push", payload={"k": "v"}, work={"bytes": 5}); pop_range()
end_range(start_range("start", work={"flops": 7}))
with annotate("level", level=9, work={"flops": 7}): pass
""")
    )
    assert [(event.name, fields) for event, fields in result] == [
        ("with", {"flops": 2.0, "bytes": 1}),
        ("function", {"flops": 10, "dtype": "bf16"}),
        ("with", {"flops": 4.0, "bytes": 2}),
        ("function", {"flops": 10, "dtype": "bf16"}),
        ("push", {"k": "v", "bytes": 5}),
        ("start", {"flops": 7}),
    ]


def test_fields_are_recorded_by_nsys_too(listen_nsys: Any) -> None:
    result = fields_of(listen_nsys(PROGRAM))
    assert {event.name: fields.get("kind") for event, fields in result} == {
        name: name if name not in ("bare", "number", "empty") else None for name in (event.name for event, _ in result)
    }


def test_the_companion_comes_right_before_its_range_on_its_thread(listen: Listen) -> None:
    nvtx_log = listen("""
from traceable import annotate
import threading
def work():
    for n in range(200):
        with annotate("step", payload={"n": n}): pass
threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
""")
    steps = nvtx_log.find("step")
    assert len({step.payload for step in steps}) == len(steps) == 800
    for thread in {step.thread for step in steps}:
        own = [event for event in nvtx_log.events if event.thread == thread]
        for output, step in zip(own[::2], own[1::2], strict=True):
            assert (output.kind, output.domain, step.name) == ("mark", PAYLOAD_DOMAIN, "step")
            assert output.payload == step.payload and is_identity(int(step.payload or 0))
        assert [json.loads(output.name or "")["n"] for output in own[::2]] == list(range(200))


VALUES = [
    {"int": 1, "negative": -(1 << 63), "big": (1 << 63) - 1},
    {"float": 0.1, "whole": 2.0, "small": 1e-300, "large": 1.7e308, "minus": -0.0},
    {"bool": True, "no": False, "none": None},
    {"text": "plain", "quote": 'a"b\\c', "control": "a\nb\tc\x01\x7f", "unicode": "été 猫 \U0001f600", "empty": ""},
    {"shape": [2, 3, 4], "tuple": [1, [2.5, "x"]], "nothing": []},
    {'na"me': 1, "naïve": 2, "": 3},
    {f"field {n}": n for n in range(200)},
    {"long": "x" * 10_000},
    {"requests": [f"id {n}" for n in range(64)], "mixed": [1, None, True, "é", 'a"b'], "numbers": [1, 0.5, -2]},
    {"requests": [f"id {n}" for n in range(1000)]},
]


def test_every_kind_of_value_arrives_as_it_was(listen: Listen) -> None:
    nvtx_log = listen(
        f"from traceable import mark\nfor fields in {VALUES!r}: mark('m', payload=fields)\n"
        "from types import MappingProxyType; mark('m', payload=MappingProxyType({'proxy': 1}))\n"
        "mark('m', payload={'nan': float('nan'), 'infinite': float('-inf')})\n"
        "mark('m', payload={'nul': 'a\\0b', 'lone': '\\udcff'})\n"
    )
    texts = [event.name or "" for event in nvtx_log.events if event.domain == PAYLOAD_DOMAIN]
    expected = [*VALUES, {"proxy": 1}, {"nan": None, "infinite": None}, {"nul": "a\u2400b", "lone": "?"}]
    assert [json.loads(text) for text in texts] == expected
    assert texts[0] == '{"int":1,"negative":-9223372036854775808,"big":9223372036854775807}'


def test_fields_of_any_length_arrive_as_they_were(listen: Listen) -> None:
    """The native core writes some 4000 bytes by itself."""
    nvtx_log = listen("""
from traceable import mark
for length in range(4030, 4100):
    mark("m", payload={"padding": "x" * length, "ids": [1, "a", 0.5], "none": []})
    mark("m", payload={"padding": "x" * (length - 100), "ids": ["12345678"] * 10})
""")
    texts = [event.name or "" for event in nvtx_log.events if event.domain == PAYLOAD_DOMAIN]
    for number, length in enumerate(range(4030, 4100)):
        lists = {"padding": "x" * length, "ids": [1, "a", 0.5], "none": []}
        ids = {"padding": "x" * (length - 100), "ids": ["12345678"] * 10}
        expected = [json.dumps(fields, separators=(",", ":")) for fields in (lists, ids)]
        assert texts[2 * number : 2 * number + 2] == expected


def test_numpy_scalars_are_fields() -> None:
    text = normalize_payload({"a": numpy.int32(7), "b": numpy.float32(0.5), "c": numpy.bool_(True)})
    assert text == '{"a":7,"b":0.5,"c":true}'


@pytest.mark.parametrize(
    ("payload", "error", "words"),
    [
        ({"a": object()}, TypeError, r"^payload\['a'\] must be"),
        ({"a": {"b": 1}}, TypeError, r"^payload\['a'\] must be"),
        ({"a": [1, b"x"]}, TypeError, r"^payload\['a'\]\[1\] must be"),
        ({"fine": 1, "a": 1 << 63}, ValueError, r"^payload\['a'\] 9223372036854775808 does not fit"),
        ({1: 2}, TypeError, "^payload's field names must be strings, not int"),
        ({"a": numpy.ones(3)}, TypeError, r"^payload\['a'\] must be"),
    ],
)
def test_a_field_that_can_not_be_carried_is_refused_by_its_name(api: Any, payload: Any, error: Any, words: str) -> None:
    for make in (api.annotate, api.mark):
        with pytest.raises(error, match=words):
            make("x", payload=payload)


STEPS = """
import asyncio, traceable
for item in traceable.steps([1, 2], payload=lambda item: {"batch": item, "requests": ["a", "b"]}): pass
with traceable.step(payload={"batch": 3}): pass
with traceable.step(): pass
with traceable.step(payload=7): pass
with traceable.step(payload={}): pass
async def work():
    async with traceable.annotate("block"):
        async with traceable.step(payload={"batch": 8}): await asyncio.sleep(0)
        with traceable.step(payload={"batch": 9}): pass
        with traceable.step(): pass
asyncio.run(work())
traceable.step_boundary(payload={"batch": 10})
"""

STEP_FIELDS = {
    0: {"batch": 1, "requests": ["a", "b"]},
    1: {"batch": 2, "requests": ["a", "b"]},
    2: {"batch": 3},
    6: {"batch": 8},
    7: {"batch": 9},
    10: {"batch": 10},
}


def check_steps(nvtx_log: NvtxLog) -> None:
    """Each step carries its index; the mark right before it on its thread announces its fields."""
    result = {}
    announcement: Event | None = None
    for event in nvtx_log.events:
        if event.domain == PAYLOAD_DOMAIN:
            announcement = event
        elif event.name == "step":
            has_fields = announcement is not None and announcement.name != NO_FIELDS
            result[event.payload] = json.loads(announcement.name or "") if announcement and has_fields else None
            assert not has_fields or int(announcement.payload or 0) & ANNOUNCES  # type: ignore[union-attr]
            announcement = None
    assert result == {index: STEP_FIELDS.get(index) for index in (*range(9), 10)}


def test_a_step_has_its_index_and_its_fields(listen: Listen) -> None:
    check_steps(listen(STEPS))


def test_nsys_records_the_fields_of_steps(listen_nsys: Any) -> None:
    check_steps(listen_nsys(STEPS))
