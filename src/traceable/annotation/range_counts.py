"""How many ranges this process has opened, by name: the number that a recording is compared with after the run.

`status.<pid>.<ns>.emitted` in the run directory holds it, in a memory map, so it is right whatever ends the process. It
is made when traceable is imported, and in a forked child with its first range; a program that another one replaced
(exec) has one of its own. Entries of 128 bytes follow each other, integers little-endian:

    int64 certain     ranges of this name opened while the collector was certain to record
    int64 other       all others: outside of windows, and while one was being opened or closed
    uint16 length     of the text; 0 where the entries end
    110 bytes         the domain, a zero byte and the name, in UTF-8

The first is the header (`MAGIC` and the pid in place of the numbers). The second counts what has no entry of its own:
names that are too long or odd to come out of every collector as they went in, and those after the 1000th.

A range counts where it is opened, after it was emitted: one that is open at the edge of a window belongs to the side on
which it was opened, as in every recording. `capture` and `torch.profiler_backend` report the state of the collector by
`set_recording` and `set_gated`: it is certain to record from when its window has opened until just before it closes.
Nothing here raises into the program. `launch/range_counts.py` reads the file.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from traceable.protocol import environment

MAGIC = b"TRCBLEMT"
ENTRY_BYTES = 128
ENTRIES_MAX = 1024
"""What the table has room for. It is mapped whole, and has blocks on the disk as far as it is used."""

_WORDS = ENTRY_BYTES // 8
_TEXT_AT, _TEXT_MAX = 18, 110
_BLOCK = 4096
OTHER_ENTRY = 1
"""The entry that counts what has none of its own."""


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
    return text if plain and len(text) <= _TEXT_MAX else None


class _Unopened:
    """Takes the place of `RangeCounts.table` in a forked child that has opened no range yet."""

    def __init__(self, counts: RangeCounts) -> None:
        self._counts = counts

    def __getitem__(self, slot: int) -> int:
        return 0

    def __setitem__(self, slot: int, number: int) -> None:
        self._counts.open()
        self._counts.table[slot] += number


class RangeCounts:
    """The table of this process.

    Args:
        run_dir: the run directory.
        core: the native core, which counts itself; None for the pure form, which counts in `table`.

    Attributes:
        table: what one is added to, at a slot; another object whenever that changes.
    """

    def __init__(self, run_dir: str, core: Any = None) -> None:
        self._run_dir = run_dir
        self._core = core
        self._slots: dict[bytes, int] = {}
        self._gated, self._recording = _state_of_environment()
        self._map: Any = None
        self._path = ""
        self._owner = self._room = 0
        self.table: Any = [0] * (ENTRIES_MAX * _WORDS)
        # Imported here, so that nothing has to be when the disk or the descriptors are used up.
        import mmap

        self._make_map = mmap.mmap
        if core is not None:
            core.set_count_callbacks(self.get_slot, self.open)
        self.open()
        os.register_at_fork(after_in_child=self._in_child)

    # ---- what is counted

    def get_slot(self, domain: str | None, name: str | None) -> int:
        """Return where the ranges of this name are counted."""
        text = make_entry_key(domain, name)
        entry = self._slots.get(text) if text is not None else OTHER_ENTRY
        if entry is None:
            self.open()  # a forked child makes a range that its parent did not have
            number = len(self._slots) + 2
            entry = number if number < ENTRIES_MAX and self._has_room(number) else OTHER_ENTRY
            if entry != OTHER_ENTRY:
                assert text is not None
                self._write(number, text)
                self._slots[text] = number
        return entry * _WORDS

    def add(self, counter: Any, slot: int) -> None:
        """Count a range of the pure form.

        Args:
            counter: `table` as it was before the range was emitted. Where it is another one by now, a window was
                opened or closed in between, and nothing is certain.
            slot: of the range.
        """
        if counter is self.table:
            counter[slot] += 1
        elif self._map is not None:
            memoryview(self._map).cast("q")[slot + 1] += 1

    def set_recording(self, certain: bool) -> None:
        """Note that the collector records, or that from here on it is not certain to."""
        if certain != self._recording:
            self._recording = certain
            self._update_table()

    def set_gated(self) -> None:
        """Note that the collector records nothing from here on but windows."""
        self._gated = True
        self.set_recording(False)

    def discard(self) -> None:
        """Note that the data recorded until now is discarded."""
        if self._map is not None:
            words = memoryview(self._map).cast("q")
            for number in range(1, len(self._slots) + 2):
                words[number * _WORDS + 1] += words[number * _WORDS]
                words[number * _WORDS] = 0

    # ---- the file

    def open(self) -> None:
        """Make the table of this process, with the names that are known by now. Where that fails nothing is counted."""
        if self._owner == os.getpid():
            return
        self._owner = os.getpid()
        self._map, self._room, self.table = None, 0, None
        path = f"{self._run_dir}/status.{os.getpid()}.{time.time_ns()}.emitted"
        texts = [b"", *self._slots]
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
            try:
                os.truncate(descriptor, ENTRIES_MAX * ENTRY_BYTES)
                header = MAGIC + os.getpid().to_bytes(8, "little")
                self._path = path
                self._allocate(descriptor, (len(texts) + 1) * ENTRY_BYTES)
                self._map = self._make_map(descriptor, ENTRIES_MAX * ENTRY_BYTES)
            finally:
                os.close(descriptor)
            self._map[: len(header)] = header
            self._map[16:18] = (1).to_bytes(2, "little")
            for number, text in enumerate(texts, OTHER_ENTRY):
                self._write(number, text or b"\0")
        except Exception as error:  # noqa: BLE001 - a full disk, a directory that is gone: the program goes on
            self._map = None
            environment.warn_once("status_not_written", f"the launcher gets no status of this process: {error}")
        self._update_table()

    def _allocate(self, descriptor: int, least: int) -> None:
        """Write zeros into the file: a store into a hole of it, on a full disk, would be a SIGBUS."""
        missing = -(-(least - self._room) // _BLOCK) * _BLOCK
        if os.pwrite(descriptor, bytes(missing), self._room) != missing:
            raise OSError("no space left on the disk")
        self._room += missing

    def _has_room(self, number: int) -> bool:
        if (number + 1) * ENTRY_BYTES <= self._room:
            return True
        if self._map is None:
            return False
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
            try:
                self._allocate(descriptor, (number + 1) * ENTRY_BYTES)
            finally:
                os.close(descriptor)
        except OSError:  # counted in the entry of all others
            return False
        return True

    def _write(self, number: int, text: bytes) -> None:
        at = number * ENTRY_BYTES
        self._map[at + _TEXT_AT : at + _TEXT_AT + len(text)] = text
        self._map[at + 16 : at + 18] = len(text).to_bytes(2, "little")

    def _update_table(self) -> None:
        if self._map is None:
            if not isinstance(self.table, _Unopened):
                self.table = [0] * (ENTRIES_MAX * _WORDS)
            return
        if self._core is not None:
            self._core.set_count_table(self._map, self._recording)
            return
        words: Any = memoryview(self._map).cast("q")
        self.table = words if self._recording else words[1:]

    # ---- what changes it

    def _in_child(self) -> None:
        """Begin anew in a forked child, with its first range: most open none, and a fork is to be cheap."""
        try:
            if sys._getframe(1).f_globals.get("__name__") == "subprocess":
                return
            self._recording = self._recording and not self._gated
            self._map, self._room = None, 0
            if self._core is None:
                self.table = _Unopened(self)
        except Exception as error:  # noqa: BLE001 - the child is the user's
            environment.warn_once("status_not_written", f"the launcher gets no status of this process: {error}")


def _state_of_environment() -> tuple[bool, bool]:
    """Return whether the launcher records windows alone, and whether all is recorded from the start."""
    collector = os.environ.get(environment.COLLECTOR)
    if collector == "torch":  # `torch.profiler_backend` calls `set_recording`
        return os.environ.get(environment.TORCH) == "windows", False
    gated = environment.read_flag(environment.RECORDING_GATED) or bool(os.environ.get(environment.FLIGHT_RECORDER))
    if collector == "nsys":
        gated = bool(os.environ.get(environment.GATE))
    return gated, not gated


def is_requested() -> bool:
    """Whether a launcher compares what is emitted with what is recorded."""
    return bool(os.environ.get(environment.RUN_DIR)) and os.environ.get(environment.COLLECTOR) not in (None, "", "none")
