"""What a recording says that can't be so: who is counted, and that it is said once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from tests.analysis.sample_traces import LAUNCH, WAIT, rows_of, table, trace_of, traces
from tests.example_count import scale_examples

from traceable.analysis.context import Context
from traceable.analysis.contradictions import find_contradictions
from traceable.recording import Recording
from traceable.report.document import build_header
from traceable.trace import model
from traceable.trace.model import NULL, PUSH_POP, START_END, Trace


def call(start: int, end: int, correlation: int) -> dict[str, int]:
    name = LAUNCH if correlation != NULL else WAIT
    row = {"start_ns": start, "end_ns": end, "name": name, "thread": 0, "correlation": correlation}
    return {**row, "driver": 0, "return_value": 0}


def kernel(start: int, end: int, correlation: int) -> dict[str, int]:
    row = {"start_ns": start, "end_ns": end, "process": 0, "correlation": correlation, "device": 0, "context": 0}
    return {**row, "stream": 7, "graph_node": NULL, "name": 0, "short_name": 0, "geometry": -1}


def make_range(start: int, end: int, name: int = 0, **other: Any) -> dict[str, Any]:
    row = {"start_ns": start, "end_ns": end, "name": name, "domain": -1, "category": -1, "thread": 0, "end_thread": -1}
    row |= {"style": PUSH_POP, "clipped": True, "payload": NULL, "has_payload": False, "identity": NULL, "fields": -1}
    return {**row, **other}


def with_ranges(*rows: dict[str, Any]) -> Trace:
    return trace_of(ranges=table(model.Ranges, list(rows)))


def test_operations_that_begin_before_their_launch_are_counted() -> None:
    calls = [call(1_000, 1_100, 1), call(2_000, 2_100, 2), call(3_000, 3_100, 3), call(9_000, 9_100, NULL)]
    kernels = [kernel(900, 950, 1), kernel(500, 600, 2), kernel(3_000, 3_500, 3), kernel(1, 2, 4)]
    trace = trace_of(calls=table(model.Calls, calls), kernels=table(model.Kernels, kernels))
    (note,) = find_contradictions(Context(trace))
    assert note.code == "operations_before_launch"
    assert note.startswith("2 of 4 ") and " 1.500 us" in note
    assert build_header(Recording(trace))["source"]["notes"] == [note.as_dict]
    # Of a part it is the same: it is said of the clocks.
    assert Recording(trace).select(time_ns=(3_000, 3_200)).notes == (note,)


@settings(max_examples=scale_examples(50), deadline=None)
@given(traces(busy=True))
def test_early_operations_are_those_that_a_slow_comparison_finds(trace: Trace) -> None:
    calls, leads = rows_of(trace.calls), []
    for name in ("kernels", "copies", "memsets", "graph_launches"):
        for row in rows_of(getattr(trace, name)):
            own = [
                one["start_ns"]
                for one in calls
                if one["correlation"] == row["correlation"] != NULL
                and trace.threads[one["thread"]].process == row["process"]
            ]
            if own and row["start_ns"] < min(own):
                leads.append(min(own) - row["start_ns"])
    notes = [note for note in find_contradictions(Context(trace)) if note.code == "operations_before_launch"]
    assert len(notes) == bool(leads)
    if leads:
        assert notes[0].startswith(f"{len(leads)} of ") and f" {max(leads) / 1000:.3f} us" in notes[0]


def test_ranges_that_were_pushed_again_and_again_were_never_popped() -> None:
    trace = with_ranges(
        *(make_range(at, 100) for at in (0, 10, 20)), make_range(30, 100, 1), make_range(40, 50, 2, clipped=False)
    )
    (note,) = find_contradictions(Context(trace))
    assert note.code == "ranges_never_popped"
    assert note.startswith("2 ") and " 'a' (2);" in note
    trace = replace(with_ranges(make_range(0, 90), make_range(5, 90, 1)), names=("step 12", "step 13"))
    (note,) = find_contradictions(Context(trace))
    assert note.code == "ranges_never_popped"
    assert note.startswith("1 ") and " 'step 12' (1);" in note


@pytest.mark.parametrize(
    "rows",
    [
        [make_range(0, 100), make_range(10, 100, 1)],
        [make_range(0, 100), make_range(10, 100, thread=1)],
        [make_range(0, 100), make_range(10, 100, domain=3)],
        [make_range(0, 100, style=START_END), make_range(10, 100, style=START_END)],
        [make_range(0, 100, clipped=False), make_range(10, 100)],
        # Cut by the ends of two windows.
        [make_range(0, 40), make_range(60, 100)],
    ],
)
def test_ranges_that_the_end_of_the_recording_cut_are_no_contradiction(rows: list[dict[str, Any]]) -> None:
    assert find_contradictions(Context(with_ranges(*rows))) == ()
