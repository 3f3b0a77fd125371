"""After the process: readers of recordings, one columnar `Trace` for all of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from traceable.protocol import gpu_files
from traceable.protocol.untrusted import SQLITE_MAGIC
from traceable.trace import nsys, nsys_cpu
from traceable.trace.model import Trace

__all__ = ["Trace", "load"]


def load(
    path: Path,
    decode: bool = True,
    *,
    progress: Callable[[str], None] | None = None,
    allow_unrelated: bool = False,
    run_directory: Path | None = None,
) -> Trace:
    """Read a recording with the reader for its content.

    Args:
        path: an nsys SQLite export, a recorder's database, which may have files with GPU activity next to it (`run
            --gpu`), a trace of torch.profiler, or a directory with such traces of several ranks.
        decode, progress: see `nsys.load`; traces of torch.profiler are read in one way only.
        allow_unrelated: see `kineto.load`.
        run_directory: of a recorder's database that is elsewhere.

    Raises:
        TraceError: it is none of these, or incomplete.
    """
    if path.is_dir() or (path.is_file() and not _is_database(path)):
        # Most recordings are databases: do not import the other reader for them.
        from traceable.trace import kineto

        if path.is_dir() or kineto.is_trace(path):
            return kineto.load(path, allow_unrelated=allow_unrelated)
    trace = nsys_cpu.add_cpu_activity(nsys.load(path, decode, progress=progress), path, decode)
    if gpu_files.TABLE in trace.source.tables:
        from traceable.trace.recorder_gpu import join_gpu_files

        trace = join_gpu_files(trace, path, (run_directory or path.parent) / gpu_files.DIRECTORY)
    return trace


def _is_database(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(SQLITE_MAGIC)) == SQLITE_MAGIC
    except OSError:
        # The reader raises it with its reason.
        return True
