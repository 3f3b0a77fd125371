"""Tables decoded from the pages of an SQLite file by our own decoder, where it is built and the table is usual.

What is not usual, or might be read by SQLite in another way, is left to SQLite: `sqlite.Database` asks here first. That
both say the same of every file is held by tests/trace/test_differential.py and tests/trace/test_fuzz.py.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np

from traceable.trace.rows import Column, ColumnSpec, EncodedColumn, Rows, make_constant_column, make_null_columns

try:
    from traceable._native import _pages
except ImportError:
    _pages = None  # type: ignore[assignment]

available = _pages is not None
"""Whether the decoder is built."""

_UTF8 = 1
_ROLLBACK = b"\x01\x01"


@dataclass(frozen=True)
class Layout:
    """How a table lies in the file.

    Attributes:
        root: number of the page at which its b-tree begins.
        positions: of each column in a record.
        types: declared type of each column, in capitals.
        rowid: the column that stands for the rowid; None for none.
        decodable: False where only SQLite knows how to read it: generated columns.
        defaults: the columns that have another default than NULL, which rows made before the column don't hold.
    """

    root: int
    positions: dict[str, int]
    types: dict[str, str]
    rowid: str | None
    decodable: bool
    defaults: frozenset[str]


_DAMAGE = {
    "page_missing": "the file ends before a page of the table",
    "page_pointer": "a pointer to no page",
    "page_repeated": "a page that is in the table twice",
    "cell": "a cell",
    "cell_too_long": "a cell beyond its page",
    "cell_count": "the number of cells",
    "cell_pointer": "a pointer to no cell",
    "cells_overlap": "cells that share bytes",
}
"""What the decoder finds in damaged pages, by the kind that it calls it."""


class DamagedPagesError(Exception):
    """Pages hold what no sound file does, and SQLite would not always notice: a page in a table twice is one.

    Attributes:
        kind: of damage.
    """

    def __init__(self, kind: str) -> None:
        super().__init__(_DAMAGE[kind])
        self.kind = kind


class StoppedError(Exception):
    """Decoding was ended, because nobody waits for it any more."""


class Pages:
    """The pages of one file. A table may be decoded while another thread decodes another one.

    Args:
        descriptor: of the file, open for reading.
        size_bytes: its size.

    Raises:
        OSError: the file can't be read.
    """

    def __init__(self, descriptor: int, size_bytes: int) -> None:
        self._descriptor = descriptor
        self._stop = bytearray(1)
        header = os.pread(descriptor, 100, 0).ljust(100, b"\0")  # It may have been emptied since it was checked.
        page_size = int.from_bytes(header[16:18], "big")
        self._page_size = 65536 if page_size == 1 else page_size
        self._usable = self._page_size - header[20]
        self._count = self._pages_of(header, size_bytes) if self._page_size else 0
        # Auto-vacuum: SQLite may find overflow pages by another way than the chain.
        plain = header[18:20] == _ROLLBACK and header[52:56] == bytes(4) and header[56:60] == bytes((0, 0, 0, _UTF8))
        self.readable = available and plain and self._count > 0 and self._usable >= 480

    def _pages_of(self, header: bytes, size_bytes: int) -> int:
        """Return the number of pages, as SQLite counts them. https://www.sqlite.org/fileformat.html, 1.3.7."""
        stated, whole = int.from_bytes(header[28:32], "big"), size_bytes // self._page_size
        return stated if 0 < stated <= whole and header[24:28] == header[92:96] else whole

    def stop(self) -> None:
        """Have `rows` in other threads end soon, with `StoppedError`, and every later one."""
        self._stop[0] = 1

    def decode_rows(self, layout: Layout, wanted: ColumnSpec) -> Rows | None:
        """Return the rows of a table in the order in which SQLite would; None where SQLite should read it.

        Raises:
            DamagedPagesError, StoppedError: see there.
            OSError: the file can't be read.
        """
        present = frozenset(layout.positions)
        asked = _asked(wanted, present)
        read = [name for _, _, members in asked for name in members]
        if not self.readable or not layout.decodable or not _storable(layout, wanted, read):
            return None
        columns = tuple((kind, tuple(layout.positions[name] for name in members)) for kind, _, members in asked)
        rowid = layout.positions[layout.rowid] if layout.rowid else -1
        try:
            count, found = _pages.decode_table(
                self._descriptor, self._page_size, self._usable, self._count, layout.root, rowid, columns, self._stop
            )
        except _pages.DamagedError as error:
            raise DamagedPagesError(str(error)) from error
        except _pages.StoppedError as error:
            raise StoppedError from error
        except _pages.UnsupportedError:
            return None
        results = {name: value for (_, name, _), value in zip(asked, found, strict=True)}
        return _assembled(wanted, present, count, results)


def _asked(wanted: ColumnSpec, present: frozenset[str]) -> list[tuple[int, str, tuple[str, ...]]]:
    """Return what the decoder is asked for: kind, name and columns of each."""
    singles = ((_pages.INTEGER, wanted.integers), (_pages.SMALL, wanted.small), (_pages.REAL, wanted.reals))
    asked: list[tuple[int, str, tuple[str, ...]]] = []
    for kind, names in singles:
        asked += [(kind, name, (name,)) for name in names if name in present]
    for name, members in wanted.keys.items():
        there = tuple(member for member in members if member in present)
        if there:
            asked.append((_pages.KEY, name, there))
    return asked + [(_pages.TEXT, name, (name,)) for name in wanted.texts if name in present]


def _storable(layout: Layout, wanted: ColumnSpec, read: list[str]) -> bool:
    """Return whether what the columns hold is what SQLite would return: whole numbers of a REAL turn into others."""
    if not read or layout.defaults.intersection(read):
        return False
    if not layout.positions or max(layout.positions[name] for name in read) >= _MOST_COLUMNS:
        return False
    whole = set(read).difference(wanted.reals, wanted.texts)
    return all("INT" in layout.types[name] or not layout.types[name] for name in whole)


_MOST_COLUMNS = 2000


def _assembled(wanted: ColumnSpec, present: frozenset[str], count: int, results: dict[str, Any]) -> Rows:
    columns = make_null_columns(wanted, present, count)
    columns |= {name: _array(results[name], count, np.int64) for name in wanted.integers if name in results}
    columns |= {name: _array(results[name], count, np.int32) for name in wanted.small if name in results}
    columns |= {name: _array(results[name], count, np.float64) for name in wanted.reals if name in results}
    coded = {name: _key(results.get(name), members, present, count) for name, members in wanted.keys.items()}
    for name in wanted.texts:
        codes, texts = results.get(name, (-1, []))
        coded[name] = EncodedColumn(_array(codes, count, np.int32), texts)
    return Rows(count, columns, coded)


def _key(found: Any, members: tuple[str, ...], present: frozenset[str], count: int) -> EncodedColumn:
    codes, distinct = found or (0, b"")
    there = [i for i, member in enumerate(members) if member in present]
    packed = np.frombuffer(distinct, np.int64) if len(memoryview(distinct)) else np.empty(0, np.int64)
    numbers = len(packed) // len(there) if there else min(count, 1)
    values = np.full((numbers, len(members)), np.iinfo(np.int64).min)
    if there:
        values[:, there] = packed.reshape(numbers, len(there))
    return EncodedColumn(_array(codes, count, np.int32), values)


def _array(values: Any, count: int, dtype: Any) -> Column:
    return (
        make_constant_column(values, count, dtype)
        if isinstance(values, int | float)
        else np.frombuffer(values, dtype, count)
    )
