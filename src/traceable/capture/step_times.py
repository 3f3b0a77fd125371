"""How long each step took, for `run --measure-overhead`: when it began and ended, in a file of the run directory.

`status.<pid>.times` holds three native int64 a step, in the order of its index: begin and end in ns of the monotonic
clock, 0 and 0 for a step that did not end or whose beginning nobody saw; and for a step now and then how long its
thread had waited for a CPU by its end, in ns and 1 more, which tells how busy the machine was. It is written through a
memory map, so it is right whatever ends the process, and a step costs two stores. What lies between steps, the opening
and closing of windows above all, is in no step. Nothing here raises into the program; `launch/overhead.py` reads it.
"""

from __future__ import annotations

import os
from _thread import get_ident

from traceable.protocol import environment

TYPE_CHECKING = False
if TYPE_CHECKING:
    import mmap

VALUES_PER_STEP = 3
"""How many a step has."""

CHUNK_STEPS = 8192
"""By how many steps the file grows: 192 KiB, a whole number of pages everywhere."""

MAX_STEPS = 1 << 20
"""After so many steps (24 MiB) nothing more is written: what a step costs is known by then."""

_NEVER = 1 << 63
_BYTES = 8 * VALUES_PER_STEP
_LOOK_NS = 10_000_000
"""How often it is looked how long the thread has waited: that takes 6 us, and lies between two steps."""

_SCHEDSTAT = "/proc/thread-self/schedstat"
"""Three numbers of this thread, in ns but the last: time on a CPU, time waiting for one, and how often it got one."""


class StepTimes:
    """The file of this process. It is made when the first step ends.

    Args:
        run_dir: the run directory.
    """

    __slots__ = ("_from", "_look_at_ns", "_map", "_path", "_thread", "_until", "_values")

    def __init__(self, run_dir: str) -> None:
        self._path = f"{run_dir}/status.{os.getpid()}.times"
        self._from = 0
        self._until = 0
        self._thread = 0
        self._look_at_ns = 0
        self._map: mmap.mmap | None = None
        self._values: memoryview | None = None

    def add(self, index: int, begin_ns: int, end_ns: int) -> None:
        """Note when step `index` began and ended; indices never fall."""
        if index >= self._until:
            self._grow(index)
        if self._values is not None:
            at = VALUES_PER_STEP * (index - self._from)
            self._values[at] = begin_ns
            self._values[at + 1] = end_ns
            if end_ns >= self._look_at_ns:
                self._look_at_ns = end_ns + _LOOK_NS
                self._values[at + 2] = self._waited_ns() + 1

    def _waited_ns(self) -> int:
        """Return how long this thread has waited for a CPU; -1 where the kernel does not say, or for another thread."""
        self._thread = self._thread or get_ident()
        if self._thread != get_ident():
            return -1
        try:
            # Opened each time: a program that closes all descriptors would leave us with one of its own.
            descriptor = os.open(_SCHEDSTAT, os.O_RDONLY | os.O_CLOEXEC)
            try:
                return int(os.read(descriptor, 100).split()[1])
            finally:
                os.close(descriptor)
        except (OSError, ValueError, IndexError):
            self._look_at_ns = _NEVER
            return -1

    def _grow(self, index: int) -> None:
        """Lengthen the file to the part that `index` lies in, and map that."""
        self._values = None
        self._from = index - index % CHUNK_STEPS
        self._until = self._from + CHUNK_STEPS
        if self._from >= MAX_STEPS:
            self._until = _NEVER
            return
        try:
            import mmap

            # A pid may have come round within the run: the first part begins the file anew.
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | (0 if self._map else os.O_TRUNC)
            descriptor = os.open(self._path, flags, 0o666)
            try:
                # Written and not only lengthened: a store into a hole on a full disk is a SIGBUS.
                missing = self._until * _BYTES - os.fstat(descriptor).st_size
                if os.pwrite(descriptor, bytes(missing), self._until * _BYTES - missing) != missing:
                    raise OSError("no space left on the disk")
                self._map = mmap.mmap(descriptor, CHUNK_STEPS * _BYTES, offset=self._from * _BYTES)
            finally:
                os.close(descriptor)
            self._values = memoryview(self._map).cast("q")
        except Exception as error:  # noqa: BLE001 - a full disk, a directory that is gone: the program goes on
            self._until = _NEVER
            environment.warn_once("step_times_not_written", f"how long steps take is not noted: {error}")


def open_step_times() -> StepTimes | None:
    """Return where to note the steps of this process; None where the launcher did not ask for it."""
    run_dir = os.environ.get(environment.RUN_DIR, "")
    return StepTimes(run_dir) if run_dir and environment.read_flag(environment.STEP_TIMES) else None
