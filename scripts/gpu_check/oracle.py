"""A simple reading of a recording: loops over the rows of its file, without traceable's code.

The checks compare traceable's report with this. Times are ns, on the clock of the file.
"""

from __future__ import annotations

import gzip
import json
import re
import sqlite3
from collections import defaultdict
from contextlib import closing
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

_PUSH_POP, _START_END = 59, 60  # nsys's event types of ranges
_BRACKETS = re.compile(r" \[[^\]]*\]$")
"""The suffix of range names with `--collector torch`: payload, domain, category."""

_OPERATION_TABLES = {
    "kernel": "CUPTI_ACTIVITY_KIND_KERNEL",
    "copy": "CUPTI_ACTIVITY_KIND_MEMCPY",
    "memset": "CUPTI_ACTIVITY_KIND_MEMSET",
}
_OPERATION_CATEGORIES = {"kernel": "kernel", "gpu_memcpy": "copy", "gpu_memset": "memset"}


@dataclass(frozen=True)
class Range:
    """A push/pop range, or with `start_end` one that has a handle."""

    name: str
    start: int
    end: int
    thread: Any
    payload: int | None = None
    start_end: bool = False
    other_end: bool = False


@dataclass(frozen=True)
class Call:
    """A call of CUDA's API."""

    name: str
    start: int
    end: int
    thread: Any


@dataclass(frozen=True)
class Operation:
    """An operation on the GPU. `grid` is its first dimension, `node` its id in a CUDA graph; None if not recorded."""

    kind: str
    name: str
    start: int
    end: int
    process: int
    call: Call | None
    grid: int | None = None
    node: int | None = None


@dataclass
class Plain:
    """A recording."""

    ranges: list[Range] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    operations: list[Operation] = field(default_factory=list)

    @property
    def kernels(self) -> list[Operation]:
        """The kernels, by start."""
        return sorted((one for one in self.operations if one.kind == "kernel"), key=lambda one: one.start)

    def named(self, name: str) -> list[Range]:
        """Return the ranges of a name, by start."""
        return sorted((one for one in self.ranges if one.name == name), key=lambda one: one.start)


@dataclass
class Sums:
    """The GPU operations of the ranges of a name."""

    operations: int = 0
    total_ns: int = 0
    inherited_ns: int = 0


def read_sqlite(path: Path) -> Plain:
    """Read a database in nsys's schema; the embedded recorder's with the GPU activity in the files that it lists."""
    plain = Plain()
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as database:
        database.row_factory = sqlite3.Row
        tables = {row["name"] for row in database.execute("SELECT name FROM sqlite_master")}
        texts = {row["id"]: row["value"] for row in database.execute("SELECT id, value FROM StringIds")}
        for row in database.execute("SELECT * FROM NVTX_EVENTS WHERE end IS NOT NULL"):
            if row["eventType"] in (_PUSH_POP, _START_END):
                name = row["text"] if row["text"] is not None else texts.get(row["textId"], "")
                handled = row["eventType"] == _START_END
                place = (row["start"], row["end"], row["globalTid"], row["int64Value"])
                plain.ranges.append(Range(name, *place, handled, row["endGlobalTid"] is not None))
        calls: dict[tuple[int, int], Call] = {}
        if "CUPTI_ACTIVITY_KIND_RUNTIME" in tables:
            for row in database.execute("SELECT * FROM CUPTI_ACTIVITY_KIND_RUNTIME"):
                call = Call(texts.get(row["nameId"], ""), row["start"], row["end"], row["globalTid"])
                plain.calls.append(call)
                calls[row["globalTid"] >> 24, row["correlationId"]] = call
        for kind, table in _OPERATION_TABLES.items():
            for row in database.execute(f"SELECT * FROM {table}") if table in tables else ():
                columns = row.keys()
                process = row["globalPid"] >> 24
                name = texts.get(row["demangledName"], "") if kind == "kernel" else kind
                grid = row["gridX"] if "gridX" in columns else None
                node = row["graphNodeId"] if "graphNodeId" in columns else None
                launch = calls.get((process, row["correlationId"]))
                operation = Operation(kind, name, row["start"], row["end"], process, launch, grid, node or None)
                plain.operations.append(operation)
        if "TRACEABLE_GPU_FILES" in tables:
            threads = {
                (row["globalTid"] >> 24, row["pthread"] & 0xFFFFFFFF): row["globalTid"]
                for row in database.execute("SELECT * FROM TRACEABLE_THREADS WHERE pthread IS NOT NULL")
            }
            for row in database.execute("SELECT * FROM TRACEABLE_GPU_FILES"):
                file = path.parent / "gpu" / row["name"]
                _add_gpu_file(plain, file, row["globalPid"] >> 24, row["clockOffset"], threads)
    return plain


