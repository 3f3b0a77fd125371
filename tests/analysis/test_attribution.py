"""Attribution by inference, on real captures with threads added and calls removed: the right answer is known.

`tests/analysis/test_oracle.py` compares the same rules with a literal reading of them.
"""

from __future__ import annotations

from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.analysis.sample_traces import LAUNCH, table, trace_of

from traceable.analysis.attribution import REASONS, RULES, Coverage
from traceable.analysis.context import Context
from traceable.analysis.select import select_part
from traceable.trace import load, model
from traceable.trace.model import NULL, PUSH_POP, Trace

NAMES = (*RULES, *REASONS)
AUTOGRAD = 24_075
"""GPU operations of a100-lm-training that autograd's thread launched, within `backward` of the main thread."""

INHERITED_IN = {"nccl-annotations": 2358, "trace-diff-control": 6102, "trace-diff-test": 8766}
"""The same of the Kineto traces, all of autograd's thread."""


@cache
def capture(path: Path) -> Trace:
    return load(path)


@pytest.fixture
def training(captures: Path) -> Trace:
    return capture(captures / "nsys" / "a100-lm-training.sqlite")


def rules(trace: Trace) -> list[str]:
    return [NAMES[one] for one in Context(trace).attribution.rule.tolist()]


def operations(coverage: Coverage) -> dict[str, int]:
    shares = {**coverage.attributed, **coverage.unattributed}
    return {name: share.operations for name, share in shares.items() if share.operations}


def with_rows(events: Any, rows: list[dict[str, Any]]) -> Any:
    """The events and more of them, in order of start; a column that a row lacks is that of the first event."""
    columns = {f.name: getattr(events, f.name) for f in fields(events)}
    more = {
        name: np.concatenate([old, np.array([row.get(name, old[0]) for row in rows], old.dtype)])
        for name, old in columns.items()
    }
    order = np.argsort(more["start_ns"], kind="stable")
    return replace(events, **{name: column[order] for name, column in more.items()})


def with_thread(trace: Trace) -> tuple[Trace, int]:
    first = trace.threads[0]
    return replace(trace, threads=(*trace.threads, replace(first, tid=1, global_id=1))), len(trace.threads)


def with_copies(trace: Trace, thread: int, calls: list[tuple[int, int]]) -> Trace:
    """The trace with copies that a thread launches with these calls, given by start and end."""
    first = int(trace.calls.correlation.max()) + 1
    launches = [
        {"start_ns": start, "end_ns": end, "thread": thread, "correlation": first + i}
        for i, (start, end) in enumerate(calls)
    ]
    copies = [{**row, "start_ns": row["end_ns"], "end_ns": row["end_ns"] + 1000} for row in launches]
    return replace(trace, calls=with_rows(trace.calls, launches), copies=with_rows(trace.copies, copies))


def with_range(trace: Trace, thread: int, start: int, end: int) -> Trace:
    row = {"start_ns": start, "end_ns": end, "thread": thread, "end_thread": -1, "style": PUSH_POP, "identity": NULL}
    return replace(trace, ranges=with_rows(trace.ranges, [row]))


def without_calls(trace: Trace, calls: list[int]) -> Trace:
    remaining = np.ones(len(trace.calls), np.bool_)
    remaining[calls] = False
    return replace(trace, calls=replace(trace.calls, **trace.calls.take(remaining)))


def launches_inside(trace: Trace, name: str) -> list[int]:
    """The calls of the main thread that launched one operation each, inside a range of this name, by start."""
    context = Context(trace)
    where = context.attribution.innermost
    names = np.array([trace.names[one] == name for one in context.instances.name.tolist()])
    inside = np.flatnonzero((where >= 0) & names[where] & (context.attribution.rule == RULES.index("thread")))
    return sorted(context.launches.call_of[inside].tolist())


def test_autograd_is_inherited_to_the_last_operation(training: Trace, captures: Path) -> None:
    assert operations(Context(training).coverage) == {"thread": 38_885, "inherited": AUTOGRAD, "outside_ranges": 114}
    for name, number in INHERITED_IN.items():
        coverage = Context(capture(captures / "kineto" / f"{name}.json.gz")).coverage
        assert coverage.attributed["inherited"].operations == coverage.inferred.operations == number


def test_an_idle_thread_with_a_range_changes_nothing(training: Trace) -> None:
    """It waits for a request, say, and never called CUDA."""
    extent = training.extent_ns()
    assert extent is not None
    trace, third = with_thread(training)
    trace = with_range(trace, third, *extent)
    assert rules(trace) == rules(training)


def test_copies_of_a_prefetching_thread_do_not_go_to_a_thread_that_launches(training: Trace) -> None:
    """While `forward` runs on the main thread, another one copies the next batch: one copy for every 10 launches."""
    trace, loader = with_thread(training)
    at = [int(training.calls.start_ns[call]) for call in launches_inside(training, "forward")[::10]]
    assert len(at) == 630
    trace = with_copies(trace, loader, [(start + 200, start + 900) for start in at])
    before, after = operations(Context(training).coverage), operations(Context(trace).coverage)
    assert after == {**before, "outside_ranges": before["outside_ranges"] + len(at)}


