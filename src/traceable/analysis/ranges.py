"""The first question: what did each range cost. One row a path, a name, an instance, or a name and where it ran."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np

from traceable.analysis.context import Context
from traceable.analysis.gpus import gpus
from traceable.analysis.profile import by_place, profile_of
from traceable.analysis.range_instances import range_instances
from traceable.analysis.table import Table, objects
from traceable.errors import UnanswerableError
from traceable.trace.model import Bool, Int64, Trace

BY = ("path", "name", "instance", "process", "thread", "device")
"""What a row can be about."""


def ranges(context: Context, *, by: str = "path", range_name: str | None = None) -> Table:
    """Return what each range cost.

    Args:
        by: one of BY. By `device` the GPU's columns are those of the device, the CPU's those of all.
        range_name: only rows of ranges of this name, or `domain:name`.

    Raises:
        UnanswerableError: the trace holds no ranges, or none of that name.
    """
    if not len(context.trace.ranges):
        raise UnanswerableError(
            "no ranges were recorded", "annotate the program (docs/annotation.md), and with nsys have nvtx in --trace"
        )
    if range_name is not None:
        context.instances_of(range_name)
    if by == "instance":
        return range_instances(context, range_name=range_name)
    table = {
        "path": lambda: profile_of(context).ranges,
        "name": lambda: profile_of(context).names,
        "process": lambda: _by_process(context),
        "thread": lambda: _by_thread(context),
        "device": lambda: _by_device(context),
    }[by]()
    return table if range_name is None else table.take(_named(table, range_name))


def _named(table: Table, range_name: str) -> list[int]:
    """Return the rows of this name."""
    names = zip(table.column("name"), table.column("domain"), strict=True)
    return [row for row, (name, domain) in enumerate(names) if range_name in (name, f"{domain}:{name}")]


def _by_process(context: Context) -> Table:
    place = _process_of_thread(context)[context.found.thread]
    rows, process = by_place(context, place)
    pids = np.array([one.pid for one in context.trace.processes], np.int64)[process]
    names = objects(context.trace.processes[one].name or None for one in process.tolist())
    return Table({"pid": pids, "process": names, **rows.values})


def _by_thread(context: Context) -> Table:
    rows, thread = by_place(context, context.found.thread.astype(np.int64))
    threads = context.trace.threads
    pids = np.array([one.pid for one in context.trace.processes], np.int64)
    tids = np.array([one.tid for one in threads], np.int64)
    names = objects(threads[one].name or None for one in thread.tolist())
    place = {"pid": pids[_process_of_thread(context)[thread]], "tid": tids[thread], "thread": names}
    return Table({**place, **rows.values})


def _by_device(context: Context) -> Table:
    where = gpus(context)
    tables = []
    for number, device in enumerate(where.numbers().tolist()):
        part = Context(_only(context.trace, where.of_operation == number))
        rows = profile_of(part).names
        rows = rows.take(rows.values["gpu_count"] > 0)
        tables.append({"device": np.full(len(rows), device), **rows.values})
    columns = {name: np.concatenate([table[name] for table in tables]) for name in tables[0]}
    return Table(columns, notes=where.notes)


def _only(trace: Trace, which: Bool) -> Trace:
    """Return the trace with these of its GPU operations, given in the order of `GpuOperations`."""
    kinds = ("kernels", "copies", "memsets", "graph_launches")
    bounds = np.cumsum([0, *(len(getattr(trace, kind)) for kind in kinds)]).tolist()
    kept: dict[str, Any] = {}
    for kind, (first, last) in zip(kinds, itertools.pairwise(bounds), strict=True):
        events = getattr(trace, kind)
        kept[kind] = replace(events, **events.take(which[first:last]))
    return replace(trace, **kept)


def _process_of_thread(context: Context) -> Int64:
    return np.array([thread.process for thread in context.trace.threads], np.int64)