def _add_gpu_file(plain: Plain, path: Path, process: int, offset: int, threads: dict[tuple[int, int], int]) -> None:
    """Add the calls and operations of a Kineto trace, on the clock of the database.

    Args:
        plain: the database.
        path: the trace.
        process, threads: as the database numbers them, threads by process and the lower half of pthread_self.
        offset: what to add to CLOCK_MONOTONIC.
    """
    trace = read_kineto(path)
    starts = {one.name: one.start for one in trace.ranges}
    clock: list[tuple[int, int]] = [
        (starts[f"traceable.clock {number}"], (before + after) // 2)
        for number, before, after in read_kineto_document(path)["traceable_gpu"]["markers"]
    ]
    ends = [clock[: len(clock) // 2], clock[len(clock) // 2 :]]
    first: list[int]
    last: list[int]
    first, last = ([sum(column) // len(column) for column in zip(*end, strict=True)] for end in ends)

    def shift(time: int) -> int:
        drift = (last[1] - last[0]) - (first[1] - first[0])
        return time + first[1] - first[0] + drift * (time - first[0]) // (last[0] - first[0]) + offset

    calls: dict[Call | None, Call] = {}
    for one in trace.calls:
        thread = threads.get((process, one.thread & 0xFFFFFFFF), process << 24 | one.thread)
        calls[one] = replace(one, start=shift(one.start), end=shift(one.end), thread=thread)
    plain.calls += calls.values()
    plain.operations += [
        replace(one, start=shift(one.start), end=shift(one.end), process=process, call=calls.get(one.call))
        for one in trace.operations
    ]


def read_kineto(path: Path) -> Plain:
    """Read a Kineto trace, of one process."""
    events = read_kineto_events(path)
    plain = Plain()
    calls: dict[int, Call] = {}
    for event in events:
        category, args = event.get("cat"), event.get("args", {})
        if event.get("ph") != "X" or "ts" not in event:
            continue
        start = _to_ns(event["ts"])
        end = start + _to_ns(event.get("dur", 0))
        if category == "user_annotation":
            name = _BRACKETS.sub("", str(event["name"]))
            plain.ranges.append(Range(name, start, end, event["tid"], _parse_payload(str(event["name"]))))
        elif category in ("cuda_runtime", "cuda_driver"):
            call = Call(str(event["name"]), start, end, event["tid"])
            plain.calls.append(call)
            calls[int(args.get("correlation", 0))] = call
    for event in events:
        kind, args = _OPERATION_CATEGORIES.get(str(event.get("cat"))), event.get("args", {})
        if kind is not None and event.get("ph") == "X":
            start = _to_ns(event["ts"])
            node = args.get("graph node id")
            grid = args.get("grid")
            plain.operations.append(
                Operation(
                    kind,
                    str(event["name"]),
                    start,
                    start + _to_ns(event.get("dur", 0)),
                    0,
                    calls.get(int(args.get("correlation", 0))),
                    int(grid[0]) if grid else None,
                    int(node) if node else None,
                )
            )
    return plain


def read_kineto_events(path: Path) -> list[dict[str, Any]]:
    """Return the events of a Kineto trace, plain or gzip; times keep all their digits."""
    events: list[dict[str, Any]] = read_kineto_document(path)["traceEvents"]
    return events


def read_kineto_document(path: Path) -> dict[str, Any]:
    """Return the content of a Kineto trace, plain or gzip; times keep all their digits."""
    content = path.read_bytes()
    content = gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content
    return dict(json.loads(content, parse_float=Decimal))


def _to_ns(microseconds: Any) -> int:
    return int(Decimal(microseconds) * 1000)


def _parse_payload(name: str) -> int | None:
    match = re.search(r" \[.*#(-?\d+).*\]$", name)
    return int(match[1]) if match else None


def sum_by_name(plain: Plain) -> dict[str, Sums]:
    """Return the GPU operations of the push/pop ranges of each name.

    An operation belongs to each range around its launch call on the same thread; without one, to each range of the only
    other thread that had a range open during the whole call.
    """
    sums_of: dict[str, Sums] = defaultdict(Sums)
    for operation in plain.operations:
        call = operation.call
        if call is None:
            continue
        around = [
            range_
            for range_ in plain.ranges
            if not range_.start_end and range_.start <= call.start and call.end <= range_.end
        ]
        own = [range_ for range_ in around if range_.thread == call.thread]
        inherited = not own and len({range_.thread for range_ in around}) == 1
        for range_ in {range_.name: range_ for range_ in (around if inherited else own)}:
            sums = sums_of[range_]
            sums.operations += 1
            sums.total_ns += operation.end - operation.start
            sums.inherited_ns += (operation.end - operation.start) if inherited else 0
    return dict(sums_of)


def number_steps_by_grid(kernels: list[Operation]) -> list[int] | None:
    """Return the step of each kernel, by start, if a step's grid grows with its number; else None.

    The grid of step n is n + 1 times as large as that of step 0, whatever the block size.
    """
    grids = [kernel.grid or 0 for kernel in kernels]
    differences = {b - a for a, b in zip(sorted(grids), sorted(grids)[1:], strict=False)}
    if len(differences) != 1 or 0 in differences:
        return None
    (unit,) = differences
    return None if any(grid % unit for grid in grids) else [grid // unit - 1 for grid in grids]
