"""The first question: what did each range cost. One row a range path, and one row a name.

Every column is explained in docs/report.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from traceable.analysis.attribution import Coverage
from traceable.analysis.context import Context
from traceable.analysis.fields import Fields, summed_up
from traceable.analysis.grouping import ranked
from traceable.analysis.instances import Instances
from traceable.analysis.loop_blocks import callback_culprits
from traceable.analysis.operations import DIRECTIONS
from traceable.analysis.rules import RULES, launch_events
from traceable.analysis.shared import once
from traceable.analysis.statistics import maxima, totals
from traceable.analysis.table import Table, integers, objects, ratios
from traceable.analysis.waits import sync_waits
from traceable.analysis.work import GpuWork, Projection, projected, work_of
from traceable.trace.model import NULL, PUSH_POP, Int64, NDArray, Trace

STYLES = ("push_pop", "start_end")

PARALLEL, OUTLIVES = "parallel", "outlives"
"""Why a row's CPU total is larger than that of what it lies inside."""


@dataclass(frozen=True)
class Profile:
    """What the ranges of a trace cost.

    Attributes:
        ranges: one row a range path (and domain and style), by path; parents before children.
        names: one row a domain, name and style over all paths: what nsys's sums show.
        coverage: how much of the GPU's work the ranges explain.
        fields: what the instances of each row of `ranges` carried as named fields; None for a row without.
    """

    ranges: Table
    names: Table
    coverage: Coverage
    fields: tuple[Fields | None, ...]


def profile(trace: Trace) -> Profile:
    """Return what each range of `trace` cost, by path and by name, largest CPU total first among siblings."""
    return profile_of(Context(trace))


@once
def profile_of(context: Context) -> Profile:
    """Return what `profile` returns, given what the questions share."""
    trace, found = context.trace, context.found
    took = measured(context)
    ranges, fields = _by_path(trace, found, took)
    return Profile(ranges=ranges, fields=fields, names=_by_name(trace, found, took), coverage=context.coverage)


@dataclass(frozen=True)
class Measured:
    """What each instance took.

    Attributes:
        work, nsys: its GPU work, and the part of it that nsys's projection knows.
        waits: its waits in ns.
        held_by: of a callback of an event loop the instance that took most of it; -1 for all else.
    """

    work: GpuWork
    nsys: Projection
    waits: Int64
    held_by: Int64


def measured(context: Context) -> Measured:
    """Return what each instance took."""
    found, gpu, launched, attribution = context.found, context.gpu, context.launched, context.attribution
    work = work_of(found, gpu, launched, attribution.links, attribution.replayed)
    nsys = projected(found, gpu, launched, launch_events(gpu, launched), work)
    return Measured(work, nsys, sync_waits(context), callback_culprits(context))


def _by_path(trace: Trace, found: Instances, took: Measured) -> tuple[Table, tuple[Fields | None, ...]]:
    group, first = grouped(found.path, found.domain, found.style)
    identity = _identity(trace, found, first)
    paths = [[trace.names[name] for name in found.paths[path]] for path in found.path[first].tolist()]
    table = Table({"path": objects(paths), **identity, **_columns(trace, found, took, group, len(first))})
    table = Table({**table.values, "cpu_exceeds": _exceeding(found, group, first, table)})
    order = _tree_order(found, first, table.values["cpu_total_ns"])
    fields = summed_up(trace.names, found.fields, group, len(first))
    return table.take(order), tuple(fields[row] for row in order.tolist())


def _by_name(trace: Trace, found: Instances, took: Measured) -> Table:
    group, first = grouped(found.domain, found.name, found.style)
    rows = _of_names(trace, found, took, group, first)
    return rows.take(np.argsort(-rows.values["cpu_total_ns"], kind="stable"))


