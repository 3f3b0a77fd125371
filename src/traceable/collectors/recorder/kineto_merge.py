"""Writes what Kineto recorded of the GPU into the database that is made of a recording, as nsys would have it there.

One file after the other: its times become those of the recorder, its threads the system's, its events rows of nsys's
tables. Ranges are the recorder's alone: the annotations in the file are our markers of time, and what the program named
with `record_function`.

Clocks: Kineto counts the processor's ticks and makes ns since 1970 of them; the recorder uses CLOCK_MONOTONIC. The
process has annotated a few moments at the start and at the end of each recording of Kineto's, and has read
CLOCK_MONOTONIC before and after each (`capture/gpu_gate.py`). What Kineto says of a moment lies between its two
readings: all moments of one end of the recording together leave a stretch of possible offsets of 1 to 2 us. Between the
two ends the offset is taken to change evenly.

Threads: CUPTI knows a thread by its pthread_self, of which Kineto keeps the lower half. Kineto turns it into the
system's number where torch has recorded something on that thread, which --gpu hardly makes it do; else the half stands
in the file, as a number with a sign. The embedded recorder notes both numbers of every thread that has a range, so each
such thread is found. A pthread_self is used again once its thread has ended: then it is the time that tells.

Tables: names and types as in schema 3.16.1 (nsys 2024.6). A column that Kineto may know nothing of is not NOT NULL as
it is there: it is NULL, and the readers take that for what was not recorded.
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
"""The key of what the process says in the file; `capture.gpu_gate.METADATA`."""

_DIGITS = 10
_MARKER = re.compile(r"traceable\.clock (\d{1,6})")

_SYSTEM_THREADS = 1 << 22
"""Linux numbers threads below this."""

_LAST = (1 << 24) - 1
"""The largest number that nsys's schema has room for: threads of which no number is known count down from here."""

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


@dataclass(frozen=True)
class KinetoTrace:
    """A file of Kineto's that was read, of one process.

    Attributes:
        file: what is in it, on its own clock.
        metadata: what the process says in it.
        clock: turns its times into CLOCK_MONOTONIC.
    """

    pid: int
    file: File
    metadata: TraceMetadata
    clock: Clock


@dataclass
class KinetoTraces:
    """All files of a run, and what their names and launch geometries are numbered by."""

    names: Names = field(default_factory=Names)
    geometries: dict[tuple[int, ...], int] = field(default_factory=dict)
    traces: list[KinetoTrace] = field(default_factory=list)
    notes: list[tuple[Message, int]] = field(default_factory=list)

    def add(self, path: Path, pid: int) -> None:
        """Read a file; one that says nothing of its clock is left out with a note.

        Raises:
            TraceError: it is no whole trace of Kineto's.
        """
        file = read_file(path, self.names, self.geometries)
        said = read_metadata(file)
        clock = estimate_clock(file, said, self.names.all()) if said else None
        if said is None or clock is None:
            found = f"{path} does not say when it was recorded and was left out"
            self.notes.append((Message("gpu_file_without_clock", found), pid))
        else:
            self.traces.append(KinetoTrace(pid, file, said, clock))


def merge_traces(parts: KinetoTraces, recording: rec.Recording, sink: DatabaseWriter) -> SourceResult:
    """Write the GPU work of all files."""
    for statement in TABLES.values():
        sink.create(statement)
    for table, rows in ENUMS.items():
        sink.insert(table, ("id", "name", "label"), rows)
    sink.insert("ENUM_NSYS_EVENT_CLASS", ("id", "name", "label"), EVENT_CLASSES)
    for note, pid in parts.notes:
        sink.warn(note, global_tid(pid, 0))
    merger = _Merger(parts, recording, sink)
    for part in parts.traces:
        merger.write(part)
    merger.write_gpus()
    return SourceResult(merger.events, merger.last_ns)


