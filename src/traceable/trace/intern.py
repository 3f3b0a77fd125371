"""Numbering while a trace is read: names, threads and processes become small indices."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from traceable.trace.model import NULL, Int32, Int64, Process, Thread
from traceable.trace.rows import EncodedColumn, distinct

_PROCESS_MASK = ~0xFFFFFF
"""nsys's globalTid is `<hardware 8><VM 8><process 24><thread 24>`; a globalPid has the thread bits 0."""


def to_global_pid(global_tid: Int64) -> Int64:
    """Return the globalPid of each globalTid; NULL stays NULL (its low bits are 0)."""
    return global_tid & _PROCESS_MASK


class Names:
    """Distinct names in order of appearance."""

    def __init__(self) -> None:
        self._index: dict[str, int] = {}

    def index(self, name: str) -> int:
        """Return the number of `name`; a new name gets a new number."""
        return self._index.setdefault(name, len(self._index))

    def find(self, name: str) -> int:
        """Return the number of `name`; -2, which no event holds, if it is unknown."""
        return self._index.get(name, -2)

    def index_all(self, texts: Iterable[str]) -> Int32:
        """Return the number of each text."""
        return np.fromiter((self.index(text) for text in texts), np.int32)

    def all(self) -> tuple[str, ...]:
        """Return the names, in the order of their numbers."""
        return tuple(self._index)


class Strings:
    """nsys's StringIds: looks ids up as name indices.

    Args:
        ids: the ids, distinct or not; of equal ones the last counts.
        values: the string of each.
        names: where the strings that events use are numbered.
    """

    def __init__(self, ids: Int64, values: EncodedColumn, names: Names) -> None:
        order = np.argsort(ids, kind="stable")
        self._ids = ids[order]
        self._codes = values.codes[order]
        self._texts = values.values
        self._names = names

    def indices(self, ids: Int64) -> Int32:
        """Return the name index of each id; -1 for NULL and for an id that the table lacks."""
        at = np.searchsorted(self._ids, ids, side="right") - 1
        known = (at >= 0) & (ids != NULL)
        known[known] = self._ids[at[known]] == ids[known]
        codes = np.full(len(ids), -1, np.int32)
        codes[known] = self._codes[at[known]]
        indices = np.full(len(ids), -1, np.int32)
        indices[codes >= 0] = self._names.index_all([self._texts[code] for code in codes[codes >= 0].tolist()])
        return indices

    def column(self, ids: EncodedColumn) -> Int32:
        """Return the name index of each row of a key of one column; as `indices`."""
        return ids.map_values(self.indices(ids.values[:, 0]))


class Threads:
    """Threads and processes of events, numbered by their global id. A NULL id counts as 0."""

    def __init__(self) -> None:
        self._id_parts: list[Int64] = []
        self._process_id_parts: list[Int64] = []
        self._ids = self._process_ids = np.empty(0, np.int64)

    def add_threads(self, global_tids: Int64) -> None:
        """Register the threads of some events, before `close`; each once is enough."""
        self._id_parts.append(_null_to_zero(global_tids))

    def add_processes(self, global_pids: Int64) -> None:
        """Register the processes of some events, before `close`; each once is enough."""
        self._process_id_parts.append(_null_to_zero(global_pids))

    def close(self) -> None:
        """End the registration and assign the numbers."""
        nothing = np.empty(0, np.int64)
        self._ids = distinct(np.concatenate([nothing, *self._id_parts]))
        self._process_ids = distinct(np.concatenate([to_global_pid(self._ids), *self._process_id_parts]))

    @property
    def ids(self) -> Int64:
        """The globalTid of each thread, in the order of their numbers."""
        return self._ids

    def indices(self, global_tids: Int64) -> Int32:
        """Return the number of each registered thread."""
        return np.searchsorted(self._ids, _null_to_zero(global_tids)).astype(np.int32)

    def process_indices(self, global_pids: Int64) -> Int32:
        """Return the number of each registered process."""
        return np.searchsorted(self._process_ids, _null_to_zero(global_pids)).astype(np.int32)

    def find_process_indices(self, global_pids: Int64) -> Int32:
        """Return the number of each process; -1 for one that was not registered before `close`."""
        at = np.searchsorted(self._process_ids, global_pids)
        is_registered = np.isin(global_pids, self._process_ids)
        return np.where(is_registered, at, -1).astype(np.int32)

    def tables(
        self, thread_name: Callable[[int], str], process_name: Callable[[int], str]
    ) -> tuple[tuple[Process, ...], tuple[Thread, ...]]:
        """Return the tables, given functions that name a globalTid and a globalPid."""
        processes = tuple(Process(g, g >> 24 & 0xFFFFFF, process_name(g)) for g in self._process_ids.tolist())
        of_thread = self.process_indices(to_global_pid(self._ids)).tolist()
        threads = tuple(
            Thread(g, g & 0xFFFFFF, process, thread_name(g))
            for g, process in zip(self._ids.tolist(), of_thread, strict=True)
        )
        return processes, threads


def _null_to_zero(global_ids: Int64) -> Int64:
    return np.where(global_ids == NULL, 0, global_ids)
