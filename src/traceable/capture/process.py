"""The identity of this process: its rank, its name, how it was started; and whether it is selected for recording.

`decision` evaluates the selection, if there is one. This module provides the result to the rest of the package, and to
the launcher in the status file. Nothing here starts or stops a profiler.
"""

from __future__ import annotations

import os
import sys

from traceable import decision, selection
from traceable.protocol import environment
from traceable.protocol.python_command import parse_python_command

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

MAIN, SPAWN, FORK, FORKSERVER = "main", "spawn", "fork", "forkserver"
"""How a process was started; `main`: by another program or from a shell."""


_FORKED_WITHOUT_EXEC = 0x40
"""PF_FORKNOEXEC in the flags of /proc/PID/stat (linux/sched.h)."""


def is_forked() -> bool:
    """Whether this process was forked, and has executed no program since; False if not known."""
    try:
        with open("/proc/self/stat", "rb") as file:  # noqa: PTH123 - pathlib takes 10 ms to import
            # The name, the second field, may contain spaces and brackets. The flags are the ninth.
            return bool(int(file.read().rpartition(b")")[2].split()[6]) & _FORKED_WITHOUT_EXEC)
    except (OSError, ValueError, IndexError):
        return False


class _Forked:
    """What a forked child knows of the fork; empty in a process that was not forked since traceable was loaded."""

    def __init__(self) -> None:
        self.pid = 0
        self.name: str | None = None
        os.register_at_fork(after_in_child=self._in_child)

    def _in_child(self) -> None:
        self.pid = os.getpid()
        try:
            self.name = selection.name_while_started(sys._getframe(1))
        except Exception:  # noqa: BLE001 - only a name is lost
            self.name = None


_forked = _Forked()


def is_selected() -> bool:
    """Whether this process is recorded: it is unless `run --ranks` or `--processes` excludes it."""
    return decision.current is None or decision.current.chosen


def on_change(callback: Callable[[], None]) -> None:
    """Call `callback` when the selection of this process changes while it runs (a child of a forkserver)."""
    if decision.current is not None:
        decision.current.changed.append(callback)


def call_when_selected(begin: Callable[[], None]) -> None:
    """Call `begin` once this process becomes selected, and in each forked child that is selected."""

    def begin_if_selected() -> None:
        if is_selected():
            begin()

    on_change(begin_if_selected)
    os.register_at_fork(after_in_child=begin_if_selected)


def describe_process() -> dict[str, Any]:
    """Return the identity of this process as in the status file (docs/ranks.md); None for unknown values."""
    rank = selection.rank_of(os.environ)
    name, start = _name_and_start()
    program = parse_python_command(sys.orig_argv).name
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
    """Return the name that this process was given when it was started, if any, and how it was started."""
    process = sys.modules.get("multiprocessing.process")
    if process is not None and process.parent_process() is not None:
        method = process.current_process()._start_method  # None for the program's default method
        return process.current_process().name, method or _find_worker_start()
    if _forked.pid == os.getpid():
        name = decision.current.name if decision.current else None
        return _forked.name or name, FORK
    return None, MAIN


def _find_worker_start() -> str:
    if _forked.pid == os.getpid():
        return FORK
    return SPAWN if "--multiprocessing-fork" in sys.orig_argv else FORKSERVER


def report_forks() -> None:
    """Record forked children, which nsys can't trace, in the run directory, with their names.

    For a process that nsys records, which may be such a child itself: in gunicorn only the workers import the
    application. A fork by `subprocess`, which only starts another program, is not recorded.
    """
    run_dir = os.environ.get(environment.RUN_DIR, "")
    if run_dir and decision.current is None:
        reporter = _ForkReporter(run_dir)
        os.register_at_fork(after_in_child=reporter.in_child)
        if is_forked():
            reporter.write(_find_forked_name())


def _find_forked_name() -> str | None:
    """Return the name of this process, which was forked before traceable was imported; None if it has none."""
    process = sys.modules.get("multiprocessing.process")
    if process is not None and process.parent_process() is not None:
        return str(process.current_process().name)
    return selection.name_while_started(sys._getframe(1))


class _ForkReporter:
    """Writes `process.<pid>.json` in a forked child."""

    def __init__(self, run_dir: str) -> None:
        self._run_dir = run_dir

    def in_child(self) -> None:
        try:
            frame = sys._getframe(1)
            if frame.f_globals.get("__name__") == "subprocess":
                return
        except Exception:  # noqa: BLE001 - the user's child process goes on
            return
        self.write(_forked.name)

    def write(self, name: str | None) -> None:
        """Write it for this process."""
        try:
            record = decision.Selection(os.environ, run_dir=self._run_dir)
            record.name, record.start, record.lost = name or f"{record.program}-fork", FORK, "forked"
            record.tell()
        except Exception as error:  # noqa: BLE001 - the user's process goes on
            environment.warn_once("fork_not_reported", f"a forked process is not recorded for the launcher: {error}")
