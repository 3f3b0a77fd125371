"""Windows in a trace: read apart from the program's ranges, and several recordings as one."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.analysis.sample_traces import traces

from traceable.errors import TraceError
from traceable.protocol.nvtx import WINDOW_DOMAIN
from traceable.trace import load
from traceable.trace.join import join_traces
from traceable.trace.model import NULL, Trace

THREAD = (7 << 24) | 70
INDEX = {"name", "domain", "category", "fields", "short_name"}


def export_of(export: Any, *rows: dict[str, Any], duration: int = 1000) -> Trace:
    """Rows of NVTX_EVENTS below the one that names the windows' domain, which is 1."""
    by_name = {"start": 0, "eventType": 75, "text": WINDOW_DOMAIN, "domainId": 1}
    names = ("start", "end", "eventType", "text", "globalTid", "domainId", "int64Value")
    events = [{**dict.fromkeys(names), "globalTid": THREAD, "domainId": 0, **row} for row in (by_name, *rows)]
    columns = {name: [row[name] for row in events] for name in names}
    return load(export(NVTX_EVENTS=columns, ANALYSIS_DETAILS={"duration": [duration]}))


def test_a_window_is_no_range_of_the_program(export):
    trace = export_of(
        export,
        {"start": 10, "end": 1000, "eventType": 60, "text": "capture", "domainId": 1},
        {"start": 12, "end": 90, "eventType": 60, "text": "window 7-1", "domainId": 1},
        {"start": 20, "end": 40, "eventType": 59, "text": "step", "int64Value": 3},
        {"start": 95, "end": 1000, "eventType": 59, "text": "late"},
    )
    assert [trace.names[name] for name in trace.ranges.name] == ["step", "late"]
    assert trace.ranges.clipped.tolist() == [False, True]
    assert [trace.names[name] for name in trace.windows.name] == ["7-1"]
    assert (trace.windows.start_ns.tolist(), trace.windows.end_ns.tolist()) == ([12], [90])
    assert not trace.windows.clipped.any()


def test_a_range_left_open_in_a_window_ends_with_it(export):
    trace = export_of(
        export,
        {"start": 10, "end": 50, "eventType": 60, "text": "window 7-1", "domainId": 1},
        {"start": 20, "end": None, "eventType": 59, "text": "cut"},
        {"start": 60, "end": None, "eventType": 59, "text": "outside"},
        {"start": 100, "end": 150, "eventType": 60, "text": "window 7-2", "domainId": 1},
        {"start": 120, "end": None, "eventType": 59, "text": "cut"},
    )
    assert trace.ranges.end_ns.tolist() == [50, 150, 150]
    assert trace.ranges.clipped.all()


def events_of(trace: Trace, offset: int) -> dict[str, Counter[Any]]:
    """Every event of every kind, with names for indices, and times moved by the offset."""
    result: dict[str, Counter[Any]] = {}
    for kind in [field.name for field in fields(trace)]:
        events = getattr(trace, kind)
        if not hasattr(events, "start_ns"):
            continue
        columns = [column.name for column in fields(events)]
        rows = zip(*(getattr(events, column).tolist() for column in columns), strict=True)
        result[kind] = Counter(
            tuple(to_name(trace, column, value, offset) for column, value in zip(columns, row, strict=True))
            for row in rows
        )
    return result


def to_name(trace: Trace, column: str, value: Any, offset: int) -> Any:
    if column in ("start_ns", "end_ns"):
        return value if value == NULL else value + offset
    if value == -1:
        return value
    if column in INDEX:
        return trace.names[value]
    if column == "correlation":
        # CUPTI's own number, which is of 32 bits; what a join adds keeps those of two recordings apart.
        return value if value == NULL else value % (1 << 32)
    if column in ("thread", "end_thread"):
        return trace.threads[value].global_id
    if column == "process":
        return trace.processes[value].global_id
    return tuple(trace.geometries[value].tolist()) if column == "geometry" else value


