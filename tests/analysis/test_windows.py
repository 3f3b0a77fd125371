"""What becomes of a window, from what was asked, what the process said, and what the files hold."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.analysis.made import table, trace_of

from traceable.analysis import windows
from traceable.analysis.context import Context
from traceable.analysis.gaps import gaps
from traceable.analysis.steps import steps
from traceable.analysis.streams import streams
from traceable.analysis.unrecorded import unrecorded, unrecorded_ns
from traceable.analysis.windows import Asked, Captured, Said, Window, captured, judged
from traceable.report.windows import lines, plain
from traceable.trace.model import NULL, Kernels, Ranges, Trace, Windows

COMPLETE = Window("7-1", 10, 30, 10, 0, 5, 30, 9, 5, "complete")
SAID = Said(pid=7, begun=50, ended=50, refused=0, end="exit", windows=(COMPLETE,))
ASKED = Asked("10:30", ((10, 30),), (SAID,), pid=7, end="the end of the program (exit code 0)")
WHOLE = Captured("7-1", tuple(range(10, 30)), 0, "app.nsys-rep", ("7-1",))


def outcome(window: Window = COMPLETE, file: Captured | None = WHOLE, **said: object) -> tuple[str, str]:
    process = replace(SAID, windows=(window,), **said)  # type: ignore[arg-type]
    (verdict,) = judged(replace(ASKED, processes=(process,)), [file] if file else []).verdicts
    return verdict.outcome, verdict.why


def test_a_window_whose_steps_are_all_there_is_captured():
    found = judged(ASKED, [WHOLE])
    assert found.met
    assert lines(plain(found)) == ["asked steps 10-30, captured 20 of 20"]


@pytest.mark.parametrize(
    ("change", "file", "expected", "why"),
    [
        ({}, None, windows.MISSING_REPORT, "no report holds the window 7-1"),
        ({}, replace(WHOLE, id="7-2"), windows.MISSING_REPORT, "no report holds the window 7-1"),
        (
            {},
            replace(WHOLE, together=("7-1", "7-2")),
            windows.MERGED,
            "one report holds the windows 7-1 and 7-2",
        ),
        (
            {},
            replace(WHOLE, steps=(10, 11, *range(14, 29))),
            windows.MISSING_STEPS,
            "steps 12-13, 29 are not whole in the report",
        ),
        (
            {},
            replace(WHOLE, steps=tuple(range(10, 31))),
            windows.MISSING_STEPS,
            "the report holds 1 step of other windows",
        ),
        (
            {"opened_step": 11},
            replace(WHOLE, steps=tuple(range(11, 30))),
            windows.OPENED_LATE,
            "opened late, at step 11",
        ),
        (
            {"reason": "exit", "closed_step": 17},
            replace(WHOLE, steps=tuple(range(10, 17))),
            windows.STOPPED_EARLY,
            "stopped early at step 17 by the end of the program (exit code 0)",
        ),
        (
            {"reason": "exception KeyError", "closed_step": 17},
            replace(WHOLE, steps=tuple(range(10, 17))),
            windows.STOPPED_EARLY,
            "stopped early at step 17 by KeyError",
        ),
        (
            {"opened_step": None, "closed_step": 40, "reason": "missed"},
            None,
            windows.NEVER_OPENED,
            "its steps were over before it could be opened, at step 40",
        ),
        (
            {"opened_step": None, "reason": "failed", "error": "no CUDA runtime is there"},
            None,
            windows.NEVER_OPENED,
            "no CUDA runtime is there",
        ),
    ],
)
def test_whatever_else_is_named(change, file, expected, why):
    seen = {"begun": 17, "ended": 17} if change.get("closed_step") == 17 else {}
    assert outcome(replace(COMPLETE, **change), file, **seen) == (expected, why)


def test_a_signal_is_named_with_the_step_it_came_in_and_what_the_report_lost():
    window = replace(COMPLETE, closed_step=None, closed_wall_ns=None, close_stall_ns=None, reason=None)
    process = replace(SAID, begun=18, ended=17, end=None, windows=(window,))
    asked = replace(ASKED, processes=(process,), end="SIGTERM")
    file = replace(WHOLE, steps=(10, 11, 12, 13))
    (verdict,) = judged(asked, [file]).verdicts
    assert verdict.why == "stopped early at step 17 by SIGTERM; 3 steps before that are not in the report"
    (other,) = judged(replace(asked, pid=99), [file]).verdicts
    assert "by the end of the process without Python's own end" in other.why


def test_of_a_window_that_was_never_reached_the_number_of_steps_is_said():
    never = replace(SAID, windows=())
    found = judged(replace(ASKED, text="90:95", windows=((90, 95),), processes=(never,)), [])
    assert not found.met
    assert lines(plain(found)) == [
        "asked steps 90-95, captured 0 of 5",
        "steps 90-95: never reached: the program ended after 50 steps",
    ]


def test_processes_that_step_are_judged_each():
    second = replace(SAID, pid=8, windows=(replace(COMPLETE, id="8-1"),))
    found = judged(replace(ASKED, processes=(SAID, second)), [WHOLE])
    assert [(one.pid, one.outcome) for one in found.verdicts] == [(7, "captured"), (8, "missing_report")]
    assert lines(plain(found))[1] == "steps 10-30 of process 8: no report holds the window 8-1"


def test_an_endless_row_is_judged_by_the_windows_that_came():
    row = replace(ASKED, text="every:10:2", windows=None, processes=(replace(SAID, windows=()),))
    assert lines(plain(judged(row, []))) == [
        "asked steps every:10:2, captured 0 of 0",
        "every:10:2 was never reached: the program ended after 50 steps",
    ]


def test_a_long_stall_is_said():
    slow = replace(COMPLETE, open_stall_ns=130_000_000, close_stall_ns=1_200_000_000)
    found = judged(replace(ASKED, processes=(replace(SAID, windows=(slow,)),)), [WHOLE])
    assert lines(plain(found))[1] == (
        "opening a window held the program up for 130.0 ms, closing it for 1.200 s at most; no step holds any of it"
    )


def step(start: int, index: int, thread: int = 0, **more: object) -> dict[str, object]:
    base = {"start_ns": start, "end_ns": start + 5, "name": 0, "domain": -1, "category": -1, "thread": thread}
    base |= {"end_thread": -1, "style": 0, "clipped": False, "payload": index, "has_payload": True}
    return {**base, "identity": NULL, "fields": -1, **more}


def window(start: int, end: int, name: int, thread: int = 0) -> dict[str, object]:
    return {"start_ns": start, "end_ns": end, "name": name, "thread": thread, "clipped": False}


def held(ranges: list[dict[str, object]], opened: list[dict[str, object]], product: str = "nsys") -> Trace:
    """A trace of process 0 (threads 0 and 1) and process 1 (thread 2), with these ranges and windows."""
    trace = trace_of(ranges=table(Ranges, ranges))
    return replace(
        trace,
        names=("step", "7-1", "7-2", "8-1", "other"),
        windows=table(Windows, opened),
        source=replace(trace.source, product=product),
    )


def test_a_window_holds_the_whole_steps_of_its_own_process_that_begin_in_it():
    ranges = [
        step(5, 9),
        step(10, 10),
        step(20, 11, thread=1),
        step(22, 77, thread=2),
        step(24, 78, domain=4),
        step(26, 79, has_payload=False),
        step(28, 80, name=4),
        step(30, 12, clipped=True),
        step(60, 13),
    ]
    (found,) = captured(held(ranges, [window(10, 50, 1)]), "app.nsys-rep")
    assert found == Captured("7-1", (10, 11), 1, "app.nsys-rep", ("7-1",))


def test_windows_of_one_process_in_one_report_of_nsys_are_merged_and_in_a_recording_are_not():
    opened = [window(10, 20, 1), window(30, 40, 2), window(35, 45, 3, thread=2)]
    merged = {one.id: one.together for one in captured(held([], opened), "app.nsys-rep")}
    assert merged == {"7-1": ("7-1", "7-2"), "7-2": ("7-1", "7-2"), "8-1": ("8-1",)}
    apart = captured(held([], opened, product="traceable embedded recorder"), "app.sqlite")
    assert [one.together for one in apart] == [("7-1",), ("7-2",), ("8-1",)]


def test_the_steps_view_keeps_the_numbers_that_the_program_counts():
    counted = [step(10 * index, index) for index in (5, 6, 20, 21)]
    unnumbered = step(215, 0, has_payload=False)
    found = steps(Context(held([*counted, unnumbered], [window(50, 70, 1), window(200, 220, 2)])), range_name="step")
    assert found.column("index") == [5, 6, 20, 21, None]
    assert found.column("step") == [0, 1, 2, 3, 4]
    (rate,) = found.others["summary"].column("steps_per_s")
    # Of the 170 ns from the first to the last, 130 lie between the windows.
    assert rate == pytest.approx(5e9 / (170 - 130))


def kernel(start: int, end: int) -> dict[str, int]:
    places = {"process": 0, "device": 0, "context": 1, "stream": 7, "correlation": NULL, "graph_node": NULL}
    return {"start_ns": start, "end_ns": end, **places, "name": 0, "short_name": 0, "geometry": -1}


def test_a_gpu_is_not_idle_between_windows():
    ran = [kernel(10, 20), kernel(30, 40), kernel(130, 140), kernel(160, 170)]
    trace = trace_of(kernels=table(Kernels, ran))
    gated = replace(trace, windows=table(Windows, [window(5, 45, 1), window(125, 175, 2)]))
    columns = ("total_ns", "busy_ns", "idle_ns", "gaps", "gap_max_ns")
    (whole,) = gaps(Context(trace)).rows()
    assert [whole[name] for name in columns] == [160, 40, 120, 3, 90]
    (of_windows,) = gaps(Context(gated)).rows()
    assert [of_windows[name] for name in columns] == [70, 40, 30, 2, 20]
    assert streams(Context(gated)).others["overlap"].column("total_ns") == [70]


def test_a_trace_without_windows_holds_none():
    assert captured(held([step(1, 1)], []), "app.sqlite") == ()


spans = st.tuples(st.integers(0, 60), st.integers(0, 20))


@given(st.lists(spans, max_size=5), st.lists(spans, max_size=4))
def test_unrecorded_is_what_lies_between_windows_nanosecond_by_nanosecond(given_windows, asked):
    starts = np.array([start for start, _ in given_windows], np.int64)
    ends = starts + np.array([length for _, length in given_windows], np.int64)
    nothing = np.zeros(len(starts), np.int32)
    made = Windows(starts, ends, nothing, nothing, nothing.astype(bool))
    trace = replace(trace_of(), windows=made)
    covered = {ns for start, end in zip(starts, ends, strict=True) for ns in range(start, end)}
    between = set(range(starts.min(), ends.max())) - covered if len(starts) > 1 else set()
    first, last = unrecorded(trace)
    assert {ns for begin, end in zip(first, last, strict=True) for ns in range(begin, end)} == between
    asked_starts = np.array([start for start, _ in asked], np.int64)
    asked_ends = asked_starts + np.array([length for _, length in asked], np.int64)
    expected = [len(between & set(range(start, end))) for start, end in zip(asked_starts, asked_ends, strict=True)]
    assert unrecorded_ns(trace, asked_starts, asked_ends).tolist() == expected
