"""The view critical_path: which chain of launches, kernels, copies and waits made the steps as long as they were.

`step_paths` follows the path of each steady step. Here its segments are summed by range, kind, operation, step or the
value of a field, and the path of the median step is listed. docs/critical-path.md explains the path and its limits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from traceable.analysis.columns import get_grouping_field
from traceable.analysis.context import Context
from traceable.analysis.fields import inherit_field_values
from traceable.analysis.gpus import find_streams
from traceable.analysis.grouping import number_groups, sort_groups, sum_groups
from traceable.analysis.labels import (
    OPERATION_NAMES,
    get_operation_name,
    label_operations,
    make_range_columns,
    number_ranges,
    strip_call_version,
)
from traceable.analysis.step_detection import BOUNDARY, RANGE, Steps
from traceable.analysis.step_paths import BOUNDS, KINDS, UNKNOWN, WAIT, PathSegments, trace_paths
from traceable.analysis.steps import find_median_step, find_steady_steps, number_steps
from traceable.analysis.table import Table, compute_ratios, pack_objects
from traceable.errors import Message, MissingDataError
from traceable.trace.model import NULL, Bool, Float64, Int64, NDArray, Trace, find_distinct
from traceable.units import format_duration, format_percent


def critical_path(
    context: Context,
    *,
    by: str | None = None,
    top: int = 20,
    range_name: str | None = None,
    step_range: str | None = None,
    step_kernel: str | None = None,
) -> Table:
    """Return what the critical paths of the steady steps consist of, the longest first.

    Args:
        by: `range` (default), `path`, `kind` or `operation`: one row of each and kind; `field:NAME`: one row a value of
            that field of the ranges and kind; `step`: one row a step, with a column a kind.
        top: how many of the longest segments of the median step are listed.
        range_name: count only segments in a range of this name, at any depth.
        step_range, step_kernel: the definition of a step, as in the view `steps`.

    Returns:
        The rows; without a range or a selection their `total_ns` add up to the wall time of the steady steps. `others`
        holds `kinds`, one row a kind, and `chain`, the path of the median step in order.

    Raises:
        UsageError: both definitions of a step are given.
        MissingDataError: no steps are found or none is steady, the range or field is unknown, or nothing of the range
            or selection is on the path.
    """
    # Steps are found among all, whatever part of them is selected.
    steps, steady = find_steady_steps(context.unselected or context, step_range, step_kernel)
    if not steady.any():
        raise MissingDataError(
            "no_steady_step",
            "no step is in the steady state",
            "record more steps: the first and last are mostly excluded",
        )
    _check_gpus(context, steps, steady)
    if context.selection is not None and steps.kind == RANGE:
        # Fields of the steps themselves select steps; those of ranges inside them select among the segments alone.
        selected = steady & context.selection.instances[steps.instance]
        steady = selected if selected.any() else steady
    rows = np.flatnonzero(steady)
    every = trace_paths(context, steps, rows)
    segments = every.take(_select_segments(context, every, range_name))
    if not len(segments):
        raise MissingDataError(
            "not_on_critical_path",
            f"nothing {context.describe_selection(range_name)} is on the critical path of a steady step",
            "`--view critical_path` without --range and --where lists what is",
        )
    paths = _Paths(context, steps, rows, segments)
    wall_ns = steps.end_ns - steps.start_ns
    others = {
        "kinds": _sum_by_kind(paths),
        "chain": _list_chain(paths, find_median_step(wall_ns, steady), top),
    }
    table = _list_steps(paths) if by == "step" else _group(paths, by)
    return Table(table.values, others, _make_notes(paths, every))


def _check_gpus(context: Context, steps: Steps, steady: Bool) -> None:
    """Raise `MissingDataError` if a process with steady steps used a GPU that is not selected.

    A step that waits for that GPU would seem to wait for nothing.
    """
    part = context.trace if context.trace.cut is None else context.trace.cut.whole
    if part.whole is None:
        return
    processes = find_distinct(steps.process[steps.lane[steady]])
    if _count_operations(part, processes) < _count_operations(part.whole, processes):
        raise MissingDataError(
            "path_needs_all_gpus",
            "the path of a step may lead through each GPU of its process, and only some of them are selected",
            "select processes (--process, --ranks) instead of GPUs",
        )


def _count_operations(trace: Trace, processes: Int64) -> int:
    kinds = (trace.kernels, trace.copies, trace.memsets, trace.graph_launches)
    return sum(int(np.isin(kind.process, processes).sum()) for kind in kinds)


@dataclass(frozen=True)
class _Paths:
    """The segments of the paths of some steps.

    Attributes:
        rows: which steps, in order.
        segments: those that count.
    """

    context: Context
    steps: Steps
    rows: Int64
    segments: PathSegments

    @property
    def wall_ns(self) -> int:
        """How long the steps lasted in all."""
        return int((self.steps.end_ns[self.rows] - self.steps.start_ns[self.rows]).sum())


def _select_segments(context: Context, segments: PathSegments, range_name: str | None) -> Bool:
    """Return which segments are in a range of this name and in the selection."""
    selected = np.ones(len(segments), np.bool_)
    if range_name is not None:
        named, parent = context.mask_instances(range_name), context.instances.parent
        inside, above = named.copy(), parent
        while (above >= 0).any():
            inside |= (above >= 0) & named[above]
            above = np.where(above >= 0, parent[above], -1)
        selected &= np.append(inside, False)[segments.instance]
    if context.selection is not None:
        selected &= np.append(context.selection.instances, False)[segments.instance]
    return selected


def _group(paths: _Paths, by: str | None) -> Table:
    """Return one row a range, path, kind, operation or value of a field, each and kind."""
    context, segments = paths.context, paths.segments
    instances, trace = context.instances, context.trace
    if by == "kind":
        return _sum_by_kind(paths)
    field = get_grouping_field(by)
    if field is not None:
        values, value = inherit_field_values(context, field)
        label = np.append(value, len(values) - 1)[segments.instance]
        return _sum_by_kind(paths, label, lambda first: {"value": values[label[first]]})
    if by == "operation":
        label, texts = _label_segments(context, segments)
        return _sum_by_kind(paths, label, lambda first: {"operation": texts[label[first]]})
    if by == "path":
        label = np.append(instances.path, -1)[segments.instance]
        texts = pack_objects([*([trace.names[name] for name in path] for path in instances.paths), None])
        return _sum_by_kind(paths, label, lambda first: {"path": texts[label[first]]})
    label = np.append(number_ranges(instances)[0], -1)[segments.instance]
    return _sum_by_kind(paths, label, lambda first: make_range_columns(trace, instances, segments.instance[first]))


def _sum_by_kind(
    paths: _Paths,
    label: Int64 | None = None,
    make_columns: Callable[[Int64], dict[str, NDArray[Any]]] | None = None,
) -> Table:
    """Return one row a label and kind, the longest first.

    Args:
        label: of each segment; None for one of all.
        make_columns: returns the columns of the labels, given a segment of each.
    """
    segments, duration = paths.segments, paths.segments.duration_ns
    kind = segments.kind.astype(np.int64)
    group, first = number_groups(np.zeros(len(segments), np.int64) if label is None else label, kind)
    number = len(first)
    total = sum_groups(group, duration, number)
    inferred = sum_groups(group[segments.inferred], duration[segments.inferred], number)
    # Most groups are in few of the steps, so that only the pairs which occur are summed.
    pair, first_of_pair = number_groups(group, segments.step)
    in_step = sum_groups(pair, duration, len(first_of_pair))
    group_of_pair = group[first_of_pair]
    columns = {
        **({} if make_columns is None else make_columns(first)),
        "kind": pack_objects(KINDS[one] for one in kind[first].tolist()),
        "total_ns": total,
        "path_share": compute_ratios(total, np.full(number, paths.wall_ns)),
        "step_mean_ns": total / len(paths.rows),
        "step_p50_ns": _compute_medians(group_of_pair, in_step, number, len(paths.rows)),
        "steps": np.bincount(group_of_pair, minlength=number),
        "segments": np.bincount(group, minlength=number),
        "inferred_share": compute_ratios(inferred, total),
    }
    return Table(columns).take(np.argsort(-total, kind="stable"))


def _compute_medians(group: Int64, values: Int64, groups: int, steps: int) -> Float64:
    """Return the median of each group over `steps` values, of which those that are not given are 0 and no other is."""
    spread = sort_groups(group, values, groups)
    zeros = steps - spread.counts
    ordered = np.append(spread.values, 0)
    low, high = (
        np.where(rank < zeros, 0, ordered[np.where(rank < zeros, -1, spread.first + rank - zeros)])
        for rank in ((steps - 1) // 2, steps // 2)
    )
    return (low + high) / 2


def _label_segments(context: Context, segments: PathSegments) -> tuple[Int64, NDArray[Any]]:
    """Return the number of each segment's GPU operation or API call, and the names by number; the last is None."""
    trace = context.trace
    label = np.full(len(segments), -1, np.int64)
    on_gpu, in_call = np.flatnonzero(segments.operation >= 0), np.flatnonzero(segments.call >= 0)
    label[on_gpu] = label_operations(context, segments.operation[on_gpu])
    # Calls come after all operations. Several of their names may differ by their version alone.
    first_call = len(trace.names) + len(OPERATION_NAMES)
    label[in_call] = first_call + trace.calls.name[segments.call[in_call]]
    used = find_distinct(label[label >= 0]).tolist()
    names = [
        get_operation_name(trace, one) if one < first_call else strip_call_version(trace.names[one - first_call])
        for one in used
    ]
    texts = sorted(set(names))
    numbers = {text: number for number, text in enumerate(texts)}
    number = np.full(first_call + len(trace.names) + 1, -1, np.int64)
    number[used] = [numbers[name] for name in names]
    return number[label], pack_objects([*texts, None])


