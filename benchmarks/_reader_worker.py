"""One reading of a file's columns, in a process of its own; `reader.py` starts it. Prints its cost as JSON.

    python benchmarks/_reader_worker.py METHOD PATH

Every method reads the same columns into int64 numpy arrays, the least int64 for NULL, and prints their sum, so that
each is known to have read the same. Libraries are imported before the clock starts. A method that lacks its
library prints its name, and ends with 3.
"""

from __future__ import annotations

import json
import resource
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

NULL = -(1 << 63)
MISSING = 3
COLUMNS = {
    "CUPTI_ACTIVITY_KIND_KERNEL": (
        *("start", "end", "deviceId", "contextId", "streamId", "correlationId", "globalPid"),
        *("demangledName", "shortName"),
    ),
    "CUPTI_ACTIVITY_KIND_RUNTIME": ("start", "end", "globalTid", "correlationId", "nameId", "returnValue"),
    "CUPTI_ACTIVITY_KIND_MEMCPY": ("start", "end", "deviceId", "streamId", "correlationId", "bytes", "copyKind"),
    "NVTX_EVENTS": ("start", "end", "eventType", "domainId", "globalTid", "textId"),
}
"""What an analysis reads of the tables that hold nearly all rows."""

Read = Callable[[], list[Any]]
"""Reads the file; returns all columns."""


def main(method: str, path: Path) -> int:
    try:
        read = METHODS[method](path)
    except ImportError as error:
        print(error)
        return MISSING
    before = _read_peak_bytes()
    began = time.perf_counter()
    columns = read()
    seconds = time.perf_counter() - began
    peak = _read_peak_bytes()
    total = sum(int(column.sum()) for column in columns) % (1 << 64)
    print(json.dumps({"seconds": seconds, "peak_bytes": peak - before, "sum": total}))
    return 0


def _read_peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _make_queries(quote: str = '"') -> Iterator[tuple[str, int]]:
    """Return for each table a query for its columns, and their number."""
    for table, names in COLUMNS.items():
        columns = ", ".join(f"coalesce({quote}{name}{quote}, {NULL}) AS c{i}" for i, name in enumerate(names))
        yield f"SELECT {columns} FROM {table}", len(names)


def read_file(path: Path) -> Read:
    """The control: the file read to its end."""
    block = bytearray(1 << 22)

    def read() -> list[Any]:
        with path.open("rb", buffering=0) as file:
            while file.readinto(block):
                pass
        return []

    return read


def read_with_traceable(path: Path, decode: bool = True) -> Read:
    from traceable.trace.sqlite import ColumnSpec, Database

    def read() -> list[Any]:
        with Database(path, decode) as database:
            tables = database.read({table: ColumnSpec(integers=names) for table, names in COLUMNS.items()})
        return [tables[table][name] for table, names in COLUMNS.items() for name in names]

    return read


def read_with_traceable_sqlite(path: Path) -> Read:
    return read_with_traceable(path, decode=False)


def _collect_columns(execute: Callable[[str], Any]) -> list[Any]:
    """Return the columns from an iterator of rows."""
    import numpy as np

    columns: list[Any] = []
    for query, width in _make_queries():
        values = np.fromiter(chain.from_iterable(execute(query)), np.int64).reshape(-1, width)
        columns += [values[:, i] for i in range(width)]
    return columns


def read_with_sqlite3(path: Path) -> Read:
    import numpy as np  # noqa: F401 - before the clock starts

    return lambda: _collect_columns(sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True).execute)


def read_with_apsw(path: Path) -> Read:
    import apsw
    import numpy as np  # noqa: F401

    flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
    return lambda: _collect_columns(apsw.Connection(f"file:{path}?mode=ro&immutable=1", flags=flags).execute)


def read_with_pandas(path: Path) -> Read:
    import pandas

    def read() -> list[Any]:
        connection = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)
        frames = [pandas.read_sql_query(query, connection) for query, _ in _make_queries()]
        return [frame[name].to_numpy() for frame in frames for name in frame]

    return read


def read_with_adbc(path: Path) -> Read:
    import pyarrow  # noqa: F401
    from adbc_driver_sqlite import dbapi

    def read() -> list[Any]:
        tables = []
        with dbapi.connect(str(path)) as connection, connection.cursor() as cursor:
            for query, _ in _make_queries():
                cursor.execute(query)
                tables.append(cursor.fetch_arrow_table())
        return [column.to_numpy() for table in tables for column in table.columns]

    return read


def read_with_connectorx(path: Path) -> Read:
    import connectorx  # noqa: F401
    import polars

    def read() -> list[Any]:
        frames = [
            polars.read_database_uri(query, f"sqlite://{path}", engine="connectorx") for query, _ in _make_queries()
        ]
        return [column.to_numpy() for frame in frames for column in frame]

    return read


def read_with_duckdb(path: Path) -> Read:
    import duckdb

    connection = duckdb.connect()
    try:
        connection.execute("LOAD sqlite")
    except duckdb.Error as error:
        raise ImportError("duckdb has no extension `sqlite` installed, which it downloads on request") from error
    connection.execute(f"ATTACH '{path}' AS trace (TYPE sqlite, READ_ONLY)")
    connection.execute("USE trace")

    def read() -> list[Any]:
        tables = [connection.execute(query).fetchnumpy() for query, _ in _make_queries()]
        return [column for table in tables for column in table.values()]

    return read


def read_parquet(path: Path) -> Read:
    """Another format, for comparison: the same columns, written before by `reader.py`."""
    import pyarrow.parquet

    def read() -> list[Any]:
        tables = [pyarrow.parquet.ParquetFile(make_parquet_path(path, table)).read() for table in COLUMNS]
        return [column.to_numpy() for table in tables for column in table.columns]

    return read


def write_parquet(path: Path) -> Read:
    """Not measured: write what `parquet` reads."""
    import pyarrow.parquet

    def write() -> list[Any]:
        columns = iter(read_with_sqlite3(path)())
        for table, names in COLUMNS.items():
            rows = pyarrow.table({name: next(columns) for name in names})
            pyarrow.parquet.write_table(rows, make_parquet_path(path, table))
        return []

    return write


def make_parquet_path(path: Path, table: str) -> Path:
    return path.with_name(f"{path.stem}-{table}.parquet")


METHODS: dict[str, Callable[[Path], Read]] = {
    "the file": read_file,
    "ours": read_with_traceable,
    "ours, by sqlite3": read_with_traceable_sqlite,
    "sqlite3 and np.fromiter": read_with_sqlite3,
    "pandas": read_with_pandas,
    "apsw and np.fromiter": read_with_apsw,
    "adbc-driver-sqlite": read_with_adbc,
    "polars and connectorx": read_with_connectorx,
    "duckdb": read_with_duckdb,
    "parquet, by pyarrow": read_parquet,
    "write parquet": write_parquet,
}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))
