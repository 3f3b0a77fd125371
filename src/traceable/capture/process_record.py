"""What a process tells of its annotations when it begins and when Python ends, for `checks/diagnosis.py`.

`status.<pid>.lives` in the run directory has one line of JSON for each, so that what the recording lacks can be told
from what never was. A program that replaces itself (exec) leaves two beginnings and one end. Nothing is counted while
the program runs: the names are those of the ranges that are kept anyway. Nothing here raises into the program, and
outside of a run nothing is read or written: a process that was started without the run's environment is seen by the
launcher (`launch/process_watcher.py`), if by anyone.
"""

from __future__ import annotations

import atexit
import os
import sys
import time

from traceable.annotation import engine
from traceable.decision import json_of
from traceable.protocol import environment

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

NAMES_MAX = 100
"""How many names of ranges are told."""


def write_record() -> None:
    """Write that this process has begun, and have its end written; nothing outside of a run."""
    run_dir = os.environ.get(environment.RUN_DIR, "")
    if run_dir:
        _Witness(run_dir).begin()


class _Witness:
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
            return  # a forked child that ends as Python does; `process.<pid>.json` tells of it
        try:
            names = _names()
            error = getattr(sys, "last_type", None)
            self._write(
                {
                    "end_wall_ns": time.time_ns(),
                    "end": f"exception {error.__name__}" if isinstance(error, type) else "exit",
                    "names": names[:NAMES_MAX],
                    "distinct": len(names),
                    "nvtx": _version_of_nvtx(),
                    "torch_profiler": _profiled_by_torch(),
                }
            )
        except Exception as error:  # noqa: BLE001 - the program is over, and all that is lost is a reason
            environment.warn_once("witness_not_written", f"the launcher is not told of annotations: {error}")

    def _write(self, content: dict[str, Any]) -> None:
        try:
            line = json_of(content).encode("ascii") + b"\n"
            descriptor = os.open(
                f"{self._run_dir}/status.{self._pid}.lives",
                os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC,
                0o666,
            )
            try:
                os.write(descriptor, line)
            finally:
                os.close(descriptor)
        except Exception:  # noqa: BLE001 - a full disk, a directory that is gone: `status` says it where it matters
            return


def _names() -> list[str]:
    """Return the names of the ranges that this process made, sorted; not those of steps and windows."""
    made: set[str] = set()
    for _type, message, _color, domain, *_rest in engine.list_interned_ranges():
        ours = isinstance(domain, str) and domain.startswith("traceable.")
        if isinstance(message, str) and not ours:
            made.add(message)
    return sorted(made)


def _version_of_nvtx() -> str | None:
    """Return the version of the nvtx package that the program itself imported; None for none, empty if not known.

    By the name of its metadata's folder: `importlib.metadata` would load and run much that the program may have
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
    found = [name for name in names if name.startswith("nvtx-") and name.endswith(".dist-info")]
    return found[0].removeprefix("nvtx-").removesuffix(".dist-info") if found else ""


def _profiled_by_torch() -> bool:
    """Whether the program has a torch.profiler of its own, open or in a variable of its main module.

    torch keeps no trace of one that is over (2.13), and a search of all objects may take a second: one that a function
    held is not seen.
    """
    profiler, autograd = sys.modules.get("torch.profiler.profiler"), sys.modules.get("torch.autograd.profiler")
    if profiler is None or autograd is None:
        return False
    if getattr(getattr(autograd, "KinetoStepTracker", None), "_step_dict", None):
        return True
    kinds = tuple(filter(None, (getattr(profiler, "_KinetoProfile", None), getattr(autograd, "profile", None))))
    return any(isinstance(one, kinds) for one in list(vars(sys.modules["__main__"]).values()))
