"""The plainest reading of a recording: loops over the rows of its file, without any code of traceable's.

The checks compare what traceable reports with this. Times are ns, on the clock of the file.
"""

from __future__ import annotations

import gzip
import json
import re
import sqlite3
from collections import defaultdict
from contextlib import closing
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

_PUSH_POP, _START_END = 59, 60  # nsys's event types of ranges
_BRACKETS = re.compile(r" \[[^\]]*\]$")
"""What `--collector torch` puts behind the name of a range: payload, domain, category."""

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
    """What ran on the GPU. `grid` is its first number, `node` that in a CUDA graph; both None where not recorded."""

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
    """What belongs to the ranges of a name."""

    operations: int = 0
    total_ns: int = 0
    inherited_ns: int = 0


def read_sqlite(path: Path) -> Plain:
    """Read a database in nsys's schema."""
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
    return plain


def read_kineto(path: Path) -> Plain:
    """Read a trace of Kineto's, of one process."""
    events = kineto_events(path)
    plain = Plain()
    calls: dict[int, Call] = {}
    for event in events:
        category, args = event.get("cat"), event.get("args", {})
        if event.get("ph") != "X" or "ts" not in event:
            continue
        start = _ns(event["ts"])
        end = start + _ns(event.get("dur", 0))
        if category == "user_annotation":
            name = _BRACKETS.sub("", str(event["name"]))
            plain.ranges.append(Range(name, start, end, event["tid"], _payload(str(event["name"]))))
        elif category in ("cuda_runtime", "cuda_driver"):
            call = Call(str(event["name"]), start, end, event["tid"])
            plain.calls.append(call)
            calls[int(args.get("correlation", 0))] = call
    for event in events:
        kind, args = _OPERATION_CATEGORIES.get(str(event.get("cat"))), event.get("args", {})
        if kind is not None and event.get("ph") == "X":
            start = _ns(event["ts"])
            node = args.get("graph node id")
            grid = args.get("grid")
            plain.operations.append(
                Operation(
                    kind,
                    str(event["name"]),
                    start,
                    start + _ns(event.get("dur", 0)),
                    0,
                    calls.get(int(args.get("correlation", 0))),
                    int(grid[0]) if grid else None,
                    int(node) if node else None,
                )
            )
    return plain


def kineto_events(path: Path) -> list[dict[str, Any]]:
    """Return the events of a trace of Kineto's, plain or gzip; times keep all their digits."""
    content = path.read_bytes()
    content = gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content
    events: list[dict[str, Any]] = json.loads(content, parse_float=Decimal)["traceEvents"]
    return events


def _ns(microseconds: Any) -> int:
    return int(Decimal(microseconds) * 1000)


def _payload(name: str) -> int | None:
    found = re.search(r" \[.*#(-?\d+).*\]$", name)
    return int(found[1]) if found else None


def sums_by_name(plain: Plain) -> dict[str, Sums]:
    """Return what belongs to the push/pop ranges of each name.

    To each range around the launch call on its thread; where there is none, to each of the one other thread that had a
    range open all through the call.
    """
    found: dict[str, Sums] = defaultdict(Sums)
    for operation in plain.operations:
        call = operation.call
        if call is None:
            continue
        around = [one for one in plain.ranges if not one.start_end and one.start <= call.start and call.end <= one.end]
        own = [one for one in around if one.thread == call.thread]
        inherited = not own and len({one.thread for one in around}) == 1
        for one in {one.name: one for one in (around if inherited else own)}:
            sums = found[one]
            sums.operations += 1
            sums.total_ns += operation.end - operation.start
            sums.inherited_ns += (operation.end - operation.start) if inherited else 0
    return dict(found)


def steps_by_grid(kernels: list[Operation]) -> list[int] | None:
    """Return of which step each kernel is where a step's grid grows with its number, by start; None where that fails.

    The grid of step n is n + 1 times as large as that of step 0, whatever the block size.
    """
    grids = [kernel.grid or 0 for kernel in kernels]
    differences = {b - a for a, b in zip(sorted(grids), sorted(grids)[1:], strict=False)}
    if len(differences) != 1 or 0 in differences:
        return None
    (unit,) = differences
    return None if any(grid % unit for grid in grids) else [grid // unit - 1 for grid in grids]
