"""Starts what torch records when the program imports torch, or has it watched from then on for windows.

The `sitecustomize` of `annotation/bootstrap` calls this at that import. Whatever fails here is said once on stderr; the
import of torch is never made to fail.
"""

from __future__ import annotations

import os
import sys

from traceable.annotation.import_hooks import PostImportFinder
from traceable.errors import code_of
from traceable.protocol import environment

TYPE_CHECKING = False
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from typing import Any


WHOLE = "whole"


def find_spec(name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
    """Return what the other finders find for torch, made to call `begin` when torch's own code has run."""
    watch = PostImportFinder(name, begin)
    sys.meta_path.insert(0, watch)
    return watch.find_spec(name, path, target)


def _tell_windows() -> None:
    """A window of time that could not be opened without torch may be opened now."""
    from traceable.capture.control import session

    session.on_torch_import()


def begin() -> None:
    """Record until the process ends, unless windows are asked for."""
    if environment.read_flag(environment.DISABLE):
        return
    from traceable.capture import process

    if not process.is_selected():
        process.call_when_selected(begin)
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
                gpu_gate.profiler.watch_cuda()
        else:
            from traceable.capture import torch_gate

            if whole and not torch_gate.profiler.gated:
                torch_gate.profiler.start()
            else:
                torch_gate.profiler.watch()
                _tell_windows()
    except Exception as error:  # noqa: BLE001 - the program goes on, not recorded
        message = f"{what} records nothing in process {os.getpid()}: {error}"
        environment.warn_once(code_of(error, "torch_not_recorded"), message)
