"""Texts: those that a thread did not register, from its own file or a flight recorder's ring, and nsys's StringIds."""

from __future__ import annotations

import mmap
import sqlite3
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from traceable import untrusted
from traceable.collect.nsys_tables import TABLES
from traceable.collect.recording import FILE_HEADER_BYTES, TEXT_BIT, TEXT_MAGIC, ThreadRecording, decode
from traceable.collect.sqlite_pages import LONGEST_TEXT

LOST_TEXT = "[text lost]"
"""Stands for a message whose text found no room on disk or was cut off."""

_MOST_CACHED = 100_000
_LONGEST_CACHED = 8_000_000
_ROWS_AT_ONCE = 10_000


class Strings:
    """The rows of StringIds, in a file of their own until the events are written. A context manager.

    A text has one row unless there are very many: only the last ones are remembered.

    Args:
        path: an SQLite file that is made for it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._database = sqlite3.connect(path, isolation_level=None)
        self._last = 0
        self._known: dict[str, int] = {}
        self._length = 0
        self._rows: list[tuple[int, str]] = []

    def __enter__(self) -> Strings:
        self._database.execute("PRAGMA journal_mode = OFF")
        self._database.execute("PRAGMA synchronous = OFF")
        self._database.execute("BEGIN")
        self._database.execute(TABLES["StringIds"])
        return self

    def __exit__(self, *_: object) -> None:
        self._database.close()

    def id(self, text: str) -> int:
        """Return the id of a text."""
        known = self._known.get(text)
        if known is not None:
            return known
        self._last += 1
        self._rows.append((self._last, text))
        self._length += len(text)
        if len(self._known) >= _MOST_CACHED or self._length > _LONGEST_CACHED:
            self._known.clear()
            self._length = len(text)
            self._write()
        elif len(self._rows) >= _ROWS_AT_ONCE:
            self._write()
        self._known[text] = self._last
        return self._last

    def finish(self) -> None:
        """Write what is not written yet; nothing is added afterwards."""
        self._write()
        self._database.execute("COMMIT")

    def _write(self) -> None:
        self._database.executemany("INSERT INTO StringIds (id, value) VALUES (?, ?)", self._rows)
        self._rows.clear()


class Texts:
    """The messages of one thread that were not registered. A context manager: it holds the file mapped.

    Args:
        thread: whose they are.
        strings: where a text goes that is too long for a row of its own.
    """

    def __init__(self, thread: ThreadRecording, strings: Strings) -> None:
        self._path = thread.texts
        self._in_ring = thread.pieces is not None
        self._strings = strings
        self._content: mmap.mmap | bytes = b""

    def __enter__(self) -> Texts:
        if untrusted.is_regular(self._path) and self._path.stat().st_size >= FILE_HEADER_BYTES:
            with untrusted.open_regular(self._path) as file:
                self._content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            if self._content[:8] != TEXT_MAGIC and not self._in_ring:
                self._close()
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def _close(self) -> None:
        if isinstance(self._content, mmap.mmap):
            self._content.close()
        self._content = b""

    def lookup(self, messages: NDArray[np.uint64]) -> tuple[NDArray[np.object_], NDArray[np.int16], NDArray[np.int32]]:
        """Return text (UTF-8) and length of each message that has TEXT_BIT set, or of a long one its id in StringIds.

        Of the other messages and of empty texts they are None, 0 and -1.
        """
        texts, ids = np.full(len(messages), None, object), np.full(len(messages), -1, np.int32)
        lengths = np.zeros(len(messages), np.int16)
        chosen = np.flatnonzero(messages & np.uint64(TEXT_BIT))
        if len(chosen):
            unique, inverse = np.unique(messages[chosen], return_inverse=True)
            found, numbers = np.full(len(unique), None, object), np.full(len(unique), -1, np.int32)
            sizes = np.zeros(len(unique), np.int16)
            for place, message in enumerate(unique.tolist()):
                text = self._text((message ^ TEXT_BIT) * 8)
                if len(text) > LONGEST_TEXT:
                    numbers[place] = self._strings.id(text.decode())
                elif text:
                    found[place], sizes[place] = text, len(text)
            texts[chosen], lengths[chosen], ids[chosen] = found[inverse], sizes[inverse], numbers[inverse]
            if isinstance(self._content, mmap.mmap):
                # They stay in the system's cache; they need not count as this process's memory.
                self._content.madvise(mmap.MADV_DONTNEED)
        return texts, lengths, ids

    def _text(self, place: int) -> bytes:
        lost = LOST_TEXT.encode()
        if place + 8 > len(self._content):
            return lost
        length = int.from_bytes(self._content[place : place + 8], "little")
        if place + 8 + length > len(self._content):
            return lost
        return decode(self._content[place + 8 : place + 8 + length]).encode()
