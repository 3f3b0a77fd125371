"""The ranges one by one: when each instance ran, where it stands in the tree, and what it put on the GPU."""

from __future__ import annotations

from typing import Any

import numpy as np

from traceable.analysis.context import Context
from traceable.analysis.fields import instance_fields
from traceable.analysis.instances import children_of
from traceable.analysis.profile import STYLES, measured
from traceable.analysis.rules import RULES
from traceable.analysis.table import Table, integers, objects
from traceable.trace.model import NULL, Int64, NDArray


def range_instances(context: Context, *, range_name: str | None = None) -> Table:
    """Return one row an instance, by start; replays of CUDA graphs come last.

    Args:
        range_name: only instances of this name, or `domain:name`.

    Raises:
        UnanswerableError: no range has that name.

    The `nsys_` columns hold what nsys's projection trace has, which knows of launch calls on the range's own thread
    alone, and lists only instances that so put something on the GPU: the others are NULL there.
    """
    trace, found = context.trace, context.found
    took = measured(context)
    worked, listed = took.work.operations > 0, took.nsys.operations > 0
    real = found.entered
    number = np.arange(1, len(found) + 1)
    inside = np.bincount(found.parent[(found.parent >= 0) & real], minlength=len(found))
    pids = np.array([process.pid for process in trace.processes], np.int64)
    tids = np.array([thread.tid for thread in trace.threads], np.int64)
    of_thread = np.array([thread.process for thread in trace.threads], np.int64)

    def work(values: Int64) -> Int64:
        return integers(values, worked)

    def nsys(values: Int64) -> Int64:
        return integers(values, listed)

    table = Table(
        {
            "instance": number,
            "parent_instance": integers(found.parent + 1, found.parent >= 0),
            "level": found.depth,
            "children": inside,
            "name": _named(trace.names, found.name),
            "recorded_name": _named(trace.names, np.where(found.recorded == found.name, -1, found.recorded)),
            "domain": _named(trace.names, found.domain),
            "payload": _payload(context),
            "fields": instance_fields(context),
            "style": objects([STYLES[style] for style in found.style.tolist()]),
            "pid": pids[of_thread[found.thread]],
            "tid": tids[found.thread],
            "start_ns": found.start_ns,
            "cpu_ns": integers(found.end_ns - found.start_ns, real),
            "clipped": found.clipped,
            "replay": found.replay,
            "cpu_self_ns": found.self_ns,
            "active_ns": found.active_ns,
            "sync_wait_ns": took.waits,
            "gpu_start_ns": work(took.work.start_ns),
            "gpu_busy_ns": work(took.work.busy_ns),
            "gpu_span_ns": work(took.work.span_ns),
            "gpu_operations": work(took.work.operations),
            "kernels": work(took.work.kernels),
            "launches": work(took.work.launches),
            "attribution": _rules(*took.work.by_rule(found.task, np.arange(len(found)), len(found)), worked),
            "nsys_gpu_start_ns": nsys(took.nsys.start_ns),
            "nsys_gpu_span_ns": nsys(took.nsys.span_ns),
            "nsys_launches": nsys(took.nsys.launches),
            "nsys_children": nsys(np.bincount(found.parent[(found.parent >= 0) & listed], minlength=len(found))),
        }
    )
    return table if range_name is None else table.take(context.instances_of(range_name))


def slowest_instances(context: Context, most: int, *, range_name: str | None = None) -> Table:
    """Return the slowest instances, the slowest first, each followed by all that lies inside it, parents first.

    Args:
        most: how many.
        range_name: of which name, or `domain:name`; None for the outermost ranges. One that lies inside another of the
            same name counts as well.

    Returns:
        Rows as of `range_instances`, after `slowest`, which of them (from 1) a row belongs to, and `depth`, how many
        instances lie between. What is inside is by start; of a coroutine it is what began in it, on whichever thread.

    Raises:
        UnanswerableError: no range has that name.
    """
    found = context.found
    wanted = found.entered & (found.parent < 0 if range_name is None else context.instances_of(range_name))
    rows = np.flatnonzero(wanted)
    rows = rows[np.argsort(found.start_ns[rows] - found.end_ns[rows], kind="stable")][:most]
    children = children_of(found)
    trees = [(number, *member) for number, root in enumerate(rows.tolist(), 1) for member in children.tree(root)]
    columns = np.array(trees, np.int64).reshape(-1, 3).T
    table = range_instances(context).take(columns[2])
    return Table({"slowest": columns[0], "depth": columns[1], **table.values})


def _payload(context: Context) -> Int64:
    """Return the number that each instance carried as its payload; NULL for none."""
    trace = context.trace
    ranges = trace.ranges if trace.cut is None else trace.cut.whole.ranges
    row = context.range_of_instance
    payload = np.full(len(row), NULL, np.int64)
    carried = np.flatnonzero((row >= 0) & np.append(ranges.has_payload, False)[row])
    payload[carried] = ranges.payload[row[carried]]
    return payload


def _named(names: tuple[str, ...], index: NDArray[np.int32]) -> NDArray[Any]:
    """Return the names at an index column; None at -1."""
    known: NDArray[Any] = objects((*names, None))
    return known[index]


def _rules(time: Int64, operations: Int64, worked: NDArray[np.bool_]) -> NDArray[Any]:
    """Return the rule that explains the most GPU time of each instance; None without GPU work."""
    most = np.lexsort((operations, time), axis=0)[-1]
    return objects((*RULES, None))[np.where(worked, most, len(RULES))]
