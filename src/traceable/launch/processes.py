"""The processes of a run that were not recorded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from traceable.errors import Message
from traceable.protocol.run_records import find_damaged_records, load_last_programs

_NAMES_MAX = 12


def explain_missing_processes(directory: Path, manifest: Mapping[str, Any]) -> list[Message]:
    """Return a message on the damaged records of processes, and one on the processes that nsys could not trace."""
    messages = find_damaged_records(directory)
    lost = []
    if (manifest.get("collector") or {}).get("name") == "nsys":
        lost = [str(one) for one in load_last_programs(directory) if one.forked]
    if lost:
        verb = "was" if len(lost) == 1 else "were"
        messages.append(
            Message(
                "forked_not_recorded",
                f"{_join(lost)} {verb} forked: {_format_nsys(manifest)} can't trace forked processes; "
                "run with --collector recorder, or with the start method spawn",
            )
        )
    return messages


def _format_nsys(manifest: Mapping[str, Any]) -> str:
    words = str((manifest.get("collector") or {}).get("reason", "")).split()
    return f"nsys {words[1]}" if words[:1] == ["nsys"] and len(words) > 1 else "nsys"


def _join(words: Iterable[str]) -> str:
    names = list(words)
    return ", ".join(names[:_NAMES_MAX]) + (f" and {len(names) - _NAMES_MAX} more" if len(names) > _NAMES_MAX else "")
