"""The memory question: what was copied and set, which way, how fast, from which memory and by which calls.

One row an operation (`[CUDA memcpy Host-to-Device]`), with the numbers of nsys's cuda_gpu_mem_time_sum and
cuda_gpu_mem_size_sum; or one a range and operation, or one a process, GPU and operation. How much memory was allocated
is `analysis.memory_usage`'s, which stands in `others`. Every column is explained in docs/report.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from traceable.analysis.context import Context
from traceable.analysis.gpus import gpus
from traceable.analysis.grouping import numbered, ranked
from traceable.analysis.memory_usage import usage, usage_by_range, usage_over_time
from traceable.analysis.moves import ASYNCHRONOUS, NO_CALL, OTHER_CALL, SYNCHRONOUS, Moves, moves_of
from traceable.analysis.named import (
    OPERATION_NAMES,
    call_name,
    range_columns,
    range_labels,
)
from traceable.analysis.statistics import totals
from traceable.analysis.table import Table, integers, objects, ratios
from traceable.errors import Message, UnanswerableError
from traceable.trace.model import NULL, Bool, Float64, Int64, NDArray, Trace

BY = ("operation", "range", "process")
"""What a row of the answer can be."""

_NO_ALLOCATIONS = Message("memory_usage_not_recorded", "no device memory data: record with --cuda-memory-usage=true")

SIZE_BUCKETS = (
    (0, "<1 KiB"),
    (1 << 10, "1-16 KiB"),
    (1 << 14, "16-64 KiB"),
    (1 << 16, "64-256 KiB"),
    (1 << 18, "256 KiB-1 MiB"),
    (1 << 20, "1-16 MiB"),
    (1 << 24, "16-256 MiB"),
    (1 << 28, ">=256 MiB"),
)
"""Where the buckets of the size histogram begin, in bytes, and what they are called."""


def memory(context: Context, *, by: str = "operation", range_name: str | None = None) -> Table:
    """Return the copies and memsets, by what takes the most time.

    Args:
        by: one row an operation; or one a range (by domain and name) and operation, where each copy counts once for
            every range that it belongs to; or one a process, GPU and operation.
        range_name: only what belongs to a range of this name.

    `others` holds `processes`, `sizes` (a histogram), `calls` (by launch call) and, where allocations were recorded,
    `usage`, `usage_by_range` and `usage_over_time`. Where nothing but allocations was recorded, `usage` is the
    answer itself.

    Raises:
        UnanswerableError: the trace holds none of these, or no range of that name, or nothing that belongs to it; or
            rows by range are wanted of a trace without ranges.
        ValueError: `by` is none of BY.
    """
    if by not in BY:
        raise ValueError(f"by={by!r}: one of {', '.join(BY)}")
    allocated = _allocated(context, range_name)
    moves = moves_of(context)
    which = np.arange(len(moves))
    if range_name is not None:
        which = which[context.operations_in(range_name)[moves.first + which]]
    if not len(which):
        if range_name is not None or not allocated:
            raise _nothing_moved(context, range_name)
        return replace(allocated.pop("usage"), others=allocated)
    others = {
        "processes": _by_process(context.trace, moves, which),
        "sizes": _sizes(moves, which),
        "calls": _by_call(context, moves, which),
        **allocated,
    }
    if by == "range":
        answer = _by_range(context, moves, which)
    elif by == "process":
        answer = others.pop("processes")
    else:
        answer = _by_operation(moves, which)
    return replace(answer, others=others, notes=allocated["usage"].notes if allocated else (_NO_ALLOCATIONS,))


def _allocated(context: Context, range_name: str | None) -> dict[str, Table]:
    """Return the tables on allocated memory, none where it was not recorded."""
    found = usage(context)
    if found is None:
        return {}
    further = {
        "usage_by_range": usage_by_range(context, range_name=range_name),
        "usage_over_time": usage_over_time(context),
    }
    return {"usage": found, **{name: table for name, table in further.items() if len(table)}}


def _by_operation(moves: Moves, which: Int64) -> Table:
    group, first = numbered(moves.kind[which])
    names = objects(OPERATION_NAMES[kind] for kind in moves.kind[which[first]].tolist())
    return _by_time({"operation": names}, _columns(moves, which, group, len(first)))


def _by_process(trace: Trace, moves: Moves, which: Int64) -> Table:
    group, first = numbered(moves.process[which], moves.gpu[which], moves.kind[which])
    processes = [trace.processes[p] if p >= 0 else None for p in moves.process[which[first]].tolist()]
    gpu = moves.gpu[which[first]]
    names = {device.number: device.name for device in trace.devices}
    key = {
        "pid": np.array([process.pid if process else NULL for process in processes], np.int64),
        "process": objects((process.name or None) if process else None for process in processes),
        "device": integers(gpu, gpu >= 0),
        "device_name": objects(names.get(number) or None for number in gpu.tolist()),
        "operation": objects(OPERATION_NAMES[kind] for kind in moves.kind[which[first]].tolist()),
    }
    return _by_time(key, _columns(moves, which, group, len(first)))


def _by_range(context: Context, moves: Moves, which: Int64) -> Table:
    """Return one row a range and operation; what belongs to no range is one more, without a name."""
    found = context.found
    if not len(found):
        raise UnanswerableError(
            "no_ranges_recorded", "no ranges in the trace", "annotate the program and record with --trace=cuda,nvtx"
        )
    label, first_of_label = range_labels(found)
    wanted = np.zeros(len(context.gpu), np.bool_)
    wanted[moves.first + which] = True
    pairs = [(label[instance], operation) for instance, operation in _pairs_of(context, wanted)]
    labels = np.concatenate([pair[0] for pair in pairs]) if pairs else np.empty(0, np.int64)
    move = np.concatenate([pair[1] for pair in pairs]) - moves.first if pairs else np.empty(0, np.int64)
    # Ranges of one name may lie inside one another: what both have counts once.
    once = numbered(labels, move)[1]
    labels, move = labels[once], move[once]
    outside = which[~np.isin(which, move)]
    labels = np.concatenate([labels, np.full(len(outside), -1, np.int64)])
    move = np.concatenate([move, outside])
    group, first = numbered(labels, moves.kind[move])
    of_row = labels[first]
    instance = np.where(of_row >= 0, np.append(first_of_label, -1)[of_row], -1)
    key = {
        **range_columns(context.trace, found, instance),
        "operation": objects(OPERATION_NAMES[kind] for kind in moves.kind[move[first]].tolist()),
    }
    whole = int(moves.duration_ns[which].sum())
    return _by_time(key, _columns(moves, move, group, len(first), whole))


def _pairs_of(context: Context, wanted: Bool) -> Iterator[tuple[Int64, Int64]]:
    """Yield the pairs of instance and operation whose operation is wanted."""
    for instance, operation in context.operation_pairs():
        here = wanted[operation]
        if here.any():
            yield instance[here], operation[here]


def _by_call(context: Context, moves: Moves, which: Int64) -> Table:
    """Return one row a launch call's name, operation and kind of host memory."""
    trace, calls = context.trace, context.launched.calls
    which = which[moves.call[which] >= 0]
    memory_of = np.where(moves.pageable, 0, np.where(moves.pinned, 1, -1))[which]
    call = moves.call[which]
    group, first = numbered(calls.name[call], moves.kind[which], memory_of)
    first_of_call = numbered(group, call)[1]
    group_of_call, each = group[first_of_call], call[first_of_call]
    duration = calls.end_ns[each] - calls.start_ns[each]
    kind = moves.call_kind[which[first]]
    manner = {SYNCHRONOUS: "synchronous", ASYNCHRONOUS: "asynchronous", OTHER_CALL: "other"}
    words = [
        "pageable async" if of == ASYNCHRONOUS and memory == 0 else manner[of]
        for of, memory in zip(kind.tolist(), memory_of[first].tolist(), strict=True)
    ]
    groups = len(first)
    size, time = totals(group, moves.size_bytes[which], groups), totals(group, moves.duration_ns[which], groups)
    table = Table(
        {
            "call": objects(call_name(trace.names[name]) for name in calls.name[call[first]].tolist()),
            "manner": objects(words),
            "operation": objects(OPERATION_NAMES[of] for of in moves.kind[which[first]].tolist()),
            "host_memory": objects((("pageable", "pinned", None)[of]) for of in memory_of[first].tolist()),
            "count": np.bincount(group, minlength=groups),
            "size_total_bytes": size,
            "gpu_total_ns": time,
            "gb_per_s": ratios(size, time),
            "calls": np.bincount(group_of_call, minlength=groups),
            "call_total_ns": totals(group_of_call, duration, groups),
            **ranked(group_of_call, duration, groups).spread("call"),
        }
    )
    return table.take(np.argsort(-table.values["call_total_ns"], kind="stable"))


