"""Pages of rows that SQLite did not write are what it reads as the rows, finds sound, and adds to."""

from __future__ import annotations

import os
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.example_count import scale_examples

from traceable.collectors.recorder import sqlite_pages
from traceable.collectors.recorder.sqlite_pages import PAGE_BYTES, Column, TableWriter

KINDS: tuple[Any, ...] = ("i1", "i2", "i4", "i8", "f8", "S1", "S7", "S200")
Batch = tuple[int, tuple[str | None, ...]]

batches = st.lists(
    st.tuples(st.integers(0, 400), st.tuples(*[st.sampled_from([None, *KINDS])] * 4)), min_size=1, max_size=5
)


def make(path: Path) -> int:
    """Make an empty table, and return its root page."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
        connection.execute("CREATE TABLE T (a, b, c, d, e)")
        connection.execute("CREATE TABLE other (a)")
        ((root,),) = connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'T'")
        assert isinstance(root, int)
    return root


def column(kind: str | None, count: int, seed: int) -> Column:
    random = np.random.default_rng(seed)
    if kind is None:
        return None
    if kind.startswith("S"):
        return random.integers(97, 123, (count, int(kind[1:])), np.uint8).view(kind).reshape(count)
    if kind == "f8":
        return random.normal(size=count)
    info = np.iinfo(kind)
    return random.integers(info.min, info.max, count, kind, endpoint=True)


def rows_of(columns: list[Column], count: int) -> list[tuple[Any, ...]]:
    def plain(values: Column) -> list[Any]:
        if values is None:
            return [None] * count
        return [value.decode() if isinstance(value, bytes) else value for value in values.tolist()]

    return list(zip(*(plain(values) for values in columns), strict=True))


def query(path: Path, text: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(text).fetchall()


@settings(max_examples=scale_examples(30), deadline=None)
@given(batches, st.sampled_from([3, 4, 300]), st.sampled_from([0, 100, 16_300, 2**21 - 9, 2**28 - 500, 2**35 - 9]))
def test_sqlite_reads_the_rows_and_finds_the_file_sound(parts: list[Batch], children: int, before: int) -> None:
    """`before`: so many rowids are taken, of which each some have a length of their own."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sqlite_pages, "_CHILDREN", children)
        path = Path(folder) / "a.sqlite"
        root = make(path)
        expected: list[tuple[Any, ...]] = []
        with TableWriter(path, root) as writer:
            writer._next_rowid = before + 1
            for seed, (count, kinds) in enumerate(parts):
                # A row has a value: which of four columns is the row's number, and the last one is always NULL.
                columns = [np.arange(count), *(column(kind, count, seed) for kind in kinds)]
                writer.add(columns)
                expected += rows_of(columns, count)
        assert query(path, "PRAGMA integrity_check") == [("ok",)]
        assert sorted(query(path, "SELECT * FROM T"), key=repr) == sorted(expected, key=repr)
        rowids = [rowid for (rowid,) in query(path, "SELECT rowid FROM T")]
        assert rowids == list(range(before + 1, before + len(expected) + 1))
        with closing(sqlite3.connect(path)) as connection:
            connection.executemany("INSERT INTO T (a) VALUES (?)", [(number,) for number in range(300)])
            connection.execute("DELETE FROM T WHERE rowid % 3 = 0")
            connection.commit()
        assert query(path, "PRAGMA integrity_check") == [("ok",)]


def test_the_page_with_sqlite_s_lock_is_left_out(tmp_path: Path) -> None:
    """In a file that is sparse: its first GiB takes no room."""
    path = tmp_path / "a.sqlite"
    root = make(path)
    lock = sqlite_pages.LOCK_BYTE // PAGE_BYTES + 1
    os.truncate(path, (lock - 6) * PAGE_BYTES)
    with TableWriter(path, root) as writer:
        writer.add([np.arange(10_000)])
    assert query(path, "SELECT count(*), sum(a), count(DISTINCT a) FROM T") == [(10_000, 10_000 * 9_999 // 2, 10_000)]
    with path.open("rb") as file:
        file.seek((lock - 1) * PAGE_BYTES)
        assert file.read(PAGE_BYTES) == bytes(PAGE_BYTES)
        assert file.read(1) == b"\x0d"
