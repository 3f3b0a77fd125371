"""What another source of events uses to write into a database that `nsys_schema` makes of a recording."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from traceable.errors import Message


class Insert(Protocol):
    """Inserts rows into some columns of a table."""

    def __call__(self, table: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """Insert them."""
        ...


@dataclass(frozen=True)
class Sink:
    """A database in the making.

    Attributes:
        create: executes a statement that makes a table.
        insert: inserts rows.
        string: returns the id of a text in StringIds.
        warn: says something to the user, of a process (a globalPid) or of all (None). It stands in the database too.
        remark: the same, in the database alone.
        zeros: what is to be added to CLOCK_MONOTONIC of a process to have a time of the database, by pid.
        zero: the same for a process that has none there.
    """

    create: Callable[[str], object]
    insert: Insert
    string: Callable[[str], int]
    warn: Callable[[Message, int | None], None]
    remark: Callable[[Message, int | None], None]
    zeros: Mapping[int, int]
    zero: int


@dataclass(frozen=True)
class Added:
    """What was written: how many events, and when the last of them ended; times as in the database."""

    events: int
    last_ns: int


Source = Callable[[Sink], Added]
"""Writes its events."""
