"""Reads what the embedded recorder left on disk: processes, their names, and where each thread's events lie.

The layout is documented in `_native/recorder_format.h`. The events are read in `recording_events`; nothing is paired or
exported here (`pairing`, `nsys_schema`).
A process may have died at any moment: files end in zeros, and an entry that was not finished reads as empty. What can't
be read is left out with a note as long as something else can be; only a recording of which nothing is readable, or that
another version wrote, is an error.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import IO, TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from traceable import untrusted
from traceable.collect.ring import RECORD, Piece, Window, read_threads
from traceable.errors import CollectorError, Message

if TYPE_CHECKING:
    from typing_extensions import Self  # typing has it from Python 3.11

VERSION = 5
_BEFORE_RINGS, _BEFORE_REASONS = 3, 4
PROCESS_MAGIC, NAMES_MAGIC, EVENTS_MAGIC, TEXT_MAGIC = b"TRCBLPRC", b"TRCBLNAM", b"TRCBLEVT", b"TRCBLTXT"

PUSH, POP, START, END, MARK = 1, 2, 3, 4, 5
"""Kinds of an event."""

CUT = 19
"""Stands among the events of a thread where some were left out, outside of all windows."""

DOMAIN, STRING, CATEGORY, THREAD = 1, 2, 3, 4
"""Kinds of a name."""

TEXT_BIT = 1 << 39
"""Set in a message that is the place of a text in the thread's text file, and not the id of a registered string."""

_PROCESS_HEADER = struct.Struct("<8sIIIIqqQQQQ16sII")
_RING_HEADER = struct.Struct("<QQqq64s")
_HEADER_BYTES = 4096
_DROP_REASON = struct.Struct("<Q")
"""Stands at the end of the header."""
_FILE_HEADER = struct.Struct("<8sII")
FILE_HEADER_BYTES = _FILE_HEADER.size
_EVENTS_HEADER = struct.Struct("<8sIIQII16sQ8x")
EVENTS_HEADER_BYTES = _EVENTS_HEADER.size
_NAME_ENTRY = struct.Struct("<IIIIqQ")
_CLOCK_MONOTONIC = 1

_SEGMENT_BYTES_MIN = 1 << 12
_PROCESS_DIRECTORY = re.compile(r"\d+-\d+")


@dataclass(frozen=True)
class Name:
    """A domain, registered string, category or thread name, with the thread and time (ns) of its registration."""

    kind: int
    id: int
    domain: int
    tid: int
    time_ns: int
    text: str


@dataclass(frozen=True)
class ThreadRecording:
    """One thread's files. `name` is what the OS called the thread, `pthread` its pthread_self; 0 for not known.

    With a flight recorder both files are that of the whole process, of which `pieces` are this thread's, else None.
    """

    events: Path
    texts: Path
    sequence: int
    tid: int
    name: str
    pthread: int = 0
    pieces: tuple[Piece, ...] | None = None


@dataclass(frozen=True)
class ProcessRecording:
    """One process. Times of its events and names are ns since `monotonic_ns`, which was read with `realtime_ns`.

    `names` has no strings: `read_strings` yields those. `window` is the part that a flight recorder shows; None where
    everything was kept. `drop_reason` is the errno for which something was dropped or lost first (`loss_table.SIZE_CAP`
    for the recorder's own cap), 0 for not known; `missing_bytes` is how much shorter the files are than the process
    left them.
    """

    directory: Path
    pid: int
    parent_pid: int
    name: str
    command: tuple[str, ...]
    monotonic_ns: int
    realtime_ns: int
    dropped: int
    lost_names: int
    names: tuple[Name, ...]
    threads: tuple[ThreadRecording, ...]
    window: Window | None = None
    drop_reason: int = 0
    missing_bytes: int = 0


@dataclass(frozen=True)
class Recording:
    """All processes that recorded into one directory, by start, and a note for each thing that was left out."""

    processes: tuple[ProcessRecording, ...]
    notes: tuple[Message, ...]


