"""Ranges whose end is not read yet. However many there are, only some are held in memory, the others in a file.

Pushes of a thread wait for their pops, starts of a process for their ends, which any of its threads may hold: threads
are read one after the other.
"""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import IO, TypeVar

import numpy as np
from numpy.typing import NDArray

from traceable.collect.nsys_rows import Rows
from traceable.collect.pairing import pair_ids
from traceable.collect.recording import Columns

MOST_HELD = 1 << 17
"""How many rows are held in memory before they go to the file."""

_PARTS = 256
"""Into how many parts starts and ends are split, by their id, that did not fit into memory: each is joined alone."""

_Table = TypeVar("_Table", bound=Columns)


class Spill:
    """A file without a name for what does not fit into memory. A context manager.

    Args:
        folder: where it is made once it is needed.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: IO[bytes] | None = None

    def __enter__(self) -> Spill:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()

    def put(self, table: Columns) -> int:
        """Write a table, and return its place."""
        if self._file is None:
            self._file = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115 - closed with the Spill
        place = self._file.seek(0, 2)
        pickle.dump(table, self._file, pickle.HIGHEST_PROTOCOL)
        return place

    def get(self, place: int, kind: type[_Table]) -> _Table:
        """Read the table at a place."""
        assert self._file is not None
        self._file.seek(place)
        table = pickle.load(self._file)  # written by this process, into a file without a name
        assert isinstance(table, kind)
        return table


class OpenPushes:
    """The pushes of one thread that are open, which nest separately in each domain."""

    def __init__(self, spill: Spill) -> None:
        self._spill = spill
        self._stacks: dict[int, list[Rows | int]] = {}
        self._held = 0

    def add(self, rows: Rows) -> None:
        """Push rows, in the order in which they were opened."""
        for domain in np.unique(rows.domain).tolist():
            self._stacks.setdefault(domain, []).append(rows.take(rows.domain == domain))
        self._held += len(rows.kind)
        if self._held > MOST_HELD:
            for stack in self._stacks.values():
                stack[:] = [block if isinstance(block, int) else self._spill.put(block) for block in stack]
            self._held = 0

    def pop(self, domain: int, count: int) -> Iterator[Rows]:
        """Take `count` rows of a domain, or all if there are fewer, the last one first."""
        stack = self._stacks.get(domain, [])
        while count and stack:
            rows = self._load(stack.pop())
            left = max(len(rows.kind) - count, 0)
            yield rows.take(np.arange(len(rows.kind) - 1, left - 1, -1))
            count -= len(rows.kind) - left
            if left:
                stack.append(rows.take(np.arange(left)))
                self._held += left

    def drain(self) -> Iterator[Rows]:
        """Take all rows."""
        while self._stacks:
            _, stack = self._stacks.popitem()
            for block in stack:
                yield self._load(block)

    def _load(self, block: Rows | int) -> Rows:
        if isinstance(block, int):
            return self._spill.get(block, Rows)
        self._held -= len(block.kind)
        return block


@dataclass(frozen=True)
class Ends(Columns):
    """Ends of ranges by id: when, and on which thread (globalTid)."""

    range_id: NDArray[np.int64]
    time_ns: NDArray[np.int64]
    global_tid: NDArray[np.int64]


class OpenStarts:
    """The starts and ends of one process that have not met in one piece of one thread's events."""

    def __init__(self, spill: Spill) -> None:
        self._spill = spill
        self._starts: list[Rows] = []
        self._ends: list[Ends] = []
        self._held = 0
        self._spilled: list[tuple[list[int], list[int]]] = []

    def add(self, starts: Rows, ends: Ends) -> None:
        """Add what was left of a piece."""
        if len(starts.range_id):
            self._starts.append(starts)
        if len(ends.range_id):
            self._ends.append(ends)
        self._held += len(starts.range_id) + len(ends.range_id)
        if self._held > MOST_HELD:
            self._put()

    def pairs(self) -> Iterator[Rows]:
        """Yield all starts, with the ends that they have. Nothing is added afterwards."""
        if not self._spilled:
            yield from _joined(self._starts, self._ends)
            return
        self._put()
        for part in range(_PARTS):
            starts = [self._spill.get(places[part], Rows) for places, _ in self._spilled if places]
            ends = [self._spill.get(places[part], Ends) for _, places in self._spilled if places]
            yield from _joined(starts, ends)

    def _put(self) -> None:
        self._spilled.append((self._put_parts(self._starts), self._put_parts(self._ends)))
        self._held = 0

    def _put_parts(self, tables: list[Rows] | list[Ends]) -> list[int]:
        if not tables:
            return []
        table: Rows | Ends = tables[0].join(*tables[1:])
        tables.clear()
        part = table.range_id % _PARTS
        order = np.argsort(part, kind="stable")
        edges = np.searchsorted(part[order], np.arange(_PARTS + 1))
        return [self._spill.put(table.take(order[edges[n] : edges[n + 1]])) for n in range(_PARTS)]


def _joined(starts: Sequence[Rows], ends: Sequence[Ends]) -> Iterator[Rows]:
    if not starts:
        return
    opened = starts[0].join(*starts[1:])
    if not ends:
        yield opened
        return
    closing = ends[0].join(*ends[1:])
    partner = pair_ids(opened.range_id, closing.range_id)
    paired = np.flatnonzero(partner >= 0)
    closers, closed = closing.take(partner[paired]), opened.take(paired)
    elsewhere = np.where(closers.global_tid != closed.global_tid, closers.global_tid, -1)
    yield replace(closed, end=closers.time_ns, end_global_tid=elsewhere)
    yield opened.take(partner < 0)
