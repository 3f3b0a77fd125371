"""The ranges that a run was expected to have: asked for on its command line, and by the processes of the run.

The writing side within the process is `annotation/contract.py`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FILES = "expect.*.json"
SCHEMA = "traceable.expect/1"
MANIFEST_KEY = "expect"
"""Where `run.json` keeps what its command line expected."""


def expected(directory: Path, manifest: dict[str, Any] | None) -> tuple[str, ...]:
    """Return the expected names, each once: those of the command line first, then the processes' in order of saying.

    Args:
        directory: the run directory.
        manifest: its manifest, as far as it is known.

    A file that is none of ours is passed over.
    """
    asked = (manifest or {}).get(MANIFEST_KEY)
    names = [*asked] if isinstance(asked, list) else []
    for _, said in sorted(_said(directory)):
        names += said
    return tuple(dict.fromkeys(name for name in names if isinstance(name, str)))


def _said(directory: Path) -> list[tuple[tuple[int, ...], list[Any]]]:
    found = []
    # Ranks are runs of their own, one folder below.
    for path in (*directory.glob(FILES), *directory.glob(f"*/{FILES}")):
        try:
            content = json.loads(path.read_bytes())
            when = tuple(map(int, path.name.split(".")[2].split("-")))
        except (OSError, ValueError):
            continue
        if isinstance(content, dict) and content.get("schema") == SCHEMA and isinstance(content.get("names"), list):
            found.append((when, [name for name in content["names"] if isinstance(name, str)]))
    return found
