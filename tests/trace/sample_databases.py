"""SQLite databases of all sorts, drawn from a seed: what nsys writes, and what else a table may be."""

from __future__ import annotations

import random
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from traceable.trace.sqlite import ColumnSpec

PAGE_SIZES = (512, 512, 1024, 4096, 8192, 65536)
WIDTHS = (7, 15, 23, 31, 47, 63)
WANTED = ColumnSpec(
    integers=("start", "end_", "missing"),
    small=("kind", "absent"),
    reals=("real_",),
    keys={"pair": ("left_", "nowhere", "right_"), "one": ("one",), "none": ("nothing",)},
    texts=("text_", "no_text"),
)
"""What the tests read of table `events`; some of its columns are in no table, and the others not always."""

COLUMNS = ("start", "end_", "kind", "real_", "left_", "right_", "one", "text_", "other")


@dataclass(frozen=True)
class Made:
    """A database with a table `events`. `usual`: the decoder should read it, so that a test of it is one."""

    path: Path
    usual: bool


def make(path: Path, seed: int) -> Made:
    """Write a database."""
    random_ = random.Random(seed)
    page_size = random_.choice(PAGE_SIZES)
    auto_vacuum = _prepare(path, random_, page_size)
    odd = random_.random() < 0.25
    connection = sqlite3.connect(path)
    if odd and random_.random() < 0.1:
        connection.execute("PRAGMA journal_mode = WAL")
    columns, fillers = _declare(connection, random_, odd)
    _insert(connection, random_, columns, page_size, odd)
    connection.commit()
    _change(connection, random_, odd)
    connection.commit()
    connection.close()
    # On small pages the header of a row with many columns goes on in an overflow page.
    return Made(path, not odd and not auto_vacuum and (fillers < 100 or page_size >= 4096))


def _prepare(path: Path, random_: random.Random, page_size: int) -> bool:
    """Write an empty database, some bytes of whose pages may be reserved; return whether it vacuums itself."""
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA page_size = {page_size}")
    if random_.random() < 0.2:
        connection.execute(f"PRAGMA auto_vacuum = {random_.choice([1, 2])}")
    connection.execute("PRAGMA user_version = 1")
    connection.commit()
    connection.close()
    reserved = random_.choice([0, 0, 0, 8, 32, 5])
    data = bytearray(path.read_bytes())
    auto_vacuum = any(data[52:56])
    if reserved and len(data) == page_size and page_size < 65536:
        data[20] = reserved
        data[105:107] = (page_size - reserved).to_bytes(2, "big")
        path.write_bytes(data)
    return auto_vacuum


def _declare(connection: sqlite3.Connection, random_: random.Random, odd: bool) -> tuple[list[str], int]:
    """Create the table; return its columns that take values, and the number of those that hold NULL."""
    columns = [name for name in COLUMNS if name == "start" or random_.random() < 0.9]
    random_.shuffle(columns)
    types = {"real_": random_.choice(["REAL", "", "DOUBLE"]), "text_": random_.choice(["TEXT", "", "VARCHAR(9)"])}
    types |= {"other": random_.choice(["TEXT", "BLOB", "REAL", ""])}
    declared = {name: f"{name} {types.get(name, random_.choice(['INTEGER', 'INT', 'BIGINT', '']))}" for name in columns}
    key = random_.choice([None, None, "left_", "kind", "start", "one"])
    if key in columns:
        declared[key] = f"{key} INTEGER PRIMARY KEY"
    extra = ""
    if odd:
        choice = random_.randrange(6)
        if choice == 0 and key in columns:
            extra = " WITHOUT ROWID"
        elif choice == 1 and key in columns:
            declared[key] += " DESC"
        elif choice == 2 and sqlite3.sqlite_version_info >= (3, 31):
            declared["generated"] = "generated AS (start + 1)"
        elif choice == 3:
            declared["start"] = "start REAL" if key != "start" else declared["start"]
    fillers = random_.choice([0, 0, 0, 3, 130])
    for i in range(fillers):
        declared[f"filler{i}"] = f"filler{i}"
    names = list(declared)
    random_.shuffle(names)
    connection.execute(f"CREATE TABLE events ({', '.join(declared[name] for name in names)}){extra}")
    return [name for name in names if name in COLUMNS], fillers


def _insert(
    connection: sqlite3.Connection, random_: random.Random, columns: list[str], page_size: int, odd: bool
) -> None:
    count = random_.choice([0, 1, 2, 30, 300, 1500 if page_size < 4096 else 300])
    draw = {name: _column(random_, name, odd) for name in columns}
    marks = ", ".join("CAST(? AS TEXT)" if name == "text_" and random_.random() < 0.5 else "?" for name in columns)
    statement = f"INSERT OR IGNORE INTO events ({', '.join(columns)}) VALUES ({marks})"
    connection.executemany(statement, ([draw[name](row) for name in columns] for row in range(count)))


def _column(random_: random.Random, name: str, odd: bool) -> Any:
    """Return what draws the values of a column."""
    texts = [
        b"\xd6\xff",
        b"",
        b"a\x00b",
        "\u00d6".encode(),
        b"forward",
        b"x" * random_.choice([40, 700, 5000, 100_000]),
    ]
    if name == "text_":
        few = random_.random() < 0.5
        return lambda row: random_.choice(
            [None, *texts[:5], texts[5] if row % 50 == 3 else b"y", *([] if few else [b"%d" % row])]
        )
    if name in ("real_", "other"):
        return lambda row: random_.choice(
            [None, 0.5, -3.0, 1e300, float("nan"), float("inf"), row, 2**53 + 1, -(2**62)]
        )
    kind = random_.choice(
        ["same", "null", "small", "wide", "wide", "growing", "odd" if odd and name in ("end_", "right_") else "wide"]
    )
    if kind == "same":
        return lambda row: 7
    if kind == "null":
        return lambda row: None
    if kind == "small":
        return lambda row: random_.choice([None, 0, 1, 2, -1, 127, 128])
    if kind == "growing":
        return lambda row: 10**12 + 1000 * row
    if kind == "odd":
        return lambda row: random_.choice([1, 2, 3]) if row % 40 else random_.choice(["word", 1.5, b"blob", 3])
    return lambda row: (
        random_.choice([-1, 1]) * random_.getrandbits(random_.choice(WIDTHS)) if random_.random() < 0.9 else None
    )


def _change(connection: sqlite3.Connection, random_: random.Random, odd: bool) -> None:
    """Do to the table what may happen after it was filled."""
    if random_.random() < 0.3:
        connection.execute(f"DELETE FROM events WHERE start % {random_.choice([2, 3, 10])} = 0")
    if random_.random() < 0.2:
        # A column that rows from before don't hold.
        default = (
            random_.choice(["", "", " DEFAULT 5", " DEFAULT NULL"]) if odd else random_.choice(["", " DEFAULT NULL"])
        )
        connection.execute(
            f"ALTER TABLE events ADD COLUMN {random_.choice(['absent', 'nowhere', 'missing'])} INTEGER{default}"
        )
        connection.execute("INSERT OR IGNORE INTO events (start) VALUES (999999999)")
    if random_.random() < 0.2:
        connection.execute("CREATE INDEX by_start ON events (start)")
    connection.commit()
    if random_.random() < 0.2:
        connection.execute("VACUUM")
