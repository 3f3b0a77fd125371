"""Traces of torch.profiler (Kineto's JSON) become a `Trace`: one file, or a directory with those of several ranks.

Ranges come from `record_function`. torch's own operators and Python functions are excluded: they would be between a
range and its kernels on every path, and around every launch of the autograd thread, so that the range which waits for
`backward()` had none of its kernels. Kineto's GPU annotations are excluded too: GPU work is attributed to ranges by its
launches, as for every other trace. docs/kineto.md lists how each kind of event is treated.

Annotations become ranges, marks, samples of counters and windows; what our own hold in addition to a name is decoded
as in an nsys trace, by the rules of `protocol.nvtx`. CUDA numbers its devices per process: the GPU of each device of
each file is determined here too.
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
from traceable.protocol.nvtx import (
    COUNTER_DOMAIN,
    NO_FIELDS,
    PAYLOAD_DOMAIN,
    WINDOW_DOMAIN,
    WINDOW_PREFIX,
    is_identity,
)
from traceable.trace import model
from traceable.trace.intern import Names
from traceable.trace.kineto_events import OPERATIONS, File, FileEvents, Table, escape_text, parse_id, read_file
from traceable.trace.kineto_json import Document
from traceable.trace.model import NULL, PUSH_POP, Bool, Int32, NDArray, Trace
from traceable.trace.payload_marks import PayloadMarks, is_segment_domain, match_payload_marks
from traceable.trace.rows import argsort_by_start, distinct, fold_constant, make_constant_column

MAX_DISTANCE_NS = 60 * 10**9
"""How long nothing may have been recorded between two files that are read as one. The ranks of a job record the same
steps, so that their files overlap, and windows of a process follow each other; what is further apart is mostly of
another run, and would be one recording in which the GPU does nothing for hours or days."""

_SUFFIXES = (".json", ".json.gz")
_TORCH_SUFFIXES = (".pt.trace.json", ".pt.trace.json.gz")
"""The suffixes that torch's own handlers use; if a directory has such files, its other JSON files are ignored."""

_THREAD_NAME = re.compile(r"thread -?\d+ \((.*)\)", re.DOTALL)

_TABLES = {
    "ranges": "NVTX_EVENTS",
    "calls": "CUPTI_ACTIVITY_KIND_RUNTIME",
    "kernels": "CUPTI_ACTIVITY_KIND_KERNEL",
    "copies": "CUPTI_ACTIVITY_KIND_MEMCPY",
    "memsets": "CUPTI_ACTIVITY_KIND_MEMSET",
    "synchronizations": "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
    "overheads": "PROFILER_OVERHEAD",
}
"""The nsys tables of the same events: the analysis checks by these names what was recorded."""

_KINDS_LISTED = 12

Columns = dict[str, NDArray[Any]]


def is_trace(path: Path) -> bool:
    """Return whether the file is a Chrome trace in JSON, plain or gzip, whole or not.

    Raises:
        TraceError: it can't be read.
    """
    with Document(path) as document:
        return document.is_trace()


def list_trace_files(directory: Path) -> list[Path]:
    """Return the trace files of a directory, without its subdirectories, by name.

    Raises:
        TraceError: it can't be read.
    """
    try:
        entries = sorted(entry for entry in directory.iterdir() if entry.name.endswith(_SUFFIXES) and entry.is_file())
    except OSError as error:
        found = f"{directory} can't be read: {error.strerror}"
        raise TraceError("file_unreadable", found, "check its permissions") from None
    candidates = [entry for entry in entries if entry.name.endswith(_TORCH_SUFFIXES)] or entries
    return [entry for entry in candidates if not entry.name.startswith(".") and is_trace(entry)]


