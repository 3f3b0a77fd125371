"""Writes a recording as an SQLite file in nsys's export schema, so that one reader, and nsys's own tools, read both.

The tables that a recording of NVTX calls has something to say about are written, with nsys's names, types and value
conventions as its exports of 2022.4 to 2026.2 show them (schema 3.x). Environment variables are not written. Events are
read, paired and inserted chunk by chunk: memory is bounded by the ranges that are open at one time.
"""

from __future__ import annotations

import itertools
import json
import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from traceable.collect import loss_table, nsys_origin
from traceable.collect import recording as rec
from traceable.collect.flight import METADATA
from traceable.collect.nsys_rows import Rows, by_columns
from traceable.collect.nsys_tables import ENUMS, FLIGHT_TABLES, TABLES
from traceable.collect.pairing import pair_ids, pair_push_pop
from traceable.collect.recording_events import read_events
from traceable.collect.ring import Window
from traceable.collect.sink import Sink, Source
from traceable.collect.texts import LOST_TEXT, Texts
from traceable.errors import CollectorError

INFORMATION, WARNING = 1, 2
"""Severities of DIAGNOSTIC_EVENT."""

CATEGORY, THREAD, DOMAIN = 33, 39, 75
"""nsys's event types of names."""

_VIRTUAL_MACHINE = 1 << 48  # nsys's ids of hardware and machine, as it writes them for the local host


@dataclass(frozen=True)
class Written:
    """What a file holds: how many events, and what should be said about it."""

    events: int
    notes: tuple[str, ...]


def global_tid(pid: int, tid: int) -> int:
    """Return nsys's globalTid: hardware (8 bits), virtual machine (8), process (24), thread (24)."""
    return _VIRTUAL_MACHINE | (pid & 0xFFFFFF) << 24 | (tid & 0xFFFFFF)


