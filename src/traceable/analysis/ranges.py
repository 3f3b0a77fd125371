"""The first question: what did each range cost. One row a path, a name, an instance, or a name and where it ran."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from traceable.analysis.columns import FIELD
from traceable.analysis.context import Context
from traceable.analysis.fields import field_values
from traceable.analysis.gpus import gpus
from traceable.analysis.profile import by_place, profile_of
from traceable.analysis.range_instances import range_instances, slowest_instances
from traceable.analysis.select import gpu_number, selected
from traceable.analysis.table import Table, objects
from traceable.errors import UnanswerableError, UsageError
from traceable.trace.model import Int64, Trace

BY = ("path", "name", "instance", "process", "thread", "device")
"""What a row can be about; also `field:NAME`."""


def ranges(context: Context, *, by: str = "path", range_name: str | None = None, slowest: int | None = None) -> Table:
    """Return what each range cost.

    Args:
        by: one of BY, or `field:NAME`. By `device` the GPU's columns are those of the device, the CPU's those of all.
        range_name: only rows of ranges of this name, or `domain:name`.
        slowest: by `instance`, only so many of these, the slowest, each followed by what lies inside it.

    Raises:
        UnanswerableError: the trace holds no ranges, or none of that name, or none with that field.
    """
    if context.whole is not None and len(context.whole.found) and not len(context.found):
        raise UnanswerableError(
            "no_ranges_selected", "no range lies in the selected time", "select more of the recording"
        )
    if not len(context.found):
        raise UnanswerableError(
            "no_ranges_recorded",
            "no ranges were recorded",
            "annotate the program (traceable help annotation), and with nsys have nvtx in --trace",
        )
    if range_name is not None:
        context.instances_of(range_name)
    if slowest is not None:
        if by != "instance":
            raise UsageError(
                "slowest_needs_instances", f"the slowest are instances, and the rows are by {by}", "ask by instance"
            )
        return slowest_instances(context, slowest, range_name=range_name)
    if by == "instance":
        return range_instances(context, range_name=range_name)
    rows = {
        "path": lambda: profile_of(context).ranges,
        "name": lambda: profile_of(context).names,
        "process": lambda: _by_process(context),
        "thread": lambda: _by_thread(context),
        "device": lambda: _by_device(context),
    }
    table = _by_field(context, by.removeprefix(FIELD)) if by.startswith(FIELD) else rows[by]()
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
    for number, device in zip(where.number, where.numbers().tolist(), strict=True):
        part = Context(_only(context.trace, number), context.names)
        rows = profile_of(part).names
        rows = rows.take(rows.values["gpu_count"] > 0)
        tables.append({"device": np.full(len(rows), device), **rows.values})
    columns = {name: np.concatenate([table[name] for table in tables]) for name in tables[0]}
    return Table(columns, notes=where.notes)


def _by_field(context: Context, field: str) -> Table:
    """Return the rows by value of a field; numbers from the smallest, then texts, then ranges without the field."""
    values, value = field_values(context, field)
    rows, number = by_place(context, value)
    return Table({"value": values[number], **rows.values})


def _only(trace: Trace, gpu: int) -> Trace:
    """Return the trace with the operations of one GPU alone, given by its number; -1 for those that carry none."""
    if trace.cut is not None:
        return selected(_only(trace.cut.whole, gpu), time_ns=(trace.cut.first_ns, trace.cut.last_ns))
    kept: dict[str, Any] = {}
    for kind in ("kernels", "copies", "memsets", "graph_launches"):
        events = getattr(trace, kind)
        number = np.maximum(gpu_number(trace, events.process, events.device), -1)
        kept[kind] = replace(events, **events.take(number == gpu))
    return trace.part(**kept)


def _process_of_thread(context: Context) -> Int64:
    return np.array([thread.process for thread in context.trace.threads], np.int64)
