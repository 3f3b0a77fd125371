"""Traces with everything that a GPU's timeline is asked for, and the GPU operations of a trace as plain rows.

Those of `tests/analysis/sample_traces.py`, with calls that allocate and copy, kernels of NCCL, graphs, GPUs behind
other numbers than CUDA's, and operations farther apart.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import strategies as st
from tests.analysis.sample_traces import LAUNCH, NAMES, PROCESS_OF_THREAD, WAIT, rows_of, traces

from traceable.trace.model import NULL, Trace

MORE = ("cudaMalloc_v3020", "cuMemFree_v2", "cudaMemcpyAsync_v3020", "ncclDevKernel_AllReduce", "void ncclKernel(int)")
MORE += ("cuModuleLoadData", "CUPTI Buffer flush", "Lazy Function Loading", "Command Buffer Full", "Unknown")
MORE += ("dlopen(libtorch.so)",)
ALLOCATE, RELEASE, COPY_CALL, NCCL, OLD_NCCL, *_ = range(len(NAMES), len(NAMES) + len(MORE))
LOAD_CALL, PROFILER, LOADED, QUEUE_FULL, UNNAMED, LIBRARY = range(OLD_NCCL + 1, len(NAMES) + len(MORE))
KINDS = ("kernel", "copy", "memset", "graph")


@st.composite
def gpu_traces(draw: Any) -> Trace:
    trace = draw(st.one_of(traces(), traces(busy=True)))
    apart, longer, linked = draw(st.sampled_from([1, 2, 4])), draw(st.sampled_from([1, 4])), draw(st.booleans())

    def draw_columns(events: Any, *choice: int) -> Any:
        count = len(events)
        return np.array(draw(st.lists(st.sampled_from(choice), min_size=count, max_size=count)), np.int32)

    def ids(events: Any) -> Any:
        """Mostly those of a few calls, where operations are to have launches."""
        return draw_columns(events, 0, 1, 2).astype(np.int64) if linked else events.correlation

    def scale_times(events: Any, **changes: Any) -> Any:
        start = events.start_ns * apart
        end = start + events.end_ns - events.start_ns
        return replace(events, start_ns=start, end_ns=end, correlation=ids(events), **changes)

    known = st.dictionaries(st.tuples(st.integers(0, 1), st.integers(0, 1)), st.sampled_from([0, 1, 4]))
    calls = trace.calls
    return replace(
        trace,
        names=NAMES + MORE,
        cuda_devices=draw(known),
        calls=replace(
            calls,
            name=draw_columns(calls, LAUNCH, LAUNCH, WAIT, ALLOCATE, RELEASE, COPY_CALL, LOAD_CALL),
            start_ns=calls.start_ns * longer,
            end_ns=calls.end_ns * longer,
            correlation=ids(calls),
        ),
        kernels=scale_times(
            trace.kernels,
            name=draw_columns(trace.kernels, 0, 0, OLD_NCCL),
            short_name=draw_columns(trace.kernels, 1, 1, NCCL),
        ),
        copies=scale_times(trace.copies),
        memsets=scale_times(trace.memsets),
        graph_launches=scale_times(trace.graph_launches),
        overheads=replace(
            trace.overheads,
            name=draw_columns(trace.overheads, PROFILER, LOADED, QUEUE_FULL, UNNAMED, UNNAMED, LIBRARY, -1),
        ),
    )


def operations_of(trace: Trace) -> list[dict[str, Any]]:
    """The GPU operations in the order of `Context.gpu`, each with its GPU and its launch call: of several the first."""
    calls = rows_of(trace.calls)
    result = []
    tables = (trace.kernels, trace.copies, trace.memsets, trace.graph_launches)
    for kind, events in zip(KINDS, tables, strict=True):
        for row in rows_of(events):
            mine = [
                call
                for call in calls
                if row["correlation"] != NULL
                and (PROCESS_OF_THREAD[call["thread"]], call["correlation"]) == (row["process"], row["correlation"])
            ]
            gpu = trace.cuda_devices.get((row["process"], row["device"]), row["device"])
            call = min(mine, key=lambda call: call["start_ns"], default=None)
            result.append({**row, "kind": kind, "kind_of_copy": row.get("kind"), "gpu": gpu, "call": call})
    return [{**row, "order": i} for i, row in enumerate(result)]


def loading_overheads(trace: Trace) -> list[dict[str, Any]]:
    """The overheads that are the driver's loading of code: by name, or inside the first launch of a kernel."""
    launches: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for row in operations_of(trace):
        if row["kind"] == "kernel" and row["call"] is not None:
            launches.setdefault((row["process"], row["name"]), []).append(row["call"])
    first = {key: min(calls, key=lambda call: call["start_ns"]) for key, calls in launches.items()}
    overheads = rows_of(trace.overheads)
    names = {row["process"] for row in overheads if row["name"] == LOADED}

    def is_inferred(row: dict[str, Any]) -> bool:
        return any(
            process == row["process"] and call["start_ns"] <= row["start_ns"] and row["end_ns"] <= call["end_ns"]
            for (process, _), call in first.items()
        )

    unnamed = [row for row in overheads if row["name"] in (UNNAMED, -1) and row["process"] not in names]
    return [row for row in overheads if row["name"] == LOADED] + [row for row in unnamed if is_inferred(row)]


def is_nccl(operation: dict[str, Any]) -> bool:
    return operation["kind"] == "kernel" and (operation["name"] == OLD_NCCL or operation["short_name"] == NCCL)


def instants(rows: list[dict[str, Any]]) -> set[int]:
    """The nanoseconds in which at least one of the rows lasts."""
    return {at for row in rows for at in range(row["start_ns"], row["end_ns"])}
