"""Gaps: when each GPU was idle between its first and its last operation, what stood on both sides, and why.

A GPU's timeline is the union of all its operations: of every stream, context and process that used it. Idle time before
the first operation and after the last is not counted, for the trace can't tell when the program wanted the GPU; nor is
the time from the last operation of a window to the first of the next, of which nothing was recorded. Time inside an
operation counts as busy, however little of the GPU it used.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from traceable.analysis.context import Context
from traceable.analysis.gap_causes import CAUSES, causes_of
from traceable.analysis.gap_details import details
from traceable.analysis.gpus import Gpus, Timelines, gpus, timelines, unseen_graphs
from traceable.analysis.grouping import ranked
from traceable.analysis.intervals import Between, touched
from traceable.analysis.named import operation_labels, operation_name, range_columns
from traceable.analysis.statistics import totals
from traceable.analysis.table import Table, integers, objects, ratios
from traceable.analysis.units import time
from traceable.analysis.unrecorded import unrecorded
from traceable.errors import Message, UnanswerableError
from traceable.trace.model import NULL, Int8, Int64, NDArray

BUCKETS = (
    ("<1 us", 0, 1_000),
    ("1-5 us", 1_000, 5_000),
    ("5-10 us", 5_000, 10_000),
    ("10-50 us", 10_000, 50_000),
    ("50-100 us", 50_000, 100_000),
    ("0.1-1 ms", 100_000, 1_000_000),
    (">1 ms", 1_000_000, NULL),
)
"""Sizes of gaps: label, from (inclusive) and until (exclusive) in ns; the last has no end."""


def gaps(context: Context, *, top: int = 20, range_name: str | None = None, launch_latency_ns: int = 20_000) -> Table:
    """Return how long each GPU was busy and idle.

    Args:
        top: how many of the largest gaps are listed, over all devices.
        range_name: count only gaps that were ended by an operation of a range of this name. `total_ns`, `busy_ns`,
            `idle_ns` and `utilisation_share` remain those of the whole device.
        launch_latency_ns: a gap up to this length before an operation that had been launched is launch latency.

    Returns:
        One row a GPU: `total_ns` from the start of its first operation to the end of its last is `busy_ns`, the union
        of its operations, and `idle_ns`; without a range `gap_total_ns` is `idle_ns`. Of a trace that was cut, the
        edges of its time are those of a GPU that worked before and after; the idle time between an edge and the
        nearest operation is in `total_ns` and `idle_ns`, and in no gap. Others, with shares of
        `gap_total_ns`: `buckets` (by size, lower bound included), `causes` (`gap_causes`), `largest`.

    Raises:
        UnanswerableError: the trace holds no GPU operations, or none of the range.
    """
    used = gpus(context)
    worked = timelines(context)
    across = touched(worked.gaps, *unrecorded(context.trace))
    found = worked.gaps.take(~across) if across.any() else worked.gaps
    idle = _idle(found, len(used))
    out = _idle(worked.gaps.take(across), len(used))
    unseen = unseen_graphs(context)
    notes = [*used.notes, *([unseen.message] if unseen else [])]
    if range_name is not None:
        inside = context.operations_in(range_name)
        if not inside.any():
            raise UnanswerableError(
                "no_gpu_work_in_range",
                f"range {range_name!r} put nothing on the GPU",
                "`--view ranges` shows which ranges did",
            )
        found = found.take(inside[found.after])
        notes.append(
            Message(
                "gaps_of_range_only",
                f"gaps ended by an operation of range {range_name!r} only; total, busy, idle and utilisation are of "
                "the whole device",
            )
        )
    cause = causes_of(context, found, used.of_operation, launch_latency_ns)
    others = {
        "buckets": _buckets(used, found),
        "largest": _largest(context, used, found, cause, top),
        "causes": _causes(used, found, cause),
    }
    if context.whole is not None:
        others_used = set(gpus(context.whole).number) - {*used.number, -1}
        if others_used:
            listed = ", ".join(map(str, sorted(others_used)))
            notes.append(
                Message("gpu_not_used_in_time", f"GPU {listed} ran nothing in the selected time and has no row")
            )
    at_edges = int((worked.before_ns + worked.after_ns).sum())
    if at_edges:
        notes.append(
            Message(
                "idle_at_edges",
                f"{time(at_edges)} between the edges of the selected time and the nearest operations count as idle, "
                "but not as gaps: a part of a gap has no length and no cause of its own",
            )
        )
    return Table(_devices(context, used, worked, found, idle, out), others, tuple(notes))


def _devices(
    context: Context, used: Gpus, worked: Timelines, found: Between, idle: Int64, out: Int64
) -> dict[str, NDArray[Any]]:
    """Return the columns of each GPU; `idle` is the length of its gaps, `out` how long nothing was recorded."""
    first, last = worked.first_ns - worked.before_ns, worked.last_ns + worked.after_ns
    edges = worked.before_ns + worked.after_ns
    length = found.end_ns - found.start_ns
    pids = [process.pid for process in context.trace.processes]
    return {
        "device": used.numbers(),
        "name": used.names(context.trace),
        "processes": objects([pids[i] for i in indices] for indices in used.processes),
        "first_start_ns": first,
        "last_end_ns": last,
        "total_ns": last - first - out,
        "busy_ns": last - first - out - edges - idle,
        "idle_ns": idle + edges,
        "utilisation_share": ratios(last - first - out - edges - idle, last - first - out),
        "gaps": np.diff(_bounds(found, len(used))),
        "gap_total_ns": idle if found is worked.gaps else _idle(found, len(used)),
        **ranked(found.lane, length, len(used)).spread("gap"),
    }


def _bounds(found: Between, lanes: int) -> Int64:
    """Return where the gaps of each lane begin and, at last, end."""
    return np.searchsorted(found.lane, np.arange(lanes + 1))


def _idle(found: Between, lanes: int) -> Int64:
    """Return the summed length of the gaps of each lane."""
    bounds = _bounds(found, lanes).tolist()
    return np.array([int((found.end_ns[a:b] - found.start_ns[a:b]).sum()) for a, b in pairwise(bounds)], np.int64)


def _grouped(used: Gpus, found: Between, kind: Int64 | Int8, kinds: int) -> dict[str, NDArray[Any]]:
    """Return the columns of count and time by GPU and kind, each in order."""
    group = found.lane * kinds
    group += kind
    total = totals(group, found.end_ns - found.start_ns, len(used) * kinds)
    whole = np.repeat(total.reshape(len(used), kinds).sum(axis=1), kinds)
    return {
        "count": np.bincount(group, minlength=len(used) * kinds).astype(np.int64),
        "total_ns": total,
        "idle_share": ratios(total, whole),
    }


def _buckets(used: Gpus, found: Between) -> Table:
    lower = np.array([low for _, low, _ in BUCKETS], np.int64)
    bucket = np.searchsorted(lower, found.end_ns - found.start_ns, "right") - 1
    return Table(
        {
            "device": np.repeat(used.numbers(), len(BUCKETS)),
            "bucket": objects([label for label, _, _ in BUCKETS] * len(used)),
            "from_ns": np.tile(lower, len(used)),
            "until_ns": np.tile(np.array([high for _, _, high in BUCKETS], np.int64), len(used)),
            **_grouped(used, found, bucket, len(BUCKETS)),
        }
    )


def _causes(used: Gpus, found: Between, cause: Int8) -> Table:
    table = Table(
        {
            "device": np.repeat(used.numbers(), len(CAUSES)),
            "cause": objects(list(CAUSES) * len(used)),
            **_grouped(used, found, cause, len(CAUSES)),
        }
    )
    return table.take(table.values["count"] > 0)


def _largest(context: Context, used: Gpus, found: Between, cause: Int8, top: int) -> Table:
    """Return the largest gaps, the earlier first of two equals."""
    length = found.end_ns - found.start_ns
    # Few are as long as the longest: so many are sorted that there are enough of them.
    limits = (low for _, low, _ in reversed(BUCKETS))
    longest = (np.flatnonzero(length >= low) for low in limits)
    which = next((rows for rows in longest if len(rows) >= top), np.arange(len(found)))
    which = which[np.lexsort((found.lane[which], found.start_ns[which], -length[which]))][: max(top, 0)]
    listed = found.take(which)
    gpu, trace = context.gpu, context.trace
    pids = np.array([process.pid for process in trace.processes], np.int64)
    columns: dict[str, NDArray[Any]] = {
        "device": used.numbers()[listed.lane],
        "start_ns": listed.start_ns,
        "duration_ns": length[which],
        "cause": objects(CAUSES[i] for i in cause[which].tolist()),
        "detail": objects(details(context, used, listed, cause[which])),
    }
    for word, operation in (("before", listed.before), ("after", listed.after)):
        label = operation_labels(context, operation)
        columns[word] = objects(operation_name(trace, i) for i in label.tolist())
        columns |= range_columns(trace, context.found, context.innermost[operation], f"{word}_")
        stream = gpu.stream[operation]
        columns[f"{word}_stream"] = integers(stream, stream >= 0)
        columns[f"{word}_pid"] = pids[gpu.process[operation]]
    return Table(columns)
