"""Starts what torch records when the program imports torch, or has it watched from then on for windows.

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


def _tell_windows() -> None:
    """A window of time that could not be opened without torch may be opened now."""
    from traceable.capture.control import session

    session.found_torch()


def begin() -> None:
    """Record until the process ends, unless windows are asked for."""
    if environment.flag(environment.DISABLE):
        return
    from traceable.capture import process

    if not process.chosen():
        process.when_chosen(begin)
        return
    what = "torch.profiler"
    try:
        whole = os.environ.get(environment.TORCH) == WHOLE
        if os.environ.get(environment.GPU_DIR):
            from traceable.capture import gpu_gate

            what = "--gpu"
            if whole and not gpu_gate.profiler.gated:
                gpu_gate.profiler.start()
            else:
                gpu_gate.profiler.await_cuda()
        else:
            from traceable.capture import torch_gate

            if whole and not torch_gate.profiler.gated:
                torch_gate.profiler.start()
            else:
                torch_gate.profiler.watch()
                _tell_windows()
    except Exception as error:  # noqa: BLE001 - the program goes on, not recorded
        environment.warn_once("torch", f"{what} records nothing in process {os.getpid()}: {error}")