class _Merger:
    def __init__(self, parts: KinetoTraces, recording: rec.Recording, sink: DatabaseWriter) -> None:
        self._sink = sink
        self._recording = recording
        self._texts = [escape_text(name) for name in parts.names.all()]
        self._geometries = np.array([*parts.geometries, (NULL,) * len(GEOMETRY)], np.int64)
        self._threads: dict[int, Threads] = {}
        self._named: dict[int, set[int]] = {}
        self._correlations: dict[int, int] = {}
        self._gpus = _Gpus()
        self._created: set[str] = set()
        self.events = 0
        self.last_ns = 0

    def write(self, part: KinetoTrace) -> None:
        """Write one file."""
        pid, events = part.pid, part.file.events
        self._see_process(part)
        shift = self._correlation_shift(part)
        self._calls(part, shift)
        strings = self._strings
        kernels = events.kernels
        self._operations(
            part,
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
            part,
            COPIES,
            copies,
            shift,
            {
                "bytes": copies.column("size_bytes"),
                "copyKind": _known(copies.column("kind")),
                "srcKind": _known(copies.column("source_kind")),
                "dstKind": _known(copies.column("target_kind")),
                "srcDeviceId": _known(copies.column("source_device")),
                "dstDeviceId": _known(copies.column("target_device")),
                "graphNodeId": copies.column("graph_node"),
            },
        )
        memsets = events.memsets
        self._operations(
            part,
            MEMSETS,
            memsets,
            shift,
            {
                "bytes": memsets.column("size_bytes"),
                "memKind": _known(memsets.column("memory_kind")),
                "graphNodeId": memsets.column("graph_node"),
            },
        )
        waits = events.synchronizations
        self._operations(part, SYNCHRONIZATIONS, waits, shift, {"syncType": _known(waits.column("kind"))})
        overheads = events.overheads
        thread = np.full(len(overheads), global_tid(pid, 0))
        columns = {"globalTid": thread, "nameId": strings(overheads.column("name"))}
        self._insert(part, OVERHEADS, overheads, columns)
        self._gpus.see(part)
        if events.untimed:
            found = f"{events.untimed} GPU events of process {pid} have no time: left out"
            self._sink.warn(Message("events_without_time", found), global_tid(pid, 0))
        self._sink.info(describe_clock(part.clock, pid), global_tid(pid, 0))

    def _see_process(self, part: KinetoTrace) -> None:
        pid = part.pid
        if pid in self._threads:
            return
        recorded = [process for process in self._recording.processes if process.pid == pid]
        self._threads[pid] = Threads(recorded)
        self._named[pid] = {thread.tid for process in recorded for thread in process.threads}
        if not recorded:
            name = escape_text(part.file.events.process_names.get(pid, ""))
            self._sink.insert("PROCESSES", ("globalPid", "pid", "name"), [(global_tid(pid, 0), pid, name)])

    def _correlation_shift(self, part: KinetoTrace) -> int:
        """Return what to add to the correlations of a file, so that no two files of a process share one."""
        tables = (part.file.events.calls, part.file.events.kernels, part.file.events.copies, part.file.events.memsets)
        found = np.concatenate([table.column("correlation") for table in tables])
        found = found[found != NULL]
        if not len(found):
            return 0
        last = self._correlations.get(part.pid, -1)
        shift = 0 if int(found.min()) > last else (last // _ALL_CORRELATIONS + 1) * _ALL_CORRELATIONS
        self._correlations[part.pid] = int(found.max()) + shift
        return shift

    def _calls(self, part: KinetoTrace, shift: int) -> None:
        table = part.file.events.calls
        keys = list(part.file.events.threads)
        of = table.column("thread")
        started = part.clock.monotonic_ns(table.column("start"))
        tids = np.zeros(len(table), np.int64)
        for number in np.unique(of).tolist():
            pid, said = keys[number]
            rows = of == number
            tids[rows] = self._threads[part.pid].resolve_tids(said, started[rows])
            self._name_threads(part, np.unique(tids[rows]).tolist(), part.file.events.thread_names.get((pid, said)))
        self._insert(
            part,
            CALLS,
            table,
            {
                "eventClass": table.column("driver"),
                "globalTid": global_tid(part.pid, 0) | tids,
                "correlationId": _shifted(table, shift),
                "nameId": self._strings(table.column("name")),
            },
        )

    def _name_threads(self, part: KinetoTrace, tids: Iterable[int], said: str | None) -> None:
        """Write the names of threads that have no range, of which the recorder has none."""
        unknown = self._threads[part.pid].unknown.values()
        for tid in set(tids) - self._named[part.pid]:
            self._named[part.pid].add(tid)
            found = _THREAD_NAME.fullmatch(said or "")
            name = _UNKNOWN_THREAD if tid in unknown else escape_text(found[1]) if found else ""
            if name:
                row = (self._sink.string(name), global_tid(part.pid, tid))
                self._sink.insert("ThreadNames", ("nameId", "globalTid"), [row])

    def _operations(
        self, part: KinetoTrace, name: str, table: Table, shift: int, columns: dict[str, NDArray[np.int64]]
    ) -> None:
        """Write one kind of GPU operation."""
        place = {
            "deviceId": _known(table.column("device")),
            "contextId": _known(table.column("context")),
            "streamId": _known(table.column("stream")),
            "correlationId": _shifted(table, shift),
            "globalPid": np.full(len(table), global_tid(part.pid, 0)),
        }
        self._insert(part, name, table, {**place, **columns})

    def _insert(self, part: KinetoTrace, name: str, table: Table, columns: dict[str, NDArray[np.int64]]) -> None:
        if not len(table):
            return
        if name not in self._created:
            self._created.add(name)
            self._sink.create(EVENT_TABLES[name])
        zero = self._sink.offsets_ns.get(part.pid, self._sink.default_offset_ns)
        start, end = (part.clock.monotonic_ns(table.column(edge)) + zero for edge in ("start", "end"))
        self.events += len(table)
        self.last_ns = max(self.last_ns, int(end.max()))
        everything = {"start": start, "end": end, **columns}
        self._sink.insert(name, tuple(everything), zip(*map(_nullable, everything.values()), strict=True))

    def _strings(self, names: Int64) -> Int64:
        """Return the StringIds of names."""
        unique, inverse = np.unique(names, return_inverse=True)
        texts = [self._texts[name] if name >= 0 else _NO_NAME for name in unique.tolist()]
        return np.array([self._sink.string(text) for text in texts], np.int64)[inverse.reshape(-1)]

    def write_gpus(self) -> None:
        """Write the GPUs, and which of them is behind CUDA's numbers in each process."""
        rows = self._gpus.rows()
        if rows:
            self._sink.insert(GPUS, tuple(rows[0]), [tuple(row.values()) for row in rows])
        devices = self._gpus.devices
        columns = ("gpuId", "cudaId", "pid", "uuid")
        self._sink.insert(
            CUDA_DEVICES,
            columns,
            [(number, cuda, pid, uuid) for (pid, cuda), (number, uuid) in devices.items()],
        )


class _Gpus:
    """The GPUs of all processes. CUDA counts them anew in each, so they are told by their UUID.

    Attributes:
        devices: number and UUID of each, by pid and CUDA's number. Those without a UUID are not known, and not here.
    """

    def __init__(self) -> None:
        self.devices: dict[tuple[int, int], tuple[int, str]] = {}
        self._numbers: dict[str, int] = {}
        self._properties: dict[int, dict[str, Any]] = {}

    def see(self, part: KinetoTrace) -> None:
        """Take note of the GPUs that a process says it has."""
        for cuda, uuid in sorted(part.metadata.gpus.items()):
            if uuid not in self._numbers:
                taken = self._numbers.values()
                free = (number for number in range(len(taken) + 1) if number not in taken)
                self._numbers[uuid] = cuda if cuda not in taken else next(free)
            self.devices[part.pid, cuda] = self._numbers[uuid], uuid
        properties = part.file.events.metadata.get("deviceProperties")
        for one in properties if isinstance(properties, list) else []:
            device = one.get("id") if isinstance(one, dict) else None
            if type(device) is int:
                number, _ = self.devices.get((part.pid, device), (device, ""))
                self._properties.setdefault(number, one)

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each GPU."""
        uuids = {number: uuid for uuid, number in self._numbers.items()}
        return [
            {
                "vmId": global_tid(0, 0),
                "id": number,
                "name": escape_text(str(one.get("name", ""))),
                "totalMemory": _whole(one.get("totalGlobalMem")),
                "smCount": _whole(one.get("numSms")),
                "uuid": uuids.get(number),
                "computeMajor": _whole(one.get("computeMajor")),
                "computeMinor": _whole(one.get("computeMinor")),
            }
            for number, one in sorted(self._properties.items())
        ]


def _whole(value: Any) -> int | None:
    return value if type(value) is int else None


def _shifted(table: Table, shift: int) -> Int64:
    found = table.column("correlation")
    return np.where(found == NULL, NULL, found + shift)


def _known(column: Int64) -> Int64:
    """Return a column of small numbers with NULL for what is not known."""
    return np.where(column < 0, NULL, column)


def _nullable(column: NDArray[np.int64]) -> Sequence[int | None]:
    values: list[int | None] = column.tolist()
    return [None if value == NULL else value for value in values] if (column == NULL).any() else values


@dataclass(frozen=True)
class Clock:
    """What to add to Kineto's times to have CLOCK_MONOTONIC.

    Attributes:
        at_ns: one or two times of Kineto's.
        offset_ns: what to add at each.
        uncertainty_ns: by how much it may be wrong; None where there were no markers to measure it by.
    """

    at_ns: tuple[int, ...]
    offset_ns: tuple[int, ...]
    uncertainty_ns: int | None

    def monotonic_ns(self, times: Int64) -> Int64:
        """Return CLOCK_MONOTONIC at each time of Kineto's."""
        first = self.offset_ns[0]
        # Small differences alone become doubles, which hold no ns since 1970.
        drift = np.interp(times - self.at_ns[0], np.subtract(self.at_ns, self.at_ns[0]), self.drifts_ns)
        return times + first + np.rint(drift).astype(np.int64)

    @property
    def drifts_ns(self) -> tuple[int, ...]:
        """How far the offset has moved at each of these times."""
        return tuple(offset - self.offset_ns[0] for offset in self.offset_ns)


@dataclass(frozen=True)
class TraceMetadata:
    """What the process says in its file.

    Attributes:
        monotonic_ns, realtime_ns: both clocks at one moment near the end.
        markers: of each marker its number, and CLOCK_MONOTONIC before and after it.
        gpus: the UUID of CUDA's devices, by their number.
    """

    monotonic_ns: int
    realtime_ns: int
    markers: tuple[tuple[int, int, int], ...]
    gpus: dict[int, str]


def read_metadata(file: File) -> TraceMetadata | None:
    """Return what the process says in its file; None where it says nothing that can be understood."""
    said: Any = file.events.metadata.get(METADATA)
    try:
        untrusted.validate_shape(said, untrusted.GPU_CLOCK)
        gpus = {int(device): uuid for device, uuid in said["gpus"].items() if len(device) < _DIGITS and uuid}
    except ValueError:
        return None
    markers = tuple((number, before, after) for number, before, after in said["markers"])
    return TraceMetadata(said["monotonic_ns"], said["realtime_ns"], markers, gpus)


def estimate_clock(file: File, said: TraceMetadata, names: Sequence[str]) -> Clock | None:
    """Return how the file's times become CLOCK_MONOTONIC: by its markers, or else by its wall clock.

    Args:
        file: a recording of Kineto's.
        said: by its process.
        names: by the numbers that the file's annotations have.

    Returns:
        The clock; None where the file has neither a marker nor a wall clock.
    """
    begins = _markers(file, names)
    half = len(said.markers) // 2
    ends = [_offset(begins, said.markers[:half]), _offset(begins, said.markers[half:])]
    known = [end for end in ends if end is not None]
    if known:
        return Clock(
            tuple(at for at, _, _ in known),
            tuple(offset for _, offset, _ in known),
            max(uncertainty for _, _, uncertainty in known),
        )
    if file.wall_offset_ns is None:
        return None
    return Clock((0,), (file.wall_offset_ns + said.monotonic_ns - said.realtime_ns,), None)


def _markers(file: File, names: Sequence[str]) -> dict[int, int]:
    """Return when each marker begins, by its number."""
    ranges = file.events.ranges
    found = {}
    for name, start in zip(ranges.column("name").tolist(), ranges.column("start").tolist(), strict=True):
        words = _MARKER.fullmatch(names[name])
        if words:
            found[int(words[1])] = start
    return found


def _offset(begins: dict[int, int], markers: Sequence[tuple[int, int, int]]) -> tuple[int, int, int] | None:
    """Return a time of Kineto's, the offset at it, and by how much that may be wrong; None without a marker."""
    bounds: list[tuple[int, int, int]] = [
        (begins[number], before - begins[number], after - begins[number])
        for number, before, after in markers
        if number in begins
    ]
    if not bounds:
        return None
    low, high = max(bound[1] for bound in bounds), min(bound[2] for bound in bounds)
    # Where no offset suits all markers (low > high), Kineto's clock is uneven by as much.
    return bounds[len(bounds) // 2][0], (low + high) // 2, -(-abs(high - low) // 2)


def describe_clock(clock: Clock, pid: int) -> Message:
    """Return a sentence on how a process's GPU work was placed among its ranges."""
    if clock.uncertainty_ns is None:
        return Message(
            "gpu_placed_by_wall_clock",
            f"the GPU work of process {pid} is placed among its ranges by the wall clock, as its file has no marker "
            "of ours: it may be off by some microseconds",
        )
    drift = clock.drifts_ns[-1]
    seconds = (clock.at_ns[-1] - clock.at_ns[0]) / 1e9
    return Message(
        "gpu_placed_by_markers",
        f"the GPU work of process {pid} is placed among its ranges to {clock.uncertainty_ns / 1000:.1f} us; Kineto's "
        f"clock drifted by {drift / 1000:.1f} us in {seconds:.1f} s, which is made good",
    )


@dataclass(frozen=True)
class _Known:
    """A thread that the recorder saw; `first_ns` is CLOCK_MONOTONIC at its first event."""

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
        processes: the recordings of that process: several where it became another program.

    Attributes:
        unknown: the number that was given to each thread of which only a half was known, by what Kineto said.
    """

    def __init__(self, processes: Sequence[rec.ProcessRecording]) -> None:
        self._by_half: dict[int, list[_Known]] = {}
        self._half_of: dict[int, int] = {}
        self.unknown: dict[Any, int] = {}
        for process in processes:
            for thread in process.threads:
                if thread.pthread:
                    half = _half(thread.pthread)
                    self._by_half.setdefault(half, []).append(_Known(thread.tid, half, thread, process.monotonic_ns))
                    self._half_of[thread.tid] = half

    def resolve_tids(self, said: Any, times: Int64) -> Int64:
        """Return the system's number of the thread that Kineto calls `said`, at each CLOCK_MONOTONIC in ns."""
        # Kineto may say the system's number of an earlier thread with the same pthread_self.
        known = self._by_half.get(self._half_of.get(said, said), [])
        tids = {thread.tid for thread in known}
        if len(tids) > 1:
            return _by_time(known, times)
        return np.full(len(times), tids.pop() if tids else self._alone(said), np.int64)

    def _alone(self, said: Any) -> int:
        """Return the number of a thread without a range."""
        if isinstance(said, int) and 0 < said < _SYSTEM_THREADS:
            return said
        return self.unknown.setdefault(said, _LAST - len(self.unknown))


def _by_time(known: list[_Known], times: Int64) -> Int64:
    """Return at each time the thread that began last; before all of them, the first."""
    pairs = sorted((thread.first_ns(), thread.tid) for thread in known)
    begins, tids = np.array([begin for begin, _ in pairs]), np.array([tid for _, tid in pairs], np.int64)
    return tids[np.maximum(np.searchsorted(begins, times, side="right") - 1, 0)]


def _half(pthread: int) -> int:
    """Return the lower half of a pthread_self as CUPTI's number of it is written: 32 bits with a sign."""
    half = pthread & 0xFFFFFFFF
    return half - (1 << 32) if half >= 1 << 31 else half
