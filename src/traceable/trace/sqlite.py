"""Columns out of an SQLite file, as numpy arrays. Knows SQLite, knows nothing of nsys.

`Database.read` is the one place where rows become columns: through our own decoder of pages if that supports the
table, else through SQLite. The decoder reads several tables at once, in threads, and each is prepared as soon as it is
read. The file is opened read-only and immutable: nothing is created next to it and nothing in it changes. Only
tables are read: a view, which may be endless, is rejected. Rows come in no defined order (nsys guarantees none since
2025.6): callers that need one sort.
"""

from __future__ import annotations

import os
import queue
import sqlite3
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, TypeAlias

import numpy as np

from traceable.errors import TraceError
from traceable.protocol import untrusted
from traceable.trace.model import NULL, NDArray
from traceable.trace.pages import DamagedPagesError, Layout, Pages
from traceable.trace.rows import Column, ColumnSpec, EncodedColumn, Rows, make_empty_rows, make_null_columns, to_int32

MAGIC = b"SQLite format 3\x00"
RE_EXPORT = "export the report again with `nsys export --type sqlite`, or copy the file again from where it was made"
_GIVE_A_FILE = "give a .sqlite or .nsys-rep file, or a run directory"
_ROWS_AT_ONCE = 1 << 16
_LONGEST_CAUSE = 200
_ROW_BYTES = 4
"""The least that a row takes in a file: a pointer of two bytes, its length and its number."""

_WORTH_A_THREAD_BYTES = 4 << 20
_COLUMNS_PRAGMA = "table_xinfo" if sqlite3.sqlite_version_info >= (3, 31) else "table_info"
"""Only the first lists generated columns, which came with that version."""

Prepare: TypeAlias = Callable[[str, Rows], Rows]
"""Processes the rows of a table, by its name, as soon as they are read."""

OnTableStart: TypeAlias = Callable[[Sequence[str]], None]
"""Receives the tables that are being read, each time one is started."""

_STARTED, _ENDED = object(), object()


def _as_read(_: str, rows: Rows) -> Rows:
    return rows


def _ignore_tables(_: Sequence[str]) -> None:
    pass


