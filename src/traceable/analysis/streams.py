"""Streams and overlap: how busy each CUDA stream was, and what each GPU did at the same time.

Every operation is of one class: a memory copy, a kernel of NCCL, or compute, which is all else (kernels, memory sets,
graphs traced as a whole, whose nodes are not told apart). Time is that in which at least one operation of a class or
stream ran; how much of the GPU such an operation used is not known here.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traceable.analysis.context import Context
from traceable.analysis.gap_causes import are_nccl
from traceable.analysis.gpus import Gpus, distinct, gpus
from traceable.analysis.intervals import Lanes, Union, beneath, covered_ns, lanes_of, union
from traceable.analysis.operations import COPY, GRAPH, KERNEL, MEMSET
from traceable.analysis.statistics import totals
from traceable.analysis.table import Table, integers, objects, ratios
from traceable.analysis.unrecorded import unrecorded
from traceable.errors import UnanswerableError
from traceable.trace.model import NULL, Int64, Trace

_KINDS = {"kernels": KERNEL, "copies": COPY, "memsets": MEMSET, "graphs": GRAPH}


def streams(context: Context, *, range_name: str | None = None) -> Table:
    """Return what each stream did.

    Args:
        range_name: count only operations that belong to a range of this name, in every column.

    Returns:
        One row a stream of a CUDA context of a process on a GPU. `sum_ns` is the plain sum of its operations, `busy_ns`
        their union, and `mean_concurrency` the ratio of the two: above 1 where operations of the stream overlap, as
        branches of a graph do. `busy_share` is of the time in which the GPU was busy, `total_share` of the time from
        its first to its last operation. Others: `overlap`, one row a GPU, where `hidden` is the part of copies or of
        NCCL during which compute ran as well and `exposed` the rest.

    Raises:
        UnanswerableError: the trace holds no GPU operations, or none of the range.
    """
    used = gpus(context)
    gpu = context.gpu
    rows, notes = gpu.by_start, used.notes
    if range_name is not None:
        inside = context.operations_in(range_name)
        rows = rows[inside[rows]]
        if not len(rows):
            raise UnanswerableError(
                f"range {range_name!r} put nothing on the GPU", "`--view ranges` shows which ranges did"
            )
        notes = (*notes, f"all numbers are of operations of range {range_name!r} only")
    of_context = _cuda_contexts(context)
    stream, first = distinct(used.of_operation, gpu.process, of_context, gpu.stream)
    by_stream = union(gpu.start_ns, gpu.end_ns, lanes_of(stream, len(first), rows))
    # The intervals of a GPU's streams, by start: what stream each is of no longer matters.
    gpu_of_stream = used.of_operation[first]
    of_gpu = lanes_of(gpu_of_stream[by_stream.lane_of()], len(used), np.argsort(by_stream.start_ns, kind="stable"))
    by_gpu = union(by_stream.start_ns, by_stream.end_ns, of_gpu)
    table = Table(
        {
            **_places(context, used, of_context, first),
            **_work(context, stream, rows, by_stream),
            **_shares(context.trace, by_stream, by_gpu, gpu_of_stream),
        }
    )
    overlap = {
        "device": used.numbers(),
        "name": used.names(context.trace),
        "total_ns": _spans(by_gpu, context.trace),
        "busy_ns": by_gpu.total_ns(),
        **_classes(context, used, rows),
        **_concurrency(by_stream, by_gpu, gpu_of_stream, of_gpu),
    }
    found = table.take(table.values["operations"] > 0)
    return replace(found, others={"overlap": Table(overlap).take(np.diff(by_gpu.bounds) > 0)}, notes=notes)


def _cuda_contexts(context: Context) -> NDArray[np.int32]:
    """Return the CUDA context of each operation."""
    trace = context.trace
    kinds = (trace.kernels, trace.copies, trace.memsets, trace.graph_launches)
    return np.concatenate([events.context for events in kinds])


def _places(context: Context, used: Gpus, of_context: NDArray[np.int32], first: Int64) -> dict[str, NDArray[Any]]:
    gpu, processes = context.gpu, context.trace.processes
    process = gpu.process[first].tolist()
    return {
        "device": used.numbers()[used.of_operation[first]],
        "pid": np.array([processes[i].pid for i in process], np.int64),
        "process": objects(processes[i].name or None for i in process),
        "context": integers(of_context[first], of_context[first] >= 0),
        "stream": integers(gpu.stream[first], gpu.stream[first] >= 0),
    }


def _work(context: Context, stream: Int64, rows: Int64, by_stream: Union) -> dict[str, NDArray[Any]]:
    gpu = context.gpu
    streams, kinds = len(by_stream), len(_KINDS)
    of_row = stream[rows]
    count = np.bincount(of_row * kinds + gpu.kind[rows], minlength=streams * kinds).reshape(streams, kinds)
    summed = totals(of_row, gpu.end_ns[rows] - gpu.start_ns[rows], streams)
    return {
        "operations": count.sum(axis=1),
        **{name: count[:, number] for name, number in _KINDS.items()},
        "sum_ns": summed,
        "busy_ns": by_stream.total_ns(),
        "mean_concurrency": ratios(summed, by_stream.total_ns()),
    }


def _shares(trace: Trace, by_stream: Union, by_gpu: Union, gpu_of_stream: Int64) -> dict[str, NDArray[Any]]:
    busy = by_stream.total_ns()
    first, last = _edges(by_stream)
    return {
        "busy_share": ratios(busy, by_gpu.total_ns()[gpu_of_stream]),
        "total_share": ratios(busy, _spans(by_gpu, trace)[gpu_of_stream]),
        "first_start_ns": first,
        "last_end_ns": last,
    }


def _edges(of: Union) -> tuple[Int64, Int64]:
    """Return the first start and the last end of each lane; NULL for an empty one."""
    some = np.diff(of.bounds) > 0
    first, last = np.full(len(of), NULL, np.int64), np.full(len(of), NULL, np.int64)
    first[some] = of.start_ns[of.bounds[:-1][some]]
    last[some] = of.end_ns[of.bounds[1:][some] - 1]
    return first, last


def _spans(of: Union, trace: Trace) -> Int64:
    """Return the time from first to last of each lane, less what lies between the operations of two windows."""
    first, last = _edges(of)
    begins, ends = unrecorded(trace)
    spans = last - first
    for lane in range(len(of)) if len(begins) else ():
        start, end = of.lane(lane)
        before = np.searchsorted(ends, end[:-1], "right")
        across = np.searchsorted(begins, start[1:], "left") > before
        spans[lane] -= int((start[1:] - end[:-1])[across].sum())
    return spans


_COMPUTE, _COPY, _NCCL = range(3)
"""The classes of operations."""


def _classes(context: Context, used: Gpus, rows: Int64) -> dict[str, NDArray[Any]]:
    """Return how long each GPU was busy with each class of operations, and with two of them at once."""
    gpu = context.gpu
    of_class = np.full(len(gpu), _COMPUTE, np.int64)
    of_class[gpu.kind == COPY] = _COPY
    of_class[np.flatnonzero(are_nccl(context, np.arange(len(gpu))))] = _NCCL
    of_class += 3 * used.of_operation
    classes = union(gpu.start_ns, gpu.end_ns, lanes_of(of_class, 3 * len(used), rows))
    compute, copy, nccl = classes.total_ns().reshape(-1, 3).T
    with_copy, with_nccl = _both(classes, _COPY, _COMPUTE), _both(classes, _NCCL, _COMPUTE)
    return {
        "compute_ns": compute,
        "copy_ns": copy,
        "nccl_ns": nccl,
        "compute_and_copy_ns": with_copy,
        "copy_exposed_ns": copy - with_copy,
        "copy_hidden_share": ratios(with_copy, copy),
        "compute_and_nccl_ns": with_nccl,
        "nccl_exposed_ns": nccl - with_nccl,
        "nccl_hidden_share": ratios(with_nccl, nccl),
        "copy_and_nccl_ns": _both(classes, _COPY, _NCCL),
    }


def _both(classes: Union, one: int, other: int) -> Int64:
    """Return how long two classes were busy at once on each GPU; there are three lanes a GPU."""
    lane = classes.lane_of()
    mine = np.flatnonzero(lane % 3 == one)
    lane = lane[mine]
    covered = covered_ns(classes, lane - one + other, classes.start_ns[mine], classes.end_ns[mine])
    return totals(lane // 3, covered, len(classes) // 3)


def _concurrency(by_stream: Union, by_gpu: Union, gpu_of_stream: Int64, of_gpu: Lanes) -> dict[str, NDArray[Any]]:
    """Return for how long exactly one, exactly two, and three or more streams of each GPU were busy."""
    second = beneath(by_stream.start_ns, by_stream.end_ns, of_gpu)
    busy, two, three = by_gpu.total_ns(), union(*second).total_ns(), union(*beneath(*second)).total_ns()
    return {
        "streams": np.bincount(gpu_of_stream[np.diff(by_stream.bounds) > 0], minlength=len(by_gpu)),
        "one_stream_ns": busy - two,
        "two_streams_ns": two - three,
        "three_or_more_streams_ns": three,
        "mean_streams": ratios(totals(gpu_of_stream, by_stream.total_ns(), len(by_gpu)), busy),
    }
