"""The state of this process, its steps and windows: for the launcher in files, and for control clients.

Two files in the run directory, for each process. `status.<pid>.json` is written atomically, when a window opens or
closes and when Python ends. `status.<pid>.steps` holds two little-endian int64, the numbers of steps begun and of steps
ended, in a memory map: they are correct however the process ends, `kill -9` included. Nothing here raises into the
program.
"""

from __future__ import annotations

import os
import time
from _thread import RLock

from traceable.capture import process
from traceable.protocol import environment
from traceable.protocol.json_text import to_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from traceable.capture.schedule import Schedule
    from traceable.capture.windows import ActiveWindow
    from traceable.protocol.windows import WindowRecord

SCHEMA = "traceable.status/1"
_COUNTER_BYTES = 16


class Publisher:
    """What other processes can see of this one. `counter` and `windows` set the attributes.

    Args:
        schedule: which windows are requested.

    Attributes:
        begun, ended: how many steps have.
        nested_steps: how many steps began inside of another, and are not counted.
        gate: the name of the gate; None while nothing is gated.
        windows: all windows by id, in the order in which they were due.
        active: the window that is opening, open or closing; None for none.
        on_update: called when a window has opened or closed; None for no function.
    """

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self.on_update: Callable[[], None] | None = None
        self.restart()

    def restart(self) -> None:
        """Begin at step 0 with no window, as a new process does and a forked child."""
        self.begun = self.ended = self.nested_steps = 0
        self.gate: str | None = None
        self.windows: dict[str, WindowRecord] = {}
        self.active: ActiveWindow | None = None
        self._end: str | None = None
        self._files: _StatusFiles | None = None
        self._writing = RLock()

    def count(self, begun: int, ended: int) -> None:
        """Record how many steps have begun and ended."""
        self.begun, self.ended = begun, ended
        (self._files or self.open()).count(begun, ended)

    def open(self) -> _StatusFiles:
        """Create the files: with the first step, or before a window that needs none."""
        with self._writing:
            if self._files is None:
                run_dir = os.environ.get(environment.RUN_DIR, "")
                self._files = _StatusFiles(run_dir)
                self.write()
            return self._files

    def write(self) -> None:
        """Write the JSON file, and report the change to control clients."""
        with self._writing:
            if self._files is None:
                self.open()
                return
            self._files.write(
                {
                    "pid": os.getpid(),
                    "parent_pid": os.getppid(),
                    "wall_ns": time.time_ns(),
                    **self._schedule.to_status(),
                    "gate": self.gate,
                    "steps": {"begun": self.begun, "ended": self.ended},
                    "nested_steps": self.nested_steps,
                    "windows": [window.to_dict() for window in list(self.windows.values())],
                    "end": self._end,
                }
            )
        self.notify()

    def end(self, reason: str) -> None:
        """Record how Python ends, if anything was recorded before."""
        self._end = reason
        if self._files is not None:
            self.write()

    def notify(self) -> None:
        """Report a change to control clients."""
        if self.on_update is not None:
            self.on_update()

    @property
    def state(self) -> dict[str, Any]:
        """The state of this process, for control requests. Waits for nothing."""
        # Requests first: one that is being opened is seen as a request, as a window, or as both.
        requested_by = [request.by for request in list(self._schedule.requests)]
        active = self.active
        window = active.record.to_dict() if active is not None and active.state != "closing" else None
        return {
            "pid": os.getpid(),
            "steps": {"begun": self.begun, "ended": self.ended},
            "gate": self.gate,
            "requested_by": requested_by,
            "state": active.state if active is not None else "requested" if requested_by else "idle",
            "window": window,
            "closed_windows": sum(one.closed_step is not None for one in list(self.windows.values())),
        }


def _open_no_follow(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)


class _StatusFiles:
    """The files of this process.

    Args:
        run_dir: the run directory; empty for a process without a launcher, which writes nothing.
    """

    __slots__ = ("_counter", "_map", "_path")

    def __init__(self, run_dir: str) -> None:
        self._path = f"{run_dir}/status.{os.getpid()}" if run_dir else ""
        self._map: Any = None
        self._counter: Any = None
        if self._path:
            self._open_counter()

    def count(self, begun: int, ended: int) -> None:
        """Record how many steps have begun and ended."""
        if self._counter is not None:
            self._counter[0] = begun
            self._counter[1] = ended

    def write(self, content: dict[str, Any]) -> None:
        """Write the JSON file."""
        if not self._path:
            return
        try:
            part = f"{os.path.dirname(self._path)}/.{os.path.basename(self._path)}.part"  # noqa: PTH119, PTH120
            with open(part, "w", encoding="ascii", opener=_open_no_follow) as file:
                file.write(to_json({"schema": SCHEMA, "process": process.describe_process(), **content}))
            os.replace(part, f"{self._path}.json")  # noqa: PTH105
        except Exception as error:  # noqa: BLE001 - a full disk, a directory that is gone: the program goes on
            environment.warn_once("status_not_written", f"the status of this process is not written: {error}")

    def _open_counter(self) -> None:
        try:
            import mmap

            # No link is followed: in a directory that others can write, it could point to any file of this user.
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_TRUNC | os.O_NOFOLLOW
            descriptor = os.open(f"{self._path}.steps", flags, 0o666)
            try:
                # Written and not only extended: a store into a hole on a full disk raises SIGBUS.
                os.write(descriptor, bytes(_COUNTER_BYTES))
                self._map = mmap.mmap(descriptor, _COUNTER_BYTES)
            finally:
                os.close(descriptor)
            self._counter = memoryview(self._map).cast("q")
        except Exception as error:  # noqa: BLE001 - as above
            environment.warn_once("status_not_written", f"the status of this process is not written: {error}")
