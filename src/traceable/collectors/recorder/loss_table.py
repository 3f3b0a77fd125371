"""A table of our own in a database: what processes emitted, and what the recorder knows that it lost of them.

Each row is about a process: `emitted` or `lost` as `kind`, and JSON. Whoever reads the database alone then knows as
much of its completeness as whoever has the whole run. A database of anybody else's has no such table.
"""

from __future__ import annotations

import contextlib
import errno
import json
import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from traceable.errors import Message
from traceable.protocol import untrusted

if TYPE_CHECKING:
    from traceable.collectors.recorder.recording import ProcessRecording

TABLE = "TRACEABLE_COMPLETENESS"
CREATE = f"CREATE TABLE IF NOT EXISTS {TABLE} (kind TEXT NOT NULL, pid INTEGER NOT NULL, value TEXT NOT NULL)"
COLUMNS = ("kind", "pid", "value")
EMITTED, LOST = "emitted", "lost"

EVENTS_DROPPED, NAMES_LOST, FILES_CUT = "events_dropped", "names_lost", "files_cut"
"""What the recorder knows of: events, or names, for which there was no room; bytes that its files lack by now."""

_MOST_ROWS = 100_000
_MOST_BYTES = 1 << 20
_ROWS = f"SELECT kind, pid, value FROM {TABLE} WHERE length(value) <= {_MOST_BYTES} LIMIT {_MOST_ROWS}"
_IS_TABLE = f"SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = '{TABLE}'"

SIZE_CAP = 0xFFFFFFFF
"""What the recorder's header has in place of an errno where its own cap was reached."""

_REASONS = {
    SIZE_CAP: ("size_cap", "the size cap was reached (TRACEABLE_RECORDING_MAX_BYTES)"),
    errno.ENOSPC: ("disk_full", "the disk was full"),
    errno.EDQUOT: ("disk_full", "the disk quota was used up"),
    errno.EFBIG: ("file_size_limit", "the limit of the size of a file was reached (ulimit -f)"),
    errno.EACCES: ("permission", "the process lost the permission to write there (setuid, a changed mode)"),
    errno.EPERM: ("permission", "the process was not permitted to write there"),
    errno.EROFS: ("permission", "the file system was read-only"),
    errno.EMFILE: ("descriptors", "the process had no file descriptor left"),
    errno.ENFILE: ("descriptors", "the system had no file descriptor left"),
    errno.ENOENT: ("directory_gone", "the recording directory was gone (deleted, chroot)"),
    errno.ENOTDIR: ("directory_gone", "the recording directory was gone"),
    errno.ENOMEM: ("memory", "no memory could be mapped"),
}
_SIGNAL_HANDLER = ("signal_handler", "a signal handler made them while the thread wrote another event")
_RING = ("ring_full", "more threads recorded than its flight recorder has room for")


def summarize_loss(process: ProcessRecording) -> dict[str, Any] | None:
    """Return what the recorder lost of a process: `codes` (how much by code), `reason` (a code) and `text`, a sentence.

    None where it lost nothing that it knows of.
    """
    codes = {
        EVENTS_DROPPED: process.dropped,
        NAMES_LOST: process.lost_names,
        FILES_CUT: process.missing_bytes,
    }
    codes = {code: number for code, number in codes.items() if number}
    if not codes:
        return None
    known = _reason(process)[0] if process.dropped or process.lost_names else None
    notes = list_loss_notes(process)
    text = Message(notes[0].code, "; ".join(notes)).printed
    return {"text": text, "codes": codes, "reason": known}


def list_loss_notes(process: ProcessRecording) -> list[Message]:
    """Return a note for each kind of loss of a process that the recorder knows of."""
    called = f"process {process.pid} ({process.name})"
    _, why = _reason(process)
    notes = []
    if process.dropped:
        notes.append(Message("events_dropped", f"{process.dropped} events of {called} dropped: {why}"))
    if process.lost_names:
        notes.append(Message("names_lost", f"{process.lost_names} names of {called} lost: {why}"))
    if process.missing_bytes:
        found = f"{process.missing_bytes} bytes of the recording of {called} are missing: its files were cut off"
        notes.append(Message("files_cut", found))
    return notes


def _reason(process: ProcessRecording) -> tuple[str, str]:
    """Return why something of a process was dropped: as a code, and in words."""
    if process.window and process.dropped:
        return _RING
    if process.drop_reason:
        number = process.drop_reason
        return _REASONS.get(number) or (f"errno_{number}", f"the system said {errno.errorcode.get(number, number)}")
    return _SIGNAL_HANDLER


def make_row(kind: str, pid: int, content: dict[str, Any]) -> tuple[str, int, str]:
    """Return a row of the table."""
    return kind, pid, json.dumps(content)


def replace_rows(database: Path, kind: str, rows: Iterable[tuple[int, dict[str, Any]]]) -> None:
    """Write pids and contents in place of the rows of this kind. Where that can't be, the run directory has it."""
    with contextlib.suppress(sqlite3.Error), contextlib.closing(sqlite3.connect(database)) as file, file:
        file.execute(CREATE)
        file.execute(f"DELETE FROM {TABLE} WHERE kind = ?", (kind,))
        file.executemany(f"INSERT INTO {TABLE} VALUES (?, ?, ?)", (make_row(kind, *one) for one in rows))


def read_rows(database: Path) -> list[tuple[str, int, dict[str, Any]]]:
    """Return the rows of a database: kind, pid and content. What is not ours is passed over."""
    try:
        with contextlib.closing(untrusted.open_database(database)) as file:
            there = file.execute(_IS_TABLE).fetchone()[0]
            rows = file.execute(_ROWS).fetchall() if there else []
    except (OSError, *untrusted.SQLITE_ERRORS):
        return []
    found = []
    for kind, pid, value in rows:
        try:
            content = json.loads(value)
        except (TypeError, ValueError, RecursionError):
            continue
        if isinstance(kind, str) and isinstance(pid, int) and isinstance(content, dict):
            found.append((kind, pid, content))
    return found
