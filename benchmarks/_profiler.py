"""What a profiler records of the runs of programs, as rows of nsys's export schema.

Which program runs when is not decided here.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np
from _decode_server import AUTOGRAD, HTTP, MAIN, NCCL_DOMAIN, SERVER_DOMAIN, WATCHDOG, Server
from _program import KERNEL, LANES, MEMCPY, MEMSET, STREAM_WAIT, Allocation, Int64, Outcome, Program
from _table_writer import NULL, Strings, Table
from _trace_tables import ENUMS, GPU, PRODUCT_VERSION, SCHEMA_VERSION, TABLES

STREAM_IDS = np.array([7, 20, 24], np.int64)
"""CUDA's numbers of the compute, NCCL and copy streams."""

UTC_EPOCH_NS = 1_767_225_600_000_000_000
_MACHINE = 1 << 48
_NO_ID = 0xFFFFFFFF
_POOL = 0x7E00_0000_0000
_CUPTI = "CUPTI_ACTIVITY_KIND_"
_THREADS = {MAIN: "python", AUTOGRAD: "pt_autograd_0", WATCHDOG: "pt_nccl_watchdg", HTTP: "uvicorn"}
_PROFILER_THREAD = 9
_PUSH_POP, _START_END, _DOMAIN_CREATE = 59, 60, 75
_NODE_CREATION = 77

_PLACE = ("start", "end", "deviceId", "contextId", "greenContextId", "streamId", "correlationId", "globalPid")
_COLUMNS: dict[str, tuple[str, ...]] = {
    _CUPTI + "RUNTIME": ("start", "end", "eventClass", "globalTid", "correlationId", "nameId", "returnValue"),
    "NVTX_EVENTS": (
        *("start", "end", "eventType", "text", "globalTid", "endGlobalTid", "domainId", "rangeId", "textId"),
    ),
    _CUPTI + "KERNEL": (
        *(*_PLACE, "demangledName", "shortName", "mangledName", "registersPerThread", "gridX", "gridY", "gridZ"),
        *("blockX", "staticSharedMemory", "dynamicSharedMemory", "launchType", "cacheConfig", "blockY", "blockZ"),
        *("localMemoryPerThread", "localMemoryTotal", "gridId", "sharedMemoryExecuted", "graphNodeId"),
        "sharedMemoryLimitConfig",
    ),
    _CUPTI + "MEMCPY": (
        *(*_PLACE, "bytes", "copyKind", "srcKind", "dstKind", "srcDeviceId", "dstDeviceId", "graphNodeId"),
    ),
    _CUPTI + "MEMSET": (*_PLACE, "value", "bytes", "graphNodeId", "memKind"),
    _CUPTI + "SYNCHRONIZATION": (*_PLACE, "syncType", "eventId"),
    "CUDA_GRAPH_NODE_EVENTS": (
        *("start", "end", "eventClass", "globalTid", "nameId", "graphNodeId", "originalGraphNodeId"),
    ),
    "CUDA_GPU_MEMORY_USAGE_EVENTS": (
        *("start", "globalPid", "deviceId", "contextId", "address", "pc", "bytes", "memKind", "memoryOperationType"),
        *("correlationId", "streamId", "localMemoryPoolAddress", "localMemoryPoolSize", "localMemoryPoolUtilizedSize"),
    ),
    "PROFILER_OVERHEAD": ("start", "end", "globalTid", "nameId", "returnValue"),
}
"""The columns that are written of each table of events; the others stay NULL."""


@dataclass
class Process:
    """One profiled process.

    Attributes:
        correlation: number of its next CUDA call; every process counts from 1.
        address: where its next allocation lies.
        allocated: addresses of what is allocated, by device and size.
        used_bytes: bytes of its memory pool that are in use.
    """

    pid: int
    correlation: int = 1
    address: int = 0x7F20_0000_0000
    allocated: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    used_bytes: int = 0

    @property
    def global_pid(self) -> int:
        """nsys's number of the process: of the machine in the upper bits, the pid, and 24 bits of 0."""
        return _MACHINE | self.pid << 24

    def global_tid(self, thread: int) -> int:
        """Return nsys's number of a thread: that of its process, with the thread's in the lower 24 bits."""
        return self.global_pid | (self.pid + thread)


