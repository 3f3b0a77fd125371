"""The processes of a run that were not recorded."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from traceable.collectors import find_collector_of_run
from traceable.errors import Message
from traceable.protocol.run_records import find_damaged_records, load_last_programs

_NAMES_MAX = 12


def explain_missing_processes(directory: Path, manifest: Mapping[str, Any]) -> list[Message]:
    """Return a message on the damaged records of processes, and one on those that the collector could not trace."""
    messages = find_damaged_records(directory)
    lost = []
    collector = find_collector_of_run(manifest)
    if not collector.follows_forks:
        lost = [str(one) for one in load_last_programs(directory) if one.forked]
    if lost:
        names = ", ".join(lost[:_NAMES_MAX])
        more = f" and {len(lost) - _NAMES_MAX} more" if len(lost) > _NAMES_MAX else ""
        verb = "was" if len(lost) == 1 else "were"
        messages.append(
            Message(
                "forked_not_recorded",
                f"{names}{more} {verb} forked: {collector.name} can't trace forked processes; "
                "run with --collector recorder, or with the start method spawn",
            )
        )
    return messages
