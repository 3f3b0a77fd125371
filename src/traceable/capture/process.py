"""The identity of this process: its rank, its name, and how it was started; recorded in the run directory.

`process.<pid>.json` has it for each process of a run that imports traceable and for each child that it forks, so that a
report can name and filter processes. nsys can't trace a forked process: there it is what remains of one.
"""

from __future__ import annotations

import atexit
import os
import sys

from traceable.protocol import environment
from traceable.protocol.json_text import to_json
from traceable.protocol.python_command import parse_python_command
from traceable.protocol.ranks import read_rank

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MAIN, SPAWN, FORK, FORKSERVER = "main", "spawn", "fork", "forkserver"
"""How a process was started; `main`: by another program or from a shell."""

SCHEMA = "traceable.process/1"

_SPAWN_OPTION = "--multiprocessing-fork"
"""In the command line of a worker that multiprocessing spawned."""

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


def describe_process() -> dict[str, Any]:
    """Return the identity of this process as in the status file (docs/ranks.md); None for unknown values."""
    rank = read_rank(os.environ)
    name, start = _find_name_and_start()
    return {
        "name": name,
        "start": start,
        "program": parse_python_command(sys.orig_argv).name,
        "rank": rank.rank if rank else None,
        "local_rank": rank.local_rank if rank else None,
        "world_size": rank.world_size if rank else None,
        "role": rank.role if rank else None,
    }


class _Recorder:
    """Records the identity of this process. multiprocessing names a worker that it forks only after the fork."""

    def __init__(self) -> None:
        self.forked_pid = self.worker_pid = 0
        self._run_dir = ""
        self._is_watching_workers = False
        os.register_at_fork(after_in_child=self._in_child)

    def begin(self, run_dir: str) -> None:
        """Record this process and each child that it forks."""
        self._run_dir = run_dir
        self._record()
        if _SPAWN_OPTION in sys.orig_argv and "multiprocessing.process" not in sys.modules:
            # An interpreter that loads traceable at its start learns its name later.
            atexit.register(_write_identity, run_dir)

    def _in_child(self) -> None:
        self.forked_pid = os.getpid()
        try:
            # A fork by subprocess only starts another program.
            if self._run_dir and sys._getframe(1).f_globals.get("__name__") != "subprocess":
                self._record()
        except Exception:  # noqa: BLE001 - the child is the user's: only its record is lost
            return

    def _in_worker(self) -> None:
        self.worker_pid = os.getpid()
        _write_identity(self._run_dir)

    def _record(self) -> None:
        util = sys.modules.get("multiprocessing.util")
        if util is not None and not self._is_watching_workers:
            util.register_after_fork(self, _Recorder._in_worker)
            self._is_watching_workers = True
        _write_identity(self._run_dir)


_recorder = _Recorder()


def record_identity() -> None:
    """Record the identity of this process, and of each child that it forks, in the run directory."""
    _recorder.begin(os.environ[environment.RUN_DIR])


def _find_name_and_start() -> tuple[str | None, str]:
    """Return the name that this process was given when it was started, if any, and how it was started."""
    was_forked = _recorder.forked_pid == os.getpid()
    process = sys.modules.get("multiprocessing.process")
    if process is not None and _SPAWN_OPTION in sys.orig_argv and not was_forked:
        return process.current_process().name, SPAWN
    # A child that a worker forks by itself still has the worker's name in multiprocessing.
    is_worker = _recorder.worker_pid == os.getpid() or not was_forked
    if is_worker and process is not None and process.parent_process() is not None:
        worker = process.current_process()
        return worker.name, worker._start_method or (FORK if was_forked else FORKSERVER)
    return None, FORK if was_forked or is_forked() else MAIN


def _open_no_follow(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)


def _write_identity(run_dir: str) -> None:
    try:
        content = {
            "schema": SCHEMA,
            "pid": os.getpid(),
            "parent_pid": os.getppid(),
            "forked": is_forked(),
            **describe_process(),
        }
        path = f"{run_dir}/process.{os.getpid()}.json"
        with open(f"{path}.part", "w", encoding="ascii", opener=_open_no_follow) as file:
            file.write(to_json(content))
        os.replace(f"{path}.part", path)  # noqa: PTH105
    except Exception:  # noqa: BLE001 - a run directory that is gone or full: the program goes on
        return