@dataclass(frozen=True)
class Recorded:
    """A program with what its rows hold besides times: looked up once."""

    program: Program
    call_names: Int64
    pushes: Int64
    pops: Int64
    range_texts: Int64
    range_domains: Int64
    range_threads: Int64
    by_kind: Mapping[int, Int64]


class Profiler:
    """Writes what is recorded of `server` to `database`, which is empty."""

    def __init__(self, database: sqlite3.Connection, server: Server) -> None:
        self._database = database
        self._server = server
        self._strings = Strings()
        self._texts: dict[str, int] = {}
        for name, columns in TABLES.items():
            database.execute(f"CREATE TABLE {name} ({columns})")
        for name in ENUMS:
            database.execute(f"CREATE TABLE {name} (id INTEGER NOT NULL PRIMARY KEY, name TEXT, label TEXT)")
        texts: Mapping[str, Mapping[str, Mapping[str, int]]] = {"NVTX_EVENTS": {"text": self._texts}}
        self._tables = {
            name: Table(database, name, columns, texts.get(name, MappingProxyType({})))
            for name, columns in _COLUMNS.items()
        }
        ids = self._strings.id
        kernels = [
            (
                *(ids(each.name), ids(each.short_name), ids(f"_Z{len(each.short_name)}{each.short_name}v")),
                *(each.registers, *each.grid, each.block, each.static_shared, each.dynamic_shared),
            )
            for each in server.kernels
        ]
        self._kernel_columns = np.array(kernels, np.int64).T

    def prepare(self, program: Program) -> Recorded:
        """Look up what every run of `program` shares."""
        ranges = program.ranges
        for each in ranges:
            self._texts.setdefault(each.name, len(self._texts))
        return Recorded(
            program,
            call_names=np.array([self._strings.id(program.names[item]) for item in program.calls], np.int64),
            pushes=np.array([each.push for each in ranges], np.int64),
            pops=np.array([each.pop for each in ranges], np.int64),
            range_texts=np.array([self._texts[each.name] for each in ranges], np.int64),
            range_domains=np.array([each.domain for each in ranges], np.int64),
            range_threads=np.array([each.thread for each in ranges], np.int64),
            by_kind={kind: np.flatnonzero(program.kind == kind) for kind in (KERNEL, MEMCPY, MEMSET)},
        )

    # ---- while it runs

    def begin(self, process: Process, at: int) -> None:
        """Record the domains that the process creates at `at` ns."""
        for domain, name in ((NCCL_DOMAIN, "NCCL"), (SERVER_DOMAIN, "server")):
            self._database.execute(
                "INSERT INTO NVTX_EVENTS (start, eventType, text, globalTid, domainId) VALUES (?, ?, ?, ?, ?)",
                (at, _DOMAIN_CREATE, name, process.global_tid(MAIN), domain),
            )

    def record(self, process: Process, recorded: Recorded, outcome: Outcome) -> None:
        """Record one run of a program."""
        program, calls = recorded.program, recorded.program.calls
        correlations = process.correlation + program.call_rank
        threads = process.global_tid(MAIN) + program.thread
        self._tables[_CUPTI + "RUNTIME"].add(
            *(outcome.start[calls], outcome.stop[calls], program.driver[calls], threads[calls]),
            *(correlations[calls], recorded.call_names, program.result[calls]),
        )
        self._tables["NVTX_EVENTS"].add(
            *(outcome.stop[recorded.pushes], outcome.start[recorded.pops], _PUSH_POP, recorded.range_texts),
            *(process.global_tid(MAIN) + recorded.range_threads, NULL, recorded.range_domains, NULL, NULL),
        )
        for kind, selected in recorded.by_kind.items():
            lane = program.lane[selected]
            device = lane // LANES
            start, stop = outcome.operation_start[selected], outcome.operation_stop[selected]
            correlation = correlations[program.item[selected]]
            place = (start, stop, device, device + 1, 0, STREAM_IDS[lane % LANES], correlation, process.global_pid)
            node = np.where(program.node[selected] > 0, program.node[selected], NULL)
            self._write_operations(kind, place, device, program.what[selected], node)
        if program.syncs:
            self._write_syncs(process, program, outcome, correlations)
        for allocation in program.allocations:
            self._write_allocation(process, allocation, outcome, int(correlations[allocation.item]))
        if program.nodes:
            self._write_nodes(process, program, outcome)
        process.correlation += len(calls)

    def _write_operations(
        self, kind: int, place: tuple[Int64 | int, ...], device: Int64, what: Int64, node: Int64
    ) -> None:
        if kind == KERNEL:
            correlation = place[_PLACE.index("correlationId")]
            fixed = (1, 1, 1, 1, 0, 205258752, correlation, 32768)
            self._tables[_CUPTI + "KERNEL"].add(*place, *self._kernel_columns[:, what], *fixed, node, 0)
        elif kind == MEMCPY:
            copies = [self._server.copies[number] for number in what]
            columns = np.array([(each.size, each.kind, each.source, each.target) for each in copies], np.int64)
            between = columns.reshape(-1, 4)[:, 1] == 10
            ends = [np.where(between, device + shift, NULL) for shift in (0, 1)]
            self._tables[_CUPTI + "MEMCPY"].add(*place, *columns.reshape(-1, 4).T, *ends, node)
        else:
            sizes = np.array([self._server.memsets[number].size for number in what], np.int64)
            self._tables[_CUPTI + "MEMSET"].add(*place, 0, sizes, node, 2)

    def _write_syncs(self, process: Process, program: Program, outcome: Outcome, correlations: Int64) -> None:
        items = np.array([sync.item for sync in program.syncs])
        device = np.array([sync.device for sync in program.syncs])
        kind = np.array([sync.kind for sync in program.syncs])
        stream = np.array([_NO_ID if sync.stream < 0 else STREAM_IDS[sync.stream] for sync in program.syncs])
        event = np.where(kind <= STREAM_WAIT, 11 + items, _NO_ID)
        begin = outcome.start[items] + 150
        end = np.maximum(outcome.stop[items] - 150, begin)
        place = (begin, end, device, device + 1, NULL, stream, correlations[items], process.global_pid)
        self._tables[_CUPTI + "SYNCHRONIZATION"].add(*place, kind, event)

    def _write_nodes(self, process: Process, program: Program, outcome: Outcome) -> None:
        items = np.array([node.item for node in program.nodes])
        # The copies that make a graph executable come one after the other within the one call.
        turn = np.arange(len(items)) - np.searchsorted(items, items)
        begin = outcome.stop[items] - 300 + np.minimum(turn, 250)
        original = np.array([node.original or NULL for node in program.nodes])
        created = np.array([node.node for node in program.nodes])
        name = self._strings.id("Graph Node Creation")
        who = process.global_tid(MAIN)
        self._tables["CUDA_GRAPH_NODE_EVENTS"].add(begin, begin, _NODE_CREATION, who, name, created, original)

    def _write_allocation(self, process: Process, allocation: Allocation, outcome: Outcome, correlation: int) -> None:
        known = process.allocated.setdefault((allocation.device, allocation.size), [])
        if allocation.release:
            address = known.pop()
        else:
            address = process.address
            process.address += allocation.size
            known.append(address)
        pool: tuple[int, ...] = (NULL, NULL, NULL, NULL)
        if allocation.pool:
            process.used_bytes += -allocation.size if allocation.release else allocation.size
            pool = (int(STREAM_IDS[0]), _POOL, 1 << 29, process.used_bytes)
        device = allocation.device
        self._tables["CUDA_GPU_MEMORY_USAGE_EVENTS"].add(
            *(outcome.stop[allocation.item : allocation.item + 1] - 200, process.global_pid, device, device + 1),
            *(address, 0, allocation.size, 2, allocation.release, correlation, *pool),
        )

    def request(self, process: Process, start: int, end: int, number: int, closer: int) -> None:
        """Record a request as a start/end range, which the thread `closer` ends; an `end` of NULL leaves it open."""
        by = process.global_tid(closer) if closer != MAIN else NULL
        text = self._strings.id("request")
        self._tables["NVTX_EVENTS"].add(
            *(np.array([start], np.int64), end, _START_END, NULL, process.global_tid(MAIN), by),
            *(SERVER_DOMAIN, number, text),
        )

    def flush(self, process: Process, at: int) -> None:
        """Record that the profiler empties its buffers at `at` ns, on a thread of its own."""
        start = np.array([at], np.int64)
        name = self._strings.id("CUDA profiling data flush overhead")
        self._tables["PROFILER_OVERHEAD"].add(start, start + 2_500_000, process.global_tid(_PROFILER_THREAD), name, 0)

    # ---- at the end

    def finish(self, processes: Sequence[Process], end: int) -> None:
        """Write the pending rows, and the tables that describe the events; `end` is that of the capture."""
        for table in self._tables.values():
            table.flush()
        devices = range(self._server.devices)
        for process in processes:
            self._insert("PROCESSES", [(process.global_pid, process.pid, "python")])
            threads = [(self._strings.id(name), 20, process.global_tid(number)) for number, name in _THREADS.items()]
            self._insert("ThreadNames", threads)
            for device in devices:
                known = (device, device, process.pid, _make_uuid(device), GPU["smCount"])
                self._insert("TARGET_INFO_CUDA_DEVICE", [known])
                self._insert("TARGET_INFO_CUDA_CONTEXT_INFO", [(7, 0, 1, process.pid, device, device + 1, 0, 0)])
                flags = zip(STREAM_IDS.tolist(), (3, 2, 2), strict=True)
                streams = [(stream, 0, 1, process.pid, device + 1, 0, flag) for stream, flag in flags]
                self._insert("TARGET_INFO_CUDA_STREAM", streams)
        for device in devices:
            bus = f"0000:{7 + 8 * device:02x}:00.0"
            facts = {**GPU, "id": device, "busLocation": bus, "uuid": _make_uuid(device), "pwGpuId": device}
            columns, marks = ", ".join(facts), ", ".join("?" * len(facts))
            self._database.execute(f"INSERT INTO TARGET_INFO_GPU ({columns}) VALUES ({marks})", list(facts.values()))
        self._insert("TARGET_INFO_SESSION_START_TIME", [(UTC_EPOCH_NS, *["2026-01-01T00:00:00"] * 2)])
        self._insert("ANALYSIS_DETAILS", [(_MACHINE, end, 900_000_000, 900_000_000 + end)])
        self._insert("META_DATA_CAPTURE", [("DEVICE_ID", "Local (CLI)"), ("GENERATED_BY", "generate_trace.py")])
        self._insert("META_DATA_EXPORT", _export_rows())
        for name, rows in ENUMS.items():
            self._insert(name, rows)
        self._insert("StringIds", self._strings.rows())

    def _insert(self, table: str, rows: Iterable[Sequence[object]]) -> None:
        for row in rows:
            self._database.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", row)


def _make_uuid(device: int) -> str:
    return f"00000000-0000-4000-8000-{device:012d}"


def _export_rows() -> list[tuple[str, str]]:
    major, minor, micro = SCHEMA_VERSION.split(".")
    return [
        ("EXPORT_PRODUCT_NAME", "NVIDIA Nsight Systems"),
        ("EXPORT_PRODUCT_VERSION", PRODUCT_VERSION),
        ("EXPORT_SCHEMA_VERSION", SCHEMA_VERSION),
        ("EXPORT_SCHEMA_VERSION_MAJOR", major),
        ("EXPORT_SCHEMA_VERSION_MINOR", minor),
        ("EXPORT_SCHEMA_VERSION_MICRO", micro),
        ("EXPORT_PARAM_EXPORT_TYPE", "SQLite"),
    ]