def _list_steps(paths: _Paths) -> Table:
    """Return one row a step, in order: its time by kind."""
    context, steps, rows, segments = paths.context, paths.steps, paths.rows, paths.segments
    row = np.searchsorted(rows, segments.step)
    duration, kinds = segments.duration_ns, len(KINDS)
    by_kind = sum_groups(row * kinds + segments.kind, duration, len(rows) * kinds).reshape(-1, kinds)
    total = by_kind.sum(axis=1)
    inferred = sum_groups(row[segments.inferred], duration[segments.inferred], len(rows))
    processes = [context.trace.processes[one] for one in steps.process[steps.lane[rows]].tolist()]
    return Table(
        {
            "step": number_steps(steps)[rows],
            "pid": np.array([process.pid for process in processes], np.int64),
            "process": pack_objects(process.name or None for process in processes),
            "start_ns": steps.start_ns[rows],
            "wall_ns": steps.end_ns[rows] - steps.start_ns[rows],
            **{f"{kind}_ns": by_kind[:, number] for number, kind in enumerate(KINDS)},
            "segments": np.bincount(row, minlength=len(rows)),
            "inferred_share": compute_ratios(inferred, total),
        }
    )


def _list_chain(paths: _Paths, step: int, top: int) -> Table:
    """Return the longest segments of a step, in order of time."""
    context, trace = paths.context, paths.context.trace
    own = np.flatnonzero(paths.segments.step == step)
    longest = np.argsort(-paths.segments.duration_ns[own], kind="stable")[: max(0, top)]
    segments = paths.segments.take(own[np.sort(longest)])
    label, texts = _label_segments(context, segments)
    tids = np.array([*(thread.tid for thread in trace.threads), NULL], np.int64)
    streams = find_streams(context)
    stream = np.append(streams.stream_of_operation, -1)[segments.operation]
    return Table(
        {
            "start_ns": segments.start_ns,
            "after_ns": segments.start_ns - paths.steps.start_ns[step],
            "duration_ns": segments.duration_ns,
            "kind": pack_objects(KINDS[one] for one in segments.kind.tolist()),
            **make_range_columns(trace, context.instances, segments.instance),
            "operation": texts[label],
            "bound_by": pack_objects(BOUNDS[one] for one in segments.bound.tolist()),
            "certainty": pack_objects("inferred" if one else "known" for one in segments.inferred.tolist()),
            "tid": tids[segments.thread],
            "device": np.append(streams.number, NULL)[stream],
            "stream": np.append(streams.stream, NULL)[stream],
        }
    )


