"""The range counts of a run in its database, so that a report that was copied without its run directory can be checked.

`protocol/run_records.py` reads them from the run directory, `checks/completeness.py` compares them with a recording.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from traceable.collectors import completeness_table, find_collector_of_run
from traceable.protocol.run_records import EmittedCounts, load_range_counts

if TYPE_CHECKING:
    from traceable.collectors.base import CollectorResult


def store_range_counts(directory: Path, manifest: Mapping[str, Any], recorded: CollectorResult | None) -> None:
    """Store the counts in the database of a run, once. A run with several databases stores none."""
    database = recorded.database if recorded is not None else None
    if (
        database is None
        or recorded is None
        or recorded.more_databases
        or not database.is_file()
        or get_incomparable_reason(manifest)
    ):
        return
    if any(kind == completeness_table.EMITTED for kind, _, _ in completeness_table.read_rows(database)):
        return
    rows = []
    for one in load_range_counts(directory):
        names = {text.decode(): number for text, number in one.names.items()}
        rows.append((one.pid, {"names": names, "rest": one.rest, "other": one.other}))
    if rows:
        completeness_table.replace_rows(database, completeness_table.EMITTED, rows)


def parse_stored_counts(rows: Iterable[tuple[str, int, dict[str, Any]]]) -> list[EmittedCounts]:
    """Return the counts in the rows of a database (`completeness_table.read_rows`). Damaged ones are ignored."""
    counts = []
    for kind, pid, content in rows:
        if kind == completeness_table.EMITTED:
            with contextlib.suppress(KeyError, TypeError, ValueError, AttributeError):
                names = {str(name).encode(): int(number) for name, number in content["names"].items()}
                counts.append(EmittedCounts(pid, names, int(content["rest"]), int(content["other"])))
    return counts


def get_incomparable_reason(manifest: Mapping[str, Any]) -> str | None:
    """Return why the counts can't be compared with the recording of a run; None where they can."""
    if isinstance(manifest.get("flight_recorder"), dict):
        return "flight_recorder"
    argv = tuple(map(str, ((manifest.get("plan") or {}).get("argv")) or ()))
    return find_collector_of_run(manifest).explain_incomparable_counts(argv)
