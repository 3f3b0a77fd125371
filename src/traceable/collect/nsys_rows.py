"""Rows of NVTX_EVENTS to be, as columns: cut to what a flight recorder shows, and split by what they fill."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from traceable.collect import recording as rec
from traceable.collect.nsys_tables import CLIPPED

PUSH_POP_RANGE, START_END_RANGE, MARK = 59, 60, 34
"""nsys's event types of ranges and marks."""

_EVENT_TYPES = {rec.PUSH: PUSH_POP_RANGE, rec.START: START_END_RANGE, rec.MARK: MARK}
_PAYLOADS: tuple[tuple[str, type[np.generic]], ...] = (
    ("uint64Value", np.int64),  # SQLite has no unsigned 64 bits; nsys writes the same bits
    ("int64Value", np.int64),
    ("doubleValue", np.float64),
    ("uint32Value", np.uint32),
    ("int32Value", np.int32),
    ("floatValue", np.float32),
)
"""Column and type of each nvtxPayloadType_t, from 1 on."""


@dataclass(frozen=True)
class Rows(rec.Columns):
    """Rows of NVTX_EVENTS to be. -1 (None in `text`) stands for NULL; pops and ends are rows until they are paired.

    `clipped`: the range began before what a flight recorder shows, or was open at its end.
    """

    kind: NDArray[np.uint8]
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    range_id: NDArray[np.int64]
    category: NDArray[np.int64]
    color: NDArray[np.int64]
    text: NDArray[np.object_]
    global_tid: NDArray[np.int64]
    end_global_tid: NDArray[np.int64]
    text_id: NDArray[np.int64]
    domain: NDArray[np.int64]
    payload_type: NDArray[np.uint8]
    payload: NDArray[np.uint64]
    clipped: NDArray[np.bool_]

    @staticmethod
    def none() -> Rows:
        """Return no rows."""
        number, small = np.empty(0, np.int64), np.empty(0, np.uint8)
        text, bits, flags = np.empty(0, object), np.empty(0, np.uint64), np.empty(0, np.bool_)
        numbers = (number, number, number, number)
        return Rows(small, number, *numbers, text, *numbers, small, bits, flags)

    def within(self, start: int, end: int) -> Rows:
        """Return what lies between two times; ranges that reach over an edge are cut there and clipped."""
        is_range = self.kind != rec.MARK
        open_ = is_range & ((self.end < 0) | (self.end > end))
        ends = np.where(open_, end, np.where(is_range, self.end, self.start))
        early = is_range & (self.start < start)
        cut = replace(
            self,
            start=np.where(early, start, self.start),
            end=np.where(is_range, ends, -1),
            clipped=early | open_,
        )
        return cut.take((ends >= start) & (self.start <= end))

    def since(self, origin: int) -> Rows:
        """Return the rows with times counted from `origin`, which none of them is before."""
        return replace(self, start=self.start - origin, end=np.where(self.end < 0, -1, self.end - origin))


def by_columns(rows: Rows) -> Iterator[tuple[list[str], list[NDArray[np.generic]]]]:
    """Split rows by which columns they fill: binding only those is several times faster than binding NULLs."""
    optional: list[tuple[str, NDArray[np.generic], NDArray[np.bool_]]] = [
        ("end", rows.end, rows.end >= 0),
        ("rangeId", rows.range_id, rows.kind == rec.START),
        ("category", rows.category, rows.category >= 0),
        ("color", rows.color, rows.color >= 0),
        ("text", rows.text, rows.text.astype(np.bool_)),
        ("endGlobalTid", rows.end_global_tid, rows.end_global_tid >= 0),
        ("textId", rows.text_id, rows.text_id >= 0),
        (CLIPPED, rows.clipped.astype(np.int64), rows.clipped),
    ]
    types = np.zeros(max(_EVENT_TYPES) + 1, np.int64)
    types[list(_EVENT_TYPES)] = list(_EVENT_TYPES.values())
    signature = rows.payload_type.astype(np.int64) << len(optional)
    for bit, (_, _, present) in enumerate(optional):
        signature |= present.astype(np.int64) << bit
    for value in np.unique(signature).tolist():
        chosen = np.flatnonzero(signature == value)
        columns = ["start", "eventType", "globalTid", "domainId"]
        arrays: list[NDArray[np.generic]] = [rows.start, types[rows.kind], rows.global_tid, rows.domain]
        arrays = [array[chosen] for array in arrays]
        for bit, (column, array, _) in enumerate(optional):
            if value >> bit & 1:
                columns.append(column)
                arrays.append(array[chosen])
        payload_type = value >> len(optional)
        if payload_type:
            column, kind = _PAYLOADS[payload_type - 1]
            columns.append(column)
            narrow = np.uint64 if np.dtype(kind).itemsize == 8 else np.uint32
            arrays.append(rows.payload[chosen].astype(narrow).view(kind))
        yield columns, arrays
