"""The tables of nsys's export schema that hold GPU work, and the constants that stand in them. No code.

Names and types as in schema 3.16.1 (nsys 2024.6). A column that Kineto may know nothing of is not NOT NULL as it is
there: it is NULL, and the readers take that for what was not recorded.
"""

from __future__ import annotations

_EVENT = "start INTEGER NOT NULL, end INTEGER NOT NULL"
_PLACE = (
    f"{_EVENT}, deviceId INTEGER, contextId INTEGER, greenContextId INTEGER, streamId INTEGER, correlationId INTEGER, "
    "globalPid INTEGER"
)
_ENUM = "(id INTEGER NOT NULL PRIMARY KEY, name TEXT, label TEXT)"

CALLS = "CUPTI_ACTIVITY_KIND_RUNTIME"
KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
COPIES = "CUPTI_ACTIVITY_KIND_MEMCPY"
MEMSETS = "CUPTI_ACTIVITY_KIND_MEMSET"
SYNCHRONISATIONS = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
OVERHEADS = "PROFILER_OVERHEAD"
GPUS = "TARGET_INFO_GPU"
CUDA_DEVICES = "TARGET_INFO_CUDA_DEVICE"

GEOMETRY = (
    *("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ"),
    *("registersPerThread", "staticSharedMemory", "dynamicSharedMemory"),
)
"""The columns of a launch geometry, in the order of `trace.model.GEOMETRY`."""

EVENT_TABLES = {
    CALLS: f"""CREATE TABLE {CALLS} (
        {_EVENT}, eventClass INTEGER NOT NULL, globalTid INTEGER, correlationId INTEGER, nameId INTEGER NOT NULL,
        returnValue INTEGER, callchainId INTEGER)""",
    KERNELS: f"""CREATE TABLE {KERNELS} (
        {_PLACE}, demangledName INTEGER NOT NULL, shortName INTEGER NOT NULL, mangledName INTEGER, launchType INTEGER,
        cacheConfig INTEGER, {", ".join(f"{column} INTEGER" for column in GEOMETRY)}, localMemoryPerThread INTEGER,
        localMemoryTotal INTEGER, gridId INTEGER, sharedMemoryExecuted INTEGER, graphNodeId INTEGER,
        sharedMemoryLimitConfig INTEGER)""",
    COPIES: f"""CREATE TABLE {COPIES} (
        {_PLACE}, bytes INTEGER, copyKind INTEGER, deprecatedSrcId INTEGER, srcKind INTEGER, dstKind INTEGER,
        srcDeviceId INTEGER, srcContextId INTEGER, dstDeviceId INTEGER, dstContextId INTEGER, migrationCause INTEGER,
        graphNodeId INTEGER, virtualAddress INTEGER)""",
    MEMSETS: f"""CREATE TABLE {MEMSETS} (
        {_PLACE}, value INTEGER, bytes INTEGER, graphNodeId INTEGER, memKind INTEGER)""",
    SYNCHRONISATIONS: f"CREATE TABLE {SYNCHRONISATIONS} ({_PLACE}, syncType INTEGER, eventId INTEGER)",
    OVERHEADS: f"CREATE TABLE {OVERHEADS} ({_EVENT}, globalTid INTEGER, nameId INTEGER NOT NULL, returnValue INTEGER)",
}
"""Tables of events. As with nsys, one is there only when it has rows."""

TABLES = {
    GPUS: f"""CREATE TABLE {GPUS} (
        vmId INTEGER NOT NULL, id INTEGER NOT NULL, name TEXT, busLocation TEXT, isDiscrete INTEGER,
        l2CacheSize INTEGER, totalMemory INTEGER, memoryBandwidth INTEGER, clockRate INTEGER, smCount INTEGER,
        pwGpuId INTEGER, uuid TEXT, computeMajor INTEGER, computeMinor INTEGER)""",
    CUDA_DEVICES: f"""CREATE TABLE {CUDA_DEVICES} (
        gpuId INTEGER, cudaId INTEGER NOT NULL, pid INTEGER NOT NULL, uuid TEXT, numMultiprocessors INTEGER)""",
    "ENUM_CUDA_MEMCPY_OPER": f"CREATE TABLE ENUM_CUDA_MEMCPY_OPER {_ENUM}",
    "ENUM_CUDA_MEM_KIND": f"CREATE TABLE ENUM_CUDA_MEM_KIND {_ENUM}",
    "ENUM_CUPTI_SYNC_TYPE": f"CREATE TABLE ENUM_CUPTI_SYNC_TYPE {_ENUM}",
}
"""Tables of facts and constants, which are there whenever a GPU recording is."""

EVENT_CLASSES = [
    (0, "TRACE_PROCESS_EVENT_CUDA_RUNTIME", "CUDA runtime"),
    (1, "TRACE_PROCESS_EVENT_CUDA_DRIVER", "CUDA driver"),
]
"""Rows for ENUM_NSYS_EVENT_CLASS."""

_COPIES = ("UNKNOWN", "HTOD", "DTOH", "HTOA", "ATOH", "ATOA", "ATOD", "DTOA", "DTOD", "HTOH", "PTOP")
_COPY_LABELS = (
    *("Unknown", "Host-to-Device", "Device-to-Host", "Host-to-Array", "Array-to-Host", "Array-to-Array"),
    *("Array-to-Device", "Device-to-Array", "Device-to-Device", "Host-to-Host", "Peer-to-Peer"),
)
_MEMORIES = ("Pageable", "Pinned", "Device", "Array", "Managed", "Device Static", "Managed Static", "Unknown")
_SYNCHRONISATIONS = ("UNKNOWN", "EVENT_SYNCHRONIZE", "STREAM_WAIT_EVENT", "STREAM_SYNCHRONIZE", "CONTEXT_SYNCHRONIZE")
_SYNCHRONISATION_LABELS = ("Unknown", "Event sync", "Stream wait sync", "Stream sync", "Context sync")

ENUMS: dict[str, list[tuple[int, str, str]]] = {
    "ENUM_CUDA_MEMCPY_OPER": [
        (number, f"CUDA_MEMCPY_KIND_{name}", label)
        for number, (name, label) in enumerate(zip(_COPIES, _COPY_LABELS, strict=True))
    ],
    "ENUM_CUDA_MEM_KIND": [
        (number, f"CUDA_MEMOPR_MEMORY_KIND_{label.upper().replace(' ', '_')}", label)
        for number, label in enumerate(_MEMORIES)
    ],
    "ENUM_CUPTI_SYNC_TYPE": [
        (number, f"CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_{name}", label)
        for number, (name, label) in enumerate(zip(_SYNCHRONISATIONS, _SYNCHRONISATION_LABELS, strict=True))
    ],
}
"""Rows (id, name, label) of the enumerations."""
