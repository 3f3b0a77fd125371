"""Writes Kineto's GPU events into the database that is made from a recording, in nsys's tables.

File by file: Kineto's times become the recorder's, its threads the system's, its events rows of nsys's tables. Ranges
come from the recorder alone: the annotations in the file are our time markers, and the program's own
`record_function`s.

Clocks: Kineto converts the processor's ticks to ns since 1970; the recorder uses CLOCK_MONOTONIC. The process annotates
a few moments at the start and at the end of each Kineto recording, and reads CLOCK_MONOTONIC before and after each
(`capture/gpu_gate.py`). Kineto's time of a moment lies between the two readings: all moments of one end of the
recording together leave an interval of possible offsets of 1 to 2 us. Between the two ends the offset is interpolated.

Threads: CUPTI identifies a thread by its pthread_self, of which Kineto keeps the lower half. Kineto turns it into the
system's id if torch has recorded something on that thread, which is rare with --gpu; else the file has the half, as a
signed number. The embedded recorder stores both ids of every thread that has a range, so each such thread is
identified. A pthread_self is reused once its thread has ended: then the time decides.

Tables: names and types as in schema 3.16.1 (nsys 2024.6), but columns that Kineto may not fill are not NOT NULL; the
readers take NULL as not recorded.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traceable.collectors.nsys.tables import global_tid
from traceable.collectors.recorder import recording as rec
from traceable.collectors.recorder.schema import DatabaseWriter, SourceResult
from traceable.errors import Message
from traceable.protocol import untrusted
from traceable.trace.intern import Names
from traceable.trace.kineto_events import File, Table, escape_text, read_file
from traceable.trace.model import NULL, Int64

_THREAD_NAME = re.compile(r"thread -?\d+ \((.*)\)", re.DOTALL)
_NO_NAME = "(no name)"
_UNKNOWN_THREAD = "thread without a range"
_ALL_CORRELATIONS = 1 << 32
"""CUPTI counts calls in 32 bits."""

METADATA = "traceable_gpu"
"""The key of the process's metadata in the file; `capture.gpu_gate.METADATA`."""

_DIGITS = 10
_MARKER = re.compile(r"traceable\.clock (\d{1,6})")

_SYSTEM_THREADS = 1 << 22
"""Linux numbers threads below this."""

_LAST = (1 << 24) - 1
"""The largest thread id in nsys's schema: threads of unknown id are numbered downwards from here."""

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
SYNCHRONIZATIONS = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
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
    SYNCHRONIZATIONS: f"CREATE TABLE {SYNCHRONIZATIONS} ({_PLACE}, syncType INTEGER, eventId INTEGER)",
    OVERHEADS: f"CREATE TABLE {OVERHEADS} ({_EVENT}, globalTid INTEGER, nameId INTEGER NOT NULL, returnValue INTEGER)",
}
"""Tables of events. As with nsys, a table exists only if it has rows."""

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
"""Tables of properties and constants, which exist in every GPU recording."""

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
_SYNCHRONIZATION_NAMES = (
    "UNKNOWN",
    "EVENT_SYNCHRONIZE",
    "STREAM_WAIT_EVENT",
    "STREAM_SYNCHRONIZE",
    "CONTEXT_SYNCHRONIZE",
)
_SYNCHRONIZATION_LABELS = ("Unknown", "Event sync", "Stream wait sync", "Stream sync", "Context sync")

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
        for number, (name, label) in enumerate(zip(_SYNCHRONIZATION_NAMES, _SYNCHRONIZATION_LABELS, strict=True))
    ],
}
"""Rows (id, name, label) of the enumerations."""


@dataclass(frozen=True)
class KinetoTrace:
    """One Kineto file, of one process.

    Attributes:
        file: its content, on its own clock.
        metadata: the process's metadata in it.
        clock: converts its times to CLOCK_MONOTONIC.
    """

    pid: int
    file: File
    metadata: TraceMetadata
    clock: Clock


