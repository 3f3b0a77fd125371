"""What the launcher sees of the program's processes while they run: which load traceable and know nothing of the run,
and whether they are but the client of a server on this machine, which is the one to profile (`local_client`).

A process that was started without the run's environment (`env -i`, `env=`) can't tell of itself, and no annotated
server in production is to look into other processes to find out. So the launcher looks, every now and then, and only
at the processes below the program. One that is shorter than the time between two looks, that belongs to another user
or whose parent is gone is not seen.

Under nsys it also lets go what nsys's library holds at its exit (`release`).
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from traceable.launch import local_client
from traceable.launch.exit_release import ExitReleaser
from traceable.protocol import environment, untrusted

WITHOUT_ENVIRONMENT_FILE = "status.unaware"
"""The file in the run directory that keeps what was seen, one line of JSON a process."""

FIRST_INTERVAL_SECONDS = 0.25
INTERVAL_SHARE = 0.1
MAX_INTERVAL_SECONDS = 10.0
"""When it looks: at first soon, then at intervals that grow by a tenth of the run's age, at last every ten seconds."""

RELEASE_INTERVAL_SECONDS = 1.0
"""How often it looks whether nsys's library holds what it has seen."""

_PROC = Path("/proc")
_CORE = b"/traceable/_native/_core."
_VARIABLE = os.fsencode(f"{environment.RUN_DIR}=")


class ProcessWatcher:
    """Looks from `begin` to `end`, in a thread of its own. Nothing that it meets is raised.

    Args:
        run_dir: where it keeps what it sees.
        release: lets go what nsys's library holds; None where that is not in the program.
    """

    def __init__(self, run_dir: Path, release: ExitReleaser | None = None) -> None:
        self._file = run_dir / WITHOUT_ENVIRONMENT_FILE
        self._release = release
        self._below: list[int] = []
        self._over = threading.Event()
        self._seen: set[int] = set()
        self._thread: threading.Thread | None = None
        self._sockets = local_client.SocketWatcher()

    def start(self, pid: int) -> None:
        """Begin to look at the program, and the processes below it."""
        self._thread = threading.Thread(target=self._look_on, args=(pid,), name="traceable-onlooker", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Look no more."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def find_server(self, command: Sequence[str]) -> dict[str, Any] | None:
        """Return the server on this machine that the program, which is over, talked to; None where it is no client.

        Args:
            command: the command line of the program, which may name one.
        """
        with contextlib.suppress(Exception):
            return self._sockets.find_server(command)
        return None

    def _look_on(self, pid: int) -> None:
        began_s = now_s = time.monotonic()
        due_s = now_s + FIRST_INTERVAL_SECONDS
        # A fault of ours must not be printed between the lines of the program: all that is lost is evidence.
        with contextlib.suppress(Exception):
            while not self._over.wait(
                min(due_s - now_s, MAX_INTERVAL_SECONDS if self._release is None else RELEASE_INTERVAL_SECONDS)
            ):
                now_s = time.monotonic()
                if now_s >= due_s:
                    self._look(pid)
                    due_s = now_s + min(
                        MAX_INTERVAL_SECONDS, FIRST_INTERVAL_SECONDS + INTERVAL_SHARE * (now_s - began_s)
                    )
                if self._release is not None:
                    self._release.poll([pid, *self._below])

    def _look(self, pid: int) -> None:
        self._below = below = list(_below(pid))
        self._sockets.poll([pid, *below])
        for one in below:
            if one not in self._seen and _without_environment(one):
                self._seen.add(one)
                with self._file.open("a", encoding="ascii") as file:
                    file.write(json.dumps({"pid": one, "name": _name(one)}) + "\n")


def read_processes_without_environment(run_dir: Path) -> list[tuple[int, str]]:
    """Return pid and name of each process that was seen."""
    return [
        (one["pid"], one["name"])
        for one in untrusted.read_json_lines(run_dir / WITHOUT_ENVIRONMENT_FILE, untrusted.WITHOUT_ENVIRONMENT)
    ]


def _below(pid: int) -> Iterator[int]:
    """Yield the children of a process, theirs, and so on."""
    waiting = [pid]
    while waiting:
        for task in _entries(_PROC / str(waiting.pop()) / "task"):
            children = [int(word) for word in _read(task / "children").split()]
            waiting += children
            yield from children


def _without_environment(pid: int) -> bool:
    """Whether a process has loaded traceable's core and was started without the variables of the run."""
    given = _read(_PROC / str(pid) / "environ")
    if not given or any(entry.startswith(_VARIABLE) for entry in given.split(b"\0")):
        return False
    return _CORE in _read(_PROC / str(pid) / "maps")


def _name(pid: int) -> str:
    return _read(_PROC / str(pid) / "comm").decode("utf-8", "replace").strip()


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
