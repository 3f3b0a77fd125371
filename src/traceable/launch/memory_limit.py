"""Check that a memory limit of this process (`ulimit -v`, RLIMIT_AS) allows reading a recording.

numpy's libraries need hundreds of megabytes of address space, and without them they may end the process (OpenBLAS calls
exit), so the launcher would lose the program's exit code. Another process tries first.
"""

from __future__ import annotations

import resource
import sys
from pathlib import Path

from traceable.errors import TraceError
from traceable.units import format_bytes

_IMPORT_NUMPY = "import resource, sys; resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[1]),) * 2); import numpy"


def check_memory_limit(path: Path) -> None:
    """Raise an error if there is not enough memory to load numpy. Free where memory is not limited.

    Args:
        path: the recording, for the message.

    Raises:
        TraceError: the limit is too low.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY or "numpy" in sys.modules:
        return
    import subprocess

    import psutil

    available_bytes = limit - psutil.Process().memory_info().vms
    attempt = subprocess.run(
        [sys.executable, "-I", "-c", _IMPORT_NUMPY, str(available_bytes)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    if attempt.returncode:
        raise TraceError(
            "memory_limit_too_low",
            f"the memory limit of {format_bytes(limit)} (ulimit -v) is too low to read the recording, which is kept",
            f"raise it, then run `traceable report {path}`",
        )
