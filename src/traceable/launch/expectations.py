"""The expected ranges of a run: from its command line, and from the processes of the run.

The processes write theirs with `annotation/expectations.py`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from traceable.protocol import untrusted

FILES = "expect.*.json"
SCHEMA = "traceable.expect/1"
EXPECT_KEY = "expect"
"""The key of the expected names of the command line in `run.json`."""


def load_expected_names(directory: Path, manifest: dict[str, Any] | None) -> tuple[str, ...]:
    """Return the expected names, each once: those of the command line first, then the processes' by time.

    Args:
        directory: the run directory.
        manifest: its manifest; None for unknown.

    Files of another schema are skipped.
    """
    names = [*((manifest or {}).get(EXPECT_KEY) or ())]
    for _, process_names in sorted(_read_files(directory)):
        names += process_names
    return tuple(dict.fromkeys(names))


def _read_files(directory: Path) -> list[tuple[tuple[int, ...], list[str]]]:
    expectations = []
    # Ranks are runs of their own, one folder below.
    subfolders = [entry for entry in directory.iterdir() if untrusted.is_directory(entry)] if directory.is_dir() else []
    for path in (path for one in (directory, *subfolders) for path in one.glob(FILES)):
        try:
            content = untrusted.read_json_object(path, untrusted.EXPECT)
            when = tuple(map(int, path.name.split(".")[2].split("-")))
        except (OSError, ValueError):
            continue
        if content["schema"] == SCHEMA:
            expectations.append((when, content["names"]))
    return expectations
