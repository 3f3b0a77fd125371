"""A part of a trace against a slow, obvious choice of it, and what must be the same in the part as in the whole."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.analysis.made import ACTIVE, PROCESS_OF_THREAD, rows_of, table, trace_of, traces

from traceable.analysis.context import Context
from traceable.analysis.select import gpu_number, parse_time, parse_time_span, selected
from traceable.errors import UnanswerableError, UsageError
from traceable.trace import load, model
from traceable.trace.model import NULL, PUSH_POP, START_END, Trace

OPERATIONS = ("kernels", "copies", "memsets", "graph_launches")
TABLES = tuple(f.name for f in fields(Trace) if str(f.type) in vars(model) and f.name not in ("source", "geometries"))
edges = st.one_of(st.none(), st.integers(-5, 70))
spans = st.tuples(edges, edges).filter(lambda span: None in span or span[0] < span[1])


def named(trace: Trace) -> Trace:
    names = ("/usr/bin/python3", "trainer.exe")
    processes = tuple(replace(p, pid=100 + p.pid, name=name) for p, name in zip(trace.processes, names, strict=True))
    return replace(trace, processes=processes, cuda_devices={(101, 0): 1, (101, 1): 0})


def numbered(events: Any) -> list[dict[str, Any]]:
    return [{**row, "row": i} for i, row in enumerate(rows_of(events))]


def test_every_table_is_compared() -> None:
    assert {"ranges", "calls", "overheads", "graph_nodes", *OPERATIONS} <= set(TABLES)


@settings(max_examples=100, deadline=None)
@given(
    traces(), st.sampled_from([(["100"], {0}), (["python*"], {0}), (["1*", "*.exe"], None), (["101", "py*"], {0, 1})])
)
def test_only_what_is_of_the_processes_stays(trace: Trace, asked: tuple[list[str], set[int] | None]) -> None:
    trace, (patterns, indices) = named(trace), asked
    if indices is None:
        with pytest.raises(UnanswerableError, match=r"no process '1\*'.*100 \(/usr/bin/python3\), 101 \(trainer.exe\)"):
            selected(trace, processes=patterns)
        return
    part = selected(trace, processes=patterns)
    for name in TABLES:
        whole = rows_of(getattr(trace, name))
        expected = [
            row
            for row in whole
            if (row["process"] if "process" in row else PROCESS_OF_THREAD[row["thread"]]) in indices
        ]
        assert rows_of(getattr(part, name)) == expected
    assert (part.names, part.threads, part.processes) == (trace.names, trace.threads, trace.processes)


@settings(max_examples=100, deadline=None)
@given(traces(busy=True), st.sampled_from([[0], [1], [0, 1]]))
def test_only_what_is_of_the_gpus_stays(trace: Trace, devices: list[int]) -> None:
    trace = named(trace)
    part = selected(trace, devices=devices)
    for name in TABLES:
        expected = rows_of(getattr(trace, name))
        if name in (*OPERATIONS, "synchronisations", "allocations"):
            # In process 101 CUDA numbers the two GPUs the other way round.
            expected = [row for row in expected if abs(row["device"] - row["process"]) in devices]
        assert rows_of(getattr(part, name)) == expected


def test_a_gpu_that_is_not_there_is_an_error_that_names_those_that_are() -> None:
    trace = trace_of()
    with pytest.raises(UnanswerableError, match="no GPU 3 in the trace; there is none"):
        selected(trace, devices=[3])
    gpu = model.Device(1, "", "", None, None, None, None)
    with pytest.raises(UnanswerableError, match="no GPU 3 in the trace; there are 1"):
        selected(replace(trace, devices=(gpu,)), devices=[1, 3])
    with pytest.raises(UnanswerableError, match="no process 'x'"):
        selected(replace(trace, processes=()), processes=["x"])


class Oracle:
    """Which rows stay in a time, one at a time."""

    def __init__(self, trace: Trace, first: int | None, last: int | None) -> None:
        self.first = -1000 if first is None else first
        self.last = 1000 if last is None else last
        self.ranges = numbered(trace.ranges)
        for row in self.ranges:
            row["process"] = PROCESS_OF_THREAD[row["thread"]]
            row["stretch"] = row["domain"] == ACTIVE and row["style"] == PUSH_POP and row["has_payload"]
        operations = [row for name in OPERATIONS for row in rows_of(getattr(trace, name)) if self.starts(row)]
        self.calls, points = [], []
        for call in rows_of(trace.calls):
            process = PROCESS_OF_THREAD[call["thread"]]
            launch = call["correlation"] != NULL and (process, call["correlation"]) in {
                (row["process"], row["correlation"]) for row in operations
            }
            if launch or self.starts(call):
                self.calls.append(call)
            if launch and not self.starts(call):
                points.append((process, call["start_ns"]))
        if any(row["graph_node"] != NULL for row in operations):
            points += [(PROCESS_OF_THREAD[row["thread"]], row["start_ns"]) for row in rows_of(trace.graph_nodes)]
        self.kept = {row["row"] for row in self.ranges if self.overlaps(row) or self.is_open(row, points)}
        while self.grow():
            pass

    def starts(self, row: dict[str, Any]) -> bool:
        return self.first <= row["start_ns"] < self.last

    def overlaps(self, row: dict[str, Any]) -> bool:
        return row["start_ns"] < self.last and row["end_ns"] >= self.first

    def is_open(self, row: dict[str, Any], points: list[tuple[int, int]]) -> bool:
        return any(process == row["process"] and row["start_ns"] <= at <= row["end_ns"] for process, at in points)

    def grow(self) -> bool:
        before = set(self.kept)
        ours = [row for row in self.ranges if row["row"] in before]
        new = [row for row in self.ranges if row["row"] not in before and any(self.tied(row, one) for one in ours)]
        points = [(row["process"], row["start_ns"]) for row in new]
        self.kept |= {row["row"] for row in new}
        self.kept |= {row["row"] for row in self.ranges if self.is_open(row, points)}
        return self.kept != before

    def tied(self, row: dict[str, Any], one: dict[str, Any]) -> bool:
        """Whether `one`, which stays, says that `row` is what it began in or a piece of it."""
        if row["process"] != one["process"]:
            return False
        if row["identity"] != NULL and one["identity"] != NULL:
            number = row["identity"] & (1 << 30) - 1
            if number in (one["identity"] & (1 << 30) - 1, one["identity"] >> 32 & (1 << 30) - 1):
                return True
        if row["stretch"] and one["stretch"] and row["payload"] == one["payload"]:
            return True
        whole = one["style"] == START_END and one["identity"] == NULL and one["name"] == row["name"]
        return row["stretch"] and whole and one["start_ns"] <= row["start_ns"] <= one["end_ns"]


@settings(max_examples=300, deadline=None)
@given(st.one_of(traces(), traces(busy=True)), spans)
def test_only_what_is_of_the_time_stays(trace: Trace, span: tuple[int | None, int | None]) -> None:
    part, oracle = selected(trace, time_ns=span), Oracle(trace, *span)
    for name in (*OPERATIONS, "synchronisations", "allocations", "overheads", "marks", "counters"):
        assert rows_of(getattr(part, name)) == [row for row in rows_of(getattr(trace, name)) if oracle.starts(row)]
    assert rows_of(part.calls) == oracle.calls
    assert rows_of(part.graph_nodes) == rows_of(trace.graph_nodes)
    expected = []
    for i, row in enumerate(rows_of(trace.ranges)):
        inside = oracle.first <= row["start_ns"] and row["end_ns"] <= oracle.last
        if i in oracle.kept:
            expected.append({**row, "clipped": row["clipped"] or not inside})
    assert rows_of(part.ranges) == expected


def owners(trace: Trace) -> list[list[tuple[Any, ...]]]:
    """Of each operation in order of start: what it is, and the ranges it belongs to with their paths."""
    context = Context(trace)
    gpu, found = context.gpu, context.found
    kinds = (trace.kernels, trace.copies, trace.memsets, trace.graph_launches)
    correlation = [number for events in kinds for number in events.correlation.tolist()]
    of: dict[int, list[tuple[Any, ...]]] = defaultdict(list)
    for instance, operation in context.operation_pairs():
        for i, o in zip(instance.tolist(), operation.tolist(), strict=True):
            of[o].append((int(found.start_ns[i]), int(found.end_ns[i]), found.paths[found.path[i]]))
    return sorted(
        [(int(gpu.start_ns[o]), int(gpu.end_ns[o]), int(gpu.kind[o]), correlation[o]), *sorted(of[o])]
        for o in range(len(gpu))
    )


@settings(max_examples=300, deadline=None)
@given(traces(busy=True), spans)
def test_an_operation_belongs_to_the_same_ranges_in_the_part_as_in_the_whole(
    trace: Trace, span: tuple[int | None, int | None]
) -> None:
    first, last = (-1000 if span[0] is None else span[0]), (1000 if span[1] is None else span[1])
    inside = [one for one in owners(trace) if first <= one[0][0] < last]
    assert owners(selected(trace, time_ns=span)) == inside


def test_attribution_in_a_part_of_a_real_capture_is_that_of_the_whole(captures: Path) -> None:
    trace = load(captures / "nsys" / "a100-lm-training.sqlite")
    first, last = 8_500_000_000, 8_600_000_000
    part = selected(trace, time_ns=(first, last))
    whole, narrow = Context(trace), Context(part)
    inside = (whole.gpu.start_ns >= first) & (whole.gpu.start_ns < last)
    assert inside.sum() == len(narrow.gpu) > 1000
    assert narrow.trace.names == trace.names

    def names(context: Context) -> list[int]:
        return [int(context.found.name[i]) if i >= 0 else -1 for i in context.innermost.tolist()]

    assert names(narrow) == [name for name, here in zip(names(whole), inside.tolist(), strict=True) if here]
    assert 0 < len(part.ranges) < len(trace.ranges)


def test_nothing_asked_for_is_the_trace_itself() -> None:
    trace = trace_of()
    assert selected(trace) is trace
    part = selected(trace, time_ns=(None, None))
    assert part.kernels is trace.kernels


def test_an_unknown_device_is_none_of_those_asked_for() -> None:
    where = {"process": 0, "context": -1, "stream": -1, "correlation": NULL, "graph_node": NULL}
    sync = {**where, "start_ns": 1, "end_ns": 2, "device": -1, "kind": 1}
    graph = {**where, "start_ns": 1, "end_ns": 2, "device": -1, "graph": 1}
    trace = trace_of(synchronisations=table(model.Synchronisations, [sync]))
    trace = replace(trace, graph_launches=table(model.GraphLaunches, [graph]))
    trace = replace(trace, devices=(model.Device(0, "", "", None, None, None, None),))
    part = selected(trace, devices=[0])
    assert (len(part.synchronisations), len(part.graph_launches)) == (1, 0)
    assert gpu_number(trace, trace.graph_launches.process, trace.graph_launches.device).tolist() == [-1]


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("2", 2_000_000_000),
        ("1.5s", 1_500_000_000),
        (" .25 s ", 250_000_000),
        ("200ms", 200_000_000),
        ("3.0000004us", 3_000),
        ("3µs", 3_000),
        ("70ns", 70),
        ("0.5ns", 1),
        ("9223372036.854775807", 2**63 - 1),
    ],
)
def test_a_time_has_a_unit_or_is_in_seconds(text: str, ns: int) -> None:
    assert parse_time(text) == ns


@pytest.mark.parametrize("text", ["", "-1s", "1h", "1e9", "s", "1.2.3", "9" * 5000, "1 \n s s"])
def test_what_is_no_time_is_said_in_one_line(text: str) -> None:
    with pytest.raises(UsageError) as error:
        parse_time(text)
    assert "\n" not in str(error.value) and len(str(error.value)) < 150


def test_a_span_may_be_open_on_either_side() -> None:
    assert parse_time_span("1ms:2ms") == (1_000_000, 2_000_000)
    assert parse_time_span("1s:") == (1_000_000_000, None)
    assert parse_time_span(":3us") == (None, 3_000)
    assert parse_time_span(":") == (None, None)
    for text in ("1s", "2s:1s", "1s:1s", "1s:2s:3s", "a:b"):
        with pytest.raises(UsageError):
            parse_time_span(text)
