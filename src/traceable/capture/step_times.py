"""Begin and end of each step, in a file of the run directory, for `run --measure-overhead`.

`process.<pid>.times`, next to the record of the process, holds three native int64 for each step, in the order of its
index: begin and end in ns of the monotonic clock, 0 and 0 for a step that did not end or whose begin was not recorded;
and for some steps how long the thread had waited for a CPU by its end, in ns plus 1, a measure of how busy the machine
was. It is written through a memory map, so it is correct however the process ends, and a step costs two stores. Time
between steps, such as the opening and closing of windows, is part of no step. Nothing here raises into the program;
`cli/overhead.py` reads it.
"""

from __future__ import annotations

import os
from _thread import get_ident

from traceable.protocol import environment
from traceable.protocol.process_record import TIMES_SUFFIX, open_new_file, record

TYPE_CHECKING = False
if TYPE_CHECKING:
    import mmap

VALUES_PER_STEP = 3
"""How many int64 each step has."""

CHUNK_STEPS = 8192
"""By how many steps the file grows: 192 KiB, a whole number of pages everywhere."""

MAX_STEPS = 1 << 20
"""After this many steps (24 MiB) nothing more is written: the cost of a step is known by then."""

_NEVER = 1 << 63
_BYTES = 8 * VALUES_PER_STEP
_READ_INTERVAL_NS = 10_000_000
"""How often the waiting time of the thread is read: that takes 6 us, between two steps."""

_SCHEDSTAT = "/proc/thread-self/schedstat"
"""Three numbers of this thread: time on a CPU in ns, time waiting for one in ns, number of time slices."""


class StepTimes:
    """The file of this process, created when the first step ends.

    Args:
        path: of the file.
    """

    __slots__ = ("_from", "_map", "_next_read_ns", "_path", "_thread", "_until", "_values")

    def __init__(self, path: str) -> None:
        self._path = path
        self._from = 0
        self._until = 0
        self._thread = 0
        self._next_read_ns = 0
        self._map: mmap.mmap | None = None
        self._values: memoryview | None = None

    def add(self, index: int, begin_ns: int, end_ns: int) -> None:
        """Record when step `index` began and ended; indices never decrease."""
        if index >= self._until:
            self._grow(index)
        if self._values is not None:
            at = VALUES_PER_STEP * (index - self._from)
            self._values[at] = begin_ns
            self._values[at + 1] = end_ns
            if end_ns >= self._next_read_ns:
                self._next_read_ns = end_ns + _READ_INTERVAL_NS
                self._values[at + 2] = self._read_cpu_wait_ns() + 1

    def _read_cpu_wait_ns(self) -> int:
        """Return how long this thread has waited for a CPU; -1 if not available, or for another thread."""
        self._thread = self._thread or get_ident()
        if self._thread != get_ident():
            return -1
        try:
            # Opened each time: after a program has closed all descriptors, ours could be one of its own.
            descriptor = os.open(_SCHEDSTAT, os.O_RDONLY | os.O_CLOEXEC)
            try:
                return int(os.read(descriptor, 100).split()[1])
            finally:
                os.close(descriptor)
        except (OSError, ValueError, IndexError):
            self._next_read_ns = _NEVER
            return -1

    def _grow(self, index: int) -> None:
        """Extend the file to the chunk that contains `index`, and map that chunk."""
        self._values = None
        self._from = index - index % CHUNK_STEPS
        self._until = self._from + CHUNK_STEPS
        if self._from >= MAX_STEPS:
            self._until = _NEVER
            return
        try:
            import mmap

            flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
            descriptor = os.open(self._path, flags) if self._map else open_new_file(self._path)
            try:
                # Written and not only extended: a store into a hole on a full disk raises SIGBUS.
                missing = self._until * _BYTES - os.fstat(descriptor).st_size
                if os.pwrite(descriptor, bytes(missing), self._until * _BYTES - missing) != missing:
                    raise OSError("no space left on the disk")
                self._map = mmap.mmap(descriptor, CHUNK_STEPS * _BYTES, offset=self._from * _BYTES)
            finally:
                os.close(descriptor)
            self._values = memoryview(self._map).cast("q")
        except Exception as error:  # noqa: BLE001 - a full disk, a directory that is gone: the program goes on
            self._until = _NEVER
            environment.warn_once("step_times_not_written", f"the times of steps are not recorded: {error}")


def open_step_times() -> StepTimes | None:
    """Return the file for the step times of this process; None if the launcher did not request it."""
    if not record.run_dir or not environment.read_flag(environment.STEP_TIMES):
        return None
    return StepTimes(record.stem + TIMES_SUFFIX)
