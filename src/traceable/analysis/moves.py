"""Copies and memsets of a trace as one set of columns, with what each of them says of the memory it went from or to."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from traceable.analysis.context import Context
from traceable.analysis.links import HOST, OWN_MEMORY, OWN_MEMORY_TWICE, UNKNOWN, peaks_gb_per_s
from traceable.analysis.named import COPY_KINDS, MEMSET_KIND, memory_kinds
from traceable.analysis.naming import names_like
from traceable.analysis.select import gpu_number
from traceable.trace import model
from traceable.trace.model import Bool, Float64, Int8, Int32, Int64, Trace

_FROM_HOST, _TO_HOST = (1, 3, 9), (2, 4, 9)
"""CUPTI's kinds of copies that read from, and write to, host memory that the program gave."""

_WITHIN_GPU = (5, 6, 7, 8)
_HOST_AND_GPU = (1, 2, 3, 4)
_PAGEABLE, _PINNED = 0, 1

NO_CALL, SYNCHRONOUS, ASYNCHRONOUS, OTHER_CALL = range(4)
"""What put a copy or memset on the GPU: no known call; a copying or setting call whose name says that it is
synchronous, or asynchronous; another call, as the launch of a graph."""

_COPYING = re.compile(r"cu(da)?Mem(cpy|set)")
_ASYNCHRONOUS = re.compile(r"cu(da)?Mem\w*Async")


@dataclass(frozen=True)
class Moves:
    """Copies and memsets as equally long columns: the trace's copies, then its memsets.

    Attributes:
        first: the index of the first of them among the GPU operations.
        kind: index into OPERATION_NAMES.
        duration_ns, size_bytes: of each.
        gpu: nsys's number of the GPU that it ran on; negative where unknown.
        peak_gb_per_s: of the link it went over; NaN where unknown.
        told: whether it copied from or to host memory of a known kind; pageable, pinned: which one.
        call: its launch call, an index into `Launches.calls`, -1 for none.
        call_kind: NO_CALL, SYNCHRONOUS, ASYNCHRONOUS or OTHER_CALL.
    """

    first: int
    kind: Int64
    process: Int64
    duration_ns: Int64
    size_bytes: Int64
    gpu: Int64
    peak_gb_per_s: Float64
    told: Bool
    pageable: Bool
    pinned: Bool
    call: Int64
    call_kind: Int8

    def __len__(self) -> int:
        return len(self.kind)


def moves_of(context: Context) -> Moves:
    """Return the copies and memsets of a trace."""
    trace = context.trace
    first = len(trace.kernels)
    here = slice(first, first + len(trace.copies) + len(trace.memsets))
    whole = context.gpu
    kind = memory_kinds(trace)
    process = whole.process[here].astype(np.int64)
    gpu = gpu_number(trace, whole.process[here], whole.device[here])
    told, pageable, pinned = _host_memory(trace)
    call = context.launched.call_of[here]
    return Moves(
        first=first,
        kind=kind,
        process=process,
        duration_ns=whole.end_ns[here] - whole.start_ns[here],
        size_bytes=np.maximum(np.append(trace.copies.size_bytes, trace.memsets.size_bytes), 0),
        gpu=gpu,
        peak_gb_per_s=peaks_gb_per_s(trace, gpu, _link(trace.copies, kind)),
        told=told,
        pageable=pageable,
        pinned=pinned,
        call=call,
        call_kind=_call_kinds(trace, context.launched.calls.name, call),
    )


def _copying_calls(trace: Trace, used: Int32) -> Int8:
    """Return for each of the `used` names SYNCHRONOUS or ASYNCHRONOUS if calls of it copy or set, else OTHER_CALL."""
    copying = names_like(trace, _COPYING, used)[:-1]
    asynchronous = names_like(trace, _ASYNCHRONOUS, used)[:-1]
    kinds: Int8 = np.where(copying, np.where(asynchronous, ASYNCHRONOUS, SYNCHRONOUS), OTHER_CALL).astype(np.int8)
    return kinds


def _call_kinds(trace: Trace, name_of_call: Int32, call: Int64) -> Int8:
    kinds = np.full(len(call), NO_CALL, np.int8)
    known = call >= 0
    name = name_of_call[call[known]]
    kinds[known] = _copying_calls(trace, name)[name]
    return kinds


def _host_memory(trace: Trace) -> tuple[Bool, Bool, Bool]:
    """Return which copies had host memory of a known kind; of pageable; and of none but pinned memory."""
    copies = trace.copies
    reads, writes = np.isin(copies.kind, _FROM_HOST), np.isin(copies.kind, _TO_HOST)
    told = (reads | writes) & ~(reads & (copies.source_kind < 0)) & ~(writes & (copies.target_kind < 0))
    some = [
        (reads & (copies.source_kind == kind)) | (writes & (copies.target_kind == kind))
        for kind in (_PAGEABLE, _PINNED)
    ]
    pageable, pinned = told & some[0], told & some[1] & ~some[0]
    nothing = np.zeros(len(trace.memsets), np.bool_)
    return np.append(told, nothing), np.append(pageable, nothing), np.append(pinned, nothing)


def _link(copies: model.Copies, kind: Int64) -> Int64:
    table = np.full(MEMSET_KIND + 1, UNKNOWN)
    table[list(_HOST_AND_GPU)] = HOST
    table[list(_WITHIN_GPU)] = OWN_MEMORY_TWICE
    table[MEMSET_KIND] = OWN_MEMORY
    link: Int64 = table[kind]
    # Between two GPUs whatever the kind says.
    source, target = copies.source_device, copies.target_device
    elsewhere = (kind[: len(copies)] == COPY_KINDS.index("Device-to-Device")) & (source >= 0) & (target >= 0)
    link[: len(copies)][elsewhere & (source != target)] = UNKNOWN
    return link
