"""The rows of NVTX_EVENTS become ranges, marks and samples, and the names of domains, categories and threads."""

from __future__ import annotations

from dataclasses import dataclass, replace

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
from traceable.trace.intern import Names, Strings, Threads, process_of
from traceable.trace.model import NULL, PUSH_POP, START_END, Bool, Counters, Int32, Int64, Marks, Ranges, Windows
from traceable.trace.rows import Coded, Column, Rows, Wanted, chosen, distinct, folded, is_same, taken

NVTX = Wanted(
    ("start", "end", "uint64Value", "int64Value"),
    ("eventType", "traceableClipped"),
    ("doubleValue",),
    {"scope": ("globalTid", "domainId", "category"), "closer": ("endGlobalTid",), "textId": ("textId",)},
    ("text",),
)
"""What is read of NVTX_EVENTS. The column of our own is the flight recorder's: `collect/nsys_tables.py`."""

_CATEGORY = 33
_MARKS = (34,)
_THREAD_NAME = 39
_PUSH_POPS = (59, 70)
_START_ENDS = (60, 71)
_DOMAIN = 75
"""NVTX_EVENTS.eventType; 70 and 71 are ranges of the same two styles that were read from an NVTXT file."""


@dataclass(frozen=True)
class Nvtx:
    """What one NVTX_EVENTS table holds. `thread_names`: by globalTid. `lost_samples`: how many held no number."""

    ranges: Ranges
    marks: Marks
    counters: Counters
    lost_samples: int
    thread_names: dict[int, str]
    windows: Windows


def read_nvtx(events: Rows, strings: Strings, names: Names, threads: Threads, closed_at_ns: int | None) -> Nvtx:
    """Sort the rows of NVTX_EVENTS into what they are.

    Args:
        events: what `NVTX` says of the table, sorted by start.
        strings: StringIds.
        names, threads: where names and threads are numbered.
        closed_at_ns: the end that ranges were given which were still open at the end of the collection; None where
            such ranges have no end. nsys gives them its end to the ns (2022.4: after SIGKILL, SIGSEGV, os._exit and at
            the end of --duration alike). Ranges already open when a collection begins are in no export.
    """
    kind = events["eventType"]
    text = _texts(events, strings, names)
    scope = _Scope(events.coded["scope"], kind, text, threads)
    global_tids = events.coded["scope"].values[:, 0]
    unnamed = names.index("")
    rows: dict[str, Column] = {
        **events.columns,
        "name": text if len(text) and text.min() >= 0 else np.where(text >= 0, text, unnamed).astype(np.int32),
        "domain": scope.column(scope.domain),
        "category": scope.column(scope.category),
        "thread": scope.column(scope.thread),
        "process": scope.column(process_of(global_tids)),
        "end_thread": _end_threads(events, threads),
        "payload": _payload(events["uint64Value"], events["int64Value"]),
    }
    is_range, is_mark = np.isin(kind, _PUSH_POPS + _START_ENDS), np.isin(kind, _MARKS)
    says = is_mark & (rows["domain"] == names.known(PAYLOAD_DOMAIN))
    samples = is_mark & (rows["domain"] == names.known(COUNTER_DOMAIN))
    of_window = is_range & (rows["domain"] == names.known(WINDOW_DOMAIN))
    last_ns = _last_ns(events)
    windows = _windows(_ended(_ranges(_taken(rows, of_window), None, names), last_ns, closed_at_ns), names)
    ranges = _ranges(_taken(rows, is_range & ~of_window), _said(_taken(rows, says), names), names)
    counters = _counters(_taken(rows, samples), threads)
    return Nvtx(
        ranges=_ended(ranges, last_ns, closed_at_ns, windows),
        windows=windows,
        marks=_marks(_taken(rows, is_mark & ~says & ~samples)),
        counters=counters,
        lost_samples=int(samples.sum()) - len(counters),
        thread_names=_thread_names(
            global_tids[events.coded["scope"].codes[kind == _THREAD_NAME]], text[kind == _THREAD_NAME], names
        ),
    )


class _Scope:
    """The thread, domain and category of each distinct (globalTid, domainId, category), as numbers."""

    def __init__(self, scope: Coded, kind: Int32, text: Int32, threads: Threads) -> None:
        self._codes = scope.codes
        keys = np.stack([process_of(scope.values[:, 0]), scope.values[:, 1], scope.values[:, 2]])
        of_domain, of_category = np.flatnonzero(kind == _DOMAIN), np.flatnonzero(kind == _CATEGORY)
        domains = _first_names(text[of_domain], keys[:2, scope.codes[of_domain]])
        categories = _first_names(text[of_category], keys[:, scope.codes[of_category]])
        self.domain = _looked_up(domains, keys[:2])
        self.category = _looked_up(categories, keys)
        self.thread = threads.indices(scope.values[:, 0])

    def column(self, of_scope: Column) -> Column:
        """Return for each row what its scope has."""
        return taken(of_scope, self._codes)


def _texts(events: Rows, strings: Strings, names: Names) -> Int32:
    """Return the name index of each row, from its text or else its textId; -1 where it has neither."""
    texts = events.coded["text"]
    registered = strings.indices(events.coded["textId"].values[:, 0])
    if not texts.values:
        return events.coded["textId"].mapped(registered)
    text = np.append(names.numbers(texts.values), np.int32(-1))[texts.codes]
    unsaid = text < 0
    text[unsaid] = registered[events.coded["textId"].codes[unsaid]]
    return text