@dataclass
class KinetoTraces:
    """All files of a run, with the ids of their names and launch geometries."""

    names: Names = field(default_factory=Names)
    geometries: dict[tuple[int, ...], int] = field(default_factory=dict)
    traces: list[KinetoTrace] = field(default_factory=list)
    notes: list[tuple[Message, int]] = field(default_factory=list)

    def add(self, path: Path, pid: int) -> None:
        """Read a file; one without clock metadata is skipped with a note.

        Raises:
            TraceError: it is not a complete Kineto trace.
        """
        file = read_file(path, self.names, self.geometries)
        metadata = read_metadata(file)
        clock = estimate_clock(file, metadata, self.names.all()) if metadata else None
        if metadata is None or clock is None:
            text = f"{path} has no time of recording and was skipped"
            self.notes.append((Message("gpu_file_without_clock", text), pid))
        else:
            self.traces.append(KinetoTrace(pid, file, metadata, clock))


def merge_traces(traces: KinetoTraces, recording: rec.Recording, writer: DatabaseWriter) -> SourceResult:
    """Write the GPU activity of all files."""
    for statement in TABLES.values():
        writer.create(statement)
    for table, rows in ENUMS.items():
        writer.insert(table, ("id", "name", "label"), rows)
    writer.insert("ENUM_NSYS_EVENT_CLASS", ("id", "name", "label"), EVENT_CLASSES)
    for note, pid in traces.notes:
        writer.warn(note, global_tid(pid, 0))
    merger = _Merger(traces, recording, writer)
    for trace in traces.traces:
        merger.write(trace)
    merger.write_gpus()
    return SourceResult(merger.events, merger.last_ns)


