"""Starts torch's profiler when the program has imported torch, or watches torch from then on for windows.

The `sitecustomize` of `capture/bootstrap` calls this after that import. A failure here is printed once on stderr; it
never makes the import of torch fail.
"""

from __future__ import annotations

import os

from traceable.errors import code_of
from traceable.protocol import environment

WHOLE = "whole"


def begin() -> None:
    """Record until the process ends, unless windows are requested."""
    if environment.read_flag(environment.DISABLE):
        return
    profiler_name = "torch.profiler"
    try:
        whole = os.environ.get(environment.TORCH) == WHOLE
        if os.environ.get(environment.GPU_DIR):
            from traceable.capture import gpu_gate

            profiler_name = "--gpu"
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
                from traceable.capture.windows import timed_window

                timed_window.on_torch_import()
    except Exception as error:  # noqa: BLE001 - the program goes on, not recorded
        message = f"{profiler_name} records nothing in process {os.getpid()}: {error}"
        environment.warn_once(code_of(error, "torch_not_recorded"), message)
