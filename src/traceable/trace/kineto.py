"""Traces of torch.profiler (Kineto's JSON) become a `Trace`: one file, or a directory with those of several ranks.

Ranges are what `record_function` named. torch's own operators and Python functions are left out: they would stand
between a range and its kernels on every path, and around every launch of the autograd thread, so that the range which
waits for `backward()` had none of its kernels. Kineto's GPU annotations are left out too: what of the GPU belongs to a
range is found from the launches, as for every other trace. docs/kineto.md says what becomes of what.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np

from traceable.errors import Message, TraceError
from traceable.trace import model
from traceable.trace.intern import Names
from traceable.trace.kineto_annotations import annotation_columns
from traceable.trace.kineto_columns import OPERATIONS, Table
from traceable.trace.kineto_file import File, read_file, readable, whole
from traceable.trace.kineto_gpus import devices, gpu_numbers, renumbered
from traceable.trace.kineto_json import Document
from traceable.trace.model import NULL, Int32, NDArray, Trace
from traceable.trace.rows import folded, same, start_order

APART_NS = 60 * 10**9
"""How long nothing may have been recorded between two files that are read as one. The ranks of a job record the same
steps, so that their files overlap, and windows of a process follow each other; what is further apart is mostly of
another run, and would be one recording in which the GPU does nothing for hours or days."""

_SUFFIXES = (".json", ".json.gz")
_TORCH_SUFFIXES = (".pt.trace.json", ".pt.trace.json.gz")
"""What torch's own handlers call their files; where a directory has such, its other JSON files are something else."""

_THREAD_NAME = re.compile(r"thread -?\d+ \((.*)\)", re.DOTALL)

_TABLES = {
    "ranges": "NVTX_EVENTS",
    "calls": "CUPTI_ACTIVITY_KIND_RUNTIME",
    "kernels": "CUPTI_ACTIVITY_KIND_KERNEL",
    "copies": "CUPTI_ACTIVITY_KIND_MEMCPY",
    "memsets": "CUPTI_ACTIVITY_KIND_MEMSET",
    "synchronisations": "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
    "overheads": "PROFILER_OVERHEAD",
}
"""Under which name nsys has the same events: by these names the questions tell what was recorded."""


def is_trace(path: Path) -> bool:
    """Return whether the file is a Chrome trace in JSON, plain or gzip, whole or not.

    Raises:
        TraceError: it can't be read.
    """
    with Document(path) as document:
        return document.begins_like_a_trace()


def files_in(directory: Path) -> list[Path]:
    """Return the trace files that lie in a directory itself, by name.

    Raises:
        TraceError: it can't be read.
    """
    try:
        entries = sorted(entry for entry in directory.iterdir() if entry.name.endswith(_SUFFIXES) and entry.is_file())
    except OSError as error:
        found = f"{directory} can't be read: {error.strerror}"
        raise TraceError("file_unreadable", found, "check its permissions") from None
    chosen = [entry for entry in entries if entry.name.endswith(_TORCH_SUFFIXES)] or entries
    return [entry for entry in chosen if not entry.name.startswith(".") and is_trace(entry)]


def load(path: Path, *, allow_unrelated: bool = False) -> Trace:
    """Read a trace of torch.profiler.

    Args:
        path: a file, or a directory with the files of several ranks, which are put on one clock.
        allow_unrelated: read files as one recording even where between them nothing was recorded for `APART_NS`.

    Raises:
        TraceError: a file is not whole or no such trace, or they can't be put together; the message says which.
    """
    paths = files_in(path) if path.is_dir() else [path]
    if not paths:
        found = f"{path} is a directory without a trace of torch.profiler"
        raise TraceError("no_trace_in_directory", found, "name the file that is to be read")
    names = Names()
    geometries: dict[tuple[int, ...], int] = {}
    files = [read_file(one, names, geometries) for one in paths]
    return _Merger(path, files, names, geometries).trace(allow_unrelated)


