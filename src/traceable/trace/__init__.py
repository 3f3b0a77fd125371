"""After the process: readers of recordings, one columnar `Trace` for all of them."""

from __future__ import annotations

from pathlib import Path

from traceable.trace import kineto, nsys
from traceable.trace.model import Trace

__all__ = ["Trace", "load"]


def load(path: Path, decode: bool = True) -> Trace:
    """Read a recording with the reader that its content asks for.

    Args:
        path: an nsys SQLite export, a trace of torch.profiler, or a directory with such traces of several ranks.
        decode: see `nsys.load`; traces of torch.profiler are read in one way only.

    Raises:
        TraceError: it is none of these, or not whole; the message says which.
    """
    if path.is_dir() or (path.is_file() and kineto.is_trace(path)):
        return kineto.load(path)
    return nsys.load(path, decode)