def by_place(context: Context, place: Int64) -> tuple[Table, Int64]:
    """Return the rows of `Profile.names` for the instances of each place apart, and the place of each row.

    Args:
        place: a number from 0 of each instance: of its thread, say. Rows come by it, the largest CPU total first.
    """
    found = context.found
    group, first = grouped(place, found.domain, found.name, found.style)
    rows = _of_names(context.trace, found, measured(context), group, first)
    order = np.lexsort((-rows.values["cpu_total_ns"], place[first]))
    return rows.take(order), place[first][order]


def _of_names(trace: Trace, found: Instances, took: Measured, group: Int64, first: Int64) -> Table:
    columns = _columns(trace, found, took, group, len(first))
    tree = _tree_columns(found, took.nsys, group, len(first))
    style = found.style[first]
    of_style = totals(style.astype(np.int64), np.maximum(columns["cpu_total_ns"], 0), int(style.max(initial=0)) + 1)
    share = {"nsys_cpu_share": ratios(columns["cpu_total_ns"], of_style[style])}
    return Table({**_identity(trace, found, first), **columns, **share, **tree})


def _tree_columns(found: Instances, nsys: Projection, group: Int64, groups: int) -> dict[str, NDArray[Any]]:
    """Return how deep the instances lie that nsys's projection lists, and how many listed ones lie inside each."""
    listed = nsys.operations > 0
    number = np.bincount(group[listed], minlength=groups)
    inside = np.bincount(found.parent[(found.parent >= 0) & listed], minlength=len(found))
    level = found.depth
    return {
        "nsys_level_mean": ratios(totals(group[listed], level[listed], groups), number),
        "nsys_children_mean": ratios(totals(group[listed], inside[listed], groups), number),
    }


def grouped(*keys: NDArray[Any]) -> tuple[Int64, Int64]:
    """Number the distinct combinations of index columns (from -1): the group of each row, and its first row.

    Groups come in the order of the keys, the first before the second.
    """
    key = np.zeros(len(keys[0]), np.int64)
    for column in keys:
        key = key * (int(column.max(initial=-1)) + 2) + (column + 1)
    width = int(key.max(initial=-1)) + 1
    if width > max(1 << 20, 4 * len(key)):
        _, first, group = np.unique(key, return_index=True, return_inverse=True)
        return group.reshape(-1), first
    row = np.full(width, -1, np.int64)
    row[key[::-1]] = np.arange(len(key))[::-1]
    present = np.flatnonzero(row >= 0)
    number = np.empty(width, np.int64)
    number[present] = np.arange(len(present))
    return number[key], row[present]


def _identity(trace: Trace, found: Instances, first: Int64) -> dict[str, NDArray[Any]]:
    domains = [trace.names[domain] if domain >= 0 else None for domain in found.domain[first].tolist()]
    return {
        "name": objects([trace.names[name] for name in found.name[first].tolist()]),
        "domain": objects(domains),
        "style": objects([STYLES[style != PUSH_POP] for style in found.style[first].tolist()]),
    }


def _columns(trace: Trace, found: Instances, took: Measured, group: Int64, groups: int) -> dict[str, NDArray[Any]]:
    """Return the columns that count and measure, one value a group. What was not entered has no CPU time."""
    real = found.entered
    whole = real & ~found.clipped
    duration = np.where(real, found.end_ns - found.start_ns, 0)
    outermost = int(duration[found.parent < 0].sum())
    count = np.bincount(group[real], minlength=groups)
    total = integers(totals(group, duration, groups), count > 0)
    return {
        "count": count,
        "clipped": np.bincount(group[real & found.clipped], minlength=groups),
        "cpu_total_ns": total,
        "cpu_share": ratios(np.where(count > 0, total, np.nan), np.full(groups, outermost)),
        **ranked(group, duration, groups, whole).summary("cpu"),
        "cpu_self_total_ns": _known_total(group, found.self_ns, groups),
        "active_total_ns": _known_total(group, found.active_ns, groups),
        **ranked(group, found.active_ns, groups, whole & found.task).summary("active"),
        "pause_in": objects(_pause_paths(trace, found, took.held_by, group, groups)),
        "sync_wait_total_ns": _known_total(group, took.waits, groups),
        **_gpu_columns(found, took.work, duration, group, groups),
        **_nsys_columns(took.nsys, duration, group, groups),
    }


