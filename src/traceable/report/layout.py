"""Columns of text become lines: aligned, and where there is a width to keep, no wider."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TextIO

from traceable.report.text import MAX_NAME_LENGTH, measure_width, truncate_distinct

GAP = 2
_WIDEST_FURTHER_TEXT = 60
"""How wide a column of text may be that is not the first, so that numbers are in sight behind a name of any length."""

_NARROWEST_TEXT = 24
"""To how many cells a column of text may be cut before a column is dropped instead."""


_NARROWEST_FIRST = 40
"""The same of the first column, which says what a row is about, but no more than two fifths of the width."""

_NARROWEST = 5
"""Some terminals say that they have no width: below this nobody can be reading."""

_BREAKS = re.compile(r"(?<!\d) | (?!\d{3}\b)")
"""Where a line may be broken: at spaces, but not at those within a number (62 195)."""


@dataclass(frozen=True)
class Cells:
    """One column of a table, written.

    Attributes:
        heading: its first line.
        lines: one text a row.
        is_text: text, which stands left and may be cut, against numbers, which stand right and are whole or not there.
        rank: where not all columns fit, the one with the highest goes first. The first column never goes.
        marks: what marks in its lines mean, a line each.
        whole: a text that is not cut, as numbers are not.
    """

    heading: str
    lines: Sequence[str]
    is_text: bool = False
    rank: int = 0
    marks: Sequence[str] = ()
    whole: bool = False

    @property
    def truncatable(self) -> bool:
        """Whether it may be narrower than its widest cell."""
        return self.is_text and not self.whole

    @property
    def width(self) -> int:
        """The width of its widest cell; of words no more than a name may have."""
        widest = max(map(measure_width, (self.heading, *self.lines)))
        return min(widest, MAX_NAME_LENGTH) if self.is_text else widest


def layout_columns(columns: Sequence[Cells], width: int | None) -> tuple[list[str], list[Cells]]:
    """Return the heading line and one line a row, and the columns that are shown.

    Args:
        columns: at least one, equally long; the first says what the row is about.
        width: how wide a line may be; None for as wide as needed.
    """
    preferred = {i: column.width for i, column in enumerate(columns)}
    preferred |= {i: min(size, _WIDEST_FURTHER_TEXT) for i, size in preferred.items() if i and columns[i].truncatable}
    if width is not None:
        preferred = _fitted(columns, preferred, width)
    shown = [columns[i] for i in preferred]
    cells = [
        [_padded(cell, size, column.is_text) for cell in truncate_distinct([column.heading, *column.lines], size)]
        for column, size in zip(shown, preferred.values(), strict=True)
    ]
    return [(" " * GAP).join(row).rstrip() for row in zip(*cells, strict=True)], shown


def wrap_text(text: str, width: int) -> list[str]:
    """Return a text as lines of at most `width` cells, broken between words, and inside one that is longer than a line.

    Examples:
        >>> wrap_text("one two three", 7), wrap_text("abcdefg", 3)
        (['one two', 'three'], ['abc', 'def', 'g'])
    """
    lines = [""]
    for word in _BREAKS.split(text):
        if lines[-1] and measure_width(lines[-1]) + 1 + measure_width(word) > width:
            lines.append("")
        lines[-1] += f" {word}" if lines[-1] else word
        while measure_width(lines[-1]) > width:
            line = lines.pop()
            # At least one character a line, however wide it is: else this would not end.
            fits = next((n for n in range(len(line) - 1, 1, -1) if measure_width(line[:n]) <= width), 1)
            lines += [line[:fits], line[fits:]]
            if not line[fits:]:
                lines.pop()
                break
    return lines


def _fitted(columns: Sequence[Cells], preferred: dict[int, int], width: int) -> dict[int, int]:
    """Return the width of each column that stays: numbers as wide as they are, text with the rest."""
    least = {i: min(size, _NARROWEST_TEXT) if columns[i].truncatable else size for i, size in preferred.items()}
    first = next(iter(preferred))
    if columns[first].is_text:
        least[first] = min(preferred[first], max(_NARROWEST_TEXT, min(_NARROWEST_FIRST, width * 2 // 5)))
    while len(least) > 1 and _total(least) > width:
        least.pop(max(list(least)[1:], key=lambda i: columns[i].rank))
    left = width - _total(least)
    # What is left goes to those who need least of it, until the rest shares alike.
    flexible = sorted((i for i in least if columns[i].truncatable), key=lambda i: preferred[i] - least[i])
    for served, i in enumerate(flexible):
        more = min(preferred[i] - least[i], max(0, left) // (len(flexible) - served))
        least[i] += more
        left -= more
    least[first] = max(1, min(least[first], width))
    return least


def _total(widths: dict[int, int]) -> int:
    return sum(widths.values()) + GAP * (len(widths) - 1)


def _padded(text: str, width: int, words: bool) -> str:
    space = " " * (width - measure_width(text))
    return text + space if words else space + text


def get_line_width(stream: TextIO) -> int | None:
    """Return how wide lines on `stream` may be: as COLUMNS says, else as its terminal is; None where there is none."""
    columns_text = os.environ.get("COLUMNS", "")
    if columns_text.isascii() and columns_text.isdigit() and int(columns_text):
        return max(_NARROWEST, int(columns_text))
    if not stream.isatty():
        return None
    try:
        columns = os.get_terminal_size(stream.fileno()).columns
    except OSError:
        columns = 0
    return max(_NARROWEST, columns or 80)