class Database:
    """One SQLite file, open for reading. Use as a context manager.

    Args:
        path: the file.
        decode: False lets SQLite read every table; the result is the same.

    Raises:
        TraceError: there is no such file, or it is not a complete SQLite database.
    """

    def __init__(self, path: Path, decode: bool = True) -> None:
        self.path = path
        self.size_bytes = _check_size(path)
        self._decode = decode
        with ExitStack() as opened:
            try:
                self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                opened.callback(os.close, self._descriptor)
                self._opened = self._get_state()
                self._pages = Pages(self._descriptor, self.size_bytes)
                self._connection = untrusted.open_database(path)
                opened.callback(self._connection.close)
                # Names in real exports are not always UTF-8 (a Windows capture in a Cyrillic locale): decode by hand.
                self._connection.text_factory = bytes
                self._tables = self._layouts()
            except untrusted.SQLITE_ERRORS as error:
                raise self._damaged(error) from error
            except OSError as error:
                raise _unreadable(path, error) from error
            self._close = opened.pop_all().close

    def __enter__(self) -> Database:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        changed = self._changed()
        self._close()
        if changed and (kind is None or issubclass(kind, TraceError)):
            found = f"{self.path} changed while it was read"
            raise TraceError("written_while_read", found, "wait until the export has finished")

    @property
    def tables(self) -> frozenset[str]:
        """The names of the tables in the file."""
        return frozenset(self._tables)

    def columns(self, table: str) -> frozenset[str]:
        """The names of the columns of `table`; empty where the file has no such table.

        Raises:
            TraceError: something else has that name.
        """
        if table in self._others:
            found = f"{self.path}: {table} is a view or virtual table, which no export has"
            raise TraceError("not_a_table", found, RE_EXPORT)
        return frozenset(self._tables[table].positions) if table in self._tables else frozenset()

    def read(
        self,
        tables: Mapping[str, ColumnSpec],
        prepare: Prepare = _as_read,
        on_table_start: OnTableStart = _ignore_tables,
    ) -> dict[str, Rows]:
        """Read tables. An absent table reads as an empty one.

        Args:
            tables: the columns to read of each.
            prepare: may be called in two threads at once, each time with another table.
            on_table_start: is called in this thread only.

        Raises:
            TraceError: a table can't be read, or a column of numbers holds something else.
        """
        present = [name for name in tables if not self.columns(name).isdisjoint(tables[name].names())]
        rows_by_table: dict[str, Rows] = {}
        if self._decode and self._pages.readable:
            rows_by_table = self._decode_tables({name: tables[name] for name in present}, prepare, on_table_start)
        for name in present:
            if name not in rows_by_table:
                on_table_start((name,))
                rows_by_table[name] = prepare(name, self._select_rows(name, tables[name]))
        return {
            name: rows_by_table[name] if name in rows_by_table else make_empty_rows(spec)
            for name, spec in tables.items()
        }

    def _decode_tables(
        self, tables: Mapping[str, ColumnSpec], prepare: Prepare, on_table_start: OnTableStart
    ) -> dict[str, Rows]:
        """Return the rows of the tables that the decoder can read."""
        decoding = Decoding(self._pages, {name: (self._tables[name], tables[name]) for name in tables}, prepare)
        several = self.size_bytes >= _WORTH_A_THREAD_BYTES and len(tables) > 1
        try:
            # A third thread gained nothing: one table is most of a file.
            return decoding.run(2 if several else 0, on_table_start)
        except DamagedPagesError as error:
            raise self._damaged(error, decoding.failed) from error
        except OSError as error:
            raise _unreadable(self.path, error) from error

    def _select_rows(self, table: str, spec: ColumnSpec) -> Rows:
        """Return the rows of a table as SQLite reads them."""
        present = self.columns(table)
        integers = [name for name in spec.names() if name in present and name not in (*spec.reals, *spec.texts)]
        reals = [name for name in spec.reals if name in present]
        texts = [name for name in spec.texts if name in present]
        expressions = [f'ifnull("{name}", {NULL})' for name in integers] + [f'"{name}"' for name in (*reals, *texts)]
        chunks: list[NDArray[np.int64]] = [np.empty((0, len(integers)), np.int64)]
        floats: list[list[Column]] = [[np.empty(0)] for _ in reals]
        codes: list[list[Column]] = [[np.empty(0, np.int32)] for _ in texts]
        known: list[dict[object, int]] = [{} for _ in texts]
        count = 0
        try:
            # By the table itself: an index might give another order.
            cursor = self._connection.execute(f'SELECT {", ".join(expressions)} FROM "{table}" NOT INDEXED')
            while rows := cursor.fetchmany(_ROWS_AT_ONCE):
                count += len(rows)
                if count > self.size_bytes // _ROW_BYTES:
                    found = f"{self.path} is damaged in table {table} (it holds more rows than its size allows)"
                    raise TraceError("too_many_rows", found, RE_EXPORT)
                if integers:
                    chunks.append(self._integers(table, rows, len(integers)))
                for offset, parts in enumerate(floats, start=len(integers)):
                    parts.append(self._floats(table, rows, offset))
                for offset, (seen, parts) in enumerate(
                    zip(known, codes, strict=True), start=len(integers) + len(reals)
                ):
                    parts.append(_text_codes(rows, offset, seen))
        except untrusted.SQLITE_ERRORS as error:
            raise self._damaged(error, table) from error
        numbers = np.concatenate(chunks)
        return _assemble_rows(
            spec,
            present,
            count,
            {name: numbers[:, i] for i, name in enumerate(integers)},
            {name: np.concatenate(parts) for name, parts in zip(reals, floats, strict=True)},
            {
                name: EncodedColumn(np.concatenate(parts), [str(_text(value)) for value in seen])
                for name, parts, seen in zip(texts, codes, known, strict=True)
            },
        )

    def _floats(self, table: str, rows: list[Any], offset: int) -> NDArray[np.float64]:
        values = [row[offset] for row in rows]
        if not all(value is None or isinstance(value, float | int) for value in values):
            found = f"{self.path}: table {table} has a column of numbers with other values"
            raise TraceError("column_not_numeric", found, RE_EXPORT)
        return np.array(values, np.float64)

    def _integers(self, table: str, rows: list[Any], width: int) -> NDArray[np.int64]:
        try:
            values = np.array(rows if len(rows[0]) == width else [row[:width] for row in rows])
        except ValueError as error:
            raise self._damaged(error, table) from error
        if values.dtype != np.int64:
            found = f"{self.path}: table {table} has a column of whole numbers with other values"
            raise TraceError("column_not_whole_numbers", found, RE_EXPORT)
        return values

    def _layouts(self) -> dict[str, Layout]:
        """Return how each table lies in the file, by name."""
        rows = self._connection.execute("SELECT type, name, tbl_name, rootpage FROM sqlite_master").fetchall()
        # An INTEGER PRIMARY KEY is an alias of the rowid, but one that is DESC has an index of its own and is not.
        indexed = {table for kind, name, table, _ in rows if kind == b"index" and _is_made_by_sqlite(name)}
        # A quote in a name would end the quoting in our queries; no table of nsys has one.
        quotable = [row for row in rows if isinstance(row[1], bytes) and b'"' not in row[1]]
        tables = [row for row in quotable if row[0] == b"table" and row[3]]
        self._others = {str(_text(row[1])) for row in quotable if row[0] in (b"table", b"view")}
        self._others -= {str(_text(row[1])) for row in tables}
        return {str(_text(name)): self._layout(str(_text(name)), root, name in indexed) for _, name, _, root in tables}

    def _layout(self, table: str, root: object, indexed: bool) -> Layout:
        rows = self._connection.execute(f'PRAGMA {_COLUMNS_PRAGMA}("{table}")').fetchall()
        shown = [row for row in rows if not any(row[6:])]
        types = {str(_text(row[1])): str(_text(row[2]) or "").upper() for row in shown}
        keys = [str(_text(row[1])) for row in shown if row[5]]
        is_rowid = len(keys) == 1 and types[keys[0]] == "INTEGER"
        return Layout(
            root=root if isinstance(root, int) else 0,
            positions={str(_text(row[1])): row[0] for row in shown},
            types=types,
            rowid=keys[0] if is_rowid else None,
            decodable=isinstance(root, int)
            and 1 < root < 1 << 32
            and len(shown) == len(rows)
            and not (is_rowid and indexed),
            defaults=frozenset(str(_text(row[1])) for row in shown if row[4] not in (None, b"NULL")),
        )

    def _get_state(self) -> tuple[int, int]:
        """Return values that change when the file is written to."""
        status = os.fstat(self._descriptor)
        return status.st_size, status.st_mtime_ns

    def _changed(self) -> bool:
        """Return whether the file is another one than when it was checked."""
        try:
            if self._get_state() != self._opened or self._opened[0] != self.size_bytes:
                return True
            # SQLite opened it by its name. A file that was deleted since is still complete.
            return self.path.exists() and not os.path.samestat(self.path.stat(), os.fstat(self._descriptor))
        except OSError:
            return True

    def _damaged(self, error: Exception, table: str | None = None) -> TraceError:
        where = f" in table {table}" if table else ""
        # SQLite quotes the damaged text itself, which may be long and have many lines.
        cause = "".join(c if c.isprintable() else "?" for c in untrusted.format_sqlite_error(error))[:_LONGEST_CAUSE]
        return TraceError("file_damaged", f"{self.path} is damaged{where} ({cause})", RE_EXPORT)