def _sizes(moves: Moves, which: Int64) -> Table:
    edges = np.array([edge for edge, _ in SIZE_BUCKETS])
    bucket = np.searchsorted(edges, moves.size_bytes[which], "right") - 1
    group, first = numbered(moves.kind[which], bucket)
    groups = len(first)
    size, time = totals(group, moves.size_bytes[which], groups), totals(group, moves.duration_ns[which], groups)
    return Table(
        {
            "operation": objects(OPERATION_NAMES[kind] for kind in moves.kind[which[first]].tolist()),
            "size": objects(SIZE_BUCKETS[i][1] for i in bucket[first].tolist()),
            "from_bytes": edges[bucket[first]],
            "count": np.bincount(group, minlength=groups),
            "size_total_bytes": size,
            "gpu_total_ns": time,
            "gb_per_s": ratios(size, time),
        }
    )


def _columns(
    moves: Moves, which: Int64, group: Int64, groups: int, whole: int | None = None
) -> dict[str, NDArray[Any]]:
    """Return the columns that count and measure, one value a group.

    Args:
        which: the moves that the groups are of, one a row of `group`.
        whole: ns that the shares are of; the sum of all rows if not given.
    """
    duration, size = moves.duration_ns[which], moves.size_bytes[which]
    total, total_size = totals(group, duration, groups), totals(group, size, groups)
    peak = _common(group, moves.peak_gb_per_s[which], groups)
    rate = ratios(total_size, total)
    times, sizes = ranked(group, duration, groups), ranked(group, size, groups)
    return {
        "time_share": ratios(total, np.full(groups, int(duration.sum()) if whole is None else whole)),
        "count": np.bincount(group, minlength=groups),
        "gpu_total_ns": total,
        **times.spread("gpu"),
        "gpu_stddev_ns": times.deviations(),
        "size_total_bytes": total_size,
        **_renamed(sizes.spread("size"), "_ns", "_bytes"),
        "size_stddev_bytes": sizes.deviations(),
        # Bytes per ns are GB per s.
        "gb_per_s": rate,
        **_rates(group, duration, size, groups),
        "peak_gb_per_s": peak,
        "peak_share": np.where(np.isnan(peak), np.nan, rate / peak),
        **_named_causes(moves, which, group, groups),
    }


