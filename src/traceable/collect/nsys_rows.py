"""Rows of NVTX_EVENTS to be, as columns: cut to what a flight recorder shows, and split by what they fill."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traceable.collect import recording as rec
from traceable.collect.nsys_tables import CLIPPED
from traceable.collect.sqlite_pages import Column

PUSH_POP_RANGE, START_END_RANGE, MARK = 59, 60, 34
"""nsys's event types of ranges and marks."""

NO_TIME = np.iinfo(np.int64).min
"""The end of a mark, and of a range that stayed open."""

_EVENT_TYPES = np.zeros(max(rec.PUSH, rec.START, rec.MARK) + 1, np.int8)
_EVENT_TYPES[[rec.PUSH, rec.START, rec.MARK]] = PUSH_POP_RANGE, START_END_RANGE, MARK

_PAYLOADS: tuple[tuple[str, type[np.generic], type[np.generic]], ...] = (
    ("uint64Value", np.int64, np.int64),  # SQLite has no unsigned 64 bits; nsys writes the same bits
    ("int64Value", np.int64, np.int64),
    ("doubleValue", np.float64, np.float64),
    ("uint32Value", np.uint32, np.int64),
    ("int32Value", np.int32, np.int64),
    ("floatValue", np.float32, np.float64),
)
"""Column and type of each nvtxPayloadType_t, from 1 on, and the type in which SQLite holds it."""

_COLUMNS = (
    *("start", "end", "eventType", "rangeId", "category", "color", "text", "globalTid", "endGlobalTid", "textId"),
    *("domainId", *(column for column, _, _ in _PAYLOADS), "jsonTextId", "jsonText", "binaryData", CLIPPED),
)
"""The columns of NVTX_EVENTS, in the order of `nsys_tables`."""

_PLACES = {column: place for place, column in enumerate(_COLUMNS)}


@dataclass(frozen=True)
class Rows(rec.Columns):
    """Rows of NVTX_EVENTS to be. NO_TIME in `end`, None in `text` (of bytes) and else -1 stand for NULL.

    `text_length`: how many bytes `text` has; 0 for None.
    `clipped`: the range began before what a flight recorder shows, or was open at its end.
    """

    kind: NDArray[np.uint8]
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    range_id: NDArray[np.int64]
    category: NDArray[np.int64]
    color: NDArray[np.int64]
    text: NDArray[np.object_]
    text_length: NDArray[np.int16]
    global_tid: NDArray[np.int64]
    end_global_tid: NDArray[np.int64]
    text_id: NDArray[np.int32]
    domain: NDArray[np.int32]
    payload_type: NDArray[np.uint8]
    payload: NDArray[np.uint64]
    clipped: NDArray[np.bool_]

    def within(self, start: int, end: int) -> Rows:
        """Return what lies between two times; ranges that reach over an edge are cut there and clipped."""
        is_range = self.kind != rec.MARK
        open_ = is_range & ((self.end == NO_TIME) | (self.end > end))
        ends = np.where(open_, end, np.where(is_range, self.end, self.start))
        early = is_range & (self.start < start)
        cut = replace(
            self,
            start=np.where(early, start, self.start),
            end=np.where(is_range, ends, NO_TIME),
            clipped=early | open_,
        )
        return cut.take((ends >= start) & (self.start <= end))

    def since(self, origin: int) -> Rows:
        """Return the rows with times counted from `origin`, which none of them is before."""
        return replace(self, start=self.start - origin, end=np.where(self.end == NO_TIME, NO_TIME, self.end - origin))


def by_columns(rows: Rows) -> Iterator[list[Column]]:
    """Split rows by which columns they fill, and by the length of their text; yield the columns of NVTX_EVENTS."""
    optional: list[tuple[str, NDArray[Any], NDArray[np.bool_]]] = [
        ("end", rows.end, rows.end != NO_TIME),
        ("rangeId", rows.range_id, rows.kind == rec.START),
        ("category", rows.category, rows.category >= 0),
        ("color", rows.color, rows.color >= 0),
        ("endGlobalTid", rows.end_global_tid, rows.end_global_tid >= 0),
        ("textId", rows.text_id, rows.text_id >= 0),
        (CLIPPED, rows.clipped.view(np.int8), rows.clipped),
        ("text", rows.text, rows.text_length > 0),
    ]
    signature = rows.payload_type.astype(np.int16) << np.int16(len(optional))
    for bit, (_, _, present) in enumerate(optional):
        signature |= present.astype(np.int16) << np.int16(bit)
    found = np.flatnonzero(np.bincount(signature)).tolist()
    for value in found:
        chosen = slice(None) if len(found) == 1 else np.flatnonzero(signature == value)
        columns: list[Column] = [None] * len(_COLUMNS)
        always = (("start", rows.start), ("globalTid", rows.global_tid), ("domainId", rows.domain))
        for column, array in (*always, ("eventType", _EVENT_TYPES[rows.kind])):
            columns[_PLACES[column]] = array[chosen]
        for bit, (column, array, _) in enumerate(optional):
            if value >> bit & 1:
                columns[_PLACES[column]] = array[chosen]
        payload_type = value >> len(optional)
        if payload_type:
            column, kind, stored = _PAYLOADS[payload_type - 1]
            narrow = np.uint64 if np.dtype(kind).itemsize == 8 else np.uint32
            columns[_PLACES[column]] = rows.payload[chosen].astype(narrow).view(kind).astype(stored)
        yield from _by_length(columns, rows.text_length[chosen])


def _by_length(columns: list[Column], lengths: NDArray[np.int16]) -> Iterator[list[Column]]:
    """Split rows by the length of their text, if they have one."""
    place = _PLACES["text"]
    texts = columns[place]
    if texts is None:
        yield columns
        return
    for length in np.flatnonzero(np.bincount(lengths)).tolist():
        chosen = np.flatnonzero(lengths == length)
        part = [None if column is None else column[chosen] for column in columns]
        part[place] = texts[chosen].astype(f"S{length}")
        yield part
