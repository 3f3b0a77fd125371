"""The blocks of the timeline: tracks, slices and what is known of each, levels of detail, and counters.

- `timeline`: what tracks there are and all texts; the kept slices, by start, as columns.
- `timeline-levels`: the buckets of all levels of all lanes, one after another.
- `timeline-counters`: the samples of counters, or the buckets of their levels.

What is known of a slice beyond its times is mostly the same for many: each kind of track has a table of the distinct
combinations, and a slice the number of its row. `web/src/timeline/model.js` reads all this.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from traceable.analysis.attribution import REASONS, RULES
from traceable.analysis.context import Context
from traceable.analysis.gpus import find_streams
from traceable.analysis.grouping import number_groups
from traceable.analysis.labels import extract_base_name, strip_call_version
from traceable.analysis.memory import MEMORY_KINDS
from traceable.analysis.operations import GRAPH
from traceable.analysis.timeline import (
    CALLS,
    COPIES,
    KERNELS,
    MARKS,
    OS_CALLS,
    RANGES,
    REQUESTS,
    RUNS,
    SAMPLES,
    STEPS,
    TASKS,
    Slices,
    Timeline,
    build_timeline,
)
from traceable.report.html.blocks import pack_block
from traceable.trace.load_records import ClientRecords
from traceable.trace.model import GEOMETRY, NULL, START_END, CpuActivity, Int64, NDArray, Trace, find_distinct

TEXT_MAX = 2000
"""How many characters of a name are kept."""

_EXACT_MAX = 1 << 53
"""Beyond this JavaScript's numbers are not exact: such a number is written as a text."""

_JUMP_NS = 1 << 31
"""Differences of starts from this on are listed apart, so that all others fit 32 bits."""

_DURATION_MAX = (1 << 32) - 1
"""Longer durations are listed apart likewise."""


def build_timeline_blocks(
    context: Context, client_records: ClientRecords | None = None, *, full_slices: int | None = None
) -> list[str]:
    """Return the blocks of the timeline of a recording.

    Args:
        context: of the recording.
        client_records: what a load generator recorded of requests.
        full_slices: how many slices are kept as they are; None for the default.
    """
    options = {} if full_slices is None else {"full_slices": full_slices}
    timeline = build_timeline(context, client_records, **options)
    names = _NameTable(timeline)
    slices = timeline.slices
    columns, exceptions = _encode_slices(timeline, names)
    levels, level_columns = _encode_levels(timeline, names)
    counters, counter_columns = _encode_counters(timeline, names)
    paths = [names.add_all(context.instances.paths[path]) for path in _list_paths(slices).tolist()]
    attributes = {kind: _encode_attributes(timeline, names, kind, columns) for kind in _ATTRIBUTES}
    meta = {
        "extent": timeline.extent_ns,
        "gaps": np.stack(context.trace.windows.find_gaps(), axis=1).tolist(),
        **_describe_places(timeline),
        "tracks": [_describe_track(timeline, number) for number in range(len(timeline.tracks))],
        "lanes": [
            {"track": lane.track, "slices": len(lane.rows), "levels": of_lane}
            for lane, of_lane in zip(timeline.lanes, levels, strict=True)
        ],
        "counters": counters,
        "intervals": [[one.start_ns, one.end_ns, one.reason] for one in timeline.intervals],
        "paths": paths,
        "attributes": {kind: rows for kind, rows in attributes.items() if rows},
        **exceptions,
        **names.describe(),
    }
    return [
        pack_block("timeline", meta, columns),
        pack_block("timeline-levels", {}, level_columns),
        pack_block("timeline-counters", {}, counter_columns),
    ]


