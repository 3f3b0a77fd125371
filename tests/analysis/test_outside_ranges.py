"""The time in no range, and when steps follow one another: against slow oracles."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from statistics import quantiles, stdev
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.analysis.sample_traces import table, trace_of, traces
from tests.example_count import scale_examples

from traceable.analysis.context import Context
from traceable.analysis.outside_ranges import measure_outside_ranges
from traceable.analysis.steps import find_loader_wait_instances, steps
from traceable.trace import model
from traceable.trace.model import NULL, PUSH_POP, Trace, Windows

SLOWLY = settings(max_examples=scale_examples(60), deadline=None, suppress_health_check=[HealthCheck.too_slow])


@SLOWLY
@given(traces(), st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)), max_size=3))
def test_the_time_in_no_range_is_what_no_moment_of_a_range_covers(trace: Trace, windows: list[tuple[int, int]]) -> None:
    rows = [{"start_ns": a, "end_ns": a + b, "name": 0, "thread": 0, "clipped": False} for a, b in windows]
    trace = replace(trace, windows=table(Windows, rows))
    context = Context(trace)
    result = context.instances
    seen = [range(a, a + b) for a, b in windows]
    first, last = min((a for a, _ in windows), default=0), max((a + b for a, b in windows), default=0)
    expected = {}
    # What a CUDA graph did again is a range that no thread entered.
    entered = np.flatnonzero(~result.replay)
    for thread in sorted(set(result.thread[entered].tolist())):
        mine = [i for i in entered.tolist() if result.thread[i] == thread]
        spans = [(int(result.start_ns[i]), int(result.end_ns[i])) for i in mine]
        moments = range(min(start for start, _ in spans), max(end for _, end in spans))
        # A moment stands for the ns that begins with it.
        counts = [
            at for at in moments if len(windows) < 2 or not first <= at < last or any(at in window for window in seen)
        ]
        outside = [at for at in counts if not any(start <= at < end for start, end in spans)]
        expected[trace.threads[thread].tid] = (len(counts), len(outside))
    answer = measure_outside_ranges(context)
    assert {row["tid"]: (row["wall_ns"], row["outside_ns"]) for row in answer.rows()} == expected
    assert list(answer.column("outside_ns")) == sorted(answer.column("outside_ns"), reverse=True)


def stepping(*spans: tuple[str, int, int]) -> Trace:
    """Ranges of one thread, in us."""
    names = tuple(dict.fromkeys(name for name, _, _ in spans))
    row = {"domain": -1, "category": -1, "thread": 0, "end_thread": -1, "style": PUSH_POP, "clipped": False}
    row |= {"payload": 0, "has_payload": False, "identity": NULL, "fields": -1}
    rows = [{**row, "name": names.index(name), "start_ns": a * 1000, "end_ns": b * 1000} for name, a, b in spans]
    return replace(trace_of(ranges=table(model.Ranges, rows)), names=names)


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(10, 14)), min_size=4, max_size=12))
def test_the_rhythm_of_steps_is_that_of_their_begins(gaps: list[tuple[int, int]]) -> None:
    spans, at = [], 0
    for wait, length in gaps:
        spans += [("step.wait", at, at + wait), ("step", at + wait, at + wait + length)]
        at += wait + length
    (row,) = steps(Context(stepping(*spans))).others["summary"].rows()
    assert row["steady"] == len(gaps), "no step here is much longer than another"
    begins = [begin * 1000 for name, begin, _ in spans if name == "step"]
    between = [b - a for a, b in pairwise(begins)]
    assert row["interval_max_ns"] == max(between)
    assert row["interval_stddev_ns"] == pytest.approx(stdev(between), abs=1)
    middle = quantiles(between, n=2, method="inclusive")[0]
    assert row["interval_p50_ns"] == pytest.approx(middle, abs=1)
    elapsed = 1000 * at - begins[0]
    waited = 1000 * sum(wait for wait, _ in gaps[1:])
    assert (row["wait_total_ns"], row["wait_share"]) == (waited, pytest.approx(waited / elapsed))
    assert row["steps_per_s"] == pytest.approx(len(gaps) * 1e9 / elapsed)


def test_steps_without_recorded_waits_have_none() -> None:
    (row,) = steps(Context(stepping(*(("step", 10 * i, 10 * i + 5) for i in range(5))))).others["summary"].rows()
    assert row["wait_total_ns"] is row["wait_share"] is None


def test_the_waits_of_torchs_loader_count_once() -> None:
    name = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
    spans: list[Any] = [("step.wait", 0, 10), (name, 1, 9), (name, 20, 30), ("enumerate(DataLoader)", 40, 50)]
    context = Context(stepping(*spans))
    assert context.instances.start_ns[find_loader_wait_instances(context)].tolist() == [0, 20_000]
