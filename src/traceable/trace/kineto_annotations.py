"""The annotations of one torch.profiler trace, sorted into what they are: ranges, marks, samples of counters, windows.

What our own annotations say beyond a name is found as in an nsys trace, by the rules of `trace.emitted`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from traceable.trace.emitted import (
    COUNTER_DOMAIN,
    NO_FIELDS,
    PAYLOAD_DOMAIN,
    WINDOW,
    WINDOW_DOMAIN,
    Said,
    in_stretch_domain,
    is_identity,
    matched,
)
from traceable.trace.intern import Names
from traceable.trace.kineto_columns import Table
from traceable.trace.kineto_events import Events
from traceable.trace.model import NULL, PUSH_POP, Bool, Int32, NDArray
from traceable.trace.rows import folded

Columns = dict[str, NDArray[Any]]


def annotation_columns(
    events: Events, zero_ns: int, names: Names, threads: Int32, processes: Int32
) -> dict[str, Columns]:
    """Return the columns of `Trace.ranges`, `marks`, `counters` and `windows`.

    Args:
        events: of the file.
        zero_ns: time 0 of the trace on its clock.
        names: by which names are numbered.
        threads, processes: the number of each of its threads in the trace, and of that thread's process.
    """
    rows = _rows(events.ranges, zero_ns, threads, processes)
    clipped = rows.pop("open") == 1
    if events.end_ns is not None:
        # The profiler ends what is still going on when it stops.
        clipped |= rows["end_ns"] >= events.end_ns - zero_ns
    rows["clipped"] = clipped
    marks = _rows(events.marks, zero_ns, threads, processes)
    says = marks["domain"] == names.known(PAYLOAD_DOMAIN)
    samples = marks["domain"] == names.known(COUNTER_DOMAIN)
    of_window = rows["domain"] == names.known(WINDOW_DOMAIN)
    return {
        "ranges": _ranges(_taken(rows, ~of_window), _taken(marks, says), names),
        "windows": _windows(_taken(rows, of_window), names),
        "marks": _only(_taken(marks, ~says & ~samples), ("start_ns", "name", "domain", "category", "thread")),
        "counters": _counters(_taken(marks, samples)),
    }


def _rows(table: Table, zero_ns: int, threads: Int32, processes: Int32) -> Columns:
    found: Columns = {name: table.column(name) for name in table.columns}
    of = found["thread"]
    rows: Columns = {
        **{name: column.astype(np.int32) for name, column in found.items() if name in ("name", "domain", "category")},
        "start_ns": found.pop("start") - zero_ns,
        "end_ns": found.pop("end") - zero_ns,
        "thread": threads[of],
        "process": processes[of],
        "payload": found["payload"],
    }
    if "real" in found:
        rows["real"] = np.ascontiguousarray(found["real"])
    else:
        rows["open"], rows["style"] = found["open"], found["style"].astype(np.int8)
        closer = found["end_thread"]
        rows["end_thread"] = np.where(closer < 0, -1, np.append(threads, np.int32(-1))[closer]).astype(np.int32)
    return rows


def _taken(rows: Columns, which: Bool) -> Columns:
    return {name: column[which] for name, column in rows.items()}


def _only(rows: Columns, names: tuple[str, ...]) -> Columns:
    return {name: rows[name] for name in names}


def _ranges(rows: Columns, marks: Columns, names: Names) -> Columns:
    payload = rows["payload"]
    stretch = in_stretch_domain(rows["domain"], names.known) & (rows["style"] == PUSH_POP)
    bare = marks["name"] == names.known(NO_FIELDS)
    place = marks["thread"], marks["process"].astype(np.int64)
    said = Said(marks["start_ns"], marks["name"], bare, *place, marks["payload"])
    of = rows["start_ns"], rows["thread"], rows["process"].astype(np.int64)
    identity, fields = matched(said, *of, stretch, payload)
    same = ("start_ns", "end_ns", "name", "domain", "category", "thread", "end_thread", "style", "clipped", "payload")
    return {
        **{name: folded(column) for name, column in _only(rows, same).items()},
        "has_payload": folded((payload != NULL) & (stretch | ~is_identity(payload))),
        "identity": folded(identity),
        "fields": folded(fields),
    }


def _windows(rows: Columns, names: Names) -> Columns:
    """Return the windows among the ranges of WINDOW_DOMAIN, under their ids."""
    texts = names.all()
    which = np.array([texts[name].startswith(WINDOW) for name in rows["name"].tolist()], np.bool_)
    found = _only(_taken(rows, which), ("start_ns", "end_ns", "name", "thread", "clipped"))
    ids = [names.index(texts[name].removeprefix(WINDOW)) for name in found["name"].tolist()]
    return {**found, "name": np.array(ids, np.int32)}


def _counters(rows: Columns) -> Columns:
    """Return the samples that hold a finite number; the category of each is the name of its domain."""
    whole, real = rows["payload"], rows["real"]
    value = np.where(whole != NULL, whole.astype(np.float64), np.where(real != NULL, real.view(np.float64), np.nan))
    finite = np.isfinite(value)
    kept = _taken({**rows, "domain": rows["category"], "value": value}, finite)
    return _only(kept, ("start_ns", "name", "domain", "thread", "process", "value"))