class _NameTable:
    """The names that occur, numbered from 0 in the order in which they are added."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._numbers: dict[int, int] = {}

    def add(self, number: int) -> int:
        """Return the number here of a name of the timeline; -1 for none."""
        return -1 if number < 0 else self._numbers.setdefault(number, len(self._numbers))

    def add_all(self, numbers: Sequence[int]) -> list[int]:
        """Return the numbers here of several names."""
        return [self.add(number) for number in numbers]

    def add_column(self, numbers: NDArray[np.integer]) -> Int64:
        """Return the numbers here of a column of names."""
        distinct = find_distinct(numbers)
        here = np.array(self.add_all(distinct.tolist()), np.int64)
        return here[np.searchsorted(distinct, numbers)] if len(numbers) else np.empty(0, np.int64)

    def describe(self) -> dict[str, Any]:
        """Return the texts, and the shorter ones to show in a small space, by number, where there are such."""
        trace = self._timeline.context.trace
        texts = [_shorten(self._timeline.get_name(number)) for number in self._numbers]
        labels = {}
        for source, shorten in ((trace.kernels.name, _extract_function), (trace.calls.name, strip_call_version)):
            for number in find_distinct(source).tolist():
                if (here := self._numbers.get(number)) is not None and (label := shorten(texts[here])) != texts[here]:
                    labels[here] = label
        return {"names": texts, "labels": labels}


def _extract_function(name: str) -> str:
    """Return the function of a kernel's demangled name, without its namespaces."""
    return extract_base_name(name).rpartition("::")[2]


def _shorten(text: str) -> str:
    return text if len(text) <= TEXT_MAX else f"{text[:TEXT_MAX]}… ({len(text)} characters)"


# ---- places


def _describe_places(timeline: Timeline) -> dict[str, Any]:
    activity = timeline.activity
    return {
        "processes": [
            {"pid": one.pid, "name": _shorten(one.name), "rank": one.rank, "side": one.side}
            for one in activity.processes
        ],
        "threads": [{"tid": one.tid, "name": _shorten(one.name)} for one in activity.threads],
        "devices": {one.number: _shorten(one.name) for one in timeline.context.trace.devices},
    }


def _describe_track(timeline: Timeline, number: int) -> dict[str, Any]:
    track = timeline.tracks[number]
    streams = find_streams(timeline.context)
    place = {"process": track.process, "thread": track.thread, "device": track.device}
    if track.stream >= 0:
        place["stream"] = int(streams.stream[track.stream])
        place["context"] = int(streams.context[track.stream])
    return {"kind": track.kind, **{key: value for key, value in place.items() if value >= 0}}


# ---- slices


