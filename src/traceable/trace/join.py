"""Several recordings of one run as one trace: nsys writes a report for each window, each with its own clock zero.

Events keep their distances within a part; the parts stand as far apart as their wall clocks say. Nothing is invented
for the time between them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any, TypeVar

import numpy as np

from traceable.errors import TraceError
from traceable.trace.model import NULL, Events, Int32, Process, Thread, Trace

_NAMES = {
    "ranges": ("name", "domain", "category", "fields"),
    "marks": ("name", "domain", "category"),
    "counters": ("name", "domain"),
    "calls": ("name",),
    "kernels": ("name", "short_name"),
    "overheads": ("name",),
    "windows": ("name",),
}
_TIMES = ("start_ns", "end_ns")
_THREADS = ("thread", "end_thread")
_KINDS = (
    *("ranges", "marks", "counters", "calls", "kernels", "copies", "memsets", "graph_launches", "synchronizations"),
    *("graph_nodes", "allocations", "overheads", "windows"),
)

_Kind = TypeVar("_Kind", bound=Events)


def join_traces(parts: Sequence[Trace]) -> Trace:
    """Return the events of all parts as one trace, whose time 0 is that of the earliest.

    Raises:
        TraceError: a part has no wall clock, so that its place is not known.
    """
    if len(parts) == 1:
        return parts[0]
    unknown = [part.source.path for part in parts if part.utc_epoch_ns is None]
    if unknown:
        raise TraceError("wall_clock_unknown", f"{unknown[0]} has no wall clock time", "read it alone")
    parts = sorted(parts, key=lambda part: part.utc_epoch_ns or 0)
    zero = parts[0].utc_epoch_ns or 0
    names: dict[str, int] = {}
    processes: dict[int, int] = {}
    threads: dict[int, int] = {}
    geometries = 0
    known_processes: list[Process] = []
    known_threads: list[Thread] = []
    tables: dict[str, list[Any]] = {kind: [] for kind in _KINDS}
    ends: list[int] = []
    for part in parts:
        offset = (part.utc_epoch_ns or 0) - zero
        of_name = _make_index_table([names.setdefault(name, len(names)) for name in part.names])
        for process in part.processes:
            if process.global_id not in processes:
                processes[process.global_id] = len(processes)
                known_processes.append(process)
        of_process = _make_index_table([processes[process.global_id] for process in part.processes])
        for thread in part.threads:
            if thread.global_id not in threads:
                threads[thread.global_id] = len(threads)
                known_threads.append(replace(thread, process=int(of_process[thread.process])))
        of_thread = _make_index_table([threads[thread.global_id] for thread in part.threads])
        for kind in _KINDS:
            index_tables = {
                **dict.fromkeys(_NAMES.get(kind, ()), of_name),
                **dict.fromkeys(_THREADS, of_thread),
                "process": of_process,
            }
            tables[kind].append(_shift_events(getattr(part, kind), offset, index_tables, geometries))
        geometries += len(part.geometries)
        ends.append(offset + (part.capture_ns or 0))
    whole = {kind: _concatenate_events(of_kind) for kind, of_kind in tables.items()}
    source = parts[0].source
    return Trace(
        **whole,
        source=replace(
            source,
            path=", ".join(part.source.path for part in parts),
            size_bytes=sum(part.source.size_bytes for part in parts),
            tables=frozenset().union(*(part.source.tables for part in parts)),
            notes=tuple(dict.fromkeys(note for part in parts for note in part.source.notes)),
        ),
        names=tuple(names),
        processes=tuple(known_processes),
        threads=tuple(known_threads),
        utc_epoch_ns=zero,
        capture_ns=max(ends),
        geometries=np.concatenate([part.geometries for part in parts]),
        devices=parts[0].devices,
        cuda_devices={key: gpu for part in parts for key, gpu in part.cuda_devices.items()},
    )


def _make_index_table(values: list[int]) -> Int32:
    """Return a table from old index to new; its last entry, which index -1 selects, is -1."""
    return np.array([*values, -1], np.int32)


def _shift_events(events: _Kind, offset_ns: int, indices: dict[str, Int32], geometries: int) -> _Kind:
    columns: dict[str, Any] = {}
    for column in fields(events):
        values = getattr(events, column.name)
        if column.name in _TIMES:
            values = np.where(values == NULL, NULL, values + offset_ns)
        elif column.name in indices:
            values = indices[column.name][values]
        elif column.name == "geometry":
            values = np.where(values < 0, values, values + geometries)
        columns[column.name] = values
    return type(events)(**columns)


def _concatenate_events(parts: list[Any]) -> Any:
    columns = {
        column.name: np.concatenate([getattr(part, column.name) for part in parts]) for column in fields(parts[0])
    }
    whole = type(parts[0])(**columns)
    if (np.diff(whole.start_ns) < 0).any():
        # Of equal starts the longer comes first, as in the reader.
        end = columns.get("end_ns", whole.start_ns)
        whole = type(whole)(**whole.take(np.lexsort((-end, whole.start_ns))))
    return whole
