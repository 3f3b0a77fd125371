"""The processes of a run, read from their records: their labels and ranks, and those that nsys could not trace.

The records, `process.<pid>.json` in the run directory, are written by `capture/process.py`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from traceable.errors import Message
from traceable.launch.ranks import RANK_KEY, get_rank_number
from traceable.protocol import untrusted

_NAMES_MAX = 12
_SCHEMA = "traceable.process/1"


def load_process_records(directory: Path) -> list[dict[str, Any]]:
    """Return the records of the processes, by pid. An invalid one is ignored."""
    records = []
    for path in directory.glob("process.*.json"):
        with contextlib.suppress(OSError, ValueError):
            records.append(untrusted.read_json_object(path, untrusted.PROCESS))
    return sorted((one for one in records if one["schema"] == _SCHEMA), key=lambda one: int(one["pid"]))


def load_labels(directory: Path, manifest: Mapping[str, Any]) -> dict[int, str]:
    """Return the labels of the processes of a run, by pid, for those that have a rank or a name.

    Args:
        directory: the run directory.
        manifest: its manifest.
    """
    is_rank = isinstance(manifest.get(RANK_KEY), dict)
    stem = str(manifest.get("stem")) if is_rank else ""
    labels = {one["pid"]: format_label(one, stem) for one in load_process_records(directory)}
    if stem and isinstance(manifest.get("pid"), int):
        labels[manifest["pid"]] = stem
    return {pid: label for pid, label in labels.items() if label}


def load_rank_numbers(directory: Path, manifest: Mapping[str, Any], pids: Iterable[int]) -> dict[int, int | None]:
    """Return the ranks of these processes of a run: as recorded, else that of the run; None for none."""
    recorded = {one["pid"]: one.get("rank") for one in load_process_records(directory)}
    of_run = get_rank_number(manifest)
    return {pid: of_run if recorded.get(pid) is None else recorded[pid] for pid in pids}


def format_label(process: Mapping[str, Any], stem: str = "") -> str:
    """Return the label of a process; empty for the program itself.

    Args:
        process: its identity, as of `capture.process`.
        stem: the name of its rank, where the run is of one.
    """
    name, rank = process.get("name"), process.get("rank")
    base = stem or (f"{process.get('role') or process.get('program')}_{rank}" if isinstance(rank, int) else "")
    return f"{base}-{name}" if base and name else base or str(name or "")


def format_process(record: Mapping[str, Any]) -> str:
    """Return the label of a process, or its program, with its pid."""
    return f"{format_label(record) or record.get('program') or 'a process'} (pid {record['pid']})"


def explain_missing_processes(directory: Path, manifest: Mapping[str, Any]) -> list[Message]:
    """Return a message on the damaged records of processes, and one on the processes that nsys could not trace."""
    messages = _find_damaged_records(directory)
    lost = []
    if (manifest.get("collector") or {}).get("name") == "nsys":
        lost = [format_process(one) for one in load_process_records(directory) if one.get("forked")]
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


def _find_damaged_records(directory: Path) -> list[Message]:
    names = []
    for pattern, shape in (("process.*.json", untrusted.PROCESS), ("status.*.json", untrusted.STATUS)):
        for path in sorted(directory.glob(pattern)):
            try:
                untrusted.read_json_object(path, shape)
            except (OSError, ValueError) as error:  # noqa: PERF203 - each file by itself
                names.append(f"{path.name} ({error.strerror if isinstance(error, OSError) else error})")
    words = f"damaged process records, ignored: {_join(names)}"
    return [Message("process_records_damaged", words)] if names else []


def _join(words: Iterable[str]) -> str:
    names = list(words)
    return ", ".join(names[:_NAMES_MAX]) + (f" and {len(names) - _NAMES_MAX} more" if len(names) > _NAMES_MAX else "")
