"""Where a report is printed: lines, tables and paragraphs that fit a terminal and can't steer it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import TextIO

from traceable.finding import Finding, format_findings
from traceable.protocol.environment import escape_unprintable
from traceable.report.layout import GAP, Cells, get_line_width, layout_columns, wrap_text
from traceable.report.text import escape_unencodable, measure_width

_BOLD, _PLAIN = "\x1b[1m", "\x1b[0m"
_NARROWEST_TEXT = 20
"""The fewest cells in which a text is wrapped: with less next to other cells, it begins a line of its own."""


class Page:
    """Where a report is printed.

    Args:
        stream: a terminal, a file or a pipe.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._width = get_line_width(stream)
        self._bold = stream.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown")

    def line(self, text: str = "") -> None:
        """Print a line, with escapes for what can't be printed."""
        self._stream.write(self._writable(text) + "\n")

    def heading(self, text: str) -> None:
        """Print a line above a table."""
        text = self._writable(text)
        self._stream.write((f"{_BOLD}{text}{_PLAIN}" if self._bold else text) + "\n")

    def table(self, columns: Sequence[Cells]) -> None:
        """Print a table, as wide as the terminal at most; below it what its marks mean, and which columns don't fit."""
        written = [replace(column, lines=list(map(self._writable, column.lines))) for column in columns]
        (first, *rest), shown = layout_columns(written, self._width)
        self.heading(first)
        for line in rest:
            self._stream.write(line + "\n")
        for mark in dict.fromkeys(mark for column in shown for mark in column.marks):
            self.paragraph([], mark)
        hidden = [column.heading.strip() for column in written if not any(column is one for one in shown)]
        if hidden:
            self.paragraph([], f"hidden columns: {', '.join(hidden)}; set COLUMNS=200 to show more, --csv has all")

    def paragraph(self, first: Sequence[str], text: str) -> None:
        """Print a text, wrapped where there is a width to keep, after cells that are in its first line only.

        Args:
            first: the cells, already padded; as wide as they are, further lines are indented.
            text: what is wrapped; never cut.
        """
        prefix = "".join(cell + " " * GAP for cell in map(self._writable, first))
        text = self._writable(text)
        indent = measure_width(prefix)
        if self._width is not None and self._width - indent < _NARROWEST_TEXT:
            prefix, indent = prefix.rstrip(), 0
            if prefix:
                self._stream.write(prefix + "\n")
                prefix = ""
        lines = [text] if self._width is None else wrap_text(text, max(1, self._width - indent))
        for line in lines:
            self._stream.write(f"{prefix}{line}".rstrip() + "\n")
            prefix = " " * indent

    def findings(self, findings: Sequence[Finding], columns: Sequence[Sequence[str]], *, brief: bool = False) -> None:
        """Print findings, each after its cells; see `finding.format_findings`."""
        for cells, text in format_findings(findings, columns, brief=brief):
            self.paragraph(cells, text)

    def _writable(self, text: str) -> str:
        return escape_unencodable(escape_unprintable(text), getattr(self._stream, "encoding", None))
