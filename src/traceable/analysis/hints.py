"""Hints on what to record next time, for the collector of this recording."""

from __future__ import annotations

from traceable.trace.model import Trace

_TORCH = "torch.profiler"
_RECORDER = "traceable embedded recorder"


def suggest_gpu_recording(trace: Trace) -> str:
    """Return how GPU work gets into a recording.

    Args:
        trace: without GPU work.
    """
    if trace.source.product == _TORCH:
        return "record the program where torch sees a GPU: torch.profiler then records that too"
    if trace.source.product == _RECORDER:
        return "on a machine with a GPU run it again with --gpu (traceable help recorder-gpu) or --collector nsys"
    if not trace.devices:
        return "record on a machine with a GPU: the report has none"
    return "check that the program uses the GPU; nsys needs cuda in --trace"
