"""The ranges that a run was expected to have: asked for on its command line, and by the processes of the run.

The writing side within the process is `annotation/expectations.py`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from traceable.protocol import untrusted

FILES = "expect.*.json"
SCHEMA = "traceable.expect/1"
EXPECT_KEY = "expect"
"""Where `run.json` keeps what its command line expected."""


def load_expected_names(directory: Path, manifest: dict[str, Any] | None) -> tuple[str, ...]:
    """Return the expected names, each once: those of the command line first, then the processes' in order of saying.

    Args:
        directory: the run directory.
        manifest: its manifest, as far as it is known.

    A file that is none of ours is passed over.
    """
    names = [*((manifest or {}).get(EXPECT_KEY) or ())]
    for _, said in sorted(_said(directory)):
        names += said
    return tuple(dict.fromkeys(names))


def _said(directory: Path) -> list[tuple[tuple[int, ...], list[str]]]:
    found = []
    # Ranks are runs of their own, one folder below.
    below = [entry for entry in directory.iterdir() if untrusted.is_directory(entry)] if directory.is_dir() else []
    for path in (path for one in (directory, *below) for path in one.glob(FILES)):
        try:
            content = untrusted.read_json_object(path, untrusted.EXPECT)
            when = tuple(map(int, path.name.split(".")[2].split("-")))
        except (OSError, ValueError):
            continue
        if content["schema"] == SCHEMA:
            found.append((when, content["names"]))
    return found
