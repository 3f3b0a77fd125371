"""Several recordings compared: the document for machines, and the table for people. Nothing is computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from traceable.analysis.compare import LETTERS, format_column_name, format_ratio_name
from traceable.analysis.table import Table
from traceable.report import flight, overhead, windows
from traceable.report.columns import Column, format_column, is_worth_showing
from traceable.report.document import table_to_dict
from traceable.report.layout import Cells
from traceable.report.page import Page
from traceable.report.row_filter import RowFilter
from traceable.report.terminal import NO_RANGE_MATCHES, NO_RANGES, format_header, format_range_labels
from traceable.report.text import format_line

SCHEMA = "traceable.compare/1"
"""Name and version of the document, as those of `report.json`."""


def build_comparison(heads: Sequence[Mapping[str, Any]], by: str, table: Table, choice: RowFilter) -> dict[str, Any]:
    """Return the document that docs/report.md describes, in plain Python values; None for absent.

    Args:
        heads: of each recording, what `report.document.build_header` returns.
        by: what a row is about: `path` or `name`.
        table: what `analysis.compare.compare_ranges` returned, with the steps among its others.
        choice: which rows are in it.
    """
    recordings = [
        {"recording": letter, **{name: value for name, value in head.items() if name != "schema"}}
        for letter, head in zip(LETTERS, heads, strict=False)
    ]
    return {"schema": SCHEMA, "recordings": recordings, "by": by, **table_to_dict(table, choice)}


def write_comparison(
    page: Page, heads: Sequence[Mapping[str, Any]], paths: Sequence[str], table: Table, choice: RowFilter
) -> None:
    """Print what the recordings are, the ranges, and the steps; arguments as for `build_comparison`.

    Args:
        paths: as the user gave them.
    """
    page.write_line(f"{len(heads)} recordings compared")
    for letter, head, path in zip(LETTERS, heads, paths, strict=False):
        page.write_line(f"{letter}  {path}")
        of_the_run = (*flight.format_flight_recorder(head["flight_recorder"]), *windows.format_capture(head["capture"]))
        for line in (*of_the_run, *overhead.format_overhead(head["overhead"]), *format_header(head)):
            page.write_line(f"   {format_line(line)}")
    page.write_line()
    rows = choice.select_rows(table)
    if rows:
        tree = "path" in table.columns and choice.sort is None
        labels = Cells("range", format_range_labels(rows, tree), is_text=True)
        shown = [one for one in _list_columns(LETTERS[: len(heads)]) if is_worth_showing(one, rows)]
        page.write_table([labels, *(format_column(one, rows) for one in shown)])
    else:
        page.write_line((NO_RANGE_MATCHES if len(table) else NO_RANGES).printed)
    if left_out := len(choice.match_indices(table)) - len(rows):
        page.write_line(f"and {left_out} more: --top 0 shows all, --match and --domain narrow")
    steps = list(table.others["steps"].rows())
    if steps:
        page.write_line()
        page.write_line("steady steps:")
        page.write_table([format_column(one, steps) for one in _STEPS if is_worth_showing(one, steps)])
    for note in table.notes:
        page.write_line(format_line(note))


def _list_columns(letters: str) -> list[Column]:
    """Return what is shown of each recording, and what is hidden first: the means, then the counts."""
    first = letters[0]
    shown = []
    for letter in letters:
        shown += [
            Column(format_column_name(letter, "count"), f"{letter} count", 6),
            Column(format_column_name(letter, "cpu_mean_ns"), f"{letter} mean", 8),
            Column(format_column_name(letter, "cpu_p50_ns"), f"{letter} p50", 1),
            Column(format_column_name(letter, "gpu_busy_mean_ns"), f"{letter} GPU busy", 4, only_if_any=True),
        ]
        if letter != first:
            shown += [
                Column(format_ratio_name(letter, "cpu_mean_ns"), f"mean {letter}/{first}", 7, write=_format_ratio),
                Column(format_ratio_name(letter, "cpu_p50_ns"), f"p50 {letter}/{first}", 2, write=_format_ratio),
                Column(format_ratio_name(letter, "gpu_busy_mean_ns"), f"GPU {letter}/{first}", 3, True, _format_ratio),
            ]
    return shown


def _format_ratio(ratio: float) -> str:
    return f"{ratio:.3f}" if ratio < 9.9995 else f"{ratio:.1f}"


_STEPS = (
    Column("recording"),
    Column("pid", rank=8),
    Column("device", rank=7, only_if_any=True),
    Column("steps", rank=6),
    Column("steady", rank=5),
    Column("wall_mean_ns", "mean", 4),
    Column("wall_p50_ns", "p50", 0),
    Column("wall_p50_ratio", f"p50 vs {LETTERS[0]}", 1, write=_format_ratio),
    Column("wall_p99_ns", "p99", 2),
    Column("steps_per_s", "steps/s", 3),
    Column("gpu_busy_mean_ns", "GPU busy", 4, only_if_any=True),
)