def _check_size(path: Path) -> int:
    """Return the size of `path` in bytes after the checks for which SQLite's own errors are vague.

    Raises:
        TraceError: see `Database`.
    """
    try:
        if path.is_dir():
            raise TraceError("is_a_directory", f"{path} is a directory", "give the .sqlite or .nsys-rep file in it")
        if not path.exists():
            raise TraceError("no_such_file", f"{path} does not exist", _GIVE_A_FILE)
        if not path.is_file():
            raise TraceError("not_a_regular_file", f"{path} is not a regular file", _GIVE_A_FILE)
        size = path.stat().st_size
        with untrusted.open_regular(path, follow=True) as file:
            header = file.read(100)
        unfinished = [name for name in _journals(path) if name.is_file() and name.stat().st_size]
    except OSError as error:
        raise _unreadable(path, error) from error
    if not size:
        remedy = "the export failed or has not started writing; export the report again"
        raise TraceError("file_empty", f"{path} is empty", remedy)
    if not header.startswith(MAGIC[: len(header)]):
        remedy = "give an nsys .sqlite export, a .nsys-rep or a run directory"
        raise TraceError("not_sqlite", f"{path} is not an SQLite file", remedy)
    if unfinished:
        remedy = f"wait until the export has finished; if none is running, it was interrupted: {RE_EXPORT}"
        found = f"{path} is still being written ({unfinished[0].name} is next to it)"
        raise TraceError("export_unfinished", found, remedy)
    _check_whole(path, size, header)
    return size


