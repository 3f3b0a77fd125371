"""Starts torch.profiler when the program imports torch, or has it watched from then on where windows are recorded.

The `sitecustomize` of `annotation/bootstrap` calls this at that import. Whatever fails here is said once on stderr; the
import of torch is never made to fail.
"""

from __future__ import annotations

import os
import sys

from traceable import environment

TYPE_CHECKING = False
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from typing import Any


WHOLE = "whole"


def find_spec(name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
    """Return what the other finders find for torch, made to call `begin` when torch's own code has run."""
    for finder in list(sys.meta_path):
        find = getattr(finder, "find_spec", None)
        spec: ModuleSpec | None = find(name, path, target) if find else None
        if spec is not None:
            _watch(spec.loader)
            return spec
    return None


def _watch(loader: Any) -> None:
    execute = getattr(loader, "exec_module", None)
    if execute is None:
        return

    def exec_module(module: Any) -> None:
        del loader.exec_module
        execute(module)
        begin()

    try:
        loader.exec_module = exec_module
    except AttributeError:
        environment.warn_once("torch", "torch.profiler is not started: this torch is loaded in an unknown way")


def begin() -> None:
    """Record until the process ends, unless windows are asked for."""
    if environment.flag(environment.DISABLE):
        return
    try:
        from traceable.capture.torch_gate import profiler

        if profiler.gated or os.environ.get(environment.TORCH) != WHOLE:
            profiler.watch()
        else:
            profiler.start()
        _end_with_worker(profiler)
    except Exception as error:  # noqa: BLE001 - the program goes on, not recorded
        environment.warn_once("torch", f"torch.profiler records nothing in process {os.getpid()}: {error}")


def _end_with_worker(profiler: Any) -> None:
    """Have a worker that multiprocessing forked write its file: it ends without the functions of `atexit`."""
    process = sys.modules.get("multiprocessing.process")
    if process is None or process.parent_process() is None:
        return
    from multiprocessing.util import Finalize

    Finalize(None, profiler.stop_quietly, exitpriority=0)
