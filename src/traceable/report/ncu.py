"""ncu's measurements of kernels: the columns in a terminal, and the document of `--json`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TextIO

from traceable.analysis.table import Table
from traceable.report.columns import Column, format_value
from traceable.report.document import table_to_dict
from traceable.report.page import Page
from traceable.report.row_filter import RowFilter
from traceable.report.terminal import write_view
from traceable.report.text import escape_name, format_line, truncate
from traceable.report.views import View

SCHEMA = "traceable.ncu/1"
MAX_NAME_CELLS = 60
VIEW = View(
    "ncu",
    "what limits each kernel",
    columns=(
        Column("name", "kernel"),
        Column("grid", rank=7),
        Column("block", rank=8),
        Column("device", rank=12),
        Column("launches", rank=6),
        Column("duration_mean_ns", "mean", 1),
        Column("duration_min_ns", "min", 10),
        Column("duration_max_ns", "max", 11),
        Column("bound", rank=1),
        Column("compute_share", "SM", 2),
        Column("memory_share", "memory", 3),
        Column("dram_share", "DRAM", 4),
        Column("occupancy_share", "occupancy", 5),
        Column("waves", rank=9),
    ),
)
"""The columns of the main table, before those of the requested metrics; the single launches are in the JSON."""


def build_kernel_report(table: Table, source: str) -> dict[str, Any]:
    """Return the document of `--json`: the rows by kernel, the launches, and the units of the requested metrics."""
    return {"schema": SCHEMA, "source": source, **table_to_dict(table, RowFilter())}


def write_kernels(stream: TextIO, table: Table, title: str) -> None:
    """Print the table of kernels, below it the reason for each one's bound, and the notes."""
    requested = [
        Column(
            row["metric"], f"{row['metric']} [{row['unit']}]" if row["unit"] else row["metric"], 1, write=format_value
        )
        for row in table.others["metrics"].rows()
    ]
    page = Page(stream)
    page.line(title)
    page.line()
    view = replace(VIEW, columns=(*VIEW.columns, *requested))
    write_view(page, view, Table(table.values), RowFilter(), 0)
    page.line()
    for row in table.rows():
        if row["reason"] is not None:
            name = truncate(escape_name(row["name"]), MAX_NAME_CELLS)
            page.paragraph([], f"{row['bound']}: {name}: {row['reason']}")
    for note in table.notes:
        page.line(format_line(note))