def _unreadable(path: Path, error: OSError) -> TraceError:
    remedy = "check its permissions" if isinstance(error, PermissionError) else "check its disk"
    return TraceError("file_unreadable", f"{path} can't be read ({error.strerror})", remedy)


def _journals(path: Path) -> Iterable[Path]:
    """Return the paths of SQLite's write-ahead log and rollback journal."""
    return (path.with_name(path.name + suffix) for suffix in ("-wal", "-journal"))


def _check_whole(path: Path, size: int, header: bytes) -> None:
    """Compare the size that the header states with the file's. https://www.sqlite.org/fileformat.html, 1.3."""
    if len(header) < 100:
        raise TraceError("file_cut_off", f"{path} is truncated after {size} bytes", RE_EXPORT)
    page = int.from_bytes(header[16:18], "big")
    page = 65536 if page == 1 else page
    pages = int.from_bytes(header[28:32], "big")
    # The page count holds only where the change counter agrees with the version that wrote it.
    stated = page * pages if header[24:28] == header[92:96] else 0
    if size < stated:
        raise TraceError("file_cut_off", f"{path} is truncated: it has {size} of {stated} bytes", RE_EXPORT)


def _is_made_by_sqlite(index: object) -> bool:
    return isinstance(index, bytes) and index.startswith(b"sqlite_autoindex_")


def _assemble_rows(
    spec: ColumnSpec,
    present: frozenset[str],
    count: int,
    integers: Mapping[str, Column],
    reals: Mapping[str, Column],
    texts: Mapping[str, EncodedColumn],
) -> Rows:
    """Return columns that SQLite read, in the forms of `spec`."""
    columns = make_null_columns(spec, present, count)
    columns |= {name: integers[name] for name in spec.integers if name in integers}
    columns |= {name: to_int32(integers[name]) for name in spec.small if name in integers}
    columns |= reals
    encoded = {name: _key([integers.get(member) for member in members], count) for name, members in spec.keys.items()}
    encoded |= {name: texts.get(name, EncodedColumn(np.full(count, -1, np.int32), [])) for name in spec.texts}
    return Rows(count, columns, encoded)


