"""Writes what Kineto recorded of the GPU into the database that is made of a recording, as nsys would have it there.

One file after the other: its times become those of the recorder (`kineto_clock`), its threads the system's
(`kineto_threads`), its events rows of nsys's tables (`gpu_tables`). Ranges are the recorder's alone: the annotations in
the file are our markers of time, and what the program named with `record_function`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traceable.collect import gpu_tables, kineto_clock
from traceable.collect import recording as rec
from traceable.collect.kineto_threads import Threads
from traceable.collect.nsys_schema import Added, Sink
from traceable.collect.nsys_tables import global_tid
from traceable.errors import Message
from traceable.trace.intern import Names
from traceable.trace.kineto_events import File, Table, read_file, readable
from traceable.trace.model import NULL, Int64

_THREAD_NAME = re.compile(r"thread -?\d+ \((.*)\)", re.DOTALL)
_NO_NAME = "(no name)"
_UNKNOWN_THREAD = "thread without a range"
_ALL_CORRELATIONS = 1 << 32
"""CUPTI counts calls in 32 bits."""


@dataclass(frozen=True)
class Part:
    """A file of Kineto's that was read, of one process.

    Attributes:
        file: what is in it, on its own clock.
        said: what the process says in it.
        clock: turns its times into CLOCK_MONOTONIC.
    """

    pid: int
    file: File
    said: kineto_clock.Said
    clock: kineto_clock.Clock


@dataclass
class Parts:
    """All files of a run, and what their names and launch geometries are numbered by."""

    names: Names = field(default_factory=Names)
    geometries: dict[tuple[int, ...], int] = field(default_factory=dict)
    read: list[Part] = field(default_factory=list)
    notes: list[tuple[Message, int]] = field(default_factory=list)

    def add(self, path: Path, pid: int) -> None:
        """Read a file; one that says nothing of its clock is left out with a note.

        Raises:
            TraceError: it is no whole trace of Kineto's.
        """
        file = read_file(path, self.names, self.geometries)
        said = kineto_clock.said_in(file)
        clock = kineto_clock.clock_of(file, said, self.names.all()) if said else None
        if said is None or clock is None:
            found = f"{path} does not say when it was recorded and was left out"
            self.notes.append((Message("gpu_file_without_clock", found), pid))
        else:
            self.read.append(Part(pid, file, said, clock))


def merge(parts: Parts, recording: rec.Recording, sink: Sink) -> Added:
    """Write the GPU work of all files."""
    for statement in gpu_tables.TABLES.values():
        sink.create(statement)
    for table, rows in gpu_tables.ENUMS.items():
        sink.insert(table, ("id", "name", "label"), rows)
    sink.insert("ENUM_NSYS_EVENT_CLASS", ("id", "name", "label"), gpu_tables.EVENT_CLASSES)
    for note, pid in parts.notes:
        sink.warn(note, global_tid(pid, 0))
    merger = _Merger(parts, recording, sink)
    for part in parts.read:
        merger.write(part)
    merger.write_gpus()
    return Added(merger.events, merger.last_ns)


class _Merger:
    def __init__(self, parts: Parts, recording: rec.Recording, sink: Sink) -> None:
        self._sink = sink
        self._recording = recording
        self._texts = [readable(name) for name in parts.names.all()]
        self._geometries = np.array([*parts.geometries, (NULL,) * len(gpu_tables.GEOMETRY)], np.int64)
        self._threads: dict[int, Threads] = {}
        self._named: dict[int, set[int]] = {}
        self._correlations: dict[int, int] = {}
        self._gpus = _Gpus()
        self._created: set[str] = set()
        self.events = 0
        self.last_ns = 0

    def write(self, part: Part) -> None:
        """Write one file."""
        pid, events = part.pid, part.file.events
        self._see_process(part)
        shift = self._correlation_shift(part)
        self._calls(part, shift)
        strings = self._strings
        kernels = events.kernels
        self._operations(
            part,
            gpu_tables.KERNELS,
            kernels,
            shift,
            {
                "demangledName": strings(kernels.column("name")),
                "shortName": strings(kernels.column("name")),
                **dict(zip(gpu_tables.GEOMETRY, self._geometries[kernels.column("geometry")].T, strict=True)),
                "graphNodeId": kernels.column("graph_node"),
            },
        )
        copies = events.copies
        self._operations(
            part,
            gpu_tables.COPIES,
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
            gpu_tables.MEMSETS,
            memsets,
            shift,
            {
                "bytes": memsets.column("size_bytes"),
                "memKind": _known(memsets.column("memory_kind")),
                "graphNodeId": memsets.column("graph_node"),
            },
        )
        waits = events.synchronisations
        self._operations(part, gpu_tables.SYNCHRONISATIONS, waits, shift, {"syncType": _known(waits.column("kind"))})
        overheads = events.overheads
        thread = np.full(len(overheads), global_tid(pid, 0))
        columns = {"globalTid": thread, "nameId": strings(overheads.column("name"))}
        self._insert(part, gpu_tables.OVERHEADS, overheads, columns)
        self._gpus.see(part)
        if events.untimed:
            found = f"{events.untimed} GPU events of process {pid} have no time: left out"
            self._sink.warn(Message("events_without_time", found), global_tid(pid, 0))
        self._sink.remark(kineto_clock.describe(part.clock, pid), global_tid(pid, 0))

    def _see_process(self, part: Part) -> None:
        pid = part.pid
        if pid in self._threads:
            return
        recorded = [process for process in self._recording.processes if process.pid == pid]
        self._threads[pid] = Threads(recorded)
        self._named[pid] = {thread.tid for process in recorded for thread in process.threads}
        if not recorded:
            name = readable(part.file.events.process_names.get(pid, ""))
            self._sink.insert("PROCESSES", ("globalPid", "pid", "name"), [(global_tid(pid, 0), pid, name)])

    def _correlation_shift(self, part: Part) -> int:
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

    def _calls(self, part: Part, shift: int) -> None:
        table = part.file.events.calls
        keys = list(part.file.events.threads)
        of = table.column("thread")
        started = part.clock.monotonic_ns(table.column("start"))
        tids = np.zeros(len(table), np.int64)
        for number in np.unique(of).tolist():
            pid, said = keys[number]
            rows = of == number
            tids[rows] = self._threads[part.pid].tids(said, started[rows])
            self._name_threads(part, np.unique(tids[rows]).tolist(), part.file.events.thread_names.get((pid, said)))
        self._insert(
            part,
            gpu_tables.CALLS,
            table,
            {
                "eventClass": table.column("driver"),
                "globalTid": global_tid(part.pid, 0) | tids,
                "correlationId": _shifted(table, shift),
                "nameId": self._strings(table.column("name")),
            },
        )

    def _name_threads(self, part: Part, tids: Iterable[int], said: str | None) -> None:
        """Write the names of threads that have no range, of which the recorder has none."""
        unknown = self._threads[part.pid].unknown.values()
        for tid in set(tids) - self._named[part.pid]:
            self._named[part.pid].add(tid)
            found = _THREAD_NAME.fullmatch(said or "")
            name = _UNKNOWN_THREAD if tid in unknown else readable(found[1]) if found else ""
            if name:
                row = (self._sink.string(name), global_tid(part.pid, tid))
                self._sink.insert("ThreadNames", ("nameId", "globalTid"), [row])

    def _operations(
        self, part: Part, name: str, table: Table, shift: int, columns: dict[str, NDArray[np.int64]]
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

    def _insert(self, part: Part, name: str, table: Table, columns: dict[str, NDArray[np.int64]]) -> None:
        if not len(table):
            return
        if name not in self._created:
            self._created.add(name)
            self._sink.create(gpu_tables.EVENT_TABLES[name])
        zero = self._sink.zeros.get(part.pid, self._sink.zero)
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
            self._sink.insert(gpu_tables.GPUS, tuple(rows[0]), [tuple(row.values()) for row in rows])
        devices = self._gpus.devices
        columns = ("gpuId", "cudaId", "pid", "uuid")
        self._sink.insert(
            gpu_tables.CUDA_DEVICES,
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

    def see(self, part: Part) -> None:
        """Take note of the GPUs that a process says it has."""
        for cuda, uuid in sorted(part.said.gpus.items()):
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
                "name": readable(str(one.get("name", ""))),
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
