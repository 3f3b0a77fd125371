"""Where steps are: by word, by repetition of ranges, of kernels and of graphs; and what a period is."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.analysis.made import NAMES, rows_of, table, trace_of, traces

from traceable.analysis.context import Context
from traceable.analysis.step_detection import BOUNDARY, CYCLE, RANGE, Steps, steps_of
from traceable.analysis.step_period import AS_GOOD, EXPLAINED, period_of
from traceable.errors import UnanswerableError, UsageError
from traceable.trace import load, model
from traceable.trace.model import NULL, PUSH_POP, Trace

PLAIN = {"domain": -1, "category": -1, "thread": 0, "end_thread": -1, "style": PUSH_POP, "clipped": False}
PLAIN |= {"payload": 0, "has_payload": False, "identity": NULL, "fields": -1}
KERNEL = {"process": 0, "device": 0, "context": 0, "stream": 7, "correlation": NULL, "graph_node": NULL}


def ranges(*rows: tuple[int, int, int]) -> Any:
    """Push/pop ranges on one thread from (start, end, index of the name)."""
    return table(model.Ranges, [{**PLAIN, "start_ns": a, "end_ns": b, "name": name} for a, b, name in rows])


def kernels(*rows: tuple[int, int, int], **more: int) -> Any:
    base = {**KERNEL, "geometry": -1, **more}
    return table(
        model.Kernels,
        [{**base, "start_ns": a, "end_ns": b, "name": name, "short_name": name} for a, b, name in rows],
    )


def named(trace: Trace, *names: str) -> Trace:
    return replace(trace, names=(*names, *NAMES[len(names) :]))


def found(trace: Trace, range_name: str | None = None, step_kernel: str | None = None) -> Steps:
    return steps_of(Context(trace), range_name, step_kernel)


def spans(steps: Steps) -> list[tuple[int, int]]:
    return list(zip(steps.start_ns.tolist(), steps.end_ns.tolist(), strict=True))


def period_by_hand(token: list[int]) -> tuple[int, float, list[int]] | None:
    places: dict[int, list[int]] = {}
    for i, one in enumerate(token):
        places.setdefault(one, []).append(i)
    median = {}
    for one, at in places.items():
        gaps = sorted(b - a for a, b in pairwise(at))
        if len(at) >= 3:
            median[one] = gaps[(len(gaps) - 1) // 2]
    shares = {}
    for period in {gap for gap in median.values() if 2 <= gap <= len(token) // 2}:
        same = [token[i] == token[i + period] for i in range(len(token) - period)]
        shares[period] = sum(same) / len(same)
    if not shares or max(shares.values()) < EXPLAINED:
        return None
    best = min(period for period, share in shares.items() if share >= max(shares.values()) - AS_GOOD)
    return best, shares[best], [one for one in places if median.get(one) == best]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.integers(-3, 4), max_size=6), st.integers(1, 8), st.lists(st.integers(-3, 5), max_size=10))
@example([1, 2, 3], 4, [])
def test_a_period_equals_that_by_hand(unit: list[int], times: int, more: list[int]) -> None:
    token = [*more[:3], *unit * times, *more[3:]]
    result = period_of(np.array(token, np.int64))
    expected = period_by_hand(token)
    assert (result is None) == (expected is None)
    if result is not None and expected is not None:
        assert result[0] == expected[0]
        assert result[1] == pytest.approx(expected[1])
        assert result[2] == expected[2]


def test_a_layer_within_a_step_is_no_step() -> None:
    step = [1, *[2, 3, 4] * 12, 5]
    result = period_of(np.array(step * 6))
    assert result is not None
    assert (result[0], result[2]) == (len(step), [1, 5])


@settings(max_examples=200, deadline=None)
@given(traces(), st.sampled_from(["a", "b", "c"]))
def test_the_instances_of_a_named_range_are_the_steps(trace: Trace, name: str) -> None:
    context = Context(trace)
    instances = context.found
    wanted = [i for i in range(len(instances)) if trace.names[instances.name[i]] == name and not instances.replay[i]]
    process = [trace.threads[thread].process for thread in instances.thread.tolist()]
    wanted.sort(key=lambda i: (process[i], instances.start_ns[i], i))
    if not wanted:
        with pytest.raises(UnanswerableError, match="no range"):
            steps_of(context, name, None)
        return
    steps = steps_of(context, name, None)
    assert (steps.kind, steps.instance.tolist()) == (RANGE, wanted)
    assert spans(steps) == [(instances.start_ns[i], instances.end_ns[i]) for i in wanted]
    assert steps.edge.tolist() == [bool(instances.clipped[i]) for i in wanted]
    assert [int(steps.process[lane]) for lane in steps.lane.tolist()] == [process[i] for i in wanted]
    assert {steps.labels[label] for label in steps.label.tolist()} == {name}


@settings(max_examples=200, deadline=None)
@given(traces(busy=True), st.sampled_from(["a", "[bc]", "*"]))
def test_a_boundary_kernel_ends_the_step_of_its_process_and_device(trace: Trace, pattern: str) -> None:
    wanted = {"a": {0}, "[bc]": {1, 2}, "*": {0, 1, 2}}[pattern]
    everything = [
        row for name in ("kernels", "copies", "memsets", "graph_launches") for row in rows_of(getattr(trace, name))
    ]
    expected = []
    for lane in sorted({(row["process"], row["device"]) for row in everything}):
        here = [row for row in everything if (row["process"], row["device"]) == lane]
        ends = sorted(
            (row["end_ns"], row["start_ns"])
            for row in rows_of(trace.kernels)
            if (row["process"], row["device"]) == lane and {row["name"], row["short_name"]} & wanted
        )
        begin = min(row["start_ns"] for row in here)
        for i, (end, _) in enumerate(ends):
            expected.append((*lane, begin, end, i == 0))
            begin = end
    if not expected:
        with pytest.raises(UnanswerableError, match="no kernel matches"):
            found(trace, step_kernel=pattern)
        return
    steps = found(trace, step_kernel=pattern)
    lanes = [(int(steps.process[lane]), int(steps.device[lane])) for lane in steps.lane.tolist()]
    edges = steps.edge.tolist()
    assert [(*lane, *span, edge) for lane, span, edge in zip(lanes, spans(steps), edges, strict=True)] == expected


@pytest.mark.parametrize(
    ("name", "is_step"),
    [
        *(
            ("step", True),
            ("train_step", True),
            ("Iteration", True),
            ("TrainStep", True),
            ("mypkg.engine.Engine.step", True),
        ),
        *(("my iter", True), ("STEP", True), ("optimizer.step", False), ("Optimizer.step#AdamW.step", False)),
        *(("lr_scheduler.step", False), ("filter", False), ("footstep", False), ("step of the day", False)),
    ],
)
def test_a_range_called_step_is_found_by_its_name(name: str, is_step: bool) -> None:
    trace = named(trace_of(ranges=ranges(*((i * 100, i * 100 + 1, 0) for i in range(4)))), name)
    if is_step:
        steps = found(trace)
        assert (steps.kind, steps.rules) == (
            RANGE,
            (f"a step is an instance of the range {name!r}, found by its name",),
        )
    else:
        with pytest.raises(
            UnanswerableError, match=r"no steps found.*; name the step with --step-range or --step-kernel"
        ):
            found(trace)


def test_a_number_behind_the_name_is_not_part_of_it() -> None:
    rows = [(100 * i, 100 * i + 60, i) for i in range(3)]
    trace = named(
        trace_of(ranges=ranges(*rows, (0, 5, 3), (7, 9, 3), (10, 12, 3))),
        "ProfilerStep#3",
        "ProfilerStep#4",
        "ProfilerStep#5",
        "iter",
    )
    steps = found(trace)
    assert spans(steps) == [row[:2] for row in rows]
    assert [steps.labels[label] for label in steps.label.tolist()] == list(trace.names[:3])
    assert spans(found(trace, "ProfilerStep#*")) == spans(steps)
    assert spans(found(trace, "ProfilerStep#4")) == [rows[1][:2]]


def test_the_outermost_range_that_comes_again_is_the_step() -> None:
    rows = [(0, 50, 2)]
    for i in range(5):
        at = 100 + 100 * i
        rows += [(at, at + 80, 0), (at + 5, at + 20, 1), (at + 25, at + 40, 1), (at + 45, at + 60, 1)]
    trace = named(trace_of(ranges=ranges((0, 1000, 2), *rows)), "request", "layer", "serve")
    steps = found(trace)
    assert (steps.kind, spans(steps)) == (RANGE, [(100 + 100 * i, 180 + 100 * i) for i in range(5)])
    assert steps.rules == ("a step is an instance of the range 'request', found by its repetition",)


def test_ranges_that_follow_one_another_make_a_step_from_first_to_first() -> None:
    rows = []
    for i in range(4):
        at = 1000 + 100 * i
        rows += [(at, at + 20, 0), (at + 22, at + 70, 1), (at + 72, at + 90, 2)]
    trace = named(trace_of(ranges=ranges((0, 900, 3), *rows)), "forward", "backward", "optimizer", "warm up")
    steps = found(trace)
    assert (steps.kind, spans(steps)) == (CYCLE, [(1000, 1100), (1100, 1200), (1200, 1300), (1300, 1390)])
    assert steps.edge.tolist() == [False, False, False, True]
    assert steps.rules == ("a step lasts from one 'forward' to the next: forward > backward > optimizer repeat",)


def test_ranges_that_take_little_of_the_time_are_no_steps() -> None:
    trace = named(trace_of(ranges=ranges(*((100 * i, 100 * i + 10, 0) for i in range(6)))), "pack")
    with pytest.raises(UnanswerableError):
        found(trace)
    over_one_another = named(trace_of(ranges=ranges(*((10 * i, 10 * i + 100, 0) for i in range(6)))), "request")
    with pytest.raises(UnanswerableError):
        found(over_one_another)


def test_both_ranks_are_cut_at_the_same_kernel() -> None:
    unit, rows = (0, 1, 2), {}
    for device in range(2):
        # The second device idles longest after another kernel than the first, but less in all.
        pause = (1, 1, 30) if device == 0 else (20, 1, 1)
        at, listed = 0, []
        for _ in range(6):
            for name in unit:
                listed.append((at, at + 5, name))
                at += 5 + pause[name]
        rows[device] = listed
    tables = [rows_of(kernels(*rows[device], device=device, process=device)) for device in range(2)]
    trace = trace_of(kernels=table(model.Kernels, tables[0] + tables[1]))
    steps = found(trace)
    assert (steps.kind, steps.labels) == (BOUNDARY, ("c",))
    assert np.bincount(steps.lane).tolist() == [6, 6]
    assert steps.rules == (
        "a step ends with the kernel 'c', which comes every 3 operations (100% of them are the same one step later)",
    )


def test_a_graph_that_is_launched_again_and_again_ends_a_step() -> None:
    base = {**KERNEL, "graph": 9}
    launched = [{**base, "start_ns": 100 * i, "end_ns": 100 * i + 90} for i in range(4)]
    trace = trace_of(graph_launches=table(model.GraphLaunches, launched), kernels=kernels((95, 96, 0)))
    steps = found(trace)
    assert (steps.kind, spans(steps)) == (BOUNDARY, [(0, 90), (90, 190), (190, 290), (290, 390)])
    assert steps.labels == ("[CUDA graph]",)


def test_what_cannot_be_found_is_said_with_what_to_do() -> None:
    for kwargs, error in (
        ({"range_name": "nothing"}, "no range 'nothing' in the trace"),
        ({"range_name": "noth*"}, r"no range 'noth\*' in the trace"),
        ({"step_kernel": "x*"}, r"no kernel matches 'x\*'"),
        ({}, "no steps found"),
    ):
        with pytest.raises(UnanswerableError, match=error):
            found(trace_of(kernels=kernels((1, 2, 0)), ranges=ranges((0, 5, 1))), **kwargs)
    with pytest.raises(UnanswerableError, match="no kernel in the trace; record with"):
        found(trace_of(), step_kernel="a")
    with pytest.raises(UnanswerableError, match="no steps found"):
        found(trace_of())
    with pytest.raises(UsageError, match="not both"):
        found(trace_of(), "a", "a")


@settings(max_examples=100, deadline=None)
@given(st.one_of(traces(), traces(busy=True)))
def test_whatever_the_trace_holds_steps_are_found_or_not_twice_the_same(trace: Trace) -> None:
    first, second = outcome(trace), outcome(trace)
    assert first == second


def outcome(trace: Trace) -> Any:
    try:
        steps = found(trace)
    except UnanswerableError as error:
        return str(error)
    assert (steps.end_ns >= steps.start_ns).all()
    assert (np.diff(steps.lane) >= 0).all()
    return steps.kind, spans(steps), steps.rules


@pytest.mark.parametrize(
    ("name", "kind", "number", "rule"),
    [
        ("a100-lm-training", CYCLE, 10, "forward > backward > optimizer repeat"),
        ("a100-cuda-graphs-graph-level", BOUNDARY, 10, "the launch of a CUDA graph, which comes every 4 operations"),
        ("windows-three-adapters", BOUNDARY, 5, "which comes every 897 operations"),
        ("h100x2-torchrun-after", BOUNDARY, 30, "which comes every 119 operations"),
    ],
)
def test_steps_of_real_captures(captures: Path, name: str, kind: int, number: int, rule: str) -> None:
    steps = found(load(captures / "nsys" / f"{name}.sqlite"))
    assert (steps.kind, len(steps)) == (kind, number)
    assert rule in steps.rules[0]
