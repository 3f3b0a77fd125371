"""What became of the choice of processes: the runs that make up one, what their processes are called, what was missed.

Read from run directories: the manifests, and what the processes said of themselves (`process.<pid>.json` by
`decision.py`, `status.<pid>.json` by `capture/status.py`). What is asked for is in `ranks.py`.
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
    """Return the run directories that make up `directory`, by rank; empty where it is no such directory.

    Raises:
        TraceError: they are of different jobs.
    """
    try:
        own = _manifest(directory)
        if own is not None and not (own.get(SELECTION_KEY) or {}).get("parts"):
            return ()
        below = [
            entry
            for entry in directory.iterdir()
            if untrusted.is_directory(entry) and untrusted.is_regular(entry / run_dir.MANIFEST)
        ]
    except OSError:
        return ()
    found = [(entry, _manifest(entry) or {}) for entry in sorted(below)]
    # An earlier run that --force has put aside keeps its name in its manifest.
    found = [(entry, manifest) for entry, manifest in found if Path(str(manifest.get("run_dir"))).name == entry.name]
    if own is None:
        found = [(entry, manifest) for entry, manifest in found if (manifest.get(RANK_KEY) or {}).get("grouped")]
        _check_one_job(directory, found)
    return tuple(entry for entry, _ in sorted(found, key=lambda one: (_rank_number(one[1]), one[0].name)))


def load_recorded_parts(directory: Path) -> CollectorResult:
    """Return what the runs below the directory left, each of which has finalised its own."""
    return CollectorResult(directory if list_parts(directory) else None)


def _check_one_job(directory: Path, found: list[tuple[Path, dict[str, Any]]]) -> None:
    first: dict[str, tuple[int, str]] = {}
    for entry, manifest in found:
        host, started = (manifest.get("host") or {}).get("name"), manifest[RANK_KEY].get("launcher_started_ns")
        if host is None or started is None:
            continue
        other = first.setdefault(host, (started, entry.name))
        if other[0] != started:
            raise TraceError(
                "ranks_of_different_jobs",
                f"{directory} holds ranks of different jobs: {other[1]} and {entry.name}",
                "name one of them, or record into another -o",
            )


def _rank_number(manifest: Mapping[str, Any]) -> int:
    rank = (manifest.get(RANK_KEY) or {}).get("rank")
    return rank if isinstance(rank, int) else sys.maxsize


def load_labels(directory: Path, manifest: Mapping[str, Any]) -> dict[int, str]:
    """Return what the processes of a run are called, by pid, as far as rank or whoever started them gave them a name.

    Args:
        directory: the run directory.
        manifest: its manifest.
    """
    rank, pid = manifest.get(RANK_KEY), manifest.get("pid")
    stem = str(manifest.get("stem")) if isinstance(rank, dict) else ""
    named = {
        one["pid"]: str(one["label"])
        for one in load_process_records(directory)
        if one.get("name") or one.get("rank") is not None
    }
    named = {number: label for number, label in named.items() if stem == "" or number != pid}
    for status in _read(directory.glob("status.*.json"), untrusted.STATUS):
        if label := format_label(status.get("process") or {}, stem):
            named.setdefault(status["pid"], label)
    if stem and isinstance(pid, int):
        named[pid] = stem
    # A process that became a run of its own has told of itself before, under the pid that is its launcher's now.
    before = next(
        (one for one in load_process_records(directory.parent) if one["pid"] == manifest.get("launcher_pid")), None
    )
    if before is not None and isinstance(pid, int):
        named[pid] = str(before["label"])
    return named


def format_label(process: Mapping[str, Any], stem: str = "") -> str:
    """Return what a process that told of itself is called; empty where it is nothing but the program.

    Args:
        process: as `capture.process.identity` says it.
        stem: what its rank is called, where the run is of one.
    """
    name, rank = process.get("name"), process.get("rank")
    base = stem or (f"{process.get('role') or process.get('program')}_{rank}" if isinstance(rank, int) else "")
    return f"{base}-{name}" if base and name else base or str(name or "")


def check_selection(directory: Path, manifest: Mapping[str, Any]) -> list[Message]:
    """Return what is to be said of the selection of a run: that nothing was of it, and what nsys could not hear."""
    heard = load_process_records(directory)
    lost = [
        *find_damaged_records(directory),
        *_lost([one for one in heard if one.get("lost") and one.get("chosen")], manifest),
    ]
    asked = manifest.get(SELECTION_KEY)
    if not isinstance(asked, dict):
        return lost
    by_rank, by_name = asked.get("ranks"), asked.get("processes")
    ranks = sorted({one["rank"] for one in heard if isinstance(one.get("rank"), int)})
    if any(one.get("chosen") for one in heard):
        missing = find_absent_ranks(by_rank, ranks) if by_rank is not None else None
        return [missing, *lost] if missing else lost
    if not heard:
        words = f"nothing was chosen: no Python process began that could tell what it is{_why_none(manifest)}"
        return [Message("no_python_process", words), *lost]
    if by_rank is not None and not ranks:
        variables = "RANK, OMPI_COMM_WORLD_RANK, PMI_RANK, SLURM_PROCID"
        return [Message("no_process_has_rank", f"--ranks {by_rank}: no process had a rank ({variables})"), *lost]
    if by_rank is not None and not any(rank_asked(by_rank, rank) for rank in ranks):
        words = f"--ranks {by_rank}: there were ranks {_listed(map(str, ranks))}, so nothing was recorded"
        return [Message("no_rank_matches", words), *lost]
    there = _listed(sorted({str(one["name"]) for one in heard if one.get("name")}))
    words = f"--processes {by_name!r} matches none of the names that there were: {there}"
    return [Message("no_process_name_matches", words), *lost]


def _why_none(manifest: Mapping[str, Any]) -> str:
    return " (is the program no Python, or started with -I, -E or -S?)" if manifest.get("end") else ""


def _lost(processes: Iterable[Mapping[str, Any]], manifest: Mapping[str, Any]) -> list[Message]:
    """Return why processes are not recorded that should be, a sentence for each cause."""
    by_cause: dict[str, list[str]] = {}
    for one in processes:
        by_cause.setdefault(str(one["lost"]), []).append(f"{one.get('label') or 'a process'} (pid {one['pid']})")
    said = []
    for cause, who in by_cause.items():
        if cause == "forked":
            verb, remedy = "was" if len(who) == 1 else "were", "or with the start method spawn"
            why = f"{verb} forked: {_nsys(manifest)} does not record forked processes; "
            why += f"run with --collector recorder, {remedy}"
            said.append(Message("forked_not_recorded", f"{_listed(who)} {why}"))
        else:
            why = f"{'is' if len(who) == 1 else 'are'} not recorded: {cause}"
            said.append(Message("process_not_recorded", f"{_listed(who)} {why}"))
    return said


def _nsys(manifest: Mapping[str, Any]) -> str:
    reason = str((manifest.get("collector") or {}).get("reason", ""))
    words = reason.split()
    return f"nsys {words[1]}" if words[:1] == [NSYS] and len(words) > 1 else NSYS


def _listed(words: Iterable[str]) -> str:
    found = list(words)
    return ", ".join(found[:_NAMES_MAX]) + (f" and {len(found) - _NAMES_MAX} more" if len(found) > _NAMES_MAX else "")


def load_process_records(directory: Path) -> list[dict[str, Any]]:
    """Return what processes said of themselves, by pid."""
    found = _read(directory.glob("process.*.json"), untrusted.PROCESS)
    return sorted((one for one in found if one["schema"] == selection.SCHEMA), key=lambda one: int(one["pid"]))


def find_damaged_records(directory: Path) -> list[Message]:
    """Return a sentence on the records of processes that can't be read; empty where all can."""
    names = []
    for pattern, shape in (("process.*.json", untrusted.PROCESS), ("status.*.json", untrusted.STATUS)):
        for path in sorted(directory.glob(pattern)):
            try:
                untrusted.read_json_object(path, shape)
            except (OSError, ValueError) as error:  # noqa: PERF203 - each file by itself
                names.append(f"{path.name} ({error.strerror if isinstance(error, OSError) else error})")
    words = f"records of processes are damaged, and nothing in them was used: {_listed(names)}"
    return [Message("process_records_damaged", words)] if names else []


def _read(paths: Iterable[Path], shape: Mapping[str, Any]) -> list[dict[str, Any]]:
    found = []
    for path in paths:
        with contextlib.suppress(OSError, ValueError):
            found.append(untrusted.read_json_object(path, shape))
    return found


def _manifest(directory: Path) -> dict[str, Any] | None:
    try:
        return run_dir.load_manifest(directory)
    except TraceError:
        return None