def load(path: Path, *, allow_unrelated: bool = False) -> Trace:
    """Read a trace of torch.profiler.

    Args:
        path: a file, or a directory with the files of several ranks, which are put on one clock.
        allow_unrelated: read files as one recording even where between them nothing was recorded for `MAX_DISTANCE_NS`.

    Raises:
        TraceError: a file is incomplete or not such a trace, or the files can't be combined.
    """
    paths = list_trace_files(path) if path.is_dir() else [path]
    if not paths:
        found = f"no torch.profiler trace in directory {path}"
        raise TraceError("no_trace_in_directory", found, "give the trace file itself")
    names = Names()
    geometries: dict[tuple[int, ...], int] = {}
    files = [read_file(one, names, geometries) for one in paths]
    return combine_files(path, files, names, geometries, allow_unrelated=allow_unrelated)


def combine_files(
    path: Path,
    files: list[File],
    names: Names,
    geometries: dict[tuple[int, ...], int],
    *,
    allow_unrelated: bool = False,
) -> Trace:
    """Return files that were read as one trace.

    Args:
        path: of the trace.
        files: read by `read_file` with `names` and `geometries`.
        names, geometries: the numbering of names and launch geometries.
        allow_unrelated: see `load`.

    Raises:
        TraceError: the files can't be combined.
    """
    return _Merger(path, files, names, geometries).trace(allow_unrelated)


