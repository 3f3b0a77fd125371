"""The version of an installed package, from the name of its metadata folder (`numpy-2.4.6.dist-info`).

`importlib.metadata` would take longer to import than a launcher or a worker otherwise takes to start.
"""

from __future__ import annotations

import os
import sys

_SUFFIXES = ("dist-info", "egg-info")


def get_package_version(package: str) -> str | None:
    """Return the version of an installed package; None where it is not installed, or the name does not have it."""
    for folder in sys.path:
        try:
            names = os.listdir(folder or ".")  # noqa: PTH208
        except OSError:
            continue
        for name in names:
            stem, _, suffix = name.rpartition(".")
            if suffix in _SUFFIXES and stem.startswith(f"{package}-"):
                return stem.split("-")[1]
    return None
