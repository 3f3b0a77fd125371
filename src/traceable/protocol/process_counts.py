"""The counts of this process: its steps, and the ranges that it opened by name, in a file of its own.

`process.<pid>.counts`, next to the process's record, is a memory map, so it is right whatever ends the process, `kill
-9` included. A forked child makes one of its own when it counts something. Entries of 128 bytes follow each other,
integers little-endian. The first is the header:

    8 bytes           MAGIC
    int64             the pid
    int64, int64      the numbers of steps begun and of steps ended (`capture/windows.py`)

The others count ranges (`annotation/range_counts.py`):

    int64 certain     ranges of this name opened while the collector was certain to record
    int64 other       all others: outside of windows, and while one was being opened or closed
    uint16 length     of the text; 0 where the entries end
    110 bytes         the domain, a zero byte and the name, in UTF-8

The first of them counts what has no entry of its own: names that are too long or odd to come out of every collector as
they went in, and those after the 1000th. Nothing here raises into the program. `protocol/run_records.py` reads the
file.
"""

from __future__ import annotations

import mmap
import os

from traceable.protocol.process_record import COUNTS_SUFFIX, open_new_file, record, report_failure

MAGIC = b"TRCBLCNT"
ENTRY_BYTES = 128
ENTRIES_MAX = 1024
"""What the table has room for. It is mapped whole, and has blocks on the disk as far as it is used."""

STEPS_AT = 16
"""Where the header has the numbers of steps."""

TEXT_AT, LENGTH_AT, TEXT_MAX = 18, 16, 110
OTHER_ENTRY = 1
"""The entry that counts what has none of its own."""

_BLOCK = 4096


def make_entry_key(domain: str | None, name: str | None) -> bytes | None:
    """Return the text of an entry; None for a range that has none of its own.

    Args:
        domain, name: of the range; None, as in a recording the empty text, for none.
    """
    try:
        text = f"{domain or ''}\0{name or ''}".encode()
    except UnicodeEncodeError:  # half of a surrogate pair
        return None
    plain = text.count(b"\0") == 1 and all(byte > 31 or not byte for byte in text)
    return text if plain and len(text) <= TEXT_MAX else None


class ProcessCounts:
    """The file of this process.

    Attributes:
        map: the whole file; None where it could not be made, or not yet.
    """

    def __init__(self) -> None:
        self._reset()
        os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        self.map: mmap.mmap | None = None
        self._is_requested = False
        self._path = ""
        self._room = 0

    def open(self) -> mmap.mmap | None:
        """Make the file, once. Returns `map`."""
        with record.lock:
            if not self._is_requested and record.stem:
                self._is_requested = True
                try:
                    self.map = self._create_file()
                except Exception as error:  # noqa: BLE001 - a full disk, a directory that is gone: the program goes on
                    report_failure(error)
            return self.map

    def open_steps(self) -> memoryview | None:
        """Return the numbers of steps begun and ended, to be set; None where there is no file."""
        table = self.open()
        return None if table is None else memoryview(table).cast("q")[STEPS_AT // 8 : STEPS_AT // 8 + 2]

    def reserve(self, entries: int) -> bool:
        """Make room on the disk for this many entries. Returns whether there is."""
        if self.map is None or entries * ENTRY_BYTES <= self._room:
            return self.map is not None
        try:
            # Opened again: after a program has closed all descriptors, ours could be one of its own.
            descriptor = os.open(self._path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                self._allocate_blocks(descriptor, entries * ENTRY_BYTES)
            finally:
                os.close(descriptor)
        except OSError:
            return False
        return True

    def _create_file(self) -> mmap.mmap:
        self._path = record.stem + COUNTS_SUFFIX
        descriptor = open_new_file(self._path)
        try:
            os.truncate(descriptor, ENTRIES_MAX * ENTRY_BYTES)
            self._allocate_blocks(descriptor, _BLOCK)
            table = mmap.mmap(descriptor, ENTRIES_MAX * ENTRY_BYTES)
        finally:
            os.close(descriptor)
        table[:STEPS_AT] = MAGIC + os.getpid().to_bytes(8, "little")
        return table

    def _allocate_blocks(self, descriptor: int, size: int) -> None:
        """Write zeros into the file: a store into a hole of it, on a full disk, would be a SIGBUS."""
        missing = -(-(size - self._room) // _BLOCK) * _BLOCK
        if os.pwrite(descriptor, bytes(missing), self._room) != missing:
            raise OSError("no space left on the disk")
        self._room += missing


counts = ProcessCounts()
"""Those of this process."""
