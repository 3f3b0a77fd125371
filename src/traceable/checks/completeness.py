"""Whether the recording of a run has all ranges that its processes opened: their counts compared with the trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from traceable.analysis.completeness import CollectorLoss, Completeness, check_completeness
from traceable.collectors.completeness_table import LOST, get_incomparable_reason, parse_stored_counts, read_rows
from traceable.errors import Message
from traceable.protocol.process_counts import make_entry_key
from traceable.protocol.run_records import load_range_counts

if TYPE_CHECKING:
    from traceable.trace.model import Trace


def evaluate_completeness(
    directory: Path | None, manifest: Mapping[str, Any] | None, trace: Trace | None, databases: Sequence[Path] = ()
) -> Completeness:
    """Return whether a recording contains all emitted ranges.

    Args:
        directory: the run directory; None where there is only the recording.
        manifest: the manifest of the run; None for unknown.
        trace: the whole trace, with names as recorded; None for nothing recorded.
        databases: the databases that the trace was read from.
    """
    tables = [read_rows(path) for path in databases if path.is_file()]
    rows = [row for table in tables for row in table]
    lost = [one for kind, pid, content in rows if kind == LOST and (one := _parse_loss(pid, content))]
    if directory is not None and manifest is not None:
        return check_completeness(
            trace, load_range_counts(directory), lost, make_entry_key, get_incomparable_reason(manifest)
        )
    # With several windows, each in a database of its own, none has the counts.
    return check_completeness(trace, parse_stored_counts(rows) if len(tables) == 1 else [], lost, make_entry_key)


def _parse_loss(pid: int, content: dict[str, Any]) -> CollectorLoss | None:
    try:
        codes = {str(code): int(number) for code, number in content["codes"].items()}
        reason = content["reason"]
        return CollectorLoss(pid, Message.parse(str(content["text"])), codes, None if reason is None else str(reason))
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
