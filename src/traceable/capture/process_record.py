"""The record of a process and its annotations, written at its start and when Python ends, for `checks/diagnosis.py`.

`status.<pid>.lives` in the run directory has one line of JSON for each, which distinguishes ranges that are missing in
the recording from ranges that were never entered. A program that replaces itself (exec) leaves two starts and one end.
Nothing is counted while the program runs: the names are those of the interned ranges. Nothing here raises into the
program, and outside of a run nothing is read or written: only the launcher (`launch/process_watcher.py`) can detect a
process that was started without the run's environment.
"""

from __future__ import annotations

import atexit
import os
import sys
import time

from traceable.annotation import engine
from traceable.protocol import environment
from traceable.protocol.json_text import to_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

NAMES_MAX = 100
"""How many names of ranges are recorded."""


def write_record() -> None:
    """Record the start of this process, and at exit its end; outside of a run do nothing."""
    run_dir = os.environ.get(environment.RUN_DIR, "")
    if run_dir:
        _ProcessRecord(run_dir).begin()


class _ProcessRecord:
    def __init__(self, run_dir: str) -> None:
        self._run_dir = run_dir
        self._pid = os.getpid()

    def begin(self) -> None:
        from traceable.capture import process

        self._write(
            {
                "start_wall_ns": time.time_ns(),
                "pid": self._pid,
                "parent_pid": os.getppid(),
                "disabled": engine.disabled,
                "level": engine.level,
                "listener": environment.can_have_profiler(),
                "forked": process.is_forked(),
            }
        )
        atexit.register(self._end)

    def _end(self) -> None:
        if os.getpid() != self._pid:
            return  # a forked child in which Python ends; `process.<pid>.json` records it
        try:
            names = _list_range_names()
            error = getattr(sys, "last_type", None)
            self._write(
                {
                    "end_wall_ns": time.time_ns(),
                    "end": f"exception {error.__name__}" if isinstance(error, type) else "exit",
                    "names": names[:NAMES_MAX],
                    "distinct": len(names),
                    "nvtx": _read_nvtx_version(),
                    "torch_profiler": _has_torch_profiler(),
                }
            )
        except Exception as error:  # noqa: BLE001 - the program has ended, and only a diagnosis is lost
            environment.warn_once("process_record_not_written", f"the names of annotations are not recorded: {error}")

    def _write(self, content: dict[str, Any]) -> None:
        try:
            line = to_json(content).encode("ascii") + b"\n"
            descriptor = os.open(
                f"{self._run_dir}/status.{self._pid}.lives",
                os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC,
                0o666,
            )
            try:
                os.write(descriptor, line)
            finally:
                os.close(descriptor)
        except Exception:  # noqa: BLE001 - a full disk, a missing directory: `status` reports it where it matters
            return


def _list_range_names() -> list[str]:
    """Return the names of the ranges of this process, sorted, without those of steps and windows."""
    names: set[str] = set()
    for _type, message, _color, domain, *_rest in engine.list_interned_ranges():
        ours = isinstance(domain, str) and domain.startswith("traceable.")
        if isinstance(message, str) and not ours:
            names.add(message)
    return sorted(names)


def _read_nvtx_version() -> str | None:
    """Return the version of the nvtx package that the program itself imported; None for none, empty if unknown.

    Read from the name of its metadata folder: `importlib.metadata` would load and run code that the program may have
    annotated.
    """
    nvtx = sys.modules.get("nvtx")
    if nvtx is None:
        return None
    folder = os.path.dirname(os.path.dirname(getattr(nvtx, "__file__", None) or ""))  # noqa: PTH120
    try:
        names = os.listdir(folder or ".")  # noqa: PTH208
    except OSError:
        return ""
    folders = [name for name in names if name.startswith("nvtx-") and name.endswith(".dist-info")]
    return folders[0].removeprefix("nvtx-").removesuffix(".dist-info") if folders else ""


def _has_torch_profiler() -> bool:
    """Whether the program has its own torch.profiler, open or in a variable of its main module.

    torch 2.13 keeps no reference to one that has stopped, and a search of all objects may take a second: one in a local
    variable of a function is not detected.
    """
    profiler, autograd = sys.modules.get("torch.profiler.profiler"), sys.modules.get("torch.autograd.profiler")
    if profiler is None or autograd is None:
        return False
    if getattr(getattr(autograd, "KinetoStepTracker", None), "_step_dict", None):
        return True
    kinds = tuple(filter(None, (getattr(profiler, "_KinetoProfile", None), getattr(autograd, "profile", None))))
    return any(isinstance(one, kinds) for one in list(vars(sys.modules["__main__"]).values()))