class _Merger:
    """Makes one trace of files: processes and threads side by side, times on one clock."""

    def __init__(self, path: Path, files: list[File], names: Names, geometries: dict[tuple[int, ...], int]) -> None:
        self.path = path
        self.files = sorted(files, key=lambda file: (file.rank is None, file.rank or 0, str(file.path)))
        self.names, self.geometries = names, geometries
        self.processes: dict[tuple[Any, ...], model.Process] = {}
        self.threads: dict[tuple[Any, ...], model.Thread] = {}
        self.gpus = gpu_numbers(self.files)

    def trace(self, allow_unrelated: bool) -> Trace:
        self._check_alone()
        zero_ns = self._zeros()
        if not allow_unrelated:
            self._check_together(zero_ns)
        parts = [self._columns(file, zero) for file, zero in zip(self.files, zero_ns, strict=True)]
        kinds = {kind: _joined([part[kind] for part in parts]) for kind in parts[0]}
        ends = [
            file.events.end_ns - zero
            for file, zero in zip(self.files, zero_ns, strict=True)
            if file.events.end_ns is not None
        ]
        wall = self.files[0].to_wall_ns
        nothing = _nothing()
        geometries = np.array(list(self.geometries), np.int64).reshape(-1, len(model.GEOMETRY))
        return Trace(
            source=self._source(frozenset(table for kind, table in _TABLES.items() if len(kinds[kind]["start_ns"]))),
            names=tuple(map(readable, self.names.all())),
            processes=tuple(self.processes.values()),
            threads=tuple(self.threads.values()),
            utc_epoch_ns=None if wall is None else zero_ns[0] + wall,
            capture_ns=max(ends) if len(ends) == len(self.files) else None,
            ranges=model.Ranges(**kinds["ranges"]),
            marks=model.Marks(**kinds["marks"]),
            counters=model.Counters(**kinds["counters"]),
            windows=model.Windows(**kinds["windows"]),
            calls=model.Calls(**kinds["calls"]),
            kernels=model.Kernels(**kinds["kernels"]),
            copies=model.Copies(**kinds["copies"]),
            memsets=model.Memsets(**kinds["memsets"]),
            synchronisations=model.Synchronisations(**kinds["synchronisations"]),
            overheads=model.Overheads(**kinds["overheads"]),
            geometries=geometries,
            devices=devices(self.files, self.gpus),
            cuda_devices={},
            **nothing,
        )

    def _check_alone(self) -> None:
        """Refuse two files of the same process and time: one would be a copy of the other."""
        of_process: dict[tuple[Any, ...], list[tuple[int, int, Path]]] = {}
        for file in self.files:
            first, last = file.events.first_ns, file.events.last_ns
            if first is not None and last is not None:
                of_process.setdefault(file.process(file.main), []).append((first, last, file.path))
        for spans in of_process.values():
            spans.sort()
            for (_, last, path), (first, _, other) in itertools.pairwise(spans):
                if first < last:
                    found = f"{path} and {other} are of the same process and time"
                    raise TraceError("traces_overlap", found, "give one of them, or remove the other")

    def _check_together(self, zero_ns: list[int]) -> None:
        """Refuse files between which nothing was recorded for longer than APART_NS."""
        spans = [
            (begin - zero, max(begin, file.events.last_ns or begin, file.events.end_ns or begin) - zero, file.path)
            for file, zero in zip(self.files, zero_ns, strict=True)
            if (begin := file.begin_ns) is not None
        ]
        spans.sort()
        for i in range(1, len(spans)):
            _, end, before = max(spans[:i], key=lambda span: span[1])
            begin, _, path = spans[i]
            if begin - end > APART_NS:
                apart = timedelta(seconds=(begin - end) // 10**9)
                raise TraceError(
                    "traces_unrelated",
                    f"{before} and {path} were recorded {apart} apart, so they are probably of different runs",
                    "report each file by itself, or read them as one recording with --allow-unrelated "
                    "(allow_unrelated=True in Python)",
                )

    def _zeros(self) -> list[int]:
        """Return of each file what time 0 of the trace is on its own clock."""
        begins = [file.begin_ns for file in self.files]
        if len(self.files) == 1:
            return [begins[0] or 0]
        lost = [
            file.path
            for file, begin in zip(self.files, begins, strict=True)
            if begin is not None and file.to_wall_ns is None
        ]
        if lost:
            found = f"{lost[0]} says no wall clock, by which it could be put beside the others"
            raise TraceError("wall_clock_unknown", found, "give it alone")
        walls = [file.to_wall_ns or 0 for file in self.files]
        zero = min((begin + wall for begin, wall in zip(begins, walls, strict=True) if begin is not None), default=0)
        return [zero - wall for wall in walls]

    def _columns(self, file: File, zero_ns: int) -> dict[str, dict[str, NDArray[Any]]]:
        """Return the columns of each kind of event of one file, as `Trace` has them."""
        events = file.events
        threads = np.array([self._thread(file, *key) for key in events.threads], np.int32)
        process_of = _process_of_correlations(file)
        found: dict[str, dict[str, NDArray[Any]]] = {
            "calls": _calls(events.calls, threads),
            "overheads": {"name": _int32(events.overheads, "name")},
        }
        gpus = self.gpus[file.path]
        for kind, own in OPERATIONS.items():
            table: Table = getattr(events, kind)
            columns: dict[str, NDArray[Any]] = {name: _int32(table, name) for name in ("context", "stream", *own)}
            columns["device"] = renumbered(_int32(table, "device"), gpus)
            columns["correlation"] = table.column("correlation")
            columns["graph_node"] = folded(table.column("graph_node"))
            if "size_bytes" in table.columns:
                columns["size_bytes"] = table.column("size_bytes")
            columns["process"] = self._processes_of(file, table, process_of)
            found[kind] = columns
        found["kernels"]["short_name"] = same(-1, len(events.kernels), np.int32)
        found["overheads"]["process"] = self._processes_of(file, events.overheads, {})
        for kind, columns in found.items():
            table = getattr(events, kind)
            columns["start_ns"] = table.column("start") - zero_ns
            columns["end_ns"] = table.column("end") - zero_ns
        known = list(self.threads.values())
        processes = np.array([known[thread].process for thread in threads.tolist()], np.int32)
        return {**found, **annotation_columns(events, zero_ns, self.names, threads, processes)}

    def _processes_of(self, file: File, table: Table, process_of: dict[int, Any]) -> Int32:
        if not len(table):
            return np.empty(0, np.int32)
        if not process_of:
            return same(self._process(file, file.main), len(table), np.int32)
        numbers = {correlation: self._process(file, pid) for correlation, pid in process_of.items()}
        main = self._process(file, file.main)
        return np.array([numbers.get(one, main) for one in table.column("correlation").tolist()], np.int32)

    def _process(self, file: File, pid: Any) -> int:
        """Return the number of a process."""
        key = file.process(pid)
        if key not in self.processes:
            name = readable(file.events.process_names.get(pid, ""))
            if file.rank is not None:
                name = f"rank {file.rank} ({name})" if name else f"rank {file.rank}"
            self.processes[key] = model.Process((len(self.processes) + 1) << 24, whole(pid), name)
        return list(self.processes).index(key)

    def _thread(self, file: File, pid: Any, tid: Any) -> int:
        """Return the number of a thread."""
        process = self._process(file, pid)
        key = (process, tid)
        if key not in self.threads:
            stated = readable(file.events.thread_names.get((pid, tid), ""))
            within = _THREAD_NAME.fullmatch(stated)
            global_id = (process + 1) << 24 | (len(self.threads) + 1)
            self.threads[key] = model.Thread(global_id, whole(tid), process, within[1] if within else stated)
        return list(self.threads).index(key)

    def _source(self, tables: frozenset[str]) -> model.Source:
        return model.Source(
            path=str(self.path),
            size_bytes=sum(file.size_bytes for file in self.files),
            product="torch.profiler",
            version="",
            schema="",
            tables=tables,
            notes=tuple(self._notes()),
        )

    def _notes(self) -> Iterable[Message]:
        if len(self.files) > 1:
            found = f"{len(self.files)} files are read as one, by the wall clocks of their hosts"
            yield Message("files_read_as_one", found)
        moved = [
            f"GPU {number} is device {device} of rank {file.rank}"
            for file in self.files
            for device, number in sorted(self.gpus[file.path].items())
            if device != number
        ]
        if moved:
            yield Message("gpus_renumbered", f"ranks have GPUs of their own: {', '.join(moved)}")
        left_out: Counter[str] = sum((file.events.left_out for file in self.files), Counter())
        if left_out:
            told = ", ".join(f"{count} {readable(kind)}" for kind, count in sorted(left_out.items())[:_KINDS_TOLD])
            more = f" and {len(left_out) - _KINDS_TOLD} other kinds" if len(left_out) > _KINDS_TOLD else ""
            yield Message("events_left_out", f"events left out (traceable help kineto): {told}{more}")
        untimed = sum(file.events.untimed for file in self.files)
        if untimed:
            found = f"{untimed} events without a time and a length that can be: left out"
            yield Message("events_without_time", found)


_KINDS_TOLD = 12


def _calls(table: Table, threads: Int32) -> dict[str, NDArray[Any]]:
    return {
        "name": _int32(table, "name"),
        "thread": threads[table.column("thread")],
        "correlation": table.column("correlation"),
        "driver": table.column("driver").astype(np.int8),
        "return_value": same(NULL, len(table), np.int64),
    }


def _process_of_correlations(file: File) -> dict[int, Any]:
    """Return the pid whose call has each correlation, where the file has calls of several processes; else nothing.

    What calls of two processes have is the main one's.
    """
    calls = file.events.calls
    pids = [pid for pid, _ in file.events.threads]
    if len(set(pids)) < 2:
        return {}
    found: dict[int, Any] = {}
    for correlation, thread in zip(calls.column("correlation").tolist(), calls.column("thread").tolist(), strict=True):
        pid = pids[thread]
        found[correlation] = pid if found.get(correlation, pid) == pid else file.main
    return found


def _joined(parts: Sequence[dict[str, NDArray[Any]]]) -> dict[str, NDArray[Any]]:
    """Return the rows of all parts by start, of equal ones the longer first."""
    columns = (
        parts[0] if len(parts) == 1 else {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    )
    order = start_order(columns["start_ns"], columns.get("end_ns", columns["start_ns"]))
    # A column of a table is a view of it: what is in order is copied too, or it would keep all others in memory.
    return {
        name: column if column.strides == (0,) else np.ascontiguousarray(column if order is None else column[order])
        for name, column in columns.items()
    }


def _int32(table: Table, name: str) -> Int32:
    return table.column(name).astype(np.int32)


def _nothing() -> dict[str, Any]:
    """Return the kinds of events that Kineto has none of, by their field in `Trace`."""
    none, small = np.empty(0, np.int64), np.empty(0, np.int32)
    tiny = np.empty(0, np.int8)
    return {
        "graph_launches": model.GraphLaunches(none, none, small, small, small, small, none, none, none),
        "graph_nodes": model.GraphNodes(none, small, none, none),
        "allocations": model.Allocations(none, small, small, none, small, tiny, none, none),
    }