@given(first=traces(), second=traces(), distance=st.integers(0, 100), swapped=st.booleans(), more=st.booleans())
def test_joined_holds_every_event_of_each_part_at_its_own_time(first, second, distance, swapped, more):
    # Other numbers for the same names, as two files have them.
    second = replace(second, names=tuple(f"{name} 2" if more else name for name in second.names))
    parts = [replace(first, utc_epoch_ns=500), replace(second, utc_epoch_ns=500 + distance)]
    whole = join_traces(parts[::-1] if swapped else parts)
    expected, later = events_of(first, 0), events_of(second, distance)
    assert events_of(whole, 0) == {kind: expected[kind] + later[kind] for kind in expected}
    assert whole.utc_epoch_ns == 500
    for kind in ("ranges", "calls", "kernels", "marks"):
        starts = getattr(whole, kind).start_ns
        assert (starts[1:] >= starts[:-1]).all()
    for table in (whole.names, whole.processes, whole.threads, map(tuple, whole.geometries.tolist())):
        rows = list(table)
        assert len(set(rows)) == len(rows)
    for ids in ([one.global_id for one in whole.processes], [one.global_id for one in whole.threads]):
        assert ids == sorted(ids)


def test_joined_ends_when_the_last_part_does_if_all_ends_are_known(export):
    trace = replace(export_of(export), utc_epoch_ns=0, capture_ns=50)
    later = replace(trace, utc_epoch_ns=100)
    assert join_traces([later, trace]).capture_ns == 150
    assert join_traces([replace(later, capture_ns=None), trace]).capture_ns is None


def launched_by(trace: Trace) -> Counter[Any]:
    """Each kernel by name, with the calls of its process that have its correlation, by name and start."""
    process_of = [one.process for one in trace.threads]
    calls: dict[Any, list[Any]] = {}
    rows = zip(
        *(column.tolist() for column in (trace.calls.thread, trace.calls.correlation, trace.calls.name)), strict=True
    )
    for start, (thread, correlation, name) in zip(trace.calls.start_ns.tolist(), rows, strict=True):
        if correlation != NULL:
            calls.setdefault((process_of[thread], correlation), []).append((trace.names[name], start))
    kernels = zip(trace.kernels.process.tolist(), trace.kernels.correlation.tolist(), strict=True)
    return Counter(tuple(sorted(calls.get(key, []))) for key in kernels)


@given(traces())
def test_a_recording_that_counts_calls_anew_keeps_its_launches_apart(trace):
    """The same recording twice, an hour apart: each kernel has the calls of its own half alone."""
    hour_ns = 3600 * 10**9
    first, second = replace(trace, utc_epoch_ns=0), replace(trace, utc_epoch_ns=hour_ns)
    moved = Counter(
        {tuple((name, start + hour_ns) for name, start in calls): n for calls, n in launched_by(trace).items()}
    )
    assert launched_by(join_traces([first, second])) == launched_by(trace) + moved


def test_an_operation_launched_before_its_window_keeps_its_call(export):
    place = {"start": [10], "end": [20], "globalPid": [7 << 24], "correlationId": [5]}
    call = {"start": [1], "end": [2], "globalTid": [THREAD], "nameId": [1]}
    strings = {"id": [1], "value": ["cudaMemsetAsync"]}
    before = load(export(StringIds=strings, CUPTI_ACTIVITY_KIND_RUNTIME={**call, "correlationId": [5]}))
    after = load(
        export(
            "after.sqlite",
            StringIds=strings,
            CUPTI_ACTIVITY_KIND_RUNTIME={**call, "correlationId": [6]},
            CUPTI_ACTIVITY_KIND_MEMSET=place,
        )
    )
    whole = join_traces([replace(before, utc_epoch_ns=0), replace(after, utc_epoch_ns=100)])
    assert whole.calls.correlation.tolist() == [5, 6]
    assert whole.memsets.correlation.tolist() == [5]


@given(traces())
def test_one_part_is_itself(trace):
    assert join_traces([trace]) is trace


def test_parts_without_a_wall_clock_can_not_be_placed(export):
    trace = replace(export_of(export), utc_epoch_ns=None)
    with pytest.raises(TraceError) as error:
        join_traces([trace, trace])
    assert error.value.code == "wall_clock_unknown"
