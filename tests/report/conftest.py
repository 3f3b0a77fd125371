"""A small export in nsys's schema to report on."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.skips import skip_unless_ci

REPOSITORY = Path(__file__).resolve().parents[2]

Made = Callable[..., Path]


@pytest.fixture
def made(tmp_path: Path) -> Made:
    """Write an export that holds push/pop ranges (start, end, name) of one thread."""

    def write(*ranges: tuple[int, int, str]) -> Path:
        path = tmp_path / "made.sqlite"
        connection = sqlite3.connect(path)
        connection.execute("CREATE TABLE META_DATA_EXPORT (name, value)")
        metadata = [("EXPORT_SCHEMA_VERSION", "3.16.1"), ("EXPORT_PRODUCT_NAME", "maker")]
        connection.executemany("INSERT INTO META_DATA_EXPORT VALUES (?, ?)", metadata)
        connection.execute("CREATE TABLE NVTX_EVENTS (start, end, text, eventType, globalTid)")
        connection.executemany("INSERT INTO NVTX_EVENTS VALUES (?, ?, ?, 59, 1)", ranges)
        connection.commit()
        connection.close()
        return path

    return write


@pytest.fixture(scope="session")
def web() -> Path:
    """The folder of the script's sources, with what checks and builds it installed."""
    folder = REPOSITORY / "web"
    if shutil.which("node") is None:
        skip_unless_ci("node is missing")
    if not (folder / "node_modules" / ".package-lock.json").exists():
        skip_unless_ci("npm has installed nothing in web/: make web")
    return folder
