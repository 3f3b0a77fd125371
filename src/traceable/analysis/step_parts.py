"""What single steps are made of, by range, and what differs between a slow one and the median one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from traceable.analysis.context import Context
from traceable.analysis.instances import Children, Instances, children_of
from traceable.analysis.intervals import Blocks, Union, covered_ns
from traceable.analysis.operations import COPY, KERNEL
from traceable.analysis.shared import once
from traceable.analysis.statistics import totals
from traceable.analysis.step_detection import BOUNDARY, Steps
from traceable.analysis.step_work import Work
from traceable.analysis.table import Table, integers, objects, ratios
from traceable.analysis.units import time as time_text
from traceable.trace.model import NULL, PUSH_POP, Bool, Int64, NDArray

SLOWEST = 5
"""How many of the slowest steps are compared with the median one."""

_COMPARED = (
    *("wall_ns", "idle_ns", "gpu_busy_ns", "copy_ns", "nccl_ns", "launch_ns", "sync_ns"),
    *("operations", "kernels", "allocations"),
)


_IDENTIFYING = ("step", "index", "process", "pid", "device", "start_ns", "wall_ns")

_MATTERS = 0.25
"""From which part of the step's difference on the range with the second largest one is named as well."""

Path: TypeAlias = tuple[str, ...] | None
"""Names from the outermost; None for outside ranges."""


@dataclass(frozen=True)
class Parts:
    """One step by range path, as equally long columns.

    Attributes:
        path: names from the outermost; None for outside ranges.
        instances: how many ranges of that path lie wholly inside the step, on any thread of its process, and in no
            other step.
        self_ns, sync_ns: their time less what lies inside them, and what of it was spent waiting in synchronising
            calls; NULL where the step is not a stretch of CPU time, or the path has no push/pop range in it.
        busy_ns: what its operations add to the union of the step's operations before them, so that all add up.
    """

    path: list[tuple[str, ...] | None]
    instances: Int64
    self_ns: Int64
    sync_ns: Int64
    busy_ns: Int64
    sum_ns: Int64
    operations: Int64
    kernels: Int64
    copies: Int64


def parts_of(context: Context, found: Steps, work: Work, step: int) -> Parts:
    """Return one step by the path of the innermost range of its operations, and of the ranges in it."""
    gpu, ranges = context.gpu, context.found
    pairs = slice(int(work.bounds[step]), int(work.bounds[step + 1]))
    operation = work.operation[pairs]
    innermost = context.innermost[operation]
    path_of_operation = np.where(innermost >= 0, ranges.path[innermost], -1) if len(ranges) else innermost
    inside, alone, waited = _on_the_cpu(context, found, work.waits, step)
    group, paths = _paths(context, np.concatenate([path_of_operation, ranges.path[inside]]))
    of_operation, of_range = group[: len(operation)], group[len(operation) :]
    count = len(paths)
    has_range = np.bincount(of_range, minlength=count)
    return Parts(
        path=paths,
        instances=integers(has_range, np.full(count, found.kind != BOUNDARY)),
        self_ns=integers(totals(of_range, alone, count), has_range > 0),
        sync_ns=integers(totals(of_range, waited, count), has_range > 0),
        busy_ns=totals(of_operation, work.added_ns[pairs], count),
        sum_ns=totals(of_operation, gpu.end_ns[operation] - gpu.start_ns[operation], count),
        operations=np.bincount(of_operation, minlength=count),
        kernels=np.bincount(of_operation[gpu.kind[operation] == KERNEL], minlength=count),
        copies=np.bincount(of_operation[gpu.kind[operation] == COPY], minlength=count),
    )


def _paths(context: Context, path: Int64) -> tuple[Int64, list[tuple[str, ...] | None]]:
    """Number the paths that occur: the number of each, and its names."""
    names, paths = context.trace.names, context.found.paths
    distinct, place = np.unique(path, return_inverse=True)
    return place.reshape(-1), [
        tuple(names[name] for name in paths[one]) if one >= 0 else None for one in distinct.tolist()
    ]


def _on_the_cpu(context: Context, found: Steps, waits: Union, step: int) -> tuple[Int64, Int64, Int64]:
    """Return the push/pop ranges wholly inside a step, their own time and what of it was waiting on their threads.

    Of all threads of the process: autograd's works for the one that called `backward`. What lies in another range that
    is a step, of a server that works on several requests at a time, is not this one's.

    None for a step between two boundaries: it is a stretch of the GPU's time, and the host is ahead of that.
    """
    ranges = context.found
    rows = np.empty(0, np.int64)
    if found.kind != BOUNDARY:
        start, end = int(found.start_ns[step]), int(found.end_ns[step])
        rows = _ranges_by_time(context).overlapping(start - 1, end + 1)
        process = np.array([thread.process for thread in context.trace.threads], np.int64)[ranges.thread[rows]]
        inside = (ranges.style[rows] == PUSH_POP) & ranges.entered[rows] & (process == found.process[found.lane[step]])
        rows = rows[inside & (ranges.start_ns[rows] >= start) & (ranges.end_ns[rows] <= end)]
        rows = rows[~_in_another_step(ranges, found, rows, step)]
    waited = covered_ns(waits, ranges.thread[rows], ranges.start_ns[rows], ranges.end_ns[rows])
    above = ranges.parent[rows]
    place = np.minimum(np.searchsorted(rows, above), max(0, len(rows) - 1))
    among = np.flatnonzero(rows[place] == above)
    own = waited.copy()
    np.subtract.at(own, place[among], waited[among])
    return rows, ranges.self_ns[rows], own