def _named_causes(moves: Moves, which: Int64, group: Int64, groups: int) -> dict[str, NDArray[Any]]:
    """Return the columns on pageable and pinned memory and on what held up the thread that asked for it."""
    told, called = moves.told[which], moves.call_kind[which] != NO_CALL
    pageable = moves.pageable[which]
    kind = moves.call_kind[which]
    rows = {
        "pageable": (pageable, told),
        "pinned": (moves.pinned[which], told),
        "sync": (kind == SYNCHRONOUS, called),
        "pageable_async": (pageable & (kind == ASYNCHRONOUS), told & called),
    }
    columns: dict[str, NDArray[Any]] = {}
    for name, (member, known) in rows.items():
        tells = np.bincount(group[known], minlength=groups) > 0
        inside = np.flatnonzero(member)
        columns[f"{name}_count"] = integers(np.bincount(group[inside], minlength=groups), tells)
        for unit, values in (("bytes", moves.size_bytes), ("ns", moves.duration_ns)):
            columns[f"{name}_{unit}"] = integers(totals(group[inside], values[which[inside]], groups), tells)
    return columns


def _rates(group: Int64, duration: Int64, size: Int64, groups: int) -> dict[str, NDArray[Any]]:
    """Return the spread of the single rates, exact to a byte a second. What took no time has none."""
    lasting = duration > 0
    rate = np.zeros(len(group), np.int64)
    rate[lasting] = np.rint(np.minimum(size[lasting] / duration[lasting] * 1e9, 2.0**62))
    found = ranked(group, rate, groups, lasting).spread("rate")
    absent = {name: values == NULL if values.dtype.kind == "i" else np.isnan(values) for name, values in found.items()}
    return _renamed(
        {name: np.where(absent[name], np.nan, values / 1e9) for name, values in found.items()}, "_ns", "_gb_per_s"
    )


def _common(group: Int64, values: Float64, groups: int) -> Float64:
    """Return the value that all members of a group have; NaN where they differ or one is NaN."""
    low, high = np.full(groups, np.inf), np.full(groups, -np.inf)
    known = np.where(np.isnan(values), -1.0, values)
    np.minimum.at(low, group, known)
    np.maximum.at(high, group, known)
    return np.where((low == high) & (low >= 0), low, np.nan)


def _renamed(columns: dict[str, NDArray[Any]], old: str, new: str) -> dict[str, NDArray[Any]]:
    return {name.removesuffix(old) + new: values for name, values in columns.items()}


def _by_time(key: dict[str, NDArray[Any]], columns: dict[str, NDArray[Any]]) -> Table:
    return Table({**key, **columns}).take(np.argsort(-columns["gpu_total_ns"], kind="stable"))


def _nothing_moved(context: Context, range_name: str | None) -> UnanswerableError:
    if range_name is not None and len(context.trace.copies) + len(context.trace.memsets):
        return UnanswerableError(
            "no_copies_in_range",
            f"no copy and no memset belongs to a range {range_name!r}",
            "`--view memory` without --range lists them all",
        )
    # Without any operation this raises and tells the reason.
    number = len(gpus(context).of_operation)
    return UnanswerableError(
        "no_copies_recorded",
        f"{number} GPU operations were recorded, and no copy, memset or allocation among them",
        "record a window in which data moves, and with --cuda-memory-usage=true what is allocated",
    )
