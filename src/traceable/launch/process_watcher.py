"""Watch the program's processes from the launcher while they run.

It finds processes that load traceable without the run's environment (`env -i`, `env=`), which can't report themselves;
and programs that are only clients of a local server, which is the one to profile (`local_client`). The launcher polls
the program and its descendants now and then. A process that lives shorter than the poll interval, that belongs to
another user or whose parent is gone is not found.

Under nsys it also releases processes that nsys's library blocks at their exit (`exit_release`).
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from traceable.launch import local_client
from traceable.protocol import environment
from traceable.protocol.run_records import WITHOUT_ENVIRONMENT_FILE

if TYPE_CHECKING:
    import psutil

    from traceable.launch.exit_release import ExitReleaser

FIRST_INTERVAL_SECONDS = 0.25
INTERVAL_SHARE = 0.1
MAX_INTERVAL_SECONDS = 10.0
"""Poll intervals: short at first, then growing by a tenth of the run's age, up to ten seconds."""

RELEASE_INTERVAL_SECONDS = 1.0
"""How often it checks whether nsys's library blocks a process at its exit."""

_CORE = b"/traceable/_native/_core."


class ProcessWatcher:
    """Polls from `start` to `stop`, in a thread of its own. It raises nothing.

    Args:
        run_dir: the run directory.
        release: releases processes that nsys's library blocks; None where nsys is not used.
    """

    def __init__(self, run_dir: Path, release: ExitReleaser | None = None) -> None:
        self._file = run_dir / WITHOUT_ENVIRONMENT_FILE
        self._release = release
        self._descendants: list[int] = []
        self._stopped = threading.Event()
        self._reported: set[int] = set()
        self._thread: threading.Thread | None = None
        self._sockets = local_client.SocketWatcher()

    def start(self, pid: int) -> None:
        """Begin to watch the program and its descendants. Without a thread only evidence is lost."""
        thread = threading.Thread(target=self._run, args=(pid,), name="traceable-watcher", daemon=True)
        with contextlib.suppress(RuntimeError, MemoryError):  # the limit on threads is reached
            thread.start()
            self._thread = thread

    def stop(self) -> None:
        """Stop watching."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()

    def find_server(self, command: Sequence[str]) -> dict[str, Any] | None:
        """Return the local server that the program, which has ended, was a client of; None where it was not a client.

        Args:
            command: the command line of the program, which may have the server's address.
        """
        with contextlib.suppress(Exception):
            return self._sockets.find_server(command)
        return None

    def _run(self, pid: int) -> None:
        began_s = now_s = time.monotonic()
        due_s = now_s + FIRST_INTERVAL_SECONDS
        # A fault of ours must not be printed between the program's lines: only evidence is lost.
        with contextlib.suppress(Exception):
            while not self._stopped.wait(
                min(due_s - now_s, MAX_INTERVAL_SECONDS if self._release is None else RELEASE_INTERVAL_SECONDS)
            ):
                now_s = time.monotonic()
                if now_s >= due_s:
                    self._poll(pid)
                    due_s = now_s + min(
                        MAX_INTERVAL_SECONDS, FIRST_INTERVAL_SECONDS + INTERVAL_SHARE * (now_s - began_s)
                    )
                if self._release is not None:
                    self._release.poll([pid, *self._descendants])

    def _poll(self, pid: int) -> None:
        from traceable.collectors.process_list import UNREADABLE, list_descendants

        processes = list_descendants(pid)
        self._descendants = [process.pid for process in processes]
        self._sockets.poll([pid, *self._descendants])
        for process in processes:
            with contextlib.suppress(*UNREADABLE):
                if process.pid not in self._reported and _lacks_environment(process):
                    line = json.dumps({"pid": process.pid, "name": process.name()})
                    self._reported.add(process.pid)
                    with self._file.open("a", encoding="ascii") as file:
                        file.write(line + "\n")


def _lacks_environment(process: psutil.Process) -> bool:
    """Whether a process has loaded traceable's core and was started without the variables of the run."""
    variables = process.environ()
    if not variables or environment.RUN_DIR in variables:
        return False
    # Not psutil's memory_maps: it reads `smaps`, for which the kernel walks the page tables of the program.
    return _CORE in Path(f"/proc/{process.pid}/maps").read_bytes()