def _in_another_step(ranges: Instances, found: Steps, rows: Int64, step: int) -> Bool:
    """Return which ranges are steps other than this one, or lie in one that this one does not lie in too."""
    is_step = np.zeros(len(ranges), np.bool_)
    is_step[found.instance[found.instance >= 0]] = True
    own = int(found.instance[step])
    while own >= 0:
        is_step[own] = False
        own = int(ranges.parent[own])
    inside, above = is_step[rows], ranges.parent[rows]
    while (above >= 0).any():
        inside |= (above >= 0) & is_step[above]
        above = np.where(above >= 0, ranges.parent[above], -1)
    return inside


@once
def _ranges_by_time(context: Context) -> Blocks:
    return Blocks(context.found.start_ns, context.found.end_ns)


def breakdown(context: Context, found: Steps, work: Work, step: int) -> Table:
    """Return one step by range, the longest GPU time first; what ran outside ranges has no path."""
    parts = parts_of(context, found, work, step)
    order = np.lexsort((-parts.self_ns, -parts.busy_ns))
    has_gpu = np.full(len(order), len(context.gpu) > 0)
    busy = integers(parts.busy_ns, has_gpu)
    return Table(
        {
            "path": objects(list(path) if path is not None else None for path in parts.path),
            "ranges": parts.instances,
            "gpu_busy_ns": busy,
            "gpu_busy_share": ratios(parts.busy_ns, np.full(len(order), parts.busy_ns.sum())),
            "gpu_sum_ns": integers(parts.sum_ns, has_gpu),
            "operations": integers(parts.operations, has_gpu),
            "kernels": integers(parts.kernels, has_gpu),
            "copies": integers(parts.copies, has_gpu),
            "cpu_self_ns": parts.self_ns,
            "sync_self_ns": integers(parts.sync_ns, (parts.sync_ns != NULL) & (len(context.trace.calls) > 0)),
        }
    ).take(order)


def slowest(context: Context, found: Steps, work: Work, columns: Mapping[str, NDArray[Any]], median: int) -> Table:
    """Return the slowest steady steps that took longer than the median one, and how each differs from it.

    Args:
        columns: of the steps, with `steady`, those that say which step it is and those that are compared.
        median: which step they are compared with.
    """
    wall = columns["wall_ns"]
    rows = np.flatnonzero(columns["steady"] & (wall > wall[median]))
    rows = rows[np.argsort(-wall[rows], kind="stable")][:SLOWEST]
    usual = parts_of(context, found, work, median)
    on_cpu = not len(context.gpu)
    usual_wall = wall_parts(context, found, work, median) if on_cpu else {}
    more = {f"{_word(name)}_more{_unit(name)}": _more(columns[name], rows, median) for name in _COMPARED}
    causes: list[str] = []
    ranges: list[Path] = []
    times: list[int] = []
    for i, row in enumerate(rows.tolist()):
        cause, by_cpu = _cause({name: _known(values[i]) for name, values in more.items()})
        if on_cpu:
            differences = _differences(wall_parts(context, found, work, row), usual_wall)
            cause = _cause_in_ranges(context, found, row, differences, usual_wall, int(wall[row] - wall[median]))
        else:
            parts = parts_of(context, found, work, row)
            differences = _differences(*(_times(one, by_cpu and found.kind != BOUNDARY) for one in (parts, usual)))
        path, time = differences[0] if differences and differences[0][1] > 0 else (None, NULL)
        causes.append(cause)
        ranges.append(path)
        times.append(time)
    return Table(
        {
            **{name: columns[name][rows] for name in _IDENTIFYING},
            "cause": objects(causes),
            "path": objects(list(path) if path is not None else None for path in ranges),
            "path_more_ns": np.array(times, np.int64),
            **more,
        }
    )


def _times(parts: Parts, by_cpu: bool) -> dict[Path, int]:
    """Return the time of each path: its own on the CPU, or on the GPU."""
    time = parts.self_ns if by_cpu else parts.busy_ns
    return dict(zip(parts.path, np.maximum(time, 0).tolist(), strict=True))


def _differences(ours: Mapping[Path, int], usual: Mapping[Path, int]) -> list[tuple[Path, int]]:
    """Return by how much each path took longer than in the usual step, the largest difference first."""
    more = [(path, time - usual.get(path, 0)) for path, time in ours.items()]
    return sorted(more, key=lambda one: -one[1])