def _pause_paths(trace: Trace, found: Instances, held_by: Int64, group: Int64, groups: int) -> list[list[str] | None]:
    """Return for each group of callbacks the path of the ranges that took most of their time; None for all else."""
    paths: list[list[str] | None] = [None] * groups
    took: dict[tuple[int, int], int] = {}
    rows = np.flatnonzero(held_by >= 0)
    lasted = (found.end_ns - found.start_ns)[rows].tolist()
    for one, path, ns in zip(group[rows].tolist(), found.path[held_by[rows]].tolist(), lasted, strict=True):
        took[one, path] = took.get((one, path), 0) + ns
    for one, path in sorted(took, key=lambda key: took[key]):
        paths[one] = [trace.names[name] for name in found.paths[path]]
    return paths


def _gpu_columns(
    found: Instances, work: GpuWork, duration: Int64, group: Int64, groups: int
) -> dict[str, NDArray[Any]]:
    """Return the GPU's columns; absent for a group that put nothing on the GPU."""
    worked = work.operations > 0
    whole = worked & ~found.clipped
    count = np.bincount(group[worked], minlength=groups)
    some = count > 0

    def total(values: Int64) -> Int64:
        return integers(totals(group, values, groups), some)

    queued = totals(group, work.queued, groups)
    return {
        "gpu_count": integers(count, some),
        "cpu_total_with_gpu_ns": total(np.where(worked, duration, 0)),
        "gpu_operations": total(work.operations),
        "kernels": total(work.kernels),
        "graph_launches": total(work.graphs),
        "launches": total(work.launches),
        "gpu_sum_total_ns": total(work.sum_ns),
        "gpu_busy_total_ns": total(work.busy_ns),
        **ranked(group, work.busy_ns, groups, whole).summary("gpu_busy"),
        "gpu_span_total_ns": total(work.span_ns),
        **ranked(group, work.span_ns, groups, whole).summary("gpu_span"),
        "gpu_idle_total_ns": total(work.span_ns - work.busy_ns),
        "queue_count": integers(queued, some),
        "queue_mean_ns": ratios(totals(group, work.queue_ns, groups), queued),
        "queue_max_ns": maxima(group, work.queue_max_ns, groups),
        **_copy_columns(work, group, groups),
        **_rule_columns(*work.by_rule(found.task, group, groups)),
    }


def _nsys_columns(nsys: Projection, duration: Int64, group: Int64, groups: int) -> dict[str, NDArray[Any]]:
    """Return what nsys's projection says, which knows of launch calls on the range's own thread alone."""
    listed = nsys.operations > 0
    count = np.bincount(group[listed], minlength=groups)
    return {
        "nsys_gpu_count": integers(count, count > 0),
        "nsys_cpu_total_ns": integers(totals(group, np.where(listed, duration, 0), groups), count > 0),
        "nsys_launches": integers(totals(group, nsys.launches, groups), count > 0),
        "nsys_gpu_span_total_ns": integers(totals(group, nsys.span_ns, groups), count > 0),
        **ranked(group, nsys.span_ns, groups, listed).summary("nsys_gpu_span"),
    }


def _copy_columns(work: GpuWork, group: Int64, groups: int) -> dict[str, NDArray[Any]]:
    columns: dict[str, NDArray[Any]] = {}
    for i, direction in enumerate(DIRECTIONS):
        copied = work.copied_in(i)
        of_copies = group[copied.instance]
        count, size, time = (
            totals(of_copies, values, groups) for values in (copied.copies, copied.size_bytes, copied.copy_ns)
        )
        columns[f"{direction}_count"] = integers(count, count > 0)
        columns[f"{direction}_bytes"] = integers(size, count > 0)
        columns[f"{direction}_ns"] = integers(time, count > 0)
        # Bytes per ns are GB per s.
        columns[f"{direction}_gb_per_s"] = ratios(size, time)
        if direction in ("h2d", "d2h"):
            pageable = _known_total(of_copies, copied.pageable_bytes, groups)
            columns[f"{direction}_pageable_share"] = np.where(pageable == NULL, np.nan, ratios(pageable, size))
    return columns


