"""The question of kernels: which took how long, by name, family, geometry, launch call, or range.

By name its numbers are those of nsys's `cuda_gpu_kern_sum`, by launch call those of `cuda_kern_exec_sum`; by range see
`analysis.kernel_ranges`. Every column is explained in docs/report.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from traceable.analysis.context import Context
from traceable.analysis.grouping import commonest, distinct_counts, numbered, only_value, ranked
from traceable.analysis.kernel_families import Family, load_families
from traceable.analysis.kernel_names import NAMES, KernelNames, Kinds, kernel_names, kinds_of
from traceable.analysis.kernel_ranges import by_range
from traceable.analysis.named import call_name
from traceable.analysis.remedies import record_gpu
from traceable.analysis.select import gpu_number
from traceable.analysis.table import Table, integers, objects, ratios
from traceable.errors import Message, UnanswerableError
from traceable.trace import model
from traceable.trace.model import GEOMETRY, NULL, Bool, Int32, Int64, NDArray, Trace

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
    kinds = kinds_of(context.trace.kernels)
    named = kernel_names(context.trace, kinds, names, load_families() if families is None else families)
    if by == "range":
        table = by_range(context, kinds, named, range_name)
    else:
        table = _VIEWS[by](_asked(context, kinds, named, range_name))
    return replace(table, notes=(*table.notes, *_graph_notes(context.trace)))


@dataclass(frozen=True)
class _Asked:
    """The kernels that are asked about.

    Attributes:
        inside: which of the trace's they are; None for all.
        kinds: the kinds of all kernels, which `named` is about.
        kind: the kind of each kernel asked about; kinds that none is of are left out of these numbers.
        times: how many are of each kind.
        columns: one kernel of each kind.
        label, family: of each kind, see `KernelNames`.
    """

    context: Context
    inside: Bool | None
    kinds: Kinds
    named: KernelNames
    kind: Int64
    times: Int64
    columns: model.Kernels
    label: Int64
    family: Int64

    @property
    def trace(self) -> Trace:
        return self.context.trace

    def column(self, values: Int64) -> Int64:
        """Return those values of a column of all kernels that are of the kernels asked about."""
        return values if self.inside is None else values[self.inside]


def _asked(context: Context, kinds: Kinds, named: KernelNames, range_name: str | None) -> _Asked:
    kind = kinds.of_kernel
    if range_name is None:
        times = np.bincount(kind, minlength=len(kinds))
        return _Asked(context, None, kinds, named, kind, times, kinds.columns, named.label, named.family)
    inside = context.operations_in(range_name)[: len(kind)]
    if not inside.any():
        raise UnanswerableError(
            "no_kernels_in_range",
            f"no kernel belongs to a range {range_name!r}",
            "`--view ranges` shows what each range put on the GPU",
        )
    kind, first = numbered(kind[inside])
    some = kinds.of_kernel[np.flatnonzero(inside)[first]]
    columns = model.Kernels(**kinds.columns.take(some))
    times = np.bincount(kind, minlength=len(some))
    return _Asked(context, inside, kinds, named, kind, times, columns, named.label[some], named.family[some])


def _by_kernel(asked: _Asked) -> Table:
    group, first = numbered(asked.label)
    groups = len(first)
    kernels = asked.columns
    devices, device = only_value(group, gpu_number(asked.trace, kernels.process, kernels.device), groups)
    # A stream's number is its context's own.
    place, one = numbered(kernels.process, kernels.device, kernels.context, kernels.stream)
    place[kernels.stream < 0] = -1
    streams, only = only_value(group, place, groups)
    shapes, shape_of = _shapes(asked.trace)
    geometries, shape, often = commonest(group, shape_of[kernels.geometry], groups, asked.times)
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
    group, first = numbered(asked.label, asked.columns.geometry)
    row = asked.columns.geometry[first]
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
    context, calls, kernels = asked.context, asked.context.launched.calls, asked.trace.kernels
    at, call = context.launched.operation, context.launched.call
    if asked.inside is not None or len(context.gpu) > len(kernels):
        wanted = at < len(kernels)
        if asked.inside is not None:
            wanted[wanted] = asked.inside[at[wanted]]
        chosen = np.flatnonzero(wanted)
        at, call = at[chosen], call[chosen]
    if not len(at):
        raise UnanswerableError(
            "launches_not_recorded",
            f"none of {len(asked.kind)} kernels has its launch call in the trace",
            "record the calls: --trace=cuda",
        )
    group, rows = _launched(asked, at, call)
    groups = len(rows["label"])
    called_ns, start_ns, end_ns = calls.end_ns[call], kernels.start_ns[at], kernels.end_ns[at]
    measured = {"kernel": ranked(group, end_ns - start_ns, groups)}
    start_ns -= called_ns
    measured["queue"] = ranked(group, start_ns, groups, start_ns >= 0)
    start_ns = calls.start_ns[call]
    measured["end_to_end"] = ranked(group, np.maximum(end_ns, called_ns, out=end_ns) - start_ns, groups)
    measured["api"] = ranked(group, np.subtract(called_ns, start_ns, out=called_ns), groups)
    threads = [asked.trace.threads[one] for one in rows["thread"].tolist()]
    values = {
        "pid": np.array([asked.trace.processes[one.process].pid for one in threads], np.int64),
        "tid": np.array([one.tid for one in threads], np.int64),
        "cuda_device": _known(rows["device"], rows["device"] >= 0),
        "api_name": rows["api"],
        "name": objects(asked.named.texts[code] for code in rows["label"].tolist()),
        "family": objects(asked.named.families[code] for code in rows["family"].tolist()),
        "count": measured["kernel"].number,
        "total_ns": measured["kernel"].totals(),
        "queue_count": measured["queue"].number,
    }
    for prefix in ("end_to_end", "api", "queue", "kernel"):
        values.update(measured[prefix].summary(prefix))
    launched = np.zeros(len(kernels), np.bool_)
    launched[at] = True
    missing = len(asked.kind) - int(np.count_nonzero(launched))
    without = Message(
        "kernels_without_launch",
        f"{missing} of {len(asked.kind)} kernels have no launch call in the trace and are left out",
    )
    return replace(_largest_first(values), notes=(without,) if missing else ())


def _launched(asked: _Asked, kernel: Int64, call: Int64) -> tuple[Int64, dict[str, NDArray[Any]]]:
    """Return the row of each pair of a kernel and its launch call, and by column what each row is of."""
    calls, trace, kinds = asked.context.launched.calls, asked.trace, asked.kinds
    combination, first = numbered(calls.thread[call], calls.name[call], kinds.of_kernel[kernel])
    # The family of a row is that of its first kernel.
    in_order = np.argsort(first)
    first = first[in_order]
    kind, thread = kinds.of_kernel[kernel[first]], calls.thread[call[first]]
    device, label, family = kinds.columns.device[kind], asked.named.label[kind], asked.named.family[kind]
    # Without the version two functions may become one.
    name, one = numbered(calls.name[call[first]])
    texts = [call_name(trace.names[i]) if i >= 0 else "" for i in calls.name[call[first[one]]].tolist()]
    index = {text: i for i, text in enumerate(dict.fromkeys(texts))}
    api = np.array([index[text] for text in texts], np.int64)[name]
    group, row = numbered(thread, device, api, label)
    columns: dict[str, NDArray[Any]] = {"thread": thread, "device": device, "label": label, "family": family}
    of_combination = np.empty_like(group)
    of_combination[in_order] = group
    return of_combination[combination], {
        **{word: values[row] for word, values in columns.items()},
        "api": objects(list(index)[code] for code in api[row].tolist()),
    }


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
    """Return the columns that count and measure, given the group of each kind."""
    of_kernel = group[asked.kind]
    kernels = asked.trace.kernels
    found = ranked(of_kernel, asked.column(kernels.end_ns - kernels.start_ns), groups)
    queue_ns = asked.column(asked.context.launched.queue_ns[: len(kernels)])
    waited = ranked(of_kernel, queue_ns, groups, queue_ns != NULL)
    total = found.totals()
    extent = asked.trace.extent_ns()
    wall = extent[1] - extent[0] if extent else 0
    queue = waited.spread("queue")
    return {
        "count": found.number,
        "total_ns": total,
        "gpu_share": ratios(total, np.full(groups, total.sum())),
        "wall_share": ratios(total, np.full(groups, wall)),
        **found.summary("kernel"),
        "queue_count": waited.number,
        **{f"queue_{word}_ns": queue[f"queue_{word}_ns"] for word in ("mean", "p50", "p99", "max")},
    }


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
        raise UnanswerableError("only_whole_graphs", found, _GRAPH_REMEDY)
    if "CUPTI_ACTIVITY_KIND_KERNEL" in tables:
        raise UnanswerableError(
            "no_kernels_selected", "no kernel in the part of the trace that was asked about", "ask about more of it"
        )
    if len(trace.calls) or any(table.startswith("CUPTI_ACTIVITY_KIND_") for table in tables):
        raise UnanswerableError(
            "cuda_without_kernels",
            "no kernel in the trace, though CUDA was traced",
            f"record while the program launches kernels; where it launches CUDA graphs, {_GRAPH_REMEDY}",
        )
    raise UnanswerableError(
        "cuda_not_recorded", "no kernel in the trace: no CUDA activity was recorded", record_gpu(trace)
    )


def _graph_notes(trace: Trace) -> tuple[Message, ...]:
    graphs = trace.graph_launches
    if not len(graphs):
        return ()
    total = int((graphs.end_ns - graphs.start_ns).sum())
    return (
        Message(
            "graphs_traced_whole",
            f"{len(graphs)} graph launches ({total / 1e6:.3f} ms) were traced as wholes and their kernels are not "
            f"here: {_GRAPH_REMEDY}",
        ),
    )