def _key(members: list[Column | None], count: int) -> EncodedColumn:
    """Number the distinct rows of some columns, of which those that are absent hold NULL, in order of appearance."""
    columns = [np.full(count, NULL) if member is None else member for member in members]
    rows = np.stack(columns, axis=1) if columns else np.empty((count, 0), np.int64)
    if not count:
        return EncodedColumn(np.empty(0, np.int32), rows)
    _, first, inverse = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    order = np.argsort(first)
    number = np.empty(len(order), np.int32)
    number[order] = np.arange(len(order), dtype=np.int32)
    return EncodedColumn(number[inverse.reshape(-1)], rows[first[order]])


def _text_codes(rows: list[Any], offset: int, known: dict[object, int]) -> Column:
    """Number one text column of `rows`, each distinct value in order of appearance; -1 for NULL."""
    values = [row[offset] for row in rows]
    # 12 and 12.0 are equal, their texts are not.
    keys = [value if value is None or isinstance(value, bytes) else str(value) for value in values]
    return np.array([-1 if key is None else known.setdefault(key, len(known)) for key in keys], np.int32)


def _text(value: object) -> str | None:
    """Turn what SQLite stored in a text column into text; bytes that are not UTF-8 become escapes."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return value.decode("utf-8", errors="backslashreplace")
    return str(value)


class Decoding:
    """Some tables to be decoded, in separate threads: the decoder releases the interpreter lock, and so does numpy.

    Args:
        pages: of the file.
        tables: the layout of each, and its columns to read.
        prepare: may be called in two threads at once, each time with another table.

    Attributes:
        failed: the table at which `run` raised.
    """

    def __init__(self, pages: Pages, tables: Mapping[str, tuple[Layout, ColumnSpec]], prepare: Prepare) -> None:
        self._pages = pages
        self._prepare = prepare
        self._waiting = list(tables.items())[::-1]
        self._events: queue.SimpleQueue[tuple[str, object]] = queue.SimpleQueue()
        self.failed = ""

    def run(self, threads: int, on_table_start: OnTableStart) -> dict[str, Rows]:
        """Return the rows of the tables that can be decoded.

        Args:
            threads: the number of worker threads; 0 to work in this one.
            on_table_start: is called in this thread only.

        Raises:
            DamagedPagesError, OSError, MemoryError: decoding or preparing a table raised it.
        """
        workers: list[threading.Thread] = []
        try:
            for _ in range(threads):
                worker = threading.Thread(target=self._work, name="traceable-reader")
                with suppress(RuntimeError):  # The system allows no more threads.
                    worker.start()
                    workers.append(worker)
            if not workers:
                self._work()
            return self._collect(max(len(workers), 1), on_table_start)
        except BaseException:
            # Also when the user presses Ctrl-C: no thread may read on in a file that is about to be closed.
            self._pages.stop()
            raise
        finally:
            for worker in workers:
                worker.join()

    def _work(self) -> None:
        """Decode tables until none is waiting; report the start of each, then its result."""
        while True:
            try:
                name, (layout, spec) = self._waiting.pop()
            except IndexError:
                break
            self._events.put((name, _STARTED))
            try:
                rows = self._pages.decode_rows(layout, spec)
                self._events.put((name, None if rows is None else self._prepare(name, rows)))
            except Exception as error:  # noqa: BLE001 - raised in `_collect`
                self._events.put((name, error))
                break
        self._events.put(("", _ENDED))

    def _collect(self, working: int, on_table_start: OnTableStart) -> dict[str, Rows]:
        """Collect the results until no worker is left."""
        rows_by_table: dict[str, Rows] = {}
        in_progress: dict[str, None] = {}
        while working:
            name, outcome = self._events.get()
            if outcome is _ENDED:
                working -= 1
            elif outcome is _STARTED:
                in_progress[name] = None
                on_table_start(tuple(in_progress))
            elif isinstance(outcome, Exception):
                self.failed = name
                raise outcome
            else:
                del in_progress[name]
                if isinstance(outcome, Rows):
                    rows_by_table[name] = outcome
        return rows_by_table
