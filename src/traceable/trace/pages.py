"""Tables decoded from the pages of an SQLite file by our own decoder, if it is built and supports the table.

`sqlite.Database` tries it first; unsupported tables, and those that SQLite might read differently, are left to SQLite.
tests/trace/test_differential.py and tests/trace/test_fuzz.py check that both return the same for every file.
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
    """The location of a table in the file.

    Attributes:
        root: number of the page at which its b-tree begins.
        positions: of each column in a record.
        types: declared type of each column, in capitals.
        rowid: the column that is an alias of the rowid; None for none.
        decodable: False if only SQLite can read it: generated columns.
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
    "page_pointer": "an invalid page pointer",
    "page_repeated": "a page that is in the table twice",
    "cell": "a cell",
    "cell_too_long": "a cell beyond its page",
    "cell_count": "the number of cells",
    "cell_pointer": "an invalid cell pointer",
    "cells_overlap": "cells that share bytes",
}
"""The damage that the decoder detects, by its code."""


class DamagedPagesError(Exception):
    """Pages are damaged in a way that SQLite would not always notice, as a page that is in a table twice.

    Attributes:
        kind: of damage.
    """

    def __init__(self, kind: str) -> None:
        super().__init__(_DAMAGE[kind])
        self.kind = kind


class StoppedError(Exception):
    """Decoding was stopped, because its result is no longer needed."""


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
        """Make `decode_rows` raise `StoppedError`: soon in other threads, and in every later call."""
        self._stop[0] = 1

    def decode_rows(self, layout: Layout, spec: ColumnSpec) -> Rows | None:
        """Return the rows of a table in SQLite's order; None if SQLite should read it.

        Raises:
            DamagedPagesError, StoppedError: see there.
            OSError: the file can't be read.
        """
        present = frozenset(layout.positions)
        requested = _list_decoder_columns(spec, present)
        read = [name for _, _, members in requested for name in members]
        if not self.readable or not layout.decodable or not _is_stored_as_is(layout, spec, read):
            return None
        columns = tuple((kind, tuple(layout.positions[name] for name in members)) for kind, _, members in requested)
        rowid = layout.positions[layout.rowid] if layout.rowid else -1
        try:
            count, decoded = _pages.decode_table(
                self._descriptor, self._page_size, self._usable, self._count, layout.root, rowid, columns, self._stop
            )
        except _pages.DamagedError as error:
            raise DamagedPagesError(str(error)) from error
        except _pages.StoppedError as error:
            raise StoppedError from error
        except _pages.UnsupportedError:
            return None
        results = {name: value for (_, name, _), value in zip(requested, decoded, strict=True)}
        return _assemble_rows(spec, present, count, results)


def _list_decoder_columns(spec: ColumnSpec, present: frozenset[str]) -> list[tuple[int, str, tuple[str, ...]]]:
    """Return the columns to decode: kind, name and members of each."""
    singles = ((_pages.INTEGER, spec.integers), (_pages.SMALL, spec.small), (_pages.REAL, spec.reals))
    requested: list[tuple[int, str, tuple[str, ...]]] = []
    for kind, names in singles:
        requested += [(kind, name, (name,)) for name in names if name in present]
    for name, members in spec.keys.items():
        present_members = tuple(member for member in members if member in present)
        if present_members:
            requested.append((_pages.KEY, name, present_members))
    return requested + [(_pages.TEXT, name, (name,)) for name in spec.texts if name in present]


def _is_stored_as_is(layout: Layout, spec: ColumnSpec, read: list[str]) -> bool:
    """Return whether SQLite would return the stored values as they are: it converts whole numbers of a REAL."""
    if not read or layout.defaults.intersection(read):
        return False
    if not layout.positions or max(layout.positions[name] for name in read) >= _MOST_COLUMNS:
        return False
    whole = set(read).difference(spec.reals, spec.texts)
    return all("INT" in layout.types[name] or not layout.types[name] for name in whole)


_MOST_COLUMNS = 2000


def _assemble_rows(spec: ColumnSpec, present: frozenset[str], count: int, results: dict[str, Any]) -> Rows:
    columns = make_null_columns(spec, present, count)
    columns |= {name: _array(results[name], count, np.int64) for name in spec.integers if name in results}
    columns |= {name: _array(results[name], count, np.int32) for name in spec.small if name in results}
    columns |= {name: _array(results[name], count, np.float64) for name in spec.reals if name in results}
    encoded = {name: _key(results.get(name), members, present, count) for name, members in spec.keys.items()}
    for name in spec.texts:
        codes, texts = results.get(name, (-1, []))
        encoded[name] = EncodedColumn(_array(codes, count, np.int32), texts)
    return Rows(count, columns, encoded)


def _key(decoded: Any, members: tuple[str, ...], present: frozenset[str], count: int) -> EncodedColumn:
    codes, distinct = decoded or (0, b"")
    present_members = [i for i, member in enumerate(members) if member in present]
    packed = np.frombuffer(distinct, np.int64) if len(memoryview(distinct)) else np.empty(0, np.int64)
    numbers = len(packed) // len(present_members) if present_members else min(count, 1)
    values = np.full((numbers, len(members)), np.iinfo(np.int64).min)
    if present_members:
        values[:, present_members] = packed.reshape(numbers, len(present_members))
    return EncodedColumn(_array(codes, count, np.int32), values)


def _array(values: Any, count: int, dtype: Any) -> Column:
    return (
        make_constant_column(values, count, dtype)
        if isinstance(values, int | float)
        else np.frombuffer(values, dtype, count)
    )
