"""The C extensions: the range core (`_core`) and the embedded recorder (`_recorder`). Each may be missing.

This module only says where the recorder is. The recorder is no Python module, although the build gives it the file name
of one: NVTX loads it into the annotated process by its path, and importing it would be an error.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path


def recorder_library() -> Path | None:
    """Return the path of the embedded recorder, for `NVTX_INJECTION64_PATH`, or None where it wasn't built."""
    # Here, because every annotated process imports this module for `_core` alone.
    from importlib.machinery import EXTENSION_SUFFIXES
    from pathlib import Path

    here = Path(__file__).resolve().parent
    candidates = (here / f"_recorder{suffix}" for suffix in EXTENSION_SUFFIXES)
    return next((path for path in candidates if path.is_file()), None)
