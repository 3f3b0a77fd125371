"""The environments that nsys has stored in an exported report: where they lie, and how they are taken out of a copy.

By version: 2022.4 has the environments of processes as texts with zeros in them (`StringIds`) and its own as
`DeviceEnvironment`; 2023.4 has rows `PROCESS_0:ENVIRONMENT_VARIABLE` in `META_DATA_CAPTURE`. The `.nsys-rep` itself is
compressed in part and is not changed here.
"""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from traceable import confidential, environment

_VARIABLE = re.compile(rb"([^=\s]+)=(.*)|(\w+)", re.DOTALL)
"""A name may be any: bash's are `BASH_FUNC_f%%`, npm's have slashes. Of a variable that is empty nsys keeps no `=`."""

_SYSTEM, _CAPTURE, _TEXTS = "TARGET_INFO_SYSTEM_ENV", "META_DATA_CAPTURE", "StringIds"
_OWN = "DeviceEnvironment"

Variables = dict[str, bytes]


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
        """Whether it is the small environment that the launcher gave to nsys (`launch/handover.py`)."""
        return self.table == _SYSTEM or environment.HANDOVER in self.variables


def stored(connection: sqlite3.Connection) -> list[Stored]:
    """Return the environments in an exported report.

    Raises:
        sqlite3.Error: it can't be read.
    """
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    asked = {
        _TEXTS: "SELECT rowid, rowid, CAST(value AS BLOB) FROM StringIds WHERE instr(CAST(value AS BLOB), x'00')",
        _SYSTEM: f"SELECT rowid, rowid, CAST(value AS BLOB) FROM {_SYSTEM} WHERE name = '{_OWN}'",
        # A row for each variable.
        _CAPTURE: f"SELECT name, rowid, CAST(value AS BLOB) FROM {_CAPTURE} WHERE name LIKE '%ENVIRONMENT_VARIABLE%'",
    }
    found: dict[tuple[str, object], list[tuple[int, Variables]]] = {}
    for table, question in asked.items():
        for process, row, text in connection.execute(question) if table in tables else ():
            variables = _variables(text or b"")
            if variables:
                found.setdefault((table, process), []).append((row, variables))
    return [Stored(table, tuple(parts)) for (table, _), parts in found.items()]


def scrub(database: Path) -> list[Stored]:
    """Empty the values in an exported report: of every environment of a process, and in nsys's own of what has the name
    of a secret. Returns the environments that were changed, as they were.

    Raises:
        sqlite3.Error: it can't be read or written.
    """
    with closing(sqlite3.connect(database)) as connection, connection:
        # Without it the old text stays in the file, in a page that is free.
        connection.execute("PRAGMA secure_delete = ON")
        changed = [one for one in stored(connection) if any(_kept(one.table, part) != part for _, part in one.parts)]
        for one in changed:
            for row, part in one.parts:
                text = b"\0".join(name.encode() + b"=" + value for name, value in _kept(one.table, part).items())
                connection.execute(f"UPDATE {one.table} SET value = CAST(? AS TEXT) WHERE rowid = ?", (text, row))
    return changed


def _kept(table: str, variables: Variables) -> Variables:
    if table == _SYSTEM:
        return {name: b"" if confidential.is_secret(name) else value for name, value in variables.items()}
    return dict.fromkeys(variables, b"")


def _variables(text: bytes) -> Variables:
    """Return the variables in `NAME=value` with a zero between two; empty where the text is something else."""
    found: Variables = {}
    for part in filter(None, text.split(b"\0")):
        match = _VARIABLE.fullmatch(part)
        if match is None:
            return {}
        name, value, empty = match.groups()
        found[(name or empty).decode("utf-8", "replace")] = value or b""
    return found if b"=" in text else {}
