"""The ranges that a run is expected to have, from its command line and from its processes.

The writing side in the process is `annotation/expectations.py`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from traceable.protocol import untrusted

FILES = "expect.*.json"
SCHEMA = "traceable.expect/1"
EXPECT_KEY = "expect"
"""Key of the expected names of the command line in `run.json`."""


def load_expected_names(directory: Path, manifest: dict[str, Any] | None) -> tuple[str, ...]:
    """Return the expected names, each once: those of the command line first, then the processes' in order of time.

    Args:
        directory: the run directory.
        manifest: its manifest; None for unknown.

    An invalid file is ignored.
    """
    names = [*((manifest or {}).get(EXPECT_KEY) or ())]
    for _, expected in sorted(_load_expectations(directory)):
        names += expected
    return tuple(dict.fromkeys(names))


def _load_expectations(directory: Path) -> list[tuple[tuple[int, ...], list[str]]]:
    """Return time and names of each expectation."""
    expectations = []
    # Ranks are runs of their own, one directory below.
    below = [entry for entry in directory.iterdir() if untrusted.is_directory(entry)] if directory.is_dir() else []
    for path in (path for one in (directory, *below) for path in one.glob(FILES)):
        try:
            content = untrusted.read_json_object(path, untrusted.EXPECT)
            when = tuple(map(int, path.name.split(".")[2].split("-")))
        except (OSError, ValueError):
            continue
        if content["schema"] == SCHEMA:
            expectations.append((when, content["names"]))
    return expectations