class _Merger:
    def __init__(self, traces: KinetoTraces, recording: rec.Recording, writer: DatabaseWriter) -> None:
        self._writer = writer
        self._recording = recording
        self._texts = [escape_text(name) for name in traces.names.all()]
        self._geometries = np.array([*traces.geometries, (NULL,) * len(GEOMETRY)], np.int64)
        self._threads: dict[int, Threads] = {}
        self._named_tids: dict[int, set[int]] = {}
        self._correlations: dict[int, int] = {}
        self._gpus = _Gpus()
        self._created: set[str] = set()
        self.events = 0
        self.last_ns = 0

    def write(self, trace: KinetoTrace) -> None:
        """Write one file."""
        pid, events = trace.pid, trace.file.events
        self._register_process(trace)
        shift = self._correlation_shift(trace)
        self._calls(trace, shift)
        strings = self._strings
        kernels = events.kernels
        self._operations(
            trace,
            KERNELS,
            kernels,
            shift,
            {
                "demangledName": strings(kernels.column("name")),
                "shortName": strings(kernels.column("name")),
                **dict(zip(GEOMETRY, self._geometries[kernels.column("geometry")].T, strict=True)),
                "graphNodeId": kernels.column("graph_node"),
            },
        )
        copies = events.copies
        self._operations(
            trace,
            COPIES,
            copies,
            shift,
            {
                "bytes": copies.column("size_bytes"),
                "copyKind": _to_null_if_negative(copies.column("kind")),
                "srcKind": _to_null_if_negative(copies.column("source_kind")),
                "dstKind": _to_null_if_negative(copies.column("target_kind")),
                "srcDeviceId": _to_null_if_negative(copies.column("source_device")),
                "dstDeviceId": _to_null_if_negative(copies.column("target_device")),
                "graphNodeId": copies.column("graph_node"),
            },
        )
        memsets = events.memsets
        self._operations(
            trace,
            MEMSETS,
            memsets,
            shift,
            {
                "bytes": memsets.column("size_bytes"),
                "memKind": _to_null_if_negative(memsets.column("memory_kind")),
                "graphNodeId": memsets.column("graph_node"),
            },
        )
        waits = events.synchronizations
        self._operations(
            trace, SYNCHRONIZATIONS, waits, shift, {"syncType": _to_null_if_negative(waits.column("kind"))}
        )
        overheads = events.overheads
        thread = np.full(len(overheads), global_tid(pid, 0))
        columns = {"globalTid": thread, "nameId": strings(overheads.column("name"))}
        self._insert(trace, OVERHEADS, overheads, columns)
        self._gpus.register(trace)
        if events.untimed:
            text = f"{events.untimed} GPU events of process {pid} have no time and were skipped"
            self._writer.warn(Message("events_without_time", text), global_tid(pid, 0))
        self._writer.info(describe_clock(trace.clock, pid), global_tid(pid, 0))

    def _register_process(self, trace: KinetoTrace) -> None:
        pid = trace.pid
        if pid in self._threads:
            return
        recorded = [process for process in self._recording.processes if process.pid == pid]
        self._threads[pid] = Threads(recorded)
        self._named_tids[pid] = {thread.tid for process in recorded for thread in process.threads}
        if not recorded:
            name = escape_text(trace.file.events.process_names.get(pid, ""))
            self._writer.insert("PROCESSES", ("globalPid", "pid", "name"), [(global_tid(pid, 0), pid, name)])

    def _correlation_shift(self, trace: KinetoTrace) -> int:
        """Return the amount to add to the correlation ids of a file, so that no two files of a process share one."""
        tables = (
            trace.file.events.calls,
            trace.file.events.kernels,
            trace.file.events.copies,
            trace.file.events.memsets,
        )
        correlations = np.concatenate([table.column("correlation") for table in tables])
        correlations = correlations[correlations != NULL]
        if not len(correlations):
            return 0
        last = self._correlations.get(trace.pid, -1)
        shift = 0 if int(correlations.min()) > last else (last // _ALL_CORRELATIONS + 1) * _ALL_CORRELATIONS
        self._correlations[trace.pid] = int(correlations.max()) + shift
        return shift

    def _calls(self, trace: KinetoTrace, shift: int) -> None:
        table = trace.file.events.calls
        keys = list(trace.file.events.threads)
        thread_numbers = table.column("thread")
        started = trace.clock.monotonic_ns(table.column("start"))
        tids = np.zeros(len(table), np.int64)
        for number in np.unique(thread_numbers).tolist():
            pid, kineto_id = keys[number]
            rows = thread_numbers == number
            tids[rows] = self._threads[trace.pid].resolve_tids(kineto_id, started[rows])
            self._name_threads(
                trace, np.unique(tids[rows]).tolist(), trace.file.events.thread_names.get((pid, kineto_id))
            )
        self._insert(
            trace,
            CALLS,
            table,
            {
                "eventClass": table.column("driver"),
                "globalTid": global_tid(trace.pid, 0) | tids,
                "correlationId": _shift_correlations(table, shift),
                "nameId": self._strings(table.column("name")),
            },
        )

    def _name_threads(self, trace: KinetoTrace, tids: Iterable[int], kineto_name: str | None) -> None:
        """Write the names of threads without a range, which the recorder does not have."""
        unknown = self._threads[trace.pid].unknown.values()
        for tid in set(tids) - self._named_tids[trace.pid]:
            self._named_tids[trace.pid].add(tid)
            match = _THREAD_NAME.fullmatch(kineto_name or "")
            name = _UNKNOWN_THREAD if tid in unknown else escape_text(match[1]) if match else ""
            if name:
                row = (self._writer.string(name), global_tid(trace.pid, tid))
                self._writer.insert("ThreadNames", ("nameId", "globalTid"), [row])

    def _operations(
        self, trace: KinetoTrace, name: str, table: Table, shift: int, columns: dict[str, NDArray[np.int64]]
    ) -> None:
        """Write one kind of GPU operation."""
        place = {
            "deviceId": _to_null_if_negative(table.column("device")),
            "contextId": _to_null_if_negative(table.column("context")),
            "streamId": _to_null_if_negative(table.column("stream")),
            "correlationId": _shift_correlations(table, shift),
            "globalPid": np.full(len(table), global_tid(trace.pid, 0)),
        }
        self._insert(trace, name, table, {**place, **columns})

    def _insert(self, trace: KinetoTrace, name: str, table: Table, columns: dict[str, NDArray[np.int64]]) -> None:
        if not len(table):
            return
        if name not in self._created:
            self._created.add(name)
            self._writer.create(EVENT_TABLES[name])
        offset_ns = self._writer.offsets_ns.get(trace.pid, self._writer.default_offset_ns)
        start, end = (trace.clock.monotonic_ns(table.column(edge)) + offset_ns for edge in ("start", "end"))
        self.events += len(table)
        self.last_ns = max(self.last_ns, int(end.max()))
        everything = {"start": start, "end": end, **columns}
        self._writer.insert(name, tuple(everything), zip(*map(_replace_nulls, everything.values()), strict=True))

    def _strings(self, names: Int64) -> Int64:
        """Return the StringIds of names."""
        unique, inverse = np.unique(names, return_inverse=True)
        texts = [self._texts[name] if name >= 0 else _NO_NAME for name in unique.tolist()]
        return np.array([self._writer.string(text) for text in texts], np.int64)[inverse.reshape(-1)]

    def write_gpus(self) -> None:
        """Write the GPUs, and which of them each process's CUDA device numbers refer to."""
        rows = self._gpus.rows()
        if rows:
            self._writer.insert(GPUS, tuple(rows[0]), [tuple(row.values()) for row in rows])
        devices = self._gpus.devices
        columns = ("gpuId", "cudaId", "pid", "uuid")
        self._writer.insert(
            CUDA_DEVICES,
            columns,
            [(number, cuda, pid, uuid) for (pid, cuda), (number, uuid) in devices.items()],
        )


class _Gpus:
    """The GPUs of all processes. CUDA numbers them separately in each, so they are identified by their UUID.

    Attributes:
        devices: number and UUID of each, by pid and CUDA's number; only of those with a UUID.
    """

    def __init__(self) -> None:
        self.devices: dict[tuple[int, int], tuple[int, str]] = {}
        self._numbers: dict[str, int] = {}
        self._properties: dict[int, dict[str, Any]] = {}

    def register(self, trace: KinetoTrace) -> None:
        """Add the GPUs of a process."""
        for cuda, uuid in sorted(trace.metadata.gpus.items()):
            if uuid not in self._numbers:
                taken = self._numbers.values()
                free = (number for number in range(len(taken) + 1) if number not in taken)
                self._numbers[uuid] = cuda if cuda not in taken else next(free)
            self.devices[trace.pid, cuda] = self._numbers[uuid], uuid
        properties = trace.file.events.metadata.get("deviceProperties")
        for gpu in properties if isinstance(properties, list) else []:
            device = gpu.get("id") if isinstance(gpu, dict) else None
            if type(device) is int:
                number, _ = self.devices.get((trace.pid, device), (device, ""))
                self._properties.setdefault(number, gpu)

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each GPU."""
        uuids = {number: uuid for uuid, number in self._numbers.items()}
        return [
            {
                "vmId": global_tid(0, 0),
                "id": number,
                "name": escape_text(str(gpu.get("name", ""))),
                "totalMemory": _int_or_none(gpu.get("totalGlobalMem")),
                "smCount": _int_or_none(gpu.get("numSms")),
                "uuid": uuids.get(number),
                "computeMajor": _int_or_none(gpu.get("computeMajor")),
                "computeMinor": _int_or_none(gpu.get("computeMinor")),
            }
            for number, gpu in sorted(self._properties.items())
        ]


def _int_or_none(value: Any) -> int | None:
    return value if type(value) is int else None


def _shift_correlations(table: Table, shift: int) -> Int64:
    correlations = table.column("correlation")
    return np.where(correlations == NULL, NULL, correlations + shift)


def _to_null_if_negative(column: Int64) -> Int64:
    """Return a column of small numbers with NULL in place of negative (unknown) ones."""
    return np.where(column < 0, NULL, column)


def _replace_nulls(column: NDArray[np.int64]) -> Sequence[int | None]:
    values: list[int | None] = column.tolist()
    return [None if value == NULL else value for value in values] if (column == NULL).any() else values


@dataclass(frozen=True)
class Clock:
    """The offset from Kineto's times to CLOCK_MONOTONIC.

    Attributes:
        at_ns: one or two Kineto times.
        offset_ns: the offset at each.
        uncertainty_ns: its largest error; None if there were no markers to measure it by.
    """

    at_ns: tuple[int, ...]
    offset_ns: tuple[int, ...]
    uncertainty_ns: int | None

    def monotonic_ns(self, times: Int64) -> Int64:
        """Return CLOCK_MONOTONIC at each Kineto time."""
        first = self.offset_ns[0]
        # Only small differences become doubles, which can't represent ns since 1970.
        drift = np.interp(times - self.at_ns[0], np.subtract(self.at_ns, self.at_ns[0]), self.drifts_ns)
        return times + first + np.rint(drift).astype(np.int64)

    @property
    def drifts_ns(self) -> tuple[int, ...]:
        """How far the offset has moved at each of these times."""
        return tuple(offset - self.offset_ns[0] for offset in self.offset_ns)


@dataclass(frozen=True)
class TraceMetadata:
    """The metadata of a process in its file.

    Attributes:
        monotonic_ns, realtime_ns: both clocks at one moment near the end.
        markers: the number of each marker, and CLOCK_MONOTONIC before and after it.
        gpus: the UUID of CUDA's devices, by their number.
    """

    monotonic_ns: int
    realtime_ns: int
    markers: tuple[tuple[int, int, int], ...]
    gpus: dict[int, str]


def read_metadata(file: File) -> TraceMetadata | None:
    """Return the metadata of the process in its file; None if there is none in a known form."""
    metadata: Any = file.events.metadata.get(METADATA)
    try:
        untrusted.validate_shape(metadata, untrusted.GPU_CLOCK)
        gpus = {int(device): uuid for device, uuid in metadata["gpus"].items() if len(device) < _DIGITS and uuid}
    except ValueError:
        return None
    markers = tuple((number, before, after) for number, before, after in metadata["markers"])
    return TraceMetadata(metadata["monotonic_ns"], metadata["realtime_ns"], markers, gpus)


def estimate_clock(file: File, metadata: TraceMetadata, names: Sequence[str]) -> Clock | None:
    """Return the conversion of the file's times to CLOCK_MONOTONIC: by its markers, or else by its wall clock.

    Args:
        file: a Kineto recording.
        metadata: of its process.
        names: indexed by the ids of the file's annotations.

    Returns:
        The clock; None if the file has neither a marker nor a wall clock.
    """
    starts = _read_markers(file, names)
    half = len(metadata.markers) // 2
    ends = [_estimate_offset(starts, metadata.markers[:half]), _estimate_offset(starts, metadata.markers[half:])]
    known = [end for end in ends if end is not None]
    if known:
        return Clock(
            tuple(at for at, _, _ in known),
            tuple(offset for _, offset, _ in known),
            max(uncertainty for _, _, uncertainty in known),
        )
    if file.wall_offset_ns is None:
        return None
    return Clock((0,), (file.wall_offset_ns + metadata.monotonic_ns - metadata.realtime_ns,), None)


def _read_markers(file: File, names: Sequence[str]) -> dict[int, int]:
    """Return the start of each marker, by its number."""
    ranges = file.events.ranges
    starts = {}
    for name, start in zip(ranges.column("name").tolist(), ranges.column("start").tolist(), strict=True):
        match = _MARKER.fullmatch(names[name])
        if match:
            starts[int(match[1])] = start
    return starts


def _estimate_offset(starts: dict[int, int], markers: Sequence[tuple[int, int, int]]) -> tuple[int, int, int] | None:
    """Return a Kineto time, the offset at it, and its largest error; None without a marker."""
    bounds: list[tuple[int, int, int]] = [
        (starts[number], before - starts[number], after - starts[number])
        for number, before, after in markers
        if number in starts
    ]
    if not bounds:
        return None
    low, high = max(bound[1] for bound in bounds), min(bound[2] for bound in bounds)
    # If no offset fits all markers (low > high), Kineto's clock is uneven by that amount.
    return bounds[len(bounds) // 2][0], (low + high) // 2, -(-abs(high - low) // 2)


def describe_clock(clock: Clock, pid: int) -> Message:
    """Return a note on how a process's GPU activity was aligned with its ranges."""
    if clock.uncertainty_ns is None:
        return Message(
            "gpu_placed_by_wall_clock",
            f"GPU activity of process {pid} is aligned with its ranges by the wall clock, as its file has no time "
            "markers: it may be off by some microseconds",
        )
    drift = clock.drifts_ns[-1]
    seconds = (clock.at_ns[-1] - clock.at_ns[0]) / 1e9
    return Message(
        "gpu_placed_by_markers",
        f"GPU activity of process {pid} is aligned with its ranges to {clock.uncertainty_ns / 1000:.1f} us; Kineto's "
        f"clock drifted by {drift / 1000:.1f} us in {seconds:.1f} s, which is corrected",
    )


@dataclass(frozen=True)
class _RecordedThread:
    """A thread in the recording; `first_ns` is CLOCK_MONOTONIC at its first event."""

    tid: int
    half: int
    thread: rec.ThreadRecording
    monotonic_ns: int

    def first_ns(self) -> int:
        events = next(iter(rec.read_events(self.thread, [], records=64)), None)
        return self.monotonic_ns + (int(events.time_ns[0]) if events is not None else 0)


class Threads:
    """The threads of one process.

    Args:
        processes: the recordings of that process: several after an exec.

    Attributes:
        unknown: the id assigned to each thread of which only the lower half is known, by Kineto's id.
    """

    def __init__(self, processes: Sequence[rec.ProcessRecording]) -> None:
        self._by_half: dict[int, list[_RecordedThread]] = {}
        self._half_of: dict[int, int] = {}
        self.unknown: dict[Any, int] = {}
        for process in processes:
            for thread in process.threads:
                if thread.pthread:
                    half = _get_lower_half(thread.pthread)
                    self._by_half.setdefault(half, []).append(
                        _RecordedThread(thread.tid, half, thread, process.monotonic_ns)
                    )
                    self._half_of[thread.tid] = half

    def resolve_tids(self, kineto_id: Any, times: Int64) -> Int64:
        """Return the system's id of the thread with `kineto_id`, at each CLOCK_MONOTONIC in ns."""
        # Kineto may give the system's id of an earlier thread with the same pthread_self.
        candidates = self._by_half.get(self._half_of.get(kineto_id, kineto_id), [])
        tids = {thread.tid for thread in candidates}
        if len(tids) > 1:
            return _resolve_by_time(candidates, times)
        return np.full(len(times), tids.pop() if tids else self._assign_tid(kineto_id), np.int64)

    def _assign_tid(self, kineto_id: Any) -> int:
        """Return the id of a thread without a range."""
        if isinstance(kineto_id, int) and 0 < kineto_id < _SYSTEM_THREADS:
            return kineto_id
        return self.unknown.setdefault(kineto_id, _LAST - len(self.unknown))


def _resolve_by_time(candidates: list[_RecordedThread], times: Int64) -> Int64:
    """Return, for each time, the thread that started last; before all of them, the first."""
    pairs = sorted((thread.first_ns(), thread.tid) for thread in candidates)
    starts, tids = np.array([begin for begin, _ in pairs]), np.array([tid for _, tid in pairs], np.int64)
    return tids[np.maximum(np.searchsorted(starts, times, side="right") - 1, 0)]


def _get_lower_half(pthread: int) -> int:
    """Return the lower half of a pthread_self as CUPTI writes it: signed 32 bits."""
    half = pthread & 0xFFFFFFFF
    return half - (1 << 32) if half >= 1 << 31 else half
