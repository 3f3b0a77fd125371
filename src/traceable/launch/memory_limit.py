"""Whether a limit on this process's memory (`ulimit -v`, RLIMIT_AS) leaves room for what reads recordings.

numpy's libraries need hundreds of megabytes of address space to be loaded, and where those are missing they may end the
process (OpenBLAS calls exit): the launcher would lose the program's exit code by that. So another process tries first.
"""

from __future__ import annotations

import resource
import sys
from pathlib import Path

from traceable.analysis.units import format_bytes
from traceable.errors import TraceError

_TRY = "import resource, sys; resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[1]),) * 2); import numpy"


class MemoryLimitError(TraceError):
    """A limit on memory leaves too little to read a recording."""


def check_memory_limit(path: Path) -> None:
    """Refuse to load numpy where there is no room for it. Free of cost where nothing is limited.

    Args:
        path: what is to be read.

    Raises:
        LimitedError: the limit is too small.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY or "numpy" in sys.modules:
        return
    import subprocess

    room = limit - _used()
    tried = subprocess.run(
        [sys.executable, "-I", "-c", _TRY, str(room)], stdin=subprocess.DEVNULL, capture_output=True, check=False
    )
    if tried.returncode:
        raise MemoryLimitError(
            "memory_limit_too_low",
            f"the memory limit of {format_bytes(limit)} (ulimit -v) is too low to read recordings; this one is kept",
            f"raise it, then type `traceable report {path}`",
        )


def _used() -> int:
    """How many bytes of address space this process has."""
    with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123 - one line
        return int(file.read().split()[0]) * resource.getpagesize()
