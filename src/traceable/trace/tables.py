"""The tables of an nsys export that become events and names, and which of their columns are read. Reads nothing."""

from __future__ import annotations

from traceable.trace.nvtx import NVTX
from traceable.trace.rows import Wanted

CUPTI = "CUPTI_ACTIVITY_KIND_"
NVTX_EVENTS = "NVTX_EVENTS"
OVERHEADS = ("PROFILER_OVERHEAD", CUPTI + "OVERHEAD")
"""nsys's own work; newer exports keep what CUPTI reports (loaded modules, full command buffers) in the second table."""
MEMORY_USAGE = "CUDA_GPU_MEMORY_USAGE_EVENTS"
_LAUNCH = (
    *("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ"),
    *("registersPerThread", "staticSharedMemory", "dynamicSharedMemory"),
)
_THREAD = {"thread": ("globalTid",)}


def _operations(*integers: str, small: tuple[str, ...] = (), **keys: tuple[str, ...]) -> Wanted:
    """Return what is read of a table of GPU operations: what all of them have, and these."""
    return Wanted(
        ("start", "end", "correlationId", "graphNodeId", *integers),
        ("deviceId", "contextId", "streamId", *small),
        keys={"process": ("globalPid",), **{name.replace("_", " "): columns for name, columns in keys.items()}},
    )


TABLES: dict[str, Wanted] = {
    CUPTI + "RUNTIME": Wanted(
        ("start", "end", "correlationId", "returnValue"), ("eventClass",), keys={**_THREAD, "name": ("nameId",)}
    ),
    CUPTI + "KERNEL": _operations(name=("demangledName",), short_name=("shortName",), launch=_LAUNCH),
    CUPTI + "MEMCPY": _operations("bytes", small=("copyKind", "srcKind", "dstKind", "srcDeviceId", "dstDeviceId")),
    CUPTI + "MEMSET": _operations("bytes", small=("memKind",)),
    CUPTI + "GRAPH_TRACE": _operations("graphId"),
    CUPTI + "SYNCHRONIZATION": _operations(small=("syncType",)),
    "CUDA_GRAPH_NODE_EVENTS": Wanted(("start", "graphNodeId", "originalGraphNodeId"), keys=_THREAD),
    "CUDA_GRAPH_EVENTS": Wanted(("start", "graphNodeId", "originalGraphNodeId"), keys=_THREAD),
    MEMORY_USAGE: Wanted(
        ("start", "bytes", "address", "correlationId"),
        ("deviceId", "memKind", "memoryOperationType"),
        keys={"process": ("globalPid",)},
    ),
    **{table: Wanted(("start", "end"), keys={**_THREAD, "name": ("nameId",)}) for table in OVERHEADS},
    NVTX_EVENTS: NVTX,
}
"""The tables of events and what is read of each."""

SPOKEN = {
    CUPTI + "RUNTIME": "API calls",
    CUPTI + "KERNEL": "kernels",
    CUPTI + "MEMCPY": "copies",
    CUPTI + "MEMSET": "memory sets",
    CUPTI + "GRAPH_TRACE": "graph launches",
    CUPTI + "SYNCHRONIZATION": "synchronisations",
    "CUDA_GRAPH_NODE_EVENTS": "graph nodes",
    "CUDA_GRAPH_EVENTS": "graphs",
    MEMORY_USAGE: "allocations",
    **dict.fromkeys(OVERHEADS, "overheads"),
    NVTX_EVENTS: "ranges",
}
"""What the tables hold, as progress says it."""

ALWAYS = ("start", "end", "globalTid", "globalPid")
REQUIRED = {
    "CUDA_GRAPH_NODE_EVENTS": ("start", "globalTid", "graphNodeId"),
    MEMORY_USAGE: ("start", "globalPid", "bytes"),
}
"""Columns without which a table is not read; all others may be absent."""

NAMES = {
    "StringIds": Wanted(("id",), texts=("value",)),
    "ThreadNames": Wanted(("nameId", "priority", "globalTid")),
    "PROCESSES": Wanted(("globalPid",), texts=("name",)),
}
