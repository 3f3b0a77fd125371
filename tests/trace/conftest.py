"""Small databases in nsys's schema, written with SQLite itself."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

Export = Callable[..., Path]
THREAD = (7 << 24) | 70


@pytest.fixture
def export(tmp_path: Path) -> Export:
    """Write an export: tables by name, each a dict of columns, each a list of values."""

    def write(
        name: str = "trace.sqlite", schema: str = "3.16.1", metadata: str = "META_DATA_EXPORT", **tables: Any
    ) -> Path:
        path = tmp_path / name
        connection = sqlite3.connect(path)
        tables[metadata] = {"name": ["EXPORT_SCHEMA_VERSION", "EXPORT_PRODUCT_VERSION"], "value": [schema, "1.2"]}
        for table, columns in tables.items():
            fill(connection, table, columns)
        connection.commit()
        connection.close()
        return path

    return write


def fill(connection: sqlite3.Connection, table: str, columns: dict[str, Sequence[Any]]) -> None:
    connection.execute(f"CREATE TABLE {table} ({', '.join(columns)})")
    marks = ", ".join("?" * len(columns))
    connection.executemany(f"INSERT INTO {table} VALUES ({marks})", list(zip(*columns.values(), strict=True)))


@pytest.fixture
def nvtx() -> Callable[..., dict[str, list[Any]]]:
    """NVTX_EVENTS from rows (start, end, text) of push/pop ranges on one thread, or of what `more` says."""

    def columns(*rows: tuple[Any, ...], **more: list[Any]) -> dict[str, list[Any]]:
        number = len(rows)
        result: dict[str, list[Any]] = {
            "start": [row[0] for row in rows],
            "end": [row[1] for row in rows],
            "eventType": [59] * number,
            "text": [row[2] for row in rows],
            "globalTid": [THREAD] * number,
            "endGlobalTid": [None] * number,
            "textId": [None] * number,
            "domainId": [0] * number,
        }
        return {**result, **more}

    return columns