def _encode_slices(timeline: Timeline, names: _NameTable) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Return the columns of the slices but for their attributes, and what does not fit these."""
    slices = timeline.slices
    rows = np.arange(len(slices))
    start, jumps = _split_jumps(slices.start_ns)
    duration = slices.end_ns - slices.start_ns
    long = np.flatnonzero(duration > _DURATION_MAX)
    columns = {
        "start": start,
        "duration": np.minimum(duration, _DURATION_MAX).astype(np.uint32),
        "lane": _narrow(slices.lane),
        "name": _narrow(names.add_column(slices.name)),
        "launch": _encode_links(slices.launch, rows),
        "range": _encode_links(slices.range, rows),
        "path": _narrow(np.searchsorted(_list_paths(slices), slices.path, "right")),
        "correlation": _encode_correlation(timeline),
    }
    exceptions = {"jumps": jumps, "long": [[row, int(duration[row])] for row in long.tolist()]}
    return columns, exceptions


def _list_paths(slices: Slices) -> Int64:
    paths = find_distinct(slices.path)
    return paths[paths >= 0]


def _split_jumps(start_ns: Int64) -> tuple[Int64, list[list[int]]]:
    """Return the starts as if no two were far apart, and the row and length of what was taken out before it."""
    steps = np.diff(start_ns, prepend=start_ns[:1])
    rows = np.flatnonzero(steps >= _JUMP_NS)
    jumps = [[row, int(steps[row])] for row in rows.tolist()]
    removed = np.zeros(len(start_ns), np.int64)
    removed[rows] = steps[rows]
    return start_ns - np.cumsum(removed), jumps


def _encode_links(target: Int64, rows: Int64) -> NDArray[np.int32]:
    """Return how many rows before each its target is; 0 for none."""
    return np.where(target >= 0, rows - target, 0).astype(np.int32)


def _encode_correlation(timeline: Timeline) -> NDArray[np.int32]:
    """Return the correlation id of calls and operations, less that of the row before it; 0 is none.

    Rows of other kinds repeat the one before, so that most of the column is small numbers.
    """
    trace, slices = timeline.context.trace, timeline.slices
    operations = np.concatenate(
        [events.correlation for events in (trace.kernels, trace.copies, trace.memsets, trace.graph_launches)]
    )
    ids = np.full(len(slices), NULL)
    for kind, values in ((CALLS, trace.calls.correlation), (KERNELS, operations), (COPIES, operations)):
        here = _find_rows(timeline, kind)
        found = values[slices.row[here]]
        ids[here] = np.where((found > 0) & (found < 1 << 31), found, 0)
    has_id = ids != NULL
    last = np.maximum.accumulate(np.where(has_id, np.arange(len(ids)), -1)) if len(ids) else np.empty(0, np.int64)
    filled = np.where(last >= 0, ids[last], 0)
    return np.diff(filled, prepend=0).astype(np.int32)


def _find_rows(timeline: Timeline, kind: str) -> Int64:
    """Return which slices are of tracks of a kind."""
    of_kind = np.array([timeline.tracks[lane.track].kind == kind for lane in timeline.lanes], np.bool_)
    return np.flatnonzero(of_kind[timeline.slices.lane]) if len(of_kind) else np.empty(0, np.int64)


def _narrow(values: NDArray[np.integer]) -> NDArray[np.integer]:
    """Return numbers that are not negative in as few bytes as hold them."""
    most = int(values.max(initial=0))
    return values.astype(np.uint8 if most < 1 << 8 else np.uint16 if most < 1 << 16 else np.uint32)


# ---- what is known of slices

_ATTRIBUTES = (STEPS, REQUESTS, RANGES, TASKS, CALLS, KERNELS, COPIES, MARKS, OS_CALLS, SAMPLES, RUNS)

_FRAMES_MAX = 40
"""How many frames of a backtrace are written, the innermost first."""


def _encode_attributes(
    timeline: Timeline, names: _NameTable, kind: str, columns: dict[str, NDArray[Any]]
) -> dict[str, list[Any]]:
    """Return the distinct combinations of what is known of the slices of a kind, by column; and number the slices."""
    numbers = columns.setdefault("attributes", np.zeros(len(timeline.slices), np.uint32))
    here = _find_rows(timeline, kind)
    if not len(here):
        return {}
    values, texts = _collect_attributes(timeline, names, kind, timeline.slices.row[here])
    group, first = number_groups(*values.values())
    numbers[here] = group
    table = {}
    for name, column in values.items():
        distinct = column[first].tolist()
        if any(value != NULL for value in distinct):
            write = texts[name].__getitem__ if name in texts else _make_exact
            table[name] = [None if value == NULL else write(value) for value in distinct]
    return table


def _make_exact(value: int) -> int | str:
    return value if abs(value) <= _EXACT_MAX else str(value)


def _collect_attributes(
    timeline: Timeline, names: _NameTable, kind: str, row: Int64
) -> tuple[dict[str, Int64], Mapping[str, Sequence[str]]]:
    """Return what is known of rows of a kind, as columns of numbers, and the texts that are meant by some of them.

    Those whose name ends in `_name` are numbers of the table of names.
    """
    context, trace = timeline.context, timeline.context.trace
    if kind == STEPS:
        return {name: _widen(timeline.step_table[name][row]) for name in ("number", "steady", "warm_up", "clipped")}, {}
    if kind == REQUESTS:
        ids, status = (timeline.request_table[name][row].tolist() for name in ("request_id", "status"))
        texts = {"request_id": [_shorten(str(one)) for one in ids], "status": [str(one) for one in status]}
        return {name: np.arange(len(row)) for name in texts}, texts
    if kind in (RANGES, TASKS):
        instance = context.instances.segments.owner[row] if kind == RANGES else row
        return _collect_range_attributes(context, names, instance, kind), {}
    if kind == CALLS:
        backtrace, stacks = _describe_backtraces(timeline.activity, _find_call_backtraces(timeline, row))
        return {"return_value": trace.calls.return_value[row], "backtrace": backtrace}, {"backtrace": stacks}
    if kind in (OS_CALLS, SAMPLES):
        activity = timeline.activity
        events = activity.os_calls if kind == OS_CALLS else activity.cpu_samples
        backtrace, stacks = _describe_backtraces(activity, events.backtrace[row])
        return {"backtrace": backtrace}, {"backtrace": stacks}
    if kind == RUNS:
        runs = timeline.activity.thread_runs
        return {"cpu": _mask(_widen(runs.cpu[row])), "clipped": np.where(runs.clipped[row], 1, NULL)}, {}
    if kind == MARKS:
        marks = trace.marks
        return {
            "domain_name": _mask(names.add_column(marks.domain[row])),
            "category_name": _mask(names.add_column(marks.category[row])),
            "fields_name": _mask(names.add_column(marks.fields[row])),
            "thread": _widen(marks.thread[row]),
        }, {}
    rule = _widen(context.attribution.rule[row])
    rules = {"rule": (*RULES, *REASONS)}
    if kind == KERNELS:
        return {**_collect_kernel_attributes(trace, context.gpu.kind[row], row), "rule": rule}, rules
    return {**_collect_copy_attributes(context, row), "rule": rule}, {
        **rules,
        "source_kind": MEMORY_KINDS,
        "target_kind": MEMORY_KINDS,
    }


def _find_call_backtraces(timeline: Timeline, row: Int64) -> Int64:
    """Return the backtrace of each of these API calls; -1 for none."""
    calls, recorded = timeline.context.trace.calls, timeline.activity.call_backtraces
    keys = zip(recorded.thread.tolist(), recorded.start_ns.tolist(), strict=True)
    known = dict(zip(keys, recorded.backtrace.tolist(), strict=True))
    if not known:
        return np.full(len(row), -1)
    times = zip(calls.thread[row].tolist(), calls.start_ns[row].tolist(), strict=True)
    return np.array([known.get(key, -1) for key in times], np.int64)


def _describe_backtraces(activity: CpuActivity, backtrace: NDArray[np.integer]) -> tuple[Int64, list[str]]:
    """Return the backtraces that occur as texts, a line a frame, and which of them each is; absent for none."""
    distinct = find_distinct(backtrace[backtrace >= 0])
    texts = []
    for number in distinct.tolist():
        frames = activity.backtraces.symbol[activity.backtraces.get_frames(number)].tolist()
        lines = [_shorten(activity.names[frame]) for frame in frames[:_FRAMES_MAX]]
        if len(frames) > _FRAMES_MAX:
            lines.append(f"and {len(frames) - _FRAMES_MAX} more frames")
        texts.append("\n".join(lines))
    return np.where(backtrace >= 0, np.searchsorted(distinct, backtrace), NULL), texts


def _collect_range_attributes(context: Context, names: _NameTable, instance: Int64, kind: str) -> dict[str, Int64]:
    trace, instances = context.trace, context.instances
    ranges = (trace if trace.cut is None else trace.cut.whole).ranges
    row = context.range_of_instance[instance]
    known = row >= 0
    has_payload = known & ranges.has_payload[row] & (ranges.identity[row] != ranges.payload[row])
    renamed = instances.name[instance] != instances.recorded_name[instance]
    return {
        "domain_name": _mask(names.add_column(instances.domain[instance])),
        "category_name": _mask(names.add_column(np.where(known, ranges.category[row], -1))),
        "recorded_name": _mask(names.add_column(np.where(renamed, instances.recorded_name[instance], -1))),
        "fields_name": _mask(names.add_column(instances.fields[instance])),
        "payload": np.where(has_payload, ranges.payload[row], NULL),
        "clipped": np.where(instances.clipped[instance], 1, NULL),
        "task": np.where(instances.task[instance], 1, NULL),
        "start_end": np.where(instances.style[instance] == START_END, 1, NULL),
        "thread": _widen(instances.thread[instance]) if kind == TASKS else np.full(len(instance), NULL),
        "active_ns": instances.active_ns[instance] if kind == TASKS else np.full(len(instance), NULL),
    }


def _collect_kernel_attributes(trace: Trace, operation_kind: NDArray[np.int8], row: Int64) -> dict[str, Int64]:
    is_graph = operation_kind == GRAPH
    geometry = np.where(is_graph, -1, trace.kernels.geometry[np.where(is_graph, 0, row)] if len(trace.kernels) else -1)
    table = trace.geometries
    values = {}
    for place, name in enumerate(GEOMETRY):
        values[name] = np.where(geometry >= 0, table[np.maximum(geometry, 0), place] if len(table) else 0, NULL)
    return {"graph": np.where(is_graph, 1, NULL), **values}


def _collect_copy_attributes(context: Context, row: Int64) -> dict[str, Int64]:
    trace = context.trace
    copy = row - len(trace.kernels)
    is_copy = copy < len(trace.copies)
    copy = np.where(is_copy, copy, 0)
    values = {"bytes": context.gpu.get_size_bytes(row)}
    for name in ("source_kind", "target_kind", "source_device", "target_device"):
        column = _widen(getattr(trace.copies, name))
        found = column[copy] if len(column) else copy
        fits = is_copy & (found >= 0) & ((found < len(MEMORY_KINDS)) | name.endswith("_device"))
        values[name] = np.where(fits, found, NULL)
    return values


def _widen(values: NDArray[Any]) -> Int64:
    return values.astype(np.int64)


def _mask(numbers: Int64) -> Int64:
    """Return numbers of names, absent where there is none."""
    return np.where(numbers >= 0, numbers, NULL)


# ---- levels and counters


def _encode_levels(timeline: Timeline, names: _NameTable) -> tuple[list[list[list[int]]], dict[str, NDArray[Any]]]:
    """Return of each lane the width and number of buckets of each level; and the buckets of all, in that order.

    `bucket` is the difference from the one before in its level; `share` how much of a bucket is covered, 255 all of it
    and 0 only where nothing is.
    """
    described, parts = [], []
    for levels in timeline.levels:
        described.append([[level.width_ns, len(level)] for level in levels])
        for level in levels:
            share = np.rint(level.busy_ns * 255 / level.width_ns).astype(np.int64)
            share[(share == 0) & (level.busy_ns > 0)] = 1
            parts.append((np.diff(level.bucket, prepend=0), share, level.count, level.name))
    bucket, share, count, name = (
        np.concatenate([np.empty(0, np.int64), *column]) for column in (zip(*parts, strict=True) if parts else [[]] * 4)
    )
    columns = {"bucket": bucket, "share": share, "count": count, "name": names.add_column(name)}
    return described, {key: _narrow(column) for key, column in columns.items()}


def _encode_counters(timeline: Timeline, names: _NameTable) -> tuple[list[dict[str, Any]], dict[str, NDArray[Any]]]:
    """Return the counters; and the times and values of their samples, and the buckets of their levels, in order."""
    described, times, values, parts = [], [], [], []
    for one in timeline.counters:
        described.append(
            {
                "process": one.process,
                "domain": names.add(one.domain),
                "name": names.add(one.name),
                "samples": one.samples,
                "kept": len(one.time_ns),
                "levels": [[level.width_ns, len(level)] for level in one.levels],
            }
        )
        times.append(one.time_ns)
        values.append(one.value)
        parts += [(np.diff(level.bucket, prepend=0), level.low, level.high, level.last) for level in one.levels]
    bucket, low, high, last = zip(*parts, strict=True) if parts else [()] * 4
    return described, {
        "time": np.concatenate([np.empty(0, np.int64), *times]),
        "value": np.concatenate([np.empty(0), *values]),
        "bucket": _narrow(np.concatenate([np.empty(0, np.int64), *bucket])),
        "low": np.concatenate([np.empty(0), *low]),
        "high": np.concatenate([np.empty(0), *high]),
        "last": np.concatenate([np.empty(0), *last]),
    }
