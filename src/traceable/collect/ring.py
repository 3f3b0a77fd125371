"""Finds in a flight recorder's file what each thread left there: which records of which segments are its own.

The layout is documented in `_native/recorder_format.h`, why it is so in `_native/recorder.c`. `recording` decodes
the events. A segment that was being emptied when its process died is passed over.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from traceable import untrusted
from traceable.errors import Message

RECORD = np.dtype([("data", "<u8"), ("word", "<u8")])
KIND_SHIFT = np.uint64(56)
VALUE_MASK = np.uint64((1 << 56) - 1)

_LAST_EVENT, _THREAD, _NAME = 5, 20, 21
_HEADER = struct.Struct("<QQIIII16s16x")
_MAGIC = 0x53425254
_RING_BYTES = 16 << 30
"""How large a ring may be: each of its segments is looked at, and a file with a hole in it may have any size."""


@dataclass(frozen=True)
class Window:
    """Which time of a process a flight recorder shows, in ns since the process's start.

    Attributes:
        start_ns: from when on it is complete.
        end_ns: the last event, or when the copy was made.
        limit_ns, limit_bytes: what was asked for; 0 for no limit.
        dumped: whether it is a copy of a process that went on.
        dumped_by: who asked for the copy.
    """

    start_ns: int
    end_ns: int
    limit_ns: int
    limit_bytes: int
    dumped: bool
    dumped_by: str


@dataclass(frozen=True)
class Piece:
    """Records of one thread in one segment.

    Attributes:
        segment: where the segment begins in the file, in bytes.
        begin, end: where the records begin and end in the file, in bytes.
        carried: how many of them repeat what was open before.
        last_ns: the time of the last event; -1 for none.
    """

    segment: int
    begin: int
    end: int
    carried: int
    last_ns: int


@dataclass(frozen=True)
class RingThread:
    """One thread: its number in the process, the OS's, its last name (bytes), and what it left, in order."""

    sequence: int
    tid: int
    name: bytes
    pieces: tuple[Piece, ...]


def read_threads(path: Path, segment_bytes: int, notes: list[Message]) -> list[RingThread]:
    """Return the threads in the ring at `path`, by their number; `notes` gets what can't be read.

    Raises:
        OSError: the file can't be read.
    """
    found: dict[int, tuple[int, bytes, list[Piece]]] = {}
    for place, ordinal in _segments(path, segment_bytes):
        content = _segment(path, place, segment_bytes)
        for sequence, tid, name, piece in _pieces(path, place, ordinal, content, notes):
            _, _, pieces = found.get(sequence, (0, b"", []))
            found[sequence] = tid, name, pieces
            pieces.append(piece)
    return [RingThread(sequence, *found[sequence][:2], tuple(found[sequence][2])) for sequence in sorted(found)]


def read_records(path: Path, piece: Piece) -> NDArray[np.void]:
    """Return the records of a piece."""
    with path.open("rb") as file:
        file.seek(piece.begin)
        return np.frombuffer(file.read(piece.end - piece.begin), RECORD)


def _segments(path: Path, segment_bytes: int) -> list[tuple[int, int]]:
    """Return place and ordinal of the segments that hold something, in the order in which they were begun."""
    found = []
    with untrusted.open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > untrusted.limit(_RING_BYTES):
            raise untrusted.RefusedError(errno.EFBIG, f"it has {size} bytes; {untrusted.raised()}", os.fspath(path))
        for place in range(0, size - segment_bytes + 1, segment_bytes):
            file.seek(place)
            ordinal = int.from_bytes(file.read(8), "little")
            if ordinal:
                found.append((ordinal, place))
    return [(place, ordinal) for ordinal, place in sorted(found)]


def _segment(path: Path, place: int, segment_bytes: int) -> bytes:
    with path.open("rb") as file:
        file.seek(place)
        return file.read(segment_bytes)


def _pieces(
    path: Path, place: int, ordinal: int, content: bytes, notes: list[Message]
) -> Iterator[tuple[int, int, bytes, Piece]]:
    """Yield number, tid and name of each thread that wrote to a segment, with what it wrote."""
    again, sequence, magic, tid, carried, text_begin, name = _HEADER.unpack_from(content)
    if again != ordinal:
        return  # It was begun again since: the process is alive.
    if magic != _MAGIC or not _HEADER.size <= text_begin <= len(content):
        notes.append(Message("segment_damaged", f"{path} is damaged; its segment at byte {place} is lost"))
        return
    room = text_begin // RECORD.itemsize * RECORD.itemsize - _HEADER.size
    records = np.frombuffer(content, RECORD, room // RECORD.itemsize, _HEADER.size)
    empty = np.flatnonzero(records["word"] == 0)
    records = records[: empty[0]] if len(empty) else records
    kinds = (records["word"] >> KIND_SHIFT).astype(np.uint8)
    begin = 0
    for end in [*np.flatnonzero(kinds == _THREAD).tolist(), len(records)]:
        last_ns = _last_ns(records["word"][begin + carried : end], kinds[begin + carried : end])
        first = place + _HEADER.size
        piece = Piece(place, first + begin * RECORD.itemsize, first + end * RECORD.itemsize, carried, last_ns)
        yield sequence, tid, name, piece
        if end < len(records):
            sequence, tid = int(records["data"][end]), int(records["word"][end] & VALUE_MASK)
            names = records[end + 1 : end + 3]
            name = names["data"][kinds[end + 1 : end + 3] == _NAME].tobytes()
            begin, carried = end + 1 + len(names), 0


def _last_ns(words: NDArray[np.uint64], kinds: NDArray[np.uint8]) -> int:
    events = np.flatnonzero(kinds <= _LAST_EVENT)
    return int(words[events[-1]] & VALUE_MASK) if len(events) else -1
