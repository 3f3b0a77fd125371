"""What a process tells of its annotations when it begins and when Python ends, for `launch/diagnosis.py`.

`status.<pid>.lives` in the run directory has one line of JSON for each, so that what the recording lacks can be told
from what never was. A program that replaces itself (exec) leaves two beginnings and one end. Nothing is counted while
the program runs: the names are those of the ranges that the core keeps anyway. Nothing here raises into the program.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys
import time

from traceable import environment
from traceable.annotation import engine
from traceable.decision import json_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

NAMES_MAX = 100
"""How many names of ranges are told."""

_VARIABLE = f"{environment.RUN_DIR}=".encode()


def testify() -> None:
    """Write that this process has begun, and have its end written."""
    run_dir, scrubbed = os.environ.get(environment.RUN_DIR, ""), False
    if not run_dir:
        run_dir, scrubbed = _run_of_parent(), True
    if run_dir:
        _Witness(run_dir, scrubbed).begin()


def _run_of_parent() -> str:
    """Return the run directory of the process that started this one without its environment; mostly there is none."""
    try:
        descriptor = os.open(f"/proc/{os.getppid()}/environ", os.O_RDONLY | os.O_CLOEXEC)
        try:
            content = os.read(descriptor, 1 << 20)
        finally:
            os.close(descriptor)
    except OSError:
        return ""
    if _VARIABLE not in content:
        return ""
    found = [entry for entry in content.split(b"\0") if entry.startswith(_VARIABLE)]
    return os.fsdecode(found[0][len(_VARIABLE) :]) if found else ""


class _Witness:
    def __init__(self, run_dir: str, scrubbed: bool) -> None:
        self._run_dir = run_dir
        self._scrubbed = scrubbed
        self._pid = os.getpid()

    def begin(self) -> None:
        self._write(
            {
                "began_wall_ns": time.time_ns(),
                "pid": self._pid,
                "parent_pid": os.getppid(),
                "disabled": engine.disabled,
                "level": engine.level,
                "listener": environment.listener_possible(),
                "scrubbed": self._scrubbed,
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
                    "ended_wall_ns": time.time_ns(),
                    "end": f"exception {error.__name__}" if isinstance(error, type) else "exit",
                    "names": names[:NAMES_MAX],
                    "distinct": len(names),
                    "nvtx": _version_of_nvtx(),
                    "torch_profiler": _profiled_by_torch(),
                }
            )
        except Exception as error:  # noqa: BLE001 - the program is over, and all that is lost is a reason
            environment.warn_once("witness", f"the launcher is not told of annotations: {error}")

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
    for kept in _interned():
        for _kind, message, _color, domain, *_rest in kept:
            ours = isinstance(domain, str) and domain.startswith("traceable.")
            if isinstance(message, str) and not ours:
                made.add(message)
    return sorted(made)


def _interned() -> list[Any]:
    """Return the mappings in which ranges are kept for ever, by kind and arguments."""
    found = [getattr(sys.modules.get("traceable.annotation.silent"), "_interned", {})]
    if engine.core is not None:
        # The core has no method for it; what its module holds is what the garbage collector sees of it.
        held = [one for one in gc.get_referents(engine.core) if isinstance(one, dict) and one]
        found += [one for one in held if all(isinstance(key, tuple) for key in list(one))]
    return [list(one) for one in found]


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
