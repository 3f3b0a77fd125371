"""The environments that nsys has stored in an exported report: where they lie, and how they are taken out of a copy.

By version: 2022.4 has the environments of processes as texts with zeros in them (`StringIds`) and its own as
`DeviceEnvironment`; 2023.4 has rows `PROCESS_0:ENVIRONMENT_VARIABLE` in `META_DATA_CAPTURE`. The `.nsys-rep` itself is
compressed in part and is not changed here.
"""

from __future__ import annotations

import json
import os
import re
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from traceable import confidential, environment

_SYSTEM, _CAPTURE, _TEXTS = "TARGET_INFO_SYSTEM_ENV", "META_DATA_CAPTURE", "StringIds"
_OWN = "DeviceEnvironment"

_REFERENCE = re.compile(r"^\s*(\w+)\s+INTEGER.*REFERENCES StringIds\(id\)", re.MULTILINE)
"""A column with the numbers of texts, as nsys declares it: in a comment."""

_STREAMS = "ProcessStreams"
"""What the program printed: of all texts the only ones besides environments that may have a zero in them."""

_VARIABLE = re.compile(rb"[^=\s]+=")

Variables = dict[str, bytes]
_Text = tuple[int, int, bytes]


@dataclass(frozen=True)
class Stored:
    """One environment in a report.

    Attributes:
        table: where it lies.
        parts: the number of each of its rows there, and the names and values in it.
    """

    table: str
    parts: tuple[tuple[int, Variables], ...]

    @property
    def variables(self) -> Variables:
        """Names and values."""
        return {name: value for _, variables in self.parts for name, value in variables.items()}

    @property
    def planned(self) -> bool:
        """Whether it is the small environment that the launcher gave to nsys (`launch/supervisor.py`)."""
        return self.table == _SYSTEM or environment.HANDOVER in self.variables


def stored(connection: sqlite3.Connection) -> list[Stored]:
    """Return the environments in an exported report.

    Raises:
        sqlite3.Error: it can't be read.
    """
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    asked = {
        _TEXTS: "SELECT id, id, CAST(value AS BLOB) FROM StringIds WHERE instr(CAST(value AS BLOB), x'3D')",
        _SYSTEM: f"SELECT rowid, rowid, CAST(value AS BLOB) FROM {_SYSTEM} WHERE name = '{_OWN}'",
        # A row for each variable.
        _CAPTURE: f"SELECT name, rowid, CAST(value AS BLOB) FROM {_CAPTURE} WHERE name LIKE '%ENVIRONMENT_VARIABLE%'",
    }
    found: dict[tuple[str, object], list[tuple[int, Variables]]] = {}
    for table, question in asked.items():
        rows = connection.execute(question).fetchall() if table in tables else []
        for process, row, text in rows if table != _TEXTS else _environments(connection, rows):
            variables = _variables(text or b"")
            if variables:
                found.setdefault((table, process), []).append((row, variables))
    return [Stored(table, tuple(parts)) for (table, _), parts in found.items()]


def scrub(database: Path) -> list[Stored]:
    """Empty the values in an exported report: of every environment of a process, and in nsys's own of what has the name
    of a secret. Returns the environments that were changed, as they were. Old pages may still have them: `rewrite`.

    Raises:
        sqlite3.Error: it can't be read or written.
    """
    with closing(sqlite3.connect(database)) as connection, connection:
        # Without it the old text stays in the file, in a page that is free.
        connection.execute("PRAGMA secure_delete = ON")
        found = stored(connection)
        changed = [one for one in found if any(_kept(one.table, part) != part for _, part in one.parts)]
        for one in changed:
            for row, part in one.parts:
                text = b"\0".join(name.encode() + b"=" + value for name, value in _kept(one.table, part).items())
                connection.execute(f"UPDATE {one.table} SET value = CAST(? AS TEXT) WHERE rowid = ?", (text, row))
    return changed


def rewrite(database: Path) -> None:
    """Write an exported report anew, whole or not at all, without what its tables do not hold any more.

    nsys writes it without `secure_delete`: where a page of it was split, the unused part still has the old text.

    Raises:
        sqlite3.Error: it can't be read, or there is no room for a second one.
        OSError: it can't be replaced.
    """
    anew = database.with_name(database.name + ".anew")
    journal = anew.with_name(anew.name + "-journal")
    anew.unlink(missing_ok=True)
    try:
        with closing(sqlite3.connect(database)) as connection:
            connection.execute("VACUUM INTO ?", (os.fspath(anew),))
        anew.replace(database)
    finally:
        for one in (anew, journal):
            one.unlink(missing_ok=True)


def _kept(table: str, variables: Variables) -> Variables:
    if table == _SYSTEM:
        return {name: b"" if confidential.is_secret(name) else value for name, value in variables.items()}
    return dict.fromkeys(variables, b"")


def _variables(text: bytes) -> Variables:
    """Return the variables in `NAME=value` with a zero between two. Of a variable that is empty nsys keeps no `=`."""
    found: Variables = {}
    for part in filter(None, text.split(b"\0")):
        name, _, value = part.partition(b"=")
        found[name.decode("utf-8", "replace")] = value
    return found


def _environments(connection: sqlite3.Connection, texts: list[_Text]) -> list[_Text]:
    """Return those of `texts` that are environments: nothing refers to them, as to no environment that nsys keeps.

    A text with zeros in it is no name of anything, since those are C strings. One without may be the environment of a
    process that was given one variable, or the name of a range such as `step=5`.
    """
    several = {number for number, _, text in texts if b"\0" in text}
    single = {number for number, _, text in texts if number not in several and _VARIABLE.match(text)}
    columns = _references(connection)
    several -= _referred_to(connection, several, [(table, column) for table, column in columns if table == _STREAMS])
    single -= _referred_to(connection, single, columns) if columns else single
    return [text for text in texts if text[0] in several | single]


def _references(connection: sqlite3.Connection) -> list[tuple[str, str]]:
    """Return the tables and columns that hold numbers of texts; none where the file is not as nsys made it."""
    tables = connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'").fetchall()
    return [(table, column) for table, declared in tables for column in _REFERENCE.findall(declared or "")]


def _referred_to(connection: sqlite3.Connection, texts: set[int], columns: Iterable[tuple[str, str]]) -> set[int]:
    found: set[int] = set()
    for table, column in columns:
        missing = texts - found
        if not missing:
            break
        question = f"SELECT {column} FROM {table} WHERE {column} IN (SELECT value FROM json_each(?))"
        found.update(number for (number,) in connection.execute(question, (json.dumps(list(missing)),)))
    return found