def wall_parts(context: Context, found: Steps, work: Work, step: int) -> dict[Path, int]:
    """Return the wall time of a step by range path: that of each range less what its own ranges cover.

    Of a step that is a range: what lies inside it, coroutines with the time in which they waited. Of any other: the
    push/pop ranges on the threads of its process, and without a path the time that none of them covers.
    """
    ranges = context.found
    own = int(found.instance[step])
    times: dict[Path, int] = {}

    def add(path: Path, ns: int) -> None:
        times[path] = times.get(path, 0) + ns

    if own >= 0:
        children = _children(context)
        for _, one in children.tree(own):
            start, end = int(ranges.start_ns[one]), int(ranges.end_ns[one])
            add(_path(context, one), end - start - _covered(ranges, children.of(one), start, end))
        return times
    rows, alone, _ = _on_the_cpu(context, found, work.waits, step)
    for one, ns in zip(rows.tolist(), alone.tolist(), strict=True):
        add(_path(context, one), max(0, ns))
    start, end = int(found.start_ns[step]), int(found.end_ns[step])
    add(None, end - start - _covered(ranges, rows, start, end))
    return times


def _covered(ranges: Instances, which: Int64, start_ns: int, end_ns: int) -> int:
    """Return how long at least one of these instances lasted between two times."""
    covered, until = 0, start_ns
    for one in which[np.argsort(ranges.start_ns[which], kind="stable")].tolist():
        begin, end = max(int(ranges.start_ns[one]), until), min(int(ranges.end_ns[one]), end_ns)
        if end > begin:
            covered, until = covered + end - begin, end
    return covered


def _path(context: Context, instance: int) -> Path:
    ranges = context.found
    return tuple(context.trace.names[name] for name in ranges.paths[int(ranges.path[instance])])


@once
def _children(context: Context) -> Children:
    return children_of(context.found)


def _cause_in_ranges(
    context: Context,
    found: Steps,
    step: int,
    differences: Sequence[tuple[Path, int]],
    usual: Mapping[Path, int],
    more_ns: int,
) -> str:
    """Return in words which ranges a step spent more time in: the first, and the second where it matters too."""
    own = int(found.instance[step])
    itself = _path(context, own) if own >= 0 else None
    said: list[str] = []
    for path, ns in differences[:2]:
        if ns <= 0 or (said and ns < _MATTERS * more_ns):
            break
        where = "outside ranges" if path is None else f"in {path[-1]}"
        if path == itself and path is not None and len(usual) > 1:
            where += ", outside the ranges inside it"
        elif path not in usual:
            where += " (not in the median step)"
        said.append(f"+{time_text(ns)} {where}")
    return "; ".join(said) or f"+{time_text(more_ns)}, and no range took longer than in the median step"


def _cause(more: dict[str, int | None]) -> tuple[str, bool]:
    """Return in words what of a step grew most, and whether the range that explains it is to be looked for on the CPU.

    A step is as much longer as the GPU was idle and busy longer in it. What was busy are copies, NCCL and the rest.
    """
    rest = (more["gpu_busy_more_ns"] or 0) - (more["copy_more_ns"] or 0) - (more["nccl_more_ns"] or 0)
    parts = {
        "idle": more["idle_more_ns"] or 0,
        "copies": more["copy_more_ns"] or 0,
        "NCCL": more["nccl_more_ns"] or 0,
        "kernels": rest,
    }
    largest = max(parts, key=lambda name: parts[name])
    if parts[largest] <= 0:
        return "the GPU was busy longer with what belongs to other steps", False
    return f"{largest} {_ms(parts[largest])}{_why(largest, more)}", largest == "idle"


def _why(largest: str, more: dict[str, int | None]) -> str:
    allocations, waited = more["allocations_more"] or 0, more["sync_more_ns"] or 0
    kernels = more["kernels_more"] or 0
    if largest == "idle" and allocations > 0:
        return f" ({allocations} more calls that allocate)"
    if largest == "idle":
        half = (more["idle_more_ns"] or 0) / 2
        launching = more["launch_more_ns"] or 0
        if launching > half and waited <= half:
            return f" (launch calls took {_ms(launching)})"
        return " (the GPU waited for the host)"
    if largest == "kernels":
        return f" ({kernels:+} kernels)" if kernels else " (as many kernels, which took longer)"
    return ""


def _more(values: NDArray[Any], rows: Int64, median: int) -> Int64:
    known = (values[rows] != NULL) & (values[median] != NULL)
    return integers(values[rows] - values[median], known)


def _known(value: Any) -> int | None:
    return None if value == NULL else int(value)


def _word(name: str) -> str:
    return name.removesuffix("_ns")


def _unit(name: str) -> str:
    return "_ns" if name.endswith("_ns") else ""


def _ms(ns: int) -> str:
    return f"{ns / 1e6:+.3f} ms"