@dataclass(frozen=True)
class Columns:
    """A table: each field is an array, all of one length."""

    def take(self, index: NDArray[np.intp] | NDArray[np.bool_] | slice) -> Self:
        """Return the rows that `index` selects, in its order."""
        return type(self)(*(getattr(self, column.name)[index] for column in fields(self)))

    def join(self, *later: Self) -> Self:
        """Return these rows and then those of `later`."""
        tables = (self, *later)
        return type(self)(*(np.concatenate([getattr(table, c.name) for table in tables]) for c in fields(self)))


@dataclass(frozen=True)
class Events(Columns):
    """Columns of events of one thread, in the order in which they happened. All have one length.

    Attributes:
        kind: uint8, PUSH to MARK, or CUT, which has nothing else.
        time_ns: int64, since the process's start.
        domain: uint32, 0 for the default domain. Only of a push, pop, start or mark.
        message: uint64, 0 for none, a string's id, or TEXT_BIT and a place. Only of a push, start or mark.
        range_id: int64, of a start or end; else 0.
        category, color: int64, -1 for none.
        payload_type: uint8, NVTX's nvtxPayloadType_t, 0 for none.
        payload: uint64, the payload's bits.
    """

    kind: NDArray[np.uint8]
    time_ns: NDArray[np.int64]
    domain: NDArray[np.uint32]
    message: NDArray[np.uint64]
    range_id: NDArray[np.int64]
    category: NDArray[np.int64]
    color: NDArray[np.int64]
    payload_type: NDArray[np.uint8]
    payload: NDArray[np.uint64]


def read_recording(directory: Path) -> Recording:
    """Read the headers and names of every process in `directory`; events are read by `read_events`.

    A directory that does not exist or is empty is a recording of no process.

    Raises:
        CollectorError: another version of traceable wrote it, or nothing in it can be read.
    """
    notes: list[Message] = []
    if not untrusted.is_directory(directory):
        if untrusted.exists(directory):
            raise CollectorError("not_a_directory", f"{directory} is not a directory but a link or file", "remove it")
        return Recording((), ())
    processes = []
    for entry in sorted(directory.iterdir()):
        if entry.name.startswith("."):
            continue  # A copy of a flight recorder that was not finished.
        if not (untrusted.is_directory(entry) and _PROCESS_DIRECTORY.fullmatch(entry.name)):
            notes.append(Message("not_a_process_recording", f"{entry} is no recording of a process and was left out"))
            continue
        process = _read_process(entry, notes)
        if process:
            processes.append(process)
    if notes and not processes:
        raise CollectorError(notes[0].code, notes[0], "record again; the directory is left as it is")
    processes.sort(key=lambda process: (process.monotonic_ns, process.pid))
    return Recording(tuple(processes), tuple(notes))


def _read_process(directory: Path, notes: list[Message]) -> ProcessRecording | None:
    path = directory / "process"
    content = _read(path, notes, _HEADER_BYTES)
    if content is None:
        return None
    if not content.strip(b"\0"):
        # The process died between making its directory and writing its header, so before its first event.
        return None
    if len(content) < _PROCESS_HEADER.size or content[:8] != PROCESS_MAGIC:
        notes.append(Message("header_unknown", f"{path} is not a recording's header; the process was left out"))
        return None
    (_, version, clock, pid, parent, monotonic, realtime, _max, size, dropped, lost, name, length, segment_bytes) = (
        _PROCESS_HEADER.unpack_from(content)
    )
    _check_version(path, version)
    if clock != _CLOCK_MONOTONIC:
        raise CollectorError("clock_unknown", f"{path} was recorded with an unknown clock ({clock})", _OTHER_VERSION)
    if wrong := _wrong(pid, monotonic, realtime, segment_bytes):
        notes.append(Message("header_damaged", f"{path} is damaged ({wrong}); the process was left out"))
        return None
    begin = _PROCESS_HEADER.size + (_RING_HEADER.size if version > _BEFORE_RINGS else 0)
    if len(content) < begin:
        notes.append(Message("header_cut_off", f"{path} is cut off; the process was left out"))
        return None
    if segment_bytes and not all(
        0 <= value < untrusted.LATEST_NS for value in _RING_HEADER.unpack_from(content, _PROCESS_HEADER.size)[:4]
    ):
        found = f"{path} is damaged (limits of its flight recorder); the process was left out"
        notes.append(Message("header_damaged", found))
        return None
    command = content[begin : begin + length].rstrip(b"\0")
    threads = tuple(_read_ring(directory, segment_bytes, notes) if segment_bytes else _read_threads(directory, notes))
    return ProcessRecording(
        directory=directory,
        pid=pid,
        parent_pid=parent,
        name=_c_text(name),
        command=tuple(decode(word) for word in command.split(b"\0")),
        monotonic_ns=monotonic,
        realtime_ns=realtime,
        dropped=dropped,
        lost_names=lost,
        names=tuple(Name(*name) for name in _read_names(directory / "names", notes, (DOMAIN, CATEGORY, THREAD))),
        threads=threads,
        window=_window(content, threads) if segment_bytes else None,
        drop_reason=_drop_reason(content, version),
        missing_bytes=0 if segment_bytes else _missing_bytes(directory, size),
    )


