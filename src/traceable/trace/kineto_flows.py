"""Calls and GPU operations without a correlation: the flows of a file, which viewers draw as arrows, tie them together.

Kineto of every version writes a correlation too, so that flows are read only for the rare trace without.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from traceable.trace.kineto_columns import Table, integer
from traceable.trace.kineto_json import Document, nanoseconds
from traceable.trace.model import NULL

_FLOWS = ("ac2g", "async_cpu_to_gpu", "async_gpu")


@dataclass(frozen=True)
class _Place:
    """Where an event stands in the file's picture: what a flow is bound to."""

    pid: int
    tid: int
    start_ns: int


class Flows:
    """What waits for its flow, and the flows when they are read."""

    def __init__(self) -> None:
        self._unlinked: list[tuple[Table, int, _Place]] = []

    def await_flow(self, table: Table, event: dict[str, Any], start: int) -> None:
        """Note that the row that is added to `table` next has no correlation."""
        pid, tid = event.get("pid"), event.get("tid")
        if type(pid) is int and type(tid) is int:
            self._unlinked.append((table, len(table), _Place(pid, tid, start)))

    def link(self, path: Path, calls: Table, threads: list[tuple[Any, Any]]) -> None:
        """Give calls and operations without a correlation that of the flow from one to the other.

        Args:
            path: the file, which is read once more.
            calls: the table of calls.
            threads: by the numbers that calls have of them.
        """
        if not self._unlinked:
            return
        begins, ends = _flows(path)
        correlations = calls.column("correlation")
        for table, row, place in self._unlinked:
            if table is calls and place in begins:
                correlations[row] = begins[place]
        known = _correlations_at(begins, calls, threads)
        for table, row, place in self._unlinked:
            if table is not calls and place in ends:
                table.column("correlation")[row] = known.get(ends[place], ends[place])


def _flows(path: Path) -> tuple[dict[_Place, int], dict[_Place, int]]:
    """Return the number of the flow that begins at each place, and of the one that ends there."""
    begins: dict[_Place, int] = {}
    ends: dict[_Place, int] = {}
    with Document(path) as document:
        for event in document.events():
            if event.get("ph") in ("s", "f") and event.get("cat") in _FLOWS:
                number, time = integer(event.get("id")), nanoseconds(event.get("ts"))
                place = _Place(integer(event.get("pid")), integer(event.get("tid")), NULL if time is None else time)
                if number != NULL:
                    (begins if event["ph"] == "s" else ends)[place] = number
    return begins, ends


def _correlations_at(begins: dict[_Place, int], calls: Table, threads: list[tuple[Any, Any]]) -> dict[int, int]:
    """Return the correlation of the call that each flow begins at."""
    columns = (calls.column(name).tolist() for name in ("start", "thread", "correlation"))
    found = {}
    for start, thread, correlation in zip(*columns, strict=True):
        pid, tid = threads[thread]
        flow = begins.get(_Place(pid, tid, start))
        if flow is not None and correlation != NULL:
            found[flow] = correlation
    return found
