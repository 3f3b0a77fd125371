"""The C extensions: the range core (`_core`), the embedded recorder (`_recorder`) and others. Each may be missing.

This module only returns the paths of two of them that are not Python modules, although the build gives them such file
names: NVTX loads the recorder into the annotated process by its path, and the dynamic loader loads
`_hide_proc_environ` into nsys. Importing them would be an error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def find_recorder_library() -> Path | None:
    """Return the path of the embedded recorder, for `NVTX_INJECTION64_PATH`, or None where it wasn't built."""
    return _library("_recorder")


def find_hide_proc_environ_library() -> Path | None:
    """Return the path of the library that hides environments from nsys, for its `LD_PRELOAD`; None if not built."""
    return _library("_hide_proc_environ")


def _library(name: str) -> Path | None:
    # Here, because every annotated process imports this module for `_core` alone.
    from importlib.machinery import EXTENSION_SUFFIXES
    from pathlib import Path

    here = Path(__file__).resolve().parent
    candidates = (here / f"{name}{suffix}" for suffix in EXTENSION_SUFFIXES)
    return next((path for path in candidates if path.is_file()), None)