def _wrong(pid: int, monotonic_ns: int, realtime_ns: int, segment_bytes: int) -> str:
    """Return what in a header no recorder writes; empty where nothing is."""
    if not 0 < pid < untrusted.PID_MAX:
        return f"process id {pid}"
    for name, value in (("monotonic clock", monotonic_ns), ("wall clock", realtime_ns)):
        if not 0 <= value < untrusted.LATEST_NS:
            return f"{name} of {value} ns"
    if segment_bytes and (segment_bytes < _SEGMENT_BYTES_MIN or segment_bytes % RECORD.itemsize):
        return f"segments of {segment_bytes} bytes"
    return ""


def _drop_reason(content: bytes, version: int) -> int:
    if version <= _BEFORE_REASONS or len(content) < _HEADER_BYTES:
        return 0
    reason: int = _DROP_REASON.unpack_from(content, _HEADER_BYTES - _DROP_REASON.size)[0]
    return reason if reason < 1 << 32 else 0


def _missing_bytes(directory: Path, size: int) -> int:
    """Return how many of the bytes that the header counts are in no file: of a copy that was cut short."""
    try:
        files = [entry for entry in directory.iterdir() if entry.name != "process" and entry.is_file()]
        return max(0, size - sum(entry.stat().st_size for entry in files)) if size < 1 << 62 else 0
    except OSError:
        return 0


_OTHER_VERSION = "read it with the version of traceable that recorded it"


def _check_version(path: Path, version: int) -> None:
    if version not in (_BEFORE_RINGS, _BEFORE_REASONS, VERSION):
        known = f"{_BEFORE_RINGS} to {VERSION}"
        found = f"{path} is in recording format {version}, this traceable reads {known}"
        raise CollectorError("recording_version_unknown", found, _OTHER_VERSION)


def _read(path: Path, notes: list[Message], most: int) -> bytes | None:
    try:
        return untrusted.read(path, most)
    except FileNotFoundError:
        return b""
    except OSError as error:
        notes.append(_unreadable(path, error))
        return None


def _unreadable(path: Path, error: OSError) -> Message:
    return Message("file_unreadable", f"{path} can't be read ({error.strerror}) and was left out")


def _has_header(path: Path, content: bytes, magic: bytes, notes: list[Message]) -> bool:
    """Whether a file of a recording holds anything: an empty one found no room, or its process died at once."""
    if not content.strip(b"\0"):
        return False
    if len(content) < _FILE_HEADER.size or content[:8] != magic:
        notes.append(Message("not_a_recorder_file", f"{path} is not a file of the recorder and was left out"))
        return False
    _check_version(path, _FILE_HEADER.unpack_from(content)[1])
    return True


def read_strings(process: ProcessRecording) -> Iterator[tuple[int, str]]:
    """Yield number and text of each registered string, which may be as many as there are ranges."""
    path = process.directory / "names"
    for _, identity, _, _, _, text in _read_names(path, [], (STRING,)):
        yield identity, text