def test_copies_of_a_prefetching_thread_go_nowhere_while_the_other_is_in_one_long_call(training: Trace) -> None:
    """The first launches load modules for up to 29 ms: the thread in such a call waits for nobody else's launches."""
    context = Context(training)
    long = np.flatnonzero(training.calls.end_ns - training.calls.start_ns > 10**7)
    inside = [
        int(training.calls.start_ns[call])
        for call in long
        if context.find_innermost_around_calls(np.array([call]))[0] >= 0
    ]
    assert len(inside) == 20
    trace, loader = with_thread(training)
    at = [start + part * 10**6 for start in inside for part in range(1, 9)]
    trace = with_copies(trace, loader, [(start, start + 5_000) for start in at])
    before, after = operations(context.coverage), operations(Context(trace).coverage)
    assert after == {**before, "outside_ranges": before["outside_ranges"] + len(at)}


def test_a_second_silent_thread_that_used_cuda_leaves_two_candidates(training: Trace) -> None:
    extent = training.extent_ns()
    assert extent is not None
    trace, second = with_thread(training)
    trace = with_copies(with_range(trace, second, *extent), second, [(extent[0], extent[0] + 1000)])
    # The weights, loaded before any range, now have one candidate; the copy itself lies in the new range.
    expected = {"thread": 38_885 + 1, "inherited": 114, "several_threads": AUTOGRAD}
    assert operations(Context(trace).coverage) == expected


def rules_of_launches(*rows: tuple[int, int, int], open_ranges: list[tuple[int, int, int]]) -> list[str]:
    """The rules of operations launched by these calls (thread, start, end), with these ranges (thread, start, end)."""
    calls = [
        {"start_ns": start, "end_ns": end, "thread": thread, "correlation": 1 + i, "name": LAUNCH, "driver": 0}
        for i, (thread, start, end) in enumerate(rows)
    ]
    return rules(
        trace_of(
            calls=table(model.Calls, [{**call, "return_value": 0} for call in calls]),
            kernels=table(model.Kernels, [kernel(100 + i, 1 + i) for i in range(len(rows))]),
            ranges=table(model.Ranges, [plain_range(*one) for one in open_ranges]),
        )
    )


def kernel(start: int, correlation: int, process: int = 0) -> dict[str, int]:
    place = {"process": process, "device": 0, "context": 0, "stream": 7, "graph_node": NULL}
    name = {"name": 0, "short_name": 0, "geometry": 0}
    return {"start_ns": start, "end_ns": start + 1, "correlation": correlation, **place, **name}


def plain_range(thread: int, start: int, end: int) -> dict[str, int]:
    text = {"name": 0, "domain": -1, "category": -1, "fields": -1, "payload": 0, "has_payload": False}
    where = {"thread": thread, "end_thread": -1, "style": PUSH_POP, "clipped": False, "identity": NULL}
    return {"start_ns": start, "end_ns": end, **where, **text}


OPEN = [(0, 0, 90)]
"""A range of thread 0, all the time."""


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        # Autograd: of thread 1 the first call has a silent stretch only after it, the last only before it.
        ([(0, 1, 2), (1, 10, 11), (1, 20, 21), (1, 30, 31), (0, 40, 41)], ["thread", *["inherited"] * 3, "thread"]),
        # Both launch in turns.
        (
            [(0, 1, 2), (1, 10, 11), (0, 15, 16), (1, 20, 21), (0, 25, 26)],
            [*["thread", "outside_ranges"] * 2, "thread"],
        ),
        # Two copies in a row while thread 0 is between two launches can't be told from autograd.
        ([(0, 1, 2), (1, 10, 11), (1, 12, 13), (0, 15, 16)], ["thread", "inherited", "inherited", "thread"]),
        # Thread 0 is in one long call meanwhile.
        ([(0, 5, 50), (1, 10, 11), (1, 20, 21), (1, 30, 31)], ["thread", *["outside_ranges"] * 3]),
        # Thread 0 never calls.
        ([(1, 10, 11), (1, 20, 21)], ["outside_ranges"] * 2),
        # A single call: nothing shows what thread 0 does before or after it.
        ([(0, 1, 2), (1, 10, 11)], ["thread", "outside_ranges"]),
        # A call that makes another is one with it, so the next call of thread 1 is that after thread 0's.
        ([(0, 1, 2), (1, 10, 15), (1, 11, 12), (0, 20, 21), (1, 30, 31)], [
            "thread", "outside_ranges", "outside_ranges", "thread", "outside_ranges"]),
        # A call of thread 0 at the end of the stretch, and one after it.
        ([(0, 1, 2), (1, 10, 11), (1, 20, 21), (0, 21, 22)], ["thread", "outside_ranges", "outside_ranges", "thread"]),
        ([(0, 1, 2), (1, 10, 11), (1, 20, 21), (0, 22, 23)], ["thread", "inherited", "inherited", "thread"]),
    ],
)  # fmt: skip
def test_a_thread_inherits_if_it_is_silent(calls: list[tuple[int, int, int]], expected: list[str]) -> None:
    assert rules_of_launches(*calls, open_ranges=OPEN) == expected


