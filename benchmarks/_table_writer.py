"""Rows on their way into an SQLite table, as columns. Their meaning is defined elsewhere."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

Int64 = NDArray[np.int64]

NULL = int(np.iinfo(np.int64).min)
"""What a column holds where the table shall hold NULL."""

_ROWS_AT_ONCE = 100_000
_CHUNKS_AT_ONCE = 2000
"""A chunk of few rows is mostly numpy's own bytes."""


class Strings:
    """The texts of StringIds, each once."""

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}

    def id(self, text: str) -> int:
        """Return the number of `text`."""
        return self._ids.setdefault(text, len(self._ids))

    def rows(self) -> list[tuple[int, str]]:
        """Return (number, text) of each."""
        return [(number, text) for text, number in self._ids.items()]


class Table:
    """Collects rows as columns and writes many at a time; those written together in the order of their start."""

    def __init__(
        self, database: sqlite3.Connection, name: str, columns: Sequence[str], texts: Mapping[str, Mapping[str, int]]
    ) -> None:
        """Write `columns` of the table `name`; `texts` lists which of them are texts, and the number of each text."""
        self._database = database
        self._texts = [texts.get(column) for column in columns]
        marks = ", ".join("?" * len(columns))
        self._insert = f"INSERT INTO {name} ({', '.join(columns)}) VALUES ({marks})"
        self._chunks: list[tuple[Int64, ...]] = []
        self._waiting = 0

    def add(self, *columns: Int64 | int) -> None:
        """Add rows, of which the first column is the start; a number is repeated as a column."""
        count = np.size(columns[0])
        if not count:
            return
        self._chunks.append(tuple(np.broadcast_to(np.asarray(column, np.int64), count) for column in columns))
        self._waiting += count
        if self._waiting >= _ROWS_AT_ONCE or len(self._chunks) >= _CHUNKS_AT_ONCE:
            self.flush()

    def flush(self) -> None:
        """Write what is waiting."""
        if not self._waiting:
            return
        columns = [np.concatenate(parts) for parts in zip(*self._chunks, strict=True)]
        order = np.argsort(columns[0], kind="stable")
        cells = [_to_cells(column[order], texts) for column, texts in zip(columns, self._texts, strict=True)]
        self._database.executemany(self._insert, zip(*cells, strict=True))
        self._chunks, self._waiting = [], 0


def _to_cells(column: Int64, texts: Mapping[str, int] | None) -> Sequence[object]:
    """Return the values as Python's."""
    if texts is not None:
        known: dict[int, str | None] = {number: text for text, number in texts.items()}
        return [known.get(value) for value in column.tolist()]
    values: list[object] = column.tolist()
    return values if column.min() > NULL else [None if value == NULL else value for value in values]