def _end_threads(events: Rows, threads: Threads) -> Int32:
    """Return the number of the thread that closed each range where that is another one than opened it; else -1."""
    closers, openers = events.coded["closer"], events.coded["scope"]
    closer = threads.indices(closers.values[:, 0])
    closer[closers.values[:, 0] == NULL] = -1
    end_threads = closers.mapped(closer)
    if len(closer) == 1 and closer[0] == -1:
        return end_threads
    opener = openers.mapped(threads.indices(openers.values[:, 0]))
    return np.where(end_threads == opener, -1, end_threads).astype(np.int32)


def _payload(unsigned: Int64, signed: Int64) -> Int64:
    if is_same(unsigned):
        return signed if unsigned[0] == NULL else unsigned
    return np.where(unsigned == NULL, signed, unsigned)


def _taken(rows: dict[str, Column], which: Bool) -> dict[str, Column]:
    count = int(which.sum())
    return {name: chosen(column, which, count) for name, column in rows.items()}


def _ranges(rows: dict[str, Column], said: Said | None, names: Names) -> Ranges:
    """Return the ranges; the end of one that was left open is NULL."""
    payload = rows["payload"]
    style = np.where(np.isin(rows["eventType"], _START_ENDS), START_END, PUSH_POP).astype(np.int8)
    stretch = in_stretch_domain(rows["domain"], names.known) & (style == PUSH_POP)
    identity, fields = np.full(len(style), NULL), np.full(len(style), -1, np.int32)
    if said is not None:
        identity, fields = matched(said, rows["start"], rows["thread"], rows["process"], stretch, payload)
    return Ranges(
        start_ns=rows["start"],
        end_ns=rows["end"],
        name=rows["name"],
        domain=rows["domain"],
        category=rows["category"],
        thread=rows["thread"],
        end_thread=rows["end_thread"],
        style=folded(style),
        clipped=_clipped(rows["end"], rows["traceableClipped"]),
        payload=payload,
        has_payload=folded((payload != NULL) & (stretch | ~is_identity(payload))),
        identity=folded(identity),
        fields=folded(fields),
    )


def _clipped(end: Column, said: Column) -> Bool:
    """Return which ranges were left open, or are said to be clipped."""
    left_open: Bool = end == NULL
    return left_open if is_same(said) and len(said) and said[0] != 1 else left_open | (said == 1)


def _ended(ranges: Ranges, last_ns: int, closed_at_ns: int | None, windows: Windows | None = None) -> Ranges:
    """Give open ranges an end, and mark as clipped also those that were open at `closed_at_ns`."""
    left_open = ranges.end_ns == NULL
    # What nsys does in its own sums: an open range ends with the last NVTX event.
    end_ns = (
        np.where(left_open, np.maximum(last_ns, ranges.start_ns), ranges.end_ns) if left_open.any() else ranges.end_ns
    )
    if windows is not None and len(windows) and left_open.any():
        # One that was open when its window closed may have ended soon after: nothing was recorded of that.
        at = np.searchsorted(windows.start_ns, ranges.start_ns, "right") - 1
        window_end = windows.end_ns[np.maximum(at, 0)]
        within = left_open & (at >= 0) & (ranges.start_ns <= window_end)
        end_ns = np.where(within, np.minimum(end_ns, window_end), end_ns)
    clipped = ranges.clipped if closed_at_ns is None else ranges.clipped | (ranges.end_ns >= closed_at_ns)
    return replace(ranges, end_ns=end_ns, clipped=folded(clipped))


def _windows(ranges: Ranges, names: Names) -> Windows:
    """Return the windows among the ranges of WINDOW_DOMAIN; the others are nsys's capture ranges."""
    texts = names.all()
    ids = {
        name: names.index(texts[name].removeprefix(WINDOW))
        for name in distinct(ranges.name).tolist()
        if texts[name].startswith(WINDOW)
    }
    which = np.isin(ranges.name, np.array(list(ids), np.int32))
    identity = np.array([ids[name] for name in ranges.name[which].tolist()], np.int32)
    return Windows(
        ranges.start_ns[which], ranges.end_ns[which], identity, ranges.thread[which], np.array(ranges.clipped[which])
    )


def _marks(rows: dict[str, Column]) -> Marks:
    return Marks(rows["start"], rows["name"], rows["domain"], rows["category"], rows["thread"])


def _said(rows: dict[str, Column], names: Names) -> Said:
    bare = rows["name"] == names.known(NO_FIELDS)
    return Said(rows["start"], rows["name"], bare, rows["thread"], rows["process"], rows["payload"])


def _counters(rows: dict[str, Column], threads: Threads) -> Counters:
    """Return the samples that hold a finite number; the category of each is the name of its domain."""
    value = np.where(rows["payload"] == NULL, rows["doubleValue"], rows["payload"].astype(np.float64))
    rows = _taken({**rows, "value": value}, np.isfinite(value))
    processes = threads.process_indices(rows["process"])
    return Counters(rows["start"], rows["name"], rows["category"], rows["thread"], processes, rows["value"])


def _last_ns(events: Rows) -> int:
    """The last time in the table, in ns."""
    # NULL is below every time.
    return max(int(events["start"].max()), int(events["end"].max())) if events.count else 0


def _first_names(text: Int32, scope: Int64) -> dict[tuple[int, ...], int]:
    """Return the name index by scope of some rows; of several for one scope the first."""
    keys = [tuple(key) for key in scope.T.tolist()]
    return dict(zip(reversed(keys), reversed(text.tolist()), strict=True))


def _looked_up(known: dict[tuple[int, ...], int], scope: Int64) -> Int32:
    """Return the name index of each column of `scope`; -1 where it has none."""
    return np.array([known.get(tuple(key), -1) for key in scope.T.tolist()], np.int32)


def _thread_names(global_tids: Int64, text: Int32, names: Names) -> dict[int, str]:
    texts = names.all()
    pairs = zip(global_tids.tolist(), text.tolist(), strict=True)
    return {thread: texts[index] for thread, index in pairs if index >= 0}
