"""What this process is: its rank, what it is called, how it came to be; and whether it is one that is recorded.

What is asked for is decided in `decision`, where anything is. This says it to the rest of the room, and to the
launcher in the status file. Nothing here starts or stops a profiler.
"""

from __future__ import annotations

import os
import sys

from traceable import decision, selection
from traceable.protocol import environment

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

MAIN, SPAWN, FORK, FORKSERVER = "main", "spawn", "fork", "forkserver"
"""How a process came to be. `main` is one that a program started, or somebody at a shell."""


_FORKED_WITHOUT_EXEC = 0x40
"""PF_FORKNOEXEC in the flags of /proc/PID/stat (linux/sched.h)."""


def is_forked() -> bool:
    """Whether this process was forked, and has executed no program since; False where Linux does not say."""
    try:
        with open("/proc/self/stat", "rb") as file:  # noqa: PTH123 - pathlib takes 10 ms to import
            # The name, the second field, may hold spaces and brackets. The flags are the ninth.
            return bool(int(file.read().rpartition(b")")[2].split()[6]) & _FORKED_WITHOUT_EXEC)
    except (OSError, ValueError, IndexError):
        return False


class _Forked:
    """What is known of a fork in the child: nothing in a process that was not forked since traceable is loaded."""

    def __init__(self) -> None:
        self.pid = 0
        self.name: str | None = None
        os.register_at_fork(after_in_child=self._in_child)

    def _in_child(self) -> None:
        self.pid = os.getpid()
        try:
            self.name = selection.name_while_started(sys._getframe(1))
        except Exception:  # noqa: BLE001 - a name is all that is lost
            self.name = None


_forked = _Forked()


def selecting() -> bool:
    """Whether only some processes of the run are recorded."""
    return decision.current is not None


def is_selected() -> bool:
    """Whether this process is to be recorded: it is unless `run --ranks` or `--processes` leave it out."""
    return decision.current is None or decision.current.chosen


def on_change(heard: Callable[[], None]) -> None:
    """Call `heard` when this process learns, while it runs, that it is chosen or not (a child of a forkserver)."""
    if decision.current is not None:
        decision.current.changed.append(heard)


def call_when_selected(begin: Callable[[], None]) -> None:
    """Call `begin` in a process that is not chosen once it learns that it is, and in a forked child that is."""

    def look() -> None:
        if is_selected():
            begin()

    on_change(look)
    os.register_at_fork(after_in_child=look)


def describe_process() -> dict[str, Any]:
    """Return what this process is, as the status file has it (docs/ranks.md); None for what is not known."""
    rank = selection.rank_of(os.environ)
    name, start = _name_and_start()
    program = selection.program_of(sys.orig_argv)[0]
    return {
        "name": name,
        "start": start,
        "program": program,
        "rank": rank.rank if rank else None,
        "local_rank": rank.local_rank if rank else None,
        "world_size": rank.world_size if rank else None,
        "role": rank.role if rank else None,
    }


def _name_and_start() -> tuple[str | None, str]:
    """Return the name that whoever started this process gave it, if anyone did, and how it was started."""
    process = sys.modules.get("multiprocessing.process")
    if process is not None and process.parent_process() is not None:
        method = process.current_process()._start_method  # None where the default one of the program is taken
        return process.current_process().name, method or _start_of_worker()
    if _forked.pid == os.getpid():
        known = decision.current.name if decision.current else None
        return _forked.name or known, FORK
    return None, MAIN


def _start_of_worker() -> str:
    if _forked.pid == os.getpid():
        return FORK
    return SPAWN if "--multiprocessing-fork" in sys.orig_argv else FORKSERVER


def report_forks() -> None:
    """Have forked children say in the run directory that nsys does not hear them, and what they are called.

    For a process that nsys records, which may be such a child itself: of gunicorn only the workers import the
    application. A fork that only makes way for another program says nothing: it is left to `subprocess`.
    """
    run_dir = os.environ.get(environment.RUN_DIR, "")
    if run_dir and decision.current is None:
        teller = _Teller(run_dir)
        os.register_at_fork(after_in_child=teller.in_child)
        if is_forked():
            teller.write(_forked_name())


def _forked_name() -> str | None:
    """Return the name of this process, which was forked before traceable was imported; None where it has none."""
    process = sys.modules.get("multiprocessing.process")
    if process is not None and process.parent_process() is not None:
        return str(process.current_process().name)
    return selection.name_while_started(sys._getframe(1))


class _Teller:
    """Writes `process.<pid>.json` in a forked child."""

    def __init__(self, run_dir: str) -> None:
        self._run_dir = run_dir

    def in_child(self) -> None:
        try:
            frame = sys._getframe(1)
            if frame.f_globals.get("__name__") == "subprocess":
                return
        except Exception:  # noqa: BLE001 - the child is the user's
            return
        self.write(_forked.name)

    def write(self, name: str | None) -> None:
        """Write it for this process."""
        try:
            told = decision.Selection(os.environ, run_dir=self._run_dir)
            told.name, told.start, told.lost = name or f"{told.program}-fork", FORK, "forked"
            told.tell()
        except Exception as error:  # noqa: BLE001 - the process is the user's
            environment.warn_once("fork_not_reported", f"the launcher is not told of a forked process: {error}")