def _make_notes(paths: _Paths, every: PathSegments) -> tuple[Message, ...]:
    """Return how the path is defined for these steps, and what it can't tell.

    Args:
        every: all segments of the steps, whether they count or not.
    """
    context, steps, rows = paths.context, paths.steps, paths.rows
    notes = [*steps.rules]
    if steps.kind == BOUNDARY:
        notes.append(Message("path_of_gpu_interval", "a path ends with the operation that ends the step, on the GPU"))
    else:
        notes.append(
            Message(
                "path_of_cpu_interval",
                "a path ends on the thread of the step, when that ends: GPU work that nothing in the step waits for is "
                "on no path",
            )
        )
        waited = np.bincount(every.step[every.bound == WAIT], minlength=len(steps))[rows] > 0
        if len(context.gpu) and not waited.all():
            notes.append(
                Message(
                    "path_without_wait",
                    f"{np.count_nonzero(~waited)} of {len(rows)} steps wait for nothing on the GPU: their paths are on "
                    "the CPU alone",
                )
            )
    if not len(context.gpu):
        notes.append(Message("path_without_gpu", "no GPU operation is recorded: the paths are on the CPU alone"))
    elif not len(context.trace.calls):
        notes.append(
            Message(
                "path_without_calls", "no API call is recorded: what launched or waited for an operation is unknown"
            )
        )
    if steps.kind == RANGE and context.instances.task[steps.instance[rows]].any():
        notes.append(
            Message(
                "path_of_coroutine",
                "some steps are coroutines: their paths follow the thread on which they began, whatever it ran "
                "meanwhile",
            )
        )
    inferred = int(every.duration_ns[every.inferred].sum())
    if inferred:
        unknown = int(every.duration_ns[every.kind == UNKNOWN].sum())
        notes.append(
            Message(
                "path_inferred",
                f"{format_percent(inferred / paths.wall_ns)} of the paths' time is inferred, "
                f"{format_duration(unknown)} of it without an explanation",
            )
        )
    return tuple(notes)