def _rule_columns(time: Int64, operations: Int64) -> dict[str, NDArray[Any]]:
    """Return the rule that explains the most GPU time of each group, and how much each rule explains.

    Args:
        time, operations: by rule and group, as `GpuWork.by_rule` returns them.
    """
    labels: list[str | None] = [None] * time.shape[1]
    # Where nothing took time the number of operations decides.
    most = np.lexsort((operations, time), axis=0)[-1]
    for one in np.flatnonzero(operations.sum(axis=0)).tolist():
        labels[one] = RULES[most[one]]
    shares = {
        f"attributed_{rule.replace('-', '_')}_ns": integers(time[i], operations[i] > 0) for i, rule in enumerate(RULES)
    }
    return {"attribution": objects(labels), **shares}


def _known_total(group: Int64, values: Int64, groups: int) -> Int64:
    """Return the sum of the values by group that are not NULL; NULL where all are."""
    known = values != NULL
    sums = totals(group[known], values[known], groups)
    return integers(sums, np.bincount(group[known], minlength=groups) > 0)


def _exceeding(found: Instances, group: Int64, first: Int64, table: Table) -> NDArray[Any]:
    """Return why a row's CPU total is larger than that of the path it lies inside, or of all outermost ranges.

    OUTLIVES: without the time after (or before) the instances that they began in, it is not. PARALLEL: it is even so,
    which only instances that ran side by side can be. None for a total that is no larger.
    """
    path = found.path[first]
    number = {one: i for i, one in enumerate(found.paths)}
    above = np.array([number.get(one[:-1], -1) for one in found.paths], np.int64)[path]
    total = table.values["cpu_total_ns"]
    of_path = totals(path, total, len(found.paths))
    around = np.where(above >= 0, np.append(of_path, 0)[above], total)

    inside = np.minimum(found.end_ns, found.end_ns[found.parent]) - np.maximum(
        found.start_ns, found.start_ns[found.parent]
    )
    counted = found.entered & (found.parent >= 0)
    within = totals(group, np.where(counted, np.maximum(inside, 0), 0), len(first))
    why = np.full(len(first), None, object)
    why[total > around] = PARALLEL
    why[(total > around) & (within <= around)] = OUTLIVES
    # What lies inside such a row may be no larger than that, and still be more than all there is.
    share, row_of = table.values["cpu_share"], dict(zip(path.tolist(), range(len(path)), strict=True))
    for row in np.argsort([len(found.paths[one]) for one in path.tolist()], kind="stable").tolist():
        if why[row] is None and share[row] > 1:
            why[row] = why[row_of[int(above[row])]] if int(above[row]) in row_of else PARALLEL
    return why


def _tree_order(found: Instances, first: Int64, total: Int64) -> Int64:
    """Return rows parents first, and among siblings the largest total first.

    A path's rows (it has several where domains or styles share its names) stand together, before its children.
    """
    rows: dict[int, list[int]] = {}
    for row, path in enumerate(found.path[first].tolist()):
        rows.setdefault(path, []).append(row)
    number = {path: i for i, path in enumerate(found.paths)}
    children: dict[int, list[int]] = {}
    for path in rows:
        children.setdefault(number.get(found.paths[path][:-1], -1), []).append(path)
    totals_of = total.tolist()
    order: list[int] = []
    waiting = [-1]
    while waiting:
        path = waiting.pop()
        order += sorted(rows.get(path, ()), key=lambda row: -totals_of[row])
        # Last in, first out: the smallest goes in first.
        waiting += sorted(children.get(path, ()), key=lambda child: sum(totals_of[row] for row in rows[child]))
    return np.array(order, np.int64)