def test_a_thread_whose_range_ends_within_the_call_does_not_inherit() -> None:
    calls = [(0, 1, 2), (1, 10, 12), (1, 20, 22)]
    assert rules_of_launches(*calls, open_ranges=[(0, 0, 21)]) == ["thread", "inherited", "outside_ranges"]


def test_a_process_inherits_nothing_from_another() -> None:
    calls = [(2, 1, 2), (1, 10, 11), (1, 20, 21)]
    assert rules_of_launches(*calls, open_ranges=[(2, 0, 90)])[1:] == ["outside_ranges", "outside_ranges"]


@pytest.mark.parametrize(
    ("name", "lost", "placed"),
    [
        ("nsys/a100-lm-training.sqlite", 776, 776),
        ("nsys/a100-transformer-forward.sqlite", 153, 153),
        ("nsys/h100x2-torchrun-before.sqlite", 106, 42),
        ("nsys/h100x2-torchrun-after.sqlite", 95, 42),
        ("kineto/trace-diff-test.json.gz", 84, 81),
    ],
)
def test_a_lost_call_is_placed_where_it_was(captures: Path, name: str, lost: int, placed: int) -> None:
    """Every 50th launch call is taken out of a recording that has it: what `order` infers is compared with that."""
    trace = capture(captures / name)
    context = Context(trace)
    calls = sorted(set(context.launches.call_of.tolist()) - {-1})[7::50]
    taken = without_calls(trace, calls)
    truth, inferred, rule = owners(context), owners(Context(taken)), rules(taken)
    of_lost = np.flatnonzero(np.isin(context.launches.call_of, calls)).tolist()
    was_inside = [one for one in of_lost if context.attribution.rule[one] == RULES.index("thread")]
    ordered = [one for one in of_lost if rule[one] == "order"]
    assert (len(was_inside), len(ordered)) == (lost, placed)
    assert {rule[one] for one in of_lost} <= {"order", "no_launch_call"}
    for one in ordered:
        # Of the ranges that it was in, those that have both neighbors; never another one.
        assert inferred[one]
        assert inferred[one] <= truth[one]
    # What autograd's thread launched, outside of its own ranges, stays without one.
    assert set(ordered) <= set(was_inside)


def test_two_lost_calls_side_by_side_are_not_placed(captures: Path) -> None:
    trace = capture(captures / "nsys" / "a100-transformer-forward.sqlite")
    launched = Context(trace).launches
    calls = sorted(set(launched.call_of.tolist()))
    # With all calls between the two, which would tell them apart.
    pairs = [(calls[i], calls[i + 1] + 1) for i in range(50, len(calls) - 1, 50)]
    taken = without_calls(trace, [call for pair in pairs for call in range(*pair)])
    coverage = Context(taken).coverage
    assert operations(coverage) == {"thread": 7622 - 2 * len(pairs), "no_launch_call": 2 * len(pairs)}


def test_what_was_launched_before_the_first_recorded_call_is_in_no_range(captures: Path) -> None:
    """The ranges that are open while it runs have nothing to do with it."""
    for name, number in (("before", 31), ("after", 16)):
        coverage = Context(capture(captures / "nsys" / f"h100x2-torchrun-{name}.sqlite")).coverage
        assert operations(coverage) == {"thread": coverage.total.operations - number, "before_recording": number}
    coverage = Context(capture(captures / "kineto" / "trace-diff-test.json.gz")).coverage
    assert operations(coverage) == {"thread": 6252, "inherited": 8766, "before_recording": 614}


def test_without_any_recorded_call_nothing_is_inferred(training: Trace) -> None:
    trace = without_calls(training, list(range(len(training.calls))))
    assert operations(Context(trace).coverage) == {"no_launch_call": len(Context(training).gpu)}


def test_a_part_of_a_recording_has_the_rules_of_the_whole(training: Trace) -> None:
    """Launch calls, and the calls by which a thread is silent or not, lie before and after the part."""
    first, last = 8_500_000_000, 8_600_000_000
    whole = Context(training)
    inside = (whole.gpu.start_ns >= first) & (whole.gpu.start_ns < last)
    part = select_part(training, time_ns=(first, last))
    expected = whole.attribution.rule[inside].tolist()
    assert Context(part).attribution.rule.tolist() == expected
    assert {NAMES[one] for one in expected} == {"thread", "inherited"}


def owners(context: Context) -> list[set[tuple[int, int]]]:
    """Start and end of the ranges of each operation."""
    result = context.instances
    of: list[set[tuple[int, int]]] = [set() for _ in range(len(context.gpu))]
    for instance, operation in context.iter_operation_pairs():
        for one, other in zip(instance.tolist(), operation.tolist(), strict=True):
            of[other].add((int(result.start_ns[one]), int(result.end_ns[one])))
    return of