def write_database(recording: rec.Recording, path: Path, complete: bool, source: Source | None = None) -> Written:
    """Write `recording` to `path`, replacing it only when the new file is whole.

    Args:
        recording: what to write; its events are read here.
        path: the SQLite file.
        complete: whether all of its processes have ended.
        source: has more events for it.

    Raises:
        CollectorError: the file can't be written, or a file of the recording can't be read.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with _database(temporary) as database:
            written = _Export(database, recording).write(complete, source)
        temporary.replace(path)
    except (OSError, sqlite3.Error) as error:
        raise CollectorError(
            f"{path} can't be written ({error})", "make room or choose another place; the recording is kept"
        ) from error
    finally:
        temporary.unlink(missing_ok=True)
    return written


@contextmanager
def _database(path: Path) -> Iterator[sqlite3.Connection]:
    path.unlink(missing_ok=True)
    database = sqlite3.connect(path, isolation_level=None)
    try:
        # A half-written file is thrown away, so SQLite need not be able to recover one.
        database.execute("PRAGMA journal_mode = OFF")
        database.execute("PRAGMA synchronous = OFF")
        database.execute("BEGIN")
        yield database
        database.execute("COMMIT")
    finally:
        database.close()


class _Export:
    def __init__(self, database: sqlite3.Connection, recording: rec.Recording) -> None:
        self._database = database
        self._recording = recording
        self._notes = list(recording.notes)
        self._diagnosed: list[int | None] = [None] * len(self._notes)
        self._strings: dict[str, int] = {}
        self._events = 0
        self._last_ns = 0
        self._origin_ns = 0
        self._domains: dict[int, int] = {}
        self._zeros: dict[int, int] = {}
        self._remarks: list[tuple[str, int | None]] = []

    def write(self, complete: bool, source: Source | None) -> Written:
        flight = any(process.window for process in self._recording.processes)
        for statement in (FLIGHT_TABLES if flight else TABLES).values():
            self._database.execute(statement)
        self._database.execute(loss_table.CREATE)
        for table, rows in ENUMS.items():
            self._insert(table, ("id", "name", "label"), rows)
        silent = 0
        self._origin_ns = self._first_ns()
        for process in self._recording.processes:
            before = self._events
            self._write_process(process)
            silent += self._events == before and not process.dropped
        if silent and self._events:
            self._note(
                f"{silent} of {len(self._recording.processes)} processes used NVTX and recorded no range or mark"
            )
        if source is not None:
            self._add(source)
        self._write_facts(complete)
        self._insert("StringIds", ("id", "value"), ((number, value) for value, number in self._strings.items()))
        return Written(self._events, tuple(self._notes))

    def _insert(self, table: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        names = ", ".join(f'"{column}"' for column in columns)
        values = ", ".join("?" * len(columns))
        self._database.executemany(f"INSERT INTO {table} ({names}) VALUES ({values})", rows)

    def _note(self, note: str, global_pid: int | None = None) -> None:
        self._notes.append(note)
        self._diagnosed.append(global_pid)

    def _string(self, value: str) -> int:
        return self._strings.setdefault(value, len(self._strings) + 1)

    def _add(self, source: Source) -> None:
        zero = -self._origin_ns - (self._recording.processes[0].monotonic_ns if self._recording.processes else 0)
        remark = self._remarks.append
        added = source(
            Sink(
                create=self._database.execute,
                insert=self._insert,
                string=self._string,
                warn=self._note,
                remark=lambda text, global_pid: remark((text, global_pid)),
                zeros=self._zeros,
                zero=zero,
            )
        )
        self._events += added.events
        self._last_ns = max(self._last_ns, added.last_ns)

    # ---- one process

    def _first_ns(self) -> int:
        """Return when flight recorders show something first, in ns since the first process's zero; else 0."""
        first = self._recording.processes[:1]
        starts = [
            process.monotonic_ns - first[0].monotonic_ns + process.window.start_ns
            for process in self._recording.processes
            if process.window and self._clocks_agree(process)
        ]
        return min(starts, default=0)

    def _clocks_agree(self, process: rec.ProcessRecording) -> bool:
        first = self._recording.processes[0]
        monotonic, real = process.monotonic_ns - first.monotonic_ns, process.realtime_ns - first.realtime_ns
        return abs(monotonic - real) < 1_000_000_000

    def _offset_ns(self, process: rec.ProcessRecording) -> int:
        """Return the time of the process's zero, in ns since the first process's."""
        first = self._recording.processes[0]
        if self._clocks_agree(process):
            return process.monotonic_ns - first.monotonic_ns
        self._note(
            f"process {process.pid} counts time differently from process {first.pid} (another machine, container or "
            "boot, or a clock that was set); it is placed by its wall clock",
            global_tid(process.pid, 0),
        )
        return process.realtime_ns - first.realtime_ns

    def _write_process(self, process: rec.ProcessRecording) -> None:
        pid = global_tid(process.pid, 0)
        offset = self._offset_ns(process)
        self._zeros[process.pid] = offset - process.monotonic_ns
        # After an exec, one pid has two recordings, and each numbers its domains from 1.
        first_domain = self._domains.get(process.pid)
        if first_domain is None:
            first_domain = self._domains[process.pid] = 0
            self._insert("PROCESSES", ("globalPid", "pid", "name"), [(pid, process.pid, process.name)])
        domains = [name.id for name in process.names if name.kind == rec.DOMAIN]
        self._domains[process.pid] += max(domains, default=0)
        self._write_names(process, offset, first_domain)
        strings = self._registered(process)
        threads = _Process(offset, first_domain, strings)
        notes: list[str] = []
        for thread in process.threads:
            for rows in threads.rows(process.pid, thread, notes):
                self._write_rows(rows, process, offset)
        self._write_rows(threads.open_ranges(), process, offset)
        if process.window:
            self._write_window(process, process.window, offset)
        for note in notes:
            self._note(note, pid)
        if lost := loss_table.lost_of(process):
            self._note(lost["text"], pid)
            row = loss_table.row(loss_table.LOST, process.pid, lost)
            self._insert(loss_table.TABLE, loss_table.COLUMNS, [row])

    def _registered(self, process: rec.ProcessRecording) -> NDArray[np.int64]:
        """Return the StringIds id of each registered string, by the recorder's id; -1 where none is."""
        known = {name.id: name.text for name in process.names if name.kind == rec.STRING}
        ids = np.full(max(known, default=0) + 1, -1, np.int64)
        for identity, text in known.items():
            ids[identity] = self._string(text)
        return ids

    def _write_names(self, process: rec.ProcessRecording, offset: int, first_domain: int) -> None:
        rows: list[tuple[int, int, int | None, str, int, int]] = []
        threads = {thread.tid: thread.name for thread in process.threads if thread.name}
        for name in process.names:
            tid = global_tid(process.pid, name.tid)
            start = offset + max(name.time_ns, process.window.start_ns if process.window else 0) - self._origin_ns
            domain = name.domain + first_domain if name.domain else 0
            if name.kind == rec.DOMAIN:
                rows.append((start, DOMAIN, None, name.text, tid, name.id + first_domain))
            elif name.kind == rec.CATEGORY:
                rows.append((start, CATEGORY, name.id, name.text, tid, domain))
            elif name.kind == rec.THREAD:
                rows.append((start, THREAD, None, name.text, global_tid(process.pid, name.id), domain))
                threads[name.id] = name.text
        self._insert("NVTX_EVENTS", ("start", "eventType", "category", "text", "globalTid", "domainId"), rows)
        named = ((self._string(name), global_tid(process.pid, tid)) for tid, name in threads.items())
        self._insert("ThreadNames", ("nameId", "globalTid"), named)

    def _write_rows(self, rows: Rows, process: rec.ProcessRecording, offset: int) -> None:
        if process.window:
            shown = rows.within(offset + process.window.start_ns, offset + process.window.end_ns)
            rows = shown.since(self._origin_ns)
        if not len(rows.kind):
            return
        self._events += len(rows.kind)
        self._last_ns = max(self._last_ns, int(rows.start.max()), int(rows.end.max()))
        for columns, arrays in by_columns(rows):
            self._insert("NVTX_EVENTS", columns, zip(*(array.tolist() for array in arrays), strict=True))

    def _write_window(self, process: rec.ProcessRecording, window: Window, offset: int) -> None:
        said = {
            "pid": process.pid,
            "start_ns": offset + window.start_ns - self._origin_ns,
            "end_ns": offset + window.end_ns - self._origin_ns,
            "from_start": window.start_ns == 0,
            "limit_ns": window.limit_ns or None,
            "limit_bytes": window.limit_bytes or None,
            "dumped_by": window.dumped_by if window.dumped else None,
        }
        self._insert("META_DATA_CAPTURE", ("name", "value"), [(METADATA, json.dumps(said))])

    # ---- the recording as a whole

    def _write_facts(self, complete: bool) -> None:
        processes = self._recording.processes
        machine = _VIRTUAL_MACHINE
        if processes:
            epoch_ns = processes[0].realtime_ns + self._origin_ns
            utc = datetime.fromtimestamp(epoch_ns // 1_000_000_000, timezone.utc)
            times = (epoch_ns, f"{utc:%Y-%m-%dT%H:%M:%S}", f"{utc.astimezone():%Y-%m-%dT%H:%M:%S}")
            self._insert("TARGET_INFO_SESSION_START_TIME", ("utcEpochNs", "utcTime", "localTime"), [times])
        details = (machine, self._last_ns, 0, self._last_ns)
        self._insert("ANALYSIS_DETAILS", ("globalVid", "duration", "startTime", "stopTime"), [details])
        environment = ((machine, "Local (traceable)", *row) for row in nsys_origin.machine())
        self._insert("TARGET_INFO_SYSTEM_ENV", ("globalVid", "devStateName", "name", "nameEnum", "value"), environment)
        # Timestamp of the target, from the injection.
        diagnosed = [(0, 1, 1, WARNING, note, pid) for note, pid in zip(self._notes, self._diagnosed, strict=True)]
        diagnosed += [(0, 1, 1, INFORMATION, remark, pid) for remark, pid in self._remarks]
        columns = ("timestamp", "timestampType", "source", "severity", "text", "globalPid")
        self._insert("DIAGNOSTIC_EVENT", columns, diagnosed)
        self._insert("META_DATA_CAPTURE", ("name", "value"), nsys_origin.capture(processes))
        self._insert("META_DATA_EXPORT", ("name", "value"), nsys_origin.export(complete))


class _Process:
    """Turns the events of one process, thread after thread, into rows, and keeps what is still open."""

    def __init__(self, offset_ns: int, first_domain: int, strings: NDArray[np.int64]) -> None:
        self._offset_ns = offset_ns
        self._first_domain = first_domain
        self._strings = strings
        self._open_pushes = Rows.none()
        self._starts = Rows.none()
        self._ends = Rows.none()

    def rows(self, pid: int, thread: rec.ThreadRecording, notes: list[str]) -> Iterator[Rows]:
        """Yield the rows that are finished, chunk by chunk; pushes still open at the thread's end come last."""
        stack = Rows.none()
        with Texts(thread) as texts:
            for events in _parts(read_events(thread, notes)):
                if events.kind[0] == rec.CUT:
                    # What was open when the window closed: its end is not known, and no later pop is its own.
                    yield stack
                    stack = Rows.none()
                rows = self._columns(events, texts, global_tid(pid, thread.tid))
                yield rows.take(rows.kind == rec.MARK)
                nested = stack.join(rows.take((rows.kind == rec.PUSH) | (rows.kind == rec.POP)))
                is_push = nested.kind == rec.PUSH
                partner = pair_push_pop(nested.domain, is_push)
                closed = np.flatnonzero(is_push & (partner >= 0))
                yield replace(nested.take(closed), end=nested.start[partner[closed]])
                stack = nested.take(is_push & (partner < 0))
                yield self._pair_ids(rows)
        yield stack

    def _pair_ids(self, rows: Rows) -> Rows:
        """Match starts and ends, of which either may have been seen first: threads are read one after the other."""
        self._starts = self._starts.join(rows.take(rows.kind == rec.START))
        self._ends = self._ends.join(rows.take(rows.kind == rec.END))
        partner = pair_ids(self._starts.range_id, self._ends.range_id)
        closed = np.flatnonzero(partner >= 0)
        ends = self._ends.take(partner[closed])
        finished = self._starts.take(closed)
        elsewhere = np.where(ends.global_tid != finished.global_tid, ends.global_tid, -1)
        self._starts = self._starts.take(partner < 0)
        self._ends = self._ends.take(~np.isin(np.arange(len(self._ends.kind)), partner[closed]))
        return replace(finished, end=ends.start, end_global_tid=elsewhere)

    def open_ranges(self) -> Rows:
        """Return the starts whose end was in no thread."""
        return self._starts

    def _columns(self, events: rec.Events, texts: Texts, tid: int) -> Rows:
        count = len(events.kind)
        text = texts.lookup(events.message)
        registered = (events.message != 0) & (events.message & np.uint64(rec.TEXT_BIT) == 0)
        known = registered & (events.message < len(self._strings))
        text_id = np.full(count, -1, np.int64)
        text_id[known] = self._strings[events.message[known].astype(np.intp)]
        text[registered & (text_id < 0)] = LOST_TEXT
        text[text == ""] = None  # as nsys writes an empty message
        domain = events.domain.astype(np.int64)
        return Rows(
            kind=events.kind,
            start=events.time_ns + self._offset_ns,
            end=np.full(count, -1, np.int64),
            range_id=events.range_id,
            category=events.category,
            color=events.color,
            text=text,
            global_tid=np.full(count, tid, np.int64),
            end_global_tid=np.full(count, -1, np.int64),
            text_id=text_id,
            domain=np.where(domain > 0, domain + self._first_domain, 0),
            payload_type=events.payload_type,
            payload=events.payload,
            clipped=np.zeros(count, np.bool_),
        )


def _parts(chunks: Iterable[rec.Events]) -> Iterator[rec.Events]:
    """Yield the events, a new part beginning with each cut."""
    for events in chunks:
        edges = [0, *np.flatnonzero(events.kind == rec.CUT).tolist(), len(events.kind)]
        for first, last in itertools.pairwise(edges):
            if first < last:
                yield events.take(np.arange(first, last))
