"""The critical path of steps, against a slow, obvious computation of it, and on made-up programs whose path is known."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.analysis.critical_path_oracle import Oracle
from tests.analysis.test_sync import waiting_traces
from tests.example_count import scale_examples

from traceable.analysis.context import Context
from traceable.analysis.step_detection import BOUNDARY, RANGE, Steps, detect_steps
from traceable.analysis.step_paths import KINDS, PathSegments, trace_paths
from traceable.errors import MissingDataError
from traceable.trace.model import Trace


@st.composite
def path_traces(draw: Any) -> Trace:
    """Traces with every kind of call that waits, and calls that make a stream wait for an event."""
    trace = draw(waiting_traces())
    number = len(trace.names)
    names = trace.calls.name.copy()
    told = draw(st.lists(st.integers(0, max(0, len(names) - 1)), max_size=3)) if len(names) else []
    names[told] = number
    calls = replace(trace.calls, name=names)
    return replace(trace, names=(*trace.names, "cudaStreamWaitEvent_v3020"), calls=calls)


def find_steps(context: Context, kind: int) -> Steps | None:
    """Return steps that are ranges, or that end with a kernel; None where there are none."""
    try:
        return detect_steps(context, "a", None) if kind == RANGE else detect_steps(context, None, "*")
    except MissingDataError:
        return None


def list_moments(context: Context, segments: PathSegments, step: int) -> dict[int, dict[str, Any]]:
    own = segments.take(segments.step == step)
    moments = {}
    for i in range(len(own)):
        row = {
            "kind": KINDS[own.kind[i]],
            "inferred": bool(own.inferred[i]),
            "operation": int(own.operation[i]),
            "call": int(own.call[i]),
            "thread": int(own.thread[i]),
            "instance": int(own.instance[i]) if own.operation[i] < 0 and own.thread[i] >= 0 else None,
        }
        if row["operation"] >= 0:
            assert own.instance[i] == context.innermost[row["operation"]]
        moments |= dict.fromkeys(range(int(own.start_ns[i]), int(own.end_ns[i])), row)
    return moments


def assert_covers(segments: PathSegments, steps: Steps, rows: np.ndarray) -> None:
    """Each step's segments follow one another from its start to its end."""
    for step in rows.tolist():
        own = segments.take(segments.step == step)
        edges = [int(steps.start_ns[step]), *own.end_ns.tolist()]
        assert own.start_ns.tolist() == edges[:-1]
        assert edges[-1] == steps.end_ns[step]
        assert (own.duration_ns > 0).all()


@given(path_traces(), st.sampled_from([RANGE, BOUNDARY]), st.sampled_from([0, 3, 8, 20_000]))
@settings(max_examples=scale_examples(300))
def test_the_path_is_that_of_the_slow_computation(trace: Trace, kind: int, latency: int) -> None:
    context = Context(trace)
    steps = find_steps(context, kind)
    if steps is None:
        return
    rows = np.arange(len(steps))
    segments = trace_paths(context, steps, rows, latency)
    assert_covers(segments, steps, rows)
    if trace.extent_ns()[1] > 1000:
        return
    oracle = Oracle(context, latency)
    for step in rows.tolist():
        home, last = find_entry(context, oracle, steps, step)
        expected = oracle.follow(int(steps.start_ns[step]), int(steps.end_ns[step]), home, last)
        assert list_moments(context, segments, step) == expected


def find_entry(context: Context, oracle: Oracle, steps: Steps, step: int) -> tuple[int, int]:
    """Return the thread of a step, and the operation that ends it."""
    if steps.kind == RANGE:
        return int(context.instances.thread[steps.instance[step]]), -1
    lane = int(steps.lane[step])
    place = int(steps.process[lane]), int(steps.device[lane])
    ends = [
        one["index"]
        for one in oracle.operations
        if (one["process"], one["device"]) == place and one["end_ns"] == steps.end_ns[step]
    ]
    threads = [call["thread"] for call, one in oracle.links if one["process"] == place[0]]
    return max(sorted(set(threads)), key=threads.count, default=-1), ends[0]
