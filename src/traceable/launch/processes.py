"""The processes of a run: the runs that make up one, the labels of their processes, and those that were missed.

Read from run directories: the manifests and the records of the processes (`process.<pid>.json` by `decision.py`,
`status.<pid>.json` by `capture/status.py`). The options that select processes are in `ranks.py`.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from traceable import selection
from traceable.collectors.base import CollectorResult
from traceable.errors import Message, TraceError
from traceable.launch import run_dir
from traceable.launch.ranks import NSYS, RANK_KEY, SELECTION_KEY, find_absent_ranks
from traceable.protocol import untrusted
from traceable.selection import rank_asked

_NAMES_MAX = 12


def list_parts(directory: Path) -> tuple[Path, ...]:
    """Return the run directories inside `directory`, by rank; empty where it is not a directory of runs.

    Raises:
        TraceError: they belong to different jobs.
    """
    try:
        own = _load_manifest_or_none(directory)
        if own is not None and not (own.get(SELECTION_KEY) or {}).get("parts"):
            return ()
        below = [
            entry
            for entry in directory.iterdir()
            if untrusted.is_directory(entry) and untrusted.is_regular(entry / run_dir.MANIFEST)
        ]
    except OSError:
        return ()
    runs = [(entry, _load_manifest_or_none(entry) or {}) for entry in sorted(below)]
    # An earlier run that --force renamed keeps its name in its manifest.
    runs = [(entry, manifest) for entry, manifest in runs if Path(str(manifest.get("run_dir"))).name == entry.name]
    if own is None:
        runs = [(entry, manifest) for entry, manifest in runs if (manifest.get(RANK_KEY) or {}).get("grouped")]
        _check_one_job(directory, runs)
    return tuple(entry for entry, _ in sorted(runs, key=lambda one: (_rank_number(one[1]), one[0].name)))


def load_recorded_parts(directory: Path) -> CollectorResult:
    """Return the result of a run whose parts are runs of their own, each of which was finalized by itself."""
    return CollectorResult(directory if list_parts(directory) else None)


def _check_one_job(directory: Path, runs: list[tuple[Path, dict[str, Any]]]) -> None:
    first: dict[str, tuple[int, str]] = {}
    for entry, manifest in runs:
        host, started = (manifest.get("host") or {}).get("name"), manifest[RANK_KEY].get("launcher_started_ns")
        if host is None or started is None:
            continue
        other = first.setdefault(host, (started, entry.name))
        if other[0] != started:
            raise TraceError(
                "ranks_of_different_jobs",
                f"{directory} contains ranks of different jobs: {other[1]} and {entry.name}",
                "give one of them, or record into another directory with -o",
            )


def _rank_number(manifest: Mapping[str, Any]) -> int:
    rank = (manifest.get(RANK_KEY) or {}).get("rank")
    return rank if isinstance(rank, int) else sys.maxsize


def load_labels(directory: Path, manifest: Mapping[str, Any]) -> dict[int, str]:
    """Return the labels of the processes of a run, by pid, for those that have a rank or a name.

    Args:
        directory: the run directory.
        manifest: its manifest.
    """
    rank, pid = manifest.get(RANK_KEY), manifest.get("pid")
    stem = str(manifest.get("stem")) if isinstance(rank, dict) else ""
    labels = {
        one["pid"]: str(one["label"])
        for one in load_process_records(directory)
        if one.get("name") or one.get("rank") is not None
    }
    labels = {number: label for number, label in labels.items() if stem == "" or number != pid}
    for status in _read_records(directory.glob("status.*.json"), untrusted.STATUS):
        if label := format_label(status.get("process") or {}, stem):
            labels.setdefault(status["pid"], label)
    if stem and isinstance(pid, int):
        labels[pid] = stem
    # A process that became a run of its own wrote its record before, under the pid that its launcher has now.
    record = next(
        (one for one in load_process_records(directory.parent) if one["pid"] == manifest.get("launcher_pid")), None
    )
    if record is not None and isinstance(pid, int):
        labels[pid] = str(record["label"])
    return labels


def format_label(process: Mapping[str, Any], stem: str = "") -> str:
    """Return the label of a process; empty for the program itself.

    Args:
        process: its identity, as of `capture.process`.
        stem: the name of its rank, where the run is of one.
    """
    name, rank = process.get("name"), process.get("rank")
    base = stem or (f"{process.get('role') or process.get('program')}_{rank}" if isinstance(rank, int) else "")
    return f"{base}-{name}" if base and name else base or str(name or "")


def check_selection(directory: Path, manifest: Mapping[str, Any]) -> list[Message]:
    """Return messages on the selection of a run: that it matched nothing, and which processes nsys could not record."""
    records = load_process_records(directory)
    lost = [
        *find_damaged_records(directory),
        *_explain_lost([one for one in records if one.get("lost") and one.get("chosen")], manifest),
    ]
    entry = manifest.get(SELECTION_KEY)
    if not isinstance(entry, dict):
        return lost
    by_rank, by_name = entry.get("ranks"), entry.get("processes")
    ranks = sorted({one["rank"] for one in records if isinstance(one.get("rank"), int)})
    if any(one.get("chosen") for one in records):
        missing = find_absent_ranks(by_rank, ranks) if by_rank is not None else None
        return [missing, *lost] if missing else lost
    if not records:
        words = (
            f"no process was selected: no Python process loaded traceable's bootstrap{_explain_no_process(manifest)}"
        )
        return [Message("no_python_process", words), *lost]
    if by_rank is not None and not ranks:
        variables = "RANK, OMPI_COMM_WORLD_RANK, PMI_RANK, SLURM_PROCID"
        return [Message("no_process_has_rank", f"--ranks {by_rank}: no process has a rank ({variables})"), *lost]
    if by_rank is not None and not any(rank_asked(by_rank, rank) for rank in ranks):
        words = f"--ranks {by_rank} matches no rank, so nothing was recorded; ranks: {_join(map(str, ranks))}"
        return [Message("no_rank_matches", words), *lost]
    names = _join(sorted({str(one["name"]) for one in records if one.get("name")}))
    words = f"--processes {by_name!r} matches no process, so nothing was recorded; names: {names}"
    return [Message("no_process_name_matches", words), *lost]


def _explain_no_process(manifest: Mapping[str, Any]) -> str:
    return " (is the program not Python, or started with -I, -E or -S?)" if manifest.get("end") else ""


def _explain_lost(processes: Iterable[Mapping[str, Any]], manifest: Mapping[str, Any]) -> list[Message]:
    """Return why selected processes are not recorded, a message for each cause."""
    by_cause: dict[str, list[str]] = {}
    for one in processes:
        by_cause.setdefault(str(one["lost"]), []).append(f"{one.get('label') or 'a process'} (pid {one['pid']})")
    messages = []
    for cause, labels in by_cause.items():
        if cause == "forked":
            verb, remedy = "was" if len(labels) == 1 else "were", "or with the start method spawn"
            reason = f"{verb} forked: {_format_nsys(manifest)} can't trace forked processes; "
            reason += f"run with --collector recorder, {remedy}"
            messages.append(Message("forked_not_recorded", f"{_join(labels)} {reason}"))
        else:
            reason = f"{'is' if len(labels) == 1 else 'are'} not recorded: {cause}"
            messages.append(Message("process_not_recorded", f"{_join(labels)} {reason}"))
    return messages


def _format_nsys(manifest: Mapping[str, Any]) -> str:
    reason = str((manifest.get("collector") or {}).get("reason", ""))
    words = reason.split()
    return f"nsys {words[1]}" if words[:1] == [NSYS] and len(words) > 1 else NSYS


def _join(words: Iterable[str]) -> str:
    names = list(words)
    return ", ".join(names[:_NAMES_MAX]) + (f" and {len(names) - _NAMES_MAX} more" if len(names) > _NAMES_MAX else "")


def load_process_records(directory: Path) -> list[dict[str, Any]]:
    """Return the records of the processes, by pid."""
    records = _read_records(directory.glob("process.*.json"), untrusted.PROCESS)
    return sorted((one for one in records if one["schema"] == selection.SCHEMA), key=lambda one: int(one["pid"]))


def find_damaged_records(directory: Path) -> list[Message]:
    """Return a message on the unreadable records of processes; empty where there are none."""
    names = []
    for pattern, shape in (("process.*.json", untrusted.PROCESS), ("status.*.json", untrusted.STATUS)):
        for path in sorted(directory.glob(pattern)):
            try:
                untrusted.read_json_object(path, shape)
            except (OSError, ValueError) as error:  # noqa: PERF203 - each file by itself
                names.append(f"{path.name} ({error.strerror if isinstance(error, OSError) else error})")
    words = f"damaged process records, ignored: {_join(names)}"
    return [Message("process_records_damaged", words)] if names else []


def _read_records(paths: Iterable[Path], shape: Mapping[str, Any]) -> list[dict[str, Any]]:
    records = []
    for path in paths:
        with contextlib.suppress(OSError, ValueError):
            records.append(untrusted.read_json_object(path, shape))
    return records


def _load_manifest_or_none(directory: Path) -> dict[str, Any] | None:
    try:
        return run_dir.load_manifest(directory)
    except TraceError:
        return None