class _Merger:
    """Combines files into one trace: their processes and threads, with all times on one clock."""

    def __init__(self, path: Path, files: list[File], names: Names, geometries: dict[tuple[int, ...], int]) -> None:
        self.path = path
        self.files = sorted(files, key=lambda file: (file.rank is None, file.rank or 0, str(file.path)))
        self.names, self.geometries = names, geometries
        self.processes: dict[tuple[Any, ...], model.Process] = {}
        self.threads: dict[tuple[Any, ...], model.Thread] = {}
        self.gpus = number_gpus(self.files)

    def trace(self, allow_unrelated: bool) -> Trace:
        self._check_alone()
        zero_ns = self._zeros()
        if not allow_unrelated:
            self._check_together(zero_ns)
        parts = [self._columns(file, zero) for file, zero in zip(self.files, zero_ns, strict=True)]
        kinds = {kind: _join_columns([part[kind] for part in parts]) for kind in parts[0]}
        ends = [
            file.events.end_ns - zero
            for file, zero in zip(self.files, zero_ns, strict=True)
            if file.events.end_ns is not None
        ]
        wall = self.files[0].wall_offset_ns
        empty_tables = _make_empty_tables()
        geometries = np.array(list(self.geometries), np.int64).reshape(-1, len(model.GEOMETRY))
        return Trace(
            source=self._source(frozenset(table for kind, table in _TABLES.items() if len(kinds[kind]["start_ns"]))),
            names=tuple(map(escape_text, self.names.all())),
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
            synchronizations=model.Synchronizations(**kinds["synchronizations"]),
            overheads=model.Overheads(**kinds["overheads"]),
            geometries=geometries,
            devices=build_devices(self.files, self.gpus),
            cuda_devices={},
            **empty_tables,
        )

    def _check_alone(self) -> None:
        """Reject two files of the same process and time: one would be a copy of the other."""
        of_process: dict[tuple[Any, ...], list[tuple[int, int, Path]]] = {}
        for file in self.files:
            first, last = file.events.first_ns, file.events.last_ns
            if first is not None and last is not None:
                of_process.setdefault(file.process_key(file.main_pid), []).append((first, last, file.path))
        for spans in of_process.values():
            spans.sort()
            for (_, last, path), (first, _, other) in itertools.pairwise(spans):
                if first < last:
                    found = f"{path} and {other} cover the same process and time"
                    raise TraceError("traces_overlap", found, "give only one of them, or remove the other")

    def _check_together(self, zero_ns: list[int]) -> None:
        """Reject files between which nothing was recorded for longer than MAX_DISTANCE_NS."""
        spans = [
            (begin - zero, max(begin, file.events.last_ns or begin, file.events.end_ns or begin) - zero, file.path)
            for file, zero in zip(self.files, zero_ns, strict=True)
            if (begin := file.begin_ns) is not None
        ]
        spans.sort()
        for i in range(1, len(spans)):
            _, end, before = max(spans[:i], key=lambda span: span[1])
            begin, _, path = spans[i]
            if begin - end > MAX_DISTANCE_NS:
                apart = timedelta(seconds=(begin - end) // 10**9)
                raise TraceError(
                    "traces_unrelated",
                    f"{before} and {path} were recorded {apart} apart, probably in different runs",
                    "report each file on its own, or read them as one recording with --allow-unrelated "
                    "(allow_unrelated=True in Python)",
                )

    def _zeros(self) -> list[int]:
        """Return for each file time 0 of the trace on the file's clock."""
        begins = [file.begin_ns for file in self.files]
        if len(self.files) == 1:
            return [begins[0] or 0]
        lost = [
            file.path
            for file, begin in zip(self.files, begins, strict=True)
            if begin is not None and file.wall_offset_ns is None
        ]
        if lost:
            found = f"{lost[0]} has no wall clock time to align it with the other files"
            raise TraceError("wall_clock_unknown", found, "read it alone")
        walls = [file.wall_offset_ns or 0 for file in self.files]
        zero = min((begin + wall for begin, wall in zip(begins, walls, strict=True) if begin is not None), default=0)
        return [zero - wall for wall in walls]

    def _columns(self, file: File, zero_ns: int) -> dict[str, dict[str, NDArray[Any]]]:
        """Return the columns of each kind of event of one file, as `Trace` has them."""
        events = file.events
        threads = np.array([self._thread(file, *key) for key in events.threads], np.int32)
        process_of = _process_of_correlations(file)
        columns_by_kind: dict[str, dict[str, NDArray[Any]]] = {
            "calls": _calls(events.calls, threads),
            "overheads": {"name": _int32(events.overheads, "name")},
        }
        gpus = self.gpus[file.path]
        for kind, own in OPERATIONS.items():
            table: Table = getattr(events, kind)
            columns: dict[str, NDArray[Any]] = {name: _int32(table, name) for name in ("context", "stream", *own)}
            columns["device"] = renumber_devices(_int32(table, "device"), gpus)
            columns["correlation"] = table.column("correlation")
            columns["graph_node"] = fold_constant(table.column("graph_node"))
            if "size_bytes" in table.columns:
                columns["size_bytes"] = table.column("size_bytes")
            columns["process"] = self._processes_of(file, table, process_of)
            columns_by_kind[kind] = columns
        columns_by_kind["kernels"]["short_name"] = make_constant_column(-1, len(events.kernels), np.int32)
        columns_by_kind["overheads"]["process"] = self._processes_of(file, events.overheads, {})
        for kind, columns in columns_by_kind.items():
            table = getattr(events, kind)
            columns["start_ns"] = table.column("start") - zero_ns
            columns["end_ns"] = table.column("end") - zero_ns
        known = list(self.threads.values())
        processes = np.array([known[thread].process for thread in threads.tolist()], np.int32)
        return {**columns_by_kind, **build_annotation_columns(events, zero_ns, self.names, threads, processes)}

    def _processes_of(self, file: File, table: Table, process_of: dict[int, Any]) -> Int32:
        if not len(table):
            return np.empty(0, np.int32)
        if not process_of:
            return make_constant_column(self._process(file, file.main_pid), len(table), np.int32)
        numbers = {correlation: self._process(file, pid) for correlation, pid in process_of.items()}
        main = self._process(file, file.main_pid)
        return np.array([numbers.get(one, main) for one in table.column("correlation").tolist()], np.int32)

    def _process(self, file: File, pid: Any) -> int:
        """Return the number of a process."""
        key = file.process_key(pid)
        if key not in self.processes:
            name = escape_text(file.events.process_names.get(pid, ""))
            if file.rank is not None:
                name = f"rank {file.rank} ({name})" if name else f"rank {file.rank}"
            self.processes[key] = model.Process((len(self.processes) + 1) << 24, parse_id(pid), name, file.rank)
        return list(self.processes).index(key)

    def _thread(self, file: File, pid: Any, tid: Any) -> int:
        """Return the number of a thread."""
        process = self._process(file, pid)
        key = (process, tid)
        if key not in self.threads:
            stated = escape_text(file.events.thread_names.get((pid, tid), ""))
            within = _THREAD_NAME.fullmatch(stated)
            global_id = (process + 1) << 24 | (len(self.threads) + 1)
            self.threads[key] = model.Thread(global_id, parse_id(tid), process, within[1] if within else stated)
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
            found = f"{len(self.files)} files are read as one recording, aligned by the wall clocks of their hosts"
            yield Message("files_read_as_one", found)
        renumbered = [
            f"GPU {number} is device {device} of rank {file.rank}"
            for file in self.files
            for device, number in sorted(self.gpus[file.path].items())
            if device != number
        ]
        if renumbered:
            yield Message("gpus_renumbered", f"GPUs are renumbered, each rank has its own: {', '.join(renumbered)}")
        excluded: Counter[str] = sum((file.events.excluded for file in self.files), Counter())
        if excluded:
            listed = ", ".join(
                f"{count} {escape_text(kind)}" for kind, count in sorted(excluded.items())[:_KINDS_LISTED]
            )
            more = f" and {len(excluded) - _KINDS_LISTED} other kinds" if len(excluded) > _KINDS_LISTED else ""
            yield Message("events_left_out", f"events excluded (traceable help kineto): {listed}{more}")
        untimed = sum(file.events.untimed for file in self.files)
        if untimed:
            found = f"{untimed} events without a valid time and duration are excluded"
            yield Message("events_without_time", found)


def _calls(table: Table, threads: Int32) -> dict[str, NDArray[Any]]:
    return {
        "name": _int32(table, "name"),
        "thread": threads[table.column("thread")],
        "correlation": table.column("correlation"),
        "driver": table.column("driver").astype(np.int8),
        "return_value": make_constant_column(NULL, len(table), np.int64),
    }


def _process_of_correlations(file: File) -> dict[int, Any]:
    """Return the pid whose call has each correlation, if the file has calls of several processes; else nothing.

    A correlation that calls of two processes have counts for the main one.
    """
    calls = file.events.calls
    pids = [pid for pid, _ in file.events.threads]
    if len(set(pids)) < 2:
        return {}
    pid_of_correlation: dict[int, Any] = {}
    for correlation, thread in zip(calls.column("correlation").tolist(), calls.column("thread").tolist(), strict=True):
        pid = pids[thread]
        pid_of_correlation[correlation] = pid if pid_of_correlation.get(correlation, pid) == pid else file.main_pid
    return pid_of_correlation


def _join_columns(parts: Sequence[dict[str, NDArray[Any]]]) -> dict[str, NDArray[Any]]:
    """Return the rows of all parts by start, of equal ones the longer first."""
    columns = (
        parts[0] if len(parts) == 1 else {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    )
    order = argsort_by_start(columns["start_ns"], columns.get("end_ns", columns["start_ns"]))
    # A column of a table is a view of it: what is in order is copied too, or it would keep all others in memory.
    return {
        name: column if column.strides == (0,) else np.ascontiguousarray(column if order is None else column[order])
        for name, column in columns.items()
    }


def _int32(table: Table, name: str) -> Int32:
    return table.column(name).astype(np.int32)


def _make_empty_tables() -> dict[str, Any]:
    """Return empty tables for the kinds of events that Kineto does not record, by their field in `Trace`."""
    none, small = np.empty(0, np.int64), np.empty(0, np.int32)
    tiny = np.empty(0, np.int8)
    return {
        "graph_launches": model.GraphLaunches(none, none, small, small, small, small, none, none, none),
        "graph_nodes": model.GraphNodes(none, small, none, none),
        "allocations": model.Allocations(none, small, small, none, small, tiny, none, none),
    }


def number_gpus(files: Sequence[File]) -> dict[Path, dict[int, int]]:
    """Return the number of the GPU behind each CUDA device, by file.

    Two ranks never share a GPU (NCCL rejects that): where both have a device 0, they are on two machines, or see one
    GPU each (CUDA_VISIBLE_DEVICES). The first rank keeps the number. Of files without a rank nothing is known.
    """
    owner: dict[int, int | None] = {}
    numbers_by_file: dict[Path, dict[int, int]] = {}
    own: dict[tuple[int | None, int], int] = {}
    for file in files:
        used: set[int] = set()
        for kind in OPERATIONS:
            used.update(distinct(getattr(file.events, kind).column("device")).tolist())
        numbers_by_file[file.path] = {}
        for device in sorted(used - {-1}):
            number = own.get((file.rank, device))
            if number is None:
                number = device
                if file.rank is not None and owner.get(device, file.rank) != file.rank:
                    number = next(free for free in range(len(owner) + 1) if free not in owner)
                own[file.rank, device] = number
                owner[number] = file.rank
            numbers_by_file[file.path][device] = number
    return numbers_by_file


def build_devices(files: Sequence[File], gpus: dict[Path, dict[int, int]]) -> tuple[model.Device, ...]:
    """Return the GPUs by number; those without events only if no number was changed."""
    is_renumbered = any(device != number for numbers in gpus.values() for device, number in numbers.items())
    devices_by_number: dict[int, model.Device] = {}
    for file in files:
        properties = file.events.metadata.get("deviceProperties")
        for entry in properties if isinstance(properties, list) else []:
            cuda = entry.get("id") if isinstance(entry, dict) else None
            if type(cuda) is int and (not is_renumbered or cuda in gpus[file.path]):
                number = gpus[file.path].get(cuda, cuda)
                if number not in devices_by_number or cuda in gpus[file.path]:
                    devices_by_number[number] = _device(number, entry)
    return tuple(devices_by_number[number] for number in sorted(devices_by_number))


def _device(number: int, properties: dict[str, Any]) -> model.Device:
    def size(name: str) -> int | None:
        value = properties.get(name)
        return value if type(value) is int else None

    major, minor, name = size("computeMajor"), size("computeMinor"), properties.get("name")
    return model.Device(
        number=number,
        name=escape_text(name) if isinstance(name, str) else "",
        bus="",
        memory_bytes=size("totalGlobalMem"),
        memory_bytes_per_s=None,
        multiprocessors=size("numSms"),
        compute_capability=None if major is None or minor is None else (major, minor),
    )


def renumber_devices(device: Int32, numbers: dict[int, int]) -> Int32:
    """Return the number of the GPU of each event, given CUDA's number of its device."""
    if all(cuda == number for cuda, number in numbers.items()):
        return device
    renumbered = device.copy()
    for cuda, number in numbers.items():
        renumbered[device == cuda] = number
    return renumbered


def build_annotation_columns(
    events: FileEvents, zero_ns: int, names: Names, threads: Int32, processes: Int32
) -> dict[str, Columns]:
    """Return the columns of `Trace.ranges`, `marks`, `counters` and `windows`.

    Args:
        events: of the file.
        zero_ns: time 0 of the trace on its clock.
        names: the numbering of names.
        threads, processes: the number of each of its threads in the trace, and of that thread's process.
    """
    rows = _rows(events.ranges, zero_ns, threads, processes)
    clipped = rows.pop("open") == 1
    if events.end_ns is not None:
        # The profiler ends what is still going on when it stops.
        clipped |= rows["end_ns"] >= events.end_ns - zero_ns
    rows["clipped"] = clipped
    marks = _rows(events.marks, zero_ns, threads, processes)
    is_payload_mark = marks["domain"] == names.find(PAYLOAD_DOMAIN)
    is_sample = marks["domain"] == names.find(COUNTER_DOMAIN)
    of_window = rows["domain"] == names.find(WINDOW_DOMAIN)
    return {
        "ranges": _ranges(_take_rows(rows, ~of_window), _take_rows(marks, is_payload_mark), names),
        "windows": _windows(_take_rows(rows, of_window), names),
        "marks": _select_columns(
            _take_rows(marks, ~is_payload_mark & ~is_sample), ("start_ns", "name", "domain", "category", "thread")
        ),
        "counters": _counters(_take_rows(marks, is_sample)),
    }


def _rows(table: Table, zero_ns: int, threads: Int32, processes: Int32) -> Columns:
    columns: Columns = {name: table.column(name) for name in table.columns}
    of = columns["thread"]
    rows: Columns = {
        **{name: column.astype(np.int32) for name, column in columns.items() if name in ("name", "domain", "category")},
        "start_ns": columns.pop("start") - zero_ns,
        "end_ns": columns.pop("end") - zero_ns,
        "thread": threads[of],
        "process": processes[of],
        "payload": columns["payload"],
    }
    if "real" in columns:
        rows["real"] = np.ascontiguousarray(columns["real"])
    else:
        rows["open"], rows["style"] = columns["open"], columns["style"].astype(np.int8)
        closer = columns["end_thread"]
        rows["end_thread"] = np.where(closer < 0, -1, np.append(threads, np.int32(-1))[closer]).astype(np.int32)
    return rows


def _take_rows(rows: Columns, which: Bool) -> Columns:
    return {name: column[which] for name, column in rows.items()}


def _select_columns(rows: Columns, names: tuple[str, ...]) -> Columns:
    return {name: rows[name] for name in names}


def _ranges(rows: Columns, marks: Columns, names: Names) -> Columns:
    payload = rows["payload"]
    is_segment = is_segment_domain(rows["domain"], names.find) & (rows["style"] == PUSH_POP)
    identity_only = marks["name"] == names.find(NO_FIELDS)
    place = marks["thread"], marks["process"].astype(np.int64)
    payload_marks = PayloadMarks(marks["start_ns"], marks["name"], identity_only, *place, marks["payload"])
    of = rows["start_ns"], rows["thread"], rows["process"].astype(np.int64)
    identity, fields = match_payload_marks(payload_marks, *of, is_segment, payload)
    same = ("start_ns", "end_ns", "name", "domain", "category", "thread", "end_thread", "style", "clipped", "payload")
    return {
        **{name: fold_constant(column) for name, column in _select_columns(rows, same).items()},
        "has_payload": fold_constant((payload != NULL) & (is_segment | ~is_identity(payload))),
        "identity": fold_constant(identity),
        "fields": fold_constant(fields),
    }


def _windows(rows: Columns, names: Names) -> Columns:
    """Return the windows among the ranges of WINDOW_DOMAIN, under their ids."""
    texts = names.all()
    which = np.array([texts[name].startswith(WINDOW_PREFIX) for name in rows["name"].tolist()], np.bool_)
    windows = _select_columns(_take_rows(rows, which), ("start_ns", "end_ns", "name", "thread", "clipped"))
    ids = [names.index(texts[name].removeprefix(WINDOW_PREFIX)) for name in windows["name"].tolist()]
    return {**windows, "name": np.array(ids, np.int32)}


def _counters(rows: Columns) -> Columns:
    """Return the samples that hold a finite number; the category of each is the name of its domain."""
    whole, real = rows["payload"], rows["real"]
    value = np.where(whole != NULL, whole.astype(np.float64), np.where(real != NULL, real.view(np.float64), np.nan))
    finite = np.isfinite(value)
    samples = _take_rows({**rows, "domain": rows["category"], "value": value}, finite)
    return _select_columns(samples, ("start_ns", "name", "domain", "thread", "process", "value"))
