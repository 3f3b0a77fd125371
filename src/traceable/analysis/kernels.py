"""The question of kernels: which took how long, by name, family, geometry, launch call, or range.

By name its numbers are those of nsys's `cuda_gpu_kern_sum`, by launch call those of `cuda_kern_exec_sum`; by range see
`analysis.kernel_ranges`. Every column is explained in docs/report.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traceable.analysis.context import Context
from traceable.analysis.gpus import gpus
from traceable.analysis.grouping import Ranked, commonest, distinct_counts, numbered, only_value, ranked
from traceable.analysis.kernel_families import Family, load_families
from traceable.analysis.kernel_names import NAMES, KernelNames, kernel_names
from traceable.analysis.kernel_ranges import by_range
from traceable.analysis.named import call_name
from traceable.analysis.remedies import record_gpu
from traceable.analysis.table import Table, integers, objects, ratios
from traceable.errors import UnanswerableError
from traceable.trace import model
from traceable.trace.model import GEOMETRY, NULL, Bool, Int32, Int64, Trace

_GRAPH_REMEDY = "record with --cuda-graph-trace=node"


def kernels(
    context: Context,
    *,
    by: str = "kernel",
    names: str = "demangled",
    range_name: str | None = None,
    families: Sequence[Family] | None = None,
) -> Table:
    """Return how long kernels took, the largest total first.

    Args:
        by: `kernel`: one row a name. `family`: one row a family. `geometry`: one row a name, grid, block, registers
            and shared memory. `launch`: one row a thread, device, API call and name. `range`: one row a range, style,
            thread and name.
        names: which name: `demangled`, `short` or `base` (`analysis.kernel_names`).
        range_name: only kernels that belong to a range of this name, or `domain:name`; by range, only its rows.
        families: what a kernel is for, told from its name; None for `load_families()`.

    Raises:
        UnanswerableError: the trace holds no such kernels, no range of that name or, where they are needed, no ranges
            or launch calls.
        ValueError: `by` or `names` is none of the words above.
    """
    if by not in BY or names not in NAMES:
        raise ValueError(f"by={by!r}, names={names!r}: one of {', '.join(BY)} and one of {', '.join(NAMES)}")
    _require_kernels(context)
    named = kernel_names(context.trace, names, load_families() if families is None else families)
    table = by_range(context, named, range_name) if by == "range" else _VIEWS[by](_asked(context, named, range_name))
    return replace(table, notes=(*table.notes, *_graph_notes(context.trace)))


@dataclass(frozen=True)
class _Asked:
    """The kernels that are asked about, as equally long columns.

    Attributes:
        index: of each kernel in `Trace.kernels`.
        queue_ns: see `Launches`.
        label, family: see `KernelNames`.
    """

    context: Context
    kernels: model.Kernels
    index: Int64
    duration_ns: Int64
    queue_ns: Int64
    label: Int64
    family: Int64
    named: KernelNames

    @property
    def trace(self) -> Trace:
        return self.context.trace


def _asked(context: Context, named: KernelNames, range_name: str | None) -> _Asked:
    found = context.trace.kernels
    index = np.arange(len(found))
    queue, label, family = context.launched.queue_ns[: len(found)], named.label, named.family
    if range_name is not None:
        index = np.flatnonzero(context.operations_in(range_name)[: len(found)])
        if not len(index):
            raise UnanswerableError(
                f"no kernel belongs to a range {range_name!r}", "`--view ranges` shows what each range put on the GPU"
            )
        found = model.Kernels(**found.take(index))
        queue, label, family = queue[index], label[index], family[index]
    return _Asked(context, found, index, found.end_ns - found.start_ns, queue, label, family, named)


def _by_kernel(asked: _Asked) -> Table:
    group, first = numbered(asked.label)
    groups = len(first)
    kernels = asked.kernels
    found = gpus(asked.context)
    number = np.array(found.number, np.int64)[found.of_operation[asked.index]]
    devices, device = only_value(group, number, groups)
    # A stream's number is its context's own.
    place, one = numbered(kernels.process, kernels.device, kernels.context, kernels.stream)
    place[kernels.stream < 0] = -1
    streams, only = only_value(group, place, groups)
    shapes, shape_of = _shapes(asked.trace)
    geometries, shape, often = commonest(group, shape_of[kernels.geometry], groups)
    values = {
        **_name_columns(asked, group, first),
        **_times(asked, group, groups),
        "devices": devices,
        "device": device,
        "streams": streams,
        "stream": _known(kernels.stream[one[np.where(only == NULL, 0, only)]], only != NULL),
        "geometries": geometries,
        "geometry": objects(_geometry_text(shapes[row]) if row != NULL else None for row in shape.tolist()),
        "geometry_count": often,
    }
    return _largest_first(values)


def _by_family(asked: _Asked) -> Table:
    group, first = numbered(asked.family)
    groups = len(first)
    values = {
        "family": objects(asked.named.families[code] for code in asked.family[first].tolist()),
        "kernels": distinct_counts(group, asked.label, groups),
        **_times(asked, group, groups),
    }
    return _largest_first(values)


def _by_geometry(asked: _Asked) -> Table:
    group, first = numbered(asked.label, asked.kernels.geometry)
    row = asked.kernels.geometry[first]
    # One row more, for kernels whose geometry was not recorded: they have -1.
    table = np.concatenate([asked.trace.geometries, np.full((1, len(GEOMETRY)), NULL, np.int64)])
    geometry = dict(zip(GEOMETRY, table[row].T, strict=True))
    texts = [_geometry_text(table[one]).split(" / ") if one >= 0 else [None, None] for one in row.tolist()]
    values = {
        **_name_columns(asked, group, first),
        "grid": objects(text[0] for text in texts),
        "block": objects(text[1] for text in texts),
        "blocks": _product(geometry["grid_x"], geometry["grid_y"], geometry["grid_z"]),
        "threads_per_block": _product(geometry["block_x"], geometry["block_y"], geometry["block_z"]),
        **{name: geometry[name] for name in GEOMETRY[6:]},
        **_times(asked, group, len(first)),
    }
    return _largest_first(values)


def _by_launch(asked: _Asked) -> Table:
    context, calls = asked.context, asked.trace.calls
    position = np.full(len(context.trace.kernels), -1, np.int64)
    position[asked.index] = np.arange(len(asked.index))
    wanted = np.flatnonzero(context.launched.operation < len(position))
    wanted = wanted[position[context.launched.operation[wanted]] >= 0]
    if not len(wanted):
        raise UnanswerableError(
            f"none of {len(asked.index)} kernels has its launch call in the trace", "record the calls: --trace=cuda"
        )
    at, call = position[context.launched.operation[wanted]], context.launched.call[wanted]
    api, texts = _call_labels(asked.trace, call)
    thread, device = calls.thread[call], asked.kernels.device[at]
    group, first = numbered(thread, device, api, asked.label[at])
    queue = asked.kernels.start_ns[at] - calls.end_ns[call]
    end = np.maximum(calls.end_ns[call], asked.kernels.end_ns[at])
    measured = {
        "end_to_end": ranked(group, end - calls.start_ns[call], len(first)),
        "api": ranked(group, calls.end_ns[call] - calls.start_ns[call], len(first)),
        "queue": ranked(group, queue, len(first), queue >= 0),
        "kernel": ranked(group, asked.duration_ns[at], len(first)),
    }
    threads = [asked.trace.threads[one] for one in thread[first].tolist()]
    values = {
        "pid": np.array([asked.trace.processes[one.process].pid for one in threads], np.int64),
        "tid": np.array([one.tid for one in threads], np.int64),
        "cuda_device": _known(device[first], device[first] >= 0),
        "api_name": objects(texts[code] for code in api[first].tolist()),
        "name": objects(asked.named.texts[code] for code in asked.label[at][first].tolist()),
        "family": objects(asked.named.families[code] for code in asked.family[at][first].tolist()),
        "count": measured["kernel"].number,
        "total_ns": measured["kernel"].totals(),
        "queue_count": measured["queue"].number,
    }
    for prefix, one in measured.items():
        values.update(_spread(prefix, one))
    missing = len(asked.index) - len(np.unique(at))
    notes = (f"{missing} of {len(asked.index)} kernels have no launch call in the trace and are left out",)
    return replace(_largest_first(values), notes=notes if missing else ())


_VIEWS: dict[str, Callable[[_Asked], Table]] = {
    "kernel": _by_kernel,
    "family": _by_family,
    "geometry": _by_geometry,
    "launch": _by_launch,
}

BY = (*_VIEWS, "range")
"""The words for `by` of `kernels`."""


def _name_columns(asked: _Asked, group: Int64, first: Int64) -> dict[str, NDArray[Any]]:
    """Return `name` and `family`, which is absent where kernels of one short name are of several families."""
    code = only_value(group, asked.family, len(first))[1]
    families = [asked.named.families[one] if one != NULL else None for one in code.tolist()]
    return {
        "name": objects(asked.named.texts[code] for code in asked.label[first].tolist()),
        "family": objects(families),
    }


def _times(asked: _Asked, group: Int64, groups: int) -> dict[str, NDArray[Any]]:
    found = ranked(group, asked.duration_ns, groups)
    waited = ranked(group, asked.queue_ns, groups, asked.queue_ns != NULL)
    total = found.totals()
    extent = asked.trace.extent_ns()
    wall = extent[1] - extent[0] if extent else 0
    queue = waited.spread("queue")
    return {
        "count": found.number,
        "total_ns": total,
        "gpu_share": ratios(total, np.full(groups, total.sum())),
        "wall_share": ratios(total, np.full(groups, wall)),
        **_spread("kernel", found),
        "queue_count": waited.number,
        **{f"queue_{word}_ns": queue[f"queue_{word}_ns"] for word in ("mean", "p50", "p99", "max")},
    }


def _spread(prefix: str, found: Ranked) -> dict[str, NDArray[Any]]:
    return {**found.spread(prefix), f"{prefix}_stddev_ns": found.deviations()}


def _call_labels(trace: Trace, call: Int64) -> tuple[Int64, list[str]]:
    """Return a number for the name of each call, and the names: without the version, so that two may become one."""
    name = trace.calls.name[call]
    code, first = numbered(name)
    texts = [call_name(trace.names[one]) if one >= 0 else "" for one in name[first].tolist()]
    index = {text: i for i, text in enumerate(dict.fromkeys(texts))}
    return np.array([index[text] for text in texts], np.int64)[code], list(index)


def _shapes(trace: Trace) -> tuple[Int64, Int64]:
    """Return the distinct grids and blocks, and the one of each row of `Trace.geometries`; the last is -1, for none."""
    grid_and_block = trace.geometries[:, :6]
    shape, first = numbered(*grid_and_block.T)
    return grid_and_block[first], np.append(shape, -1)


def _geometry_text(row: Int64) -> str:
    grid_and_block = ["?" if value == NULL else str(value) for value in row[:6].tolist()]
    return f"{'x'.join(grid_and_block[:3])} / {'x'.join(grid_and_block[3:])}"


def _known(values: Int32, known: Bool) -> Int64:
    """Return an index column as an integer column, which is absent where not `known`."""
    return integers(values.astype(np.int64), known)


def _product(*columns: Int64) -> Int64:
    known = np.all([column != NULL for column in columns], axis=0)
    return integers(np.prod([np.where(known, column, 0) for column in columns], axis=0), known)


def _largest_first(values: dict[str, NDArray[Any]]) -> Table:
    return Table(values).take(np.argsort(-values["total_ns"], kind="stable"))


def _require_kernels(context: Context) -> None:
    trace = context.trace
    if len(trace.kernels):
        return
    tables = trace.source.tables
    if len(trace.graph_launches):
        found = f"no kernel in the trace: its {len(trace.graph_launches)} graph launches were traced as wholes"
        raise UnanswerableError(found, _GRAPH_REMEDY)
    if "CUPTI_ACTIVITY_KIND_KERNEL" in tables:
        raise UnanswerableError("no kernel in the part of the trace that was asked about", "ask about more of it")
    if len(trace.calls) or any(table.startswith("CUPTI_ACTIVITY_KIND_") for table in tables):
        raise UnanswerableError(
            "no kernel in the trace, though CUDA was traced",
            f"record while the program launches kernels; where it launches CUDA graphs, {_GRAPH_REMEDY}",
        )
    raise UnanswerableError(
        "no kernel in the trace: no CUDA activity was recorded", record_gpu(trace, "have cuda in --trace")
    )


def _graph_notes(trace: Trace) -> tuple[str, ...]:
    graphs = trace.graph_launches
    if not len(graphs):
        return ()
    total = int((graphs.end_ns - graphs.start_ns).sum())
    return (
        f"{len(graphs)} graph launches ({total / 1e6:.3f} ms) were traced as wholes and their kernels are not here: "
        f"{_GRAPH_REMEDY}",
    )