def _read_names(
    path: Path, notes: list[Message], kinds: tuple[int, ...]
) -> Iterator[tuple[int, int, int, int, int, str]]:
    """Yield what a `Name` has, of each that is of one of these kinds."""
    try:
        with untrusted.open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            if _has_header(path, file.read(_FILE_HEADER.size), NAMES_MAGIC, notes):
                file.seek(_NAME_ENTRY.size)
                yield from _names_in(path, file, size, notes, kinds)
    except FileNotFoundError:
        return
    except OSError as error:
        notes.append(_unreadable(path, error))


def _names_in(
    path: Path, file: IO[bytes], size: int, notes: list[Message], kinds: tuple[int, ...]
) -> Iterator[tuple[int, int, int, int, int, str]]:
    place = _NAME_ENTRY.size
    # A number is given to each domain and string by counting: one that is larger than the file allows is none.
    most = size // _NAME_ENTRY.size
    while place + _NAME_ENTRY.size <= size:
        kind, tid, identity, domain, time_ns, length = _NAME_ENTRY.unpack(file.read(_NAME_ENTRY.size))
        place += _NAME_ENTRY.size
        if kind == 0:
            return
        if place + length > size:
            notes.append(Message("names_cut_off", f"{path} is cut off at byte {place}; the names after it are lost"))
            return
        numbered = max(identity if kind in (DOMAIN, STRING) else 0, domain)
        if kind in kinds and (numbered > most or abs(time_ns) >= untrusted.LATEST_NS):
            notes.append(Message("names_damaged", f"{path} is damaged at byte {place}; the names after it are lost"))
            return
        room = -(-length // _NAME_ENTRY.size) * _NAME_ENTRY.size
        place += room
        if kind in kinds:
            yield kind, identity, domain, tid, time_ns, decode(file.read(room)[:length])
        else:
            file.seek(room, os.SEEK_CUR)


def _read_threads(directory: Path, notes: list[Message]) -> Iterator[ThreadRecording]:
    for path in sorted(directory.glob("*.events")):
        try:
            with untrusted.open_regular(path) as file:
                content = file.read(_EVENTS_HEADER.size)
        except OSError as error:
            notes.append(_unreadable(path, error))
            continue
        if not _has_header(path, content, EVENTS_MAGIC, notes) or len(content) < _EVENTS_HEADER.size:
            continue
        _, _, _, sequence, tid, _, name, pthread = _EVENTS_HEADER.unpack(content)
        yield ThreadRecording(path, path.with_suffix(".text"), sequence, tid, _c_text(name), pthread)


def _read_ring(directory: Path, segment_bytes: int, notes: list[Message]) -> Iterator[ThreadRecording]:
    path = directory / "ring"
    try:
        found = read_threads(path, segment_bytes, notes)
    except FileNotFoundError:
        return
    except OSError as error:
        notes.append(_unreadable(path, error))
        return
    for thread in found:
        yield ThreadRecording(path, path, thread.sequence, thread.tid, _c_text(thread.name), pieces=thread.pieces)


def _window(content: bytes, threads: Iterable[ThreadRecording]) -> Window:
    """Return which time a flight recorder shows: what nothing is missing of, and no more than was asked for."""
    limit_ns, limit_bytes, forgotten_ns, dump_ns, by = _RING_HEADER.unpack_from(content, _PROCESS_HEADER.size)
    last_ns = max((piece.last_ns for thread in threads for piece in thread.pieces or ()), default=0)
    end_ns = dump_ns or max(last_ns, 0)
    complete_ns = forgotten_ns + 1 if forgotten_ns else 0
    start_ns = min(max(complete_ns, end_ns - limit_ns if limit_ns else 0), end_ns)
    return Window(start_ns, end_ns, limit_ns, limit_bytes, dump_ns != 0, _c_text(by))


def _c_text(content: bytes) -> str:
    return decode(content.split(b"\0", 1)[0])


def decode(content: bytes) -> str:
    r"""Return `content` as text; a byte that is not UTF-8 becomes `\xNN`, so that different names stay different."""
    return content.decode("utf-8", "backslashreplace")
