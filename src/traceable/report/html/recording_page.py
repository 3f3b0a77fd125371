"""The page of a recording: the data of its screens as blocks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from traceable.errors import MissingDataError
from traceable.report.document import MAX_ROWS, build_bounded_report, missing_data_to_dict, table_to_dict
from traceable.report.html.blocks import pack_block
from traceable.report.html.page import REPORT, write_html
from traceable.report.row_filter import RowFilter
from traceable.report.views import FINDINGS, RANGES, VIEWS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from traceable.analysis.expectations import ExpectationResult
    from traceable.recording import Recording


def write_recording_page(recording: Recording, path: Path, verdicts: Sequence[ExpectationResult] = ()) -> None:
    """Write the page of a recording.

    Args:
        recording: a recording or a part of it.
        path: the file.
        verdicts: on expected ranges.

    Raises:
        TraceableError: it can't be written there.
    """
    write_html(
        path, kind=REPORT, title=f"{Path(recording.trace.source.path).name}", blocks=_build_blocks(recording, verdicts)
    )


def _build_blocks(recording: Recording, verdicts: Sequence[ExpectationResult]) -> list[str]:
    return [pack_block("report", _build_document(recording, verdicts))]


def _build_document(recording: Recording, verdicts: Sequence[ExpectationResult]) -> dict[str, Any]:
    """Return the document of `report --json --view all`, with at most MAX_ROWS rows in each list."""
    views = [view for view in VIEWS.values() if view not in (RANGES, FINDINGS)]
    answers = recording.query_all([("ranges", {}), ("findings", {}), *((view.name, {}) for view in views)])
    document = build_bounded_report(recording, verdicts)
    for view, answer in zip(views, answers[2:], strict=True):
        if isinstance(answer, MissingDataError):
            document[view.name] = missing_data_to_dict(answer)
        else:
            document[view.name] = table_to_dict(answer, RowFilter(top=MAX_ROWS))
    return document
