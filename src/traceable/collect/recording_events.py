"""Reads the events of one thread of a recording, chunk by chunk, as numpy columns.

The layout is documented in `_native/recorder_format.h`. What stands behind something that no recorder writes is left
out with a note. Which threads there are is read in `recording`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from traceable.collect.recording import (
    CUT,
    END,
    EVENTS_HEADER_BYTES,
    MARK,
    POP,
    PUSH,
    START,
    TEXT_BIT,
    Events,
    ThreadRecording,
)
from traceable.collect.ring import RECORD as _RECORD
from traceable.collect.ring import Piece, read_records
from traceable.errors import Message

_PAYLOAD_TYPES = 6
_ATTRIBUTES, _PAYLOAD, _RANGE_ID, _SKIP = 16, 17, 18, 255
_EVENTS = (PUSH, POP, START, END, MARK, CUT)


def _one_of(*kinds: int) -> NDArray[np.bool_]:
    """Return for each number that a kind may be whether it is one of these."""
    table = np.zeros(256, np.bool_)
    table[list(kinds)] = True
    return table


_IS_KNOWN = _one_of(*_EVENTS, _ATTRIBUTES, _PAYLOAD, _RANGE_ID, _SKIP)
_IS_EVENT = _one_of(*_EVENTS)
_IS_NAMED = _one_of(PUSH, START, MARK)
_IS_BEFORE = _one_of(_PAYLOAD, _RANGE_ID)
_NO_ATTRIBUTES = np.zeros(1, _RECORD)


CHUNK_RECORDS = 1 << 16
"""How many 16-byte records are decoded at a time."""


def read_events(thread: ThreadRecording, notes: list[Message], records: int | None = None) -> Iterator[Events]:
    """Yield the thread's events in chunks of at most `records` records (CHUNK_RECORDS), so that memory stays bounded.

    A chunk of a flight recorder is a piece of a segment; the first begins with the pushes that were open before it.
    Appends to `notes` where the file holds something that no recorder writes; what stands before it is used.
    """
    if thread.pieces is not None:
        yield from _ring_events(thread.events, thread.pieces, notes)
        return
    records = records or CHUNK_RECORDS
    before = np.empty(0, _RECORD)
    held = _NO_ATTRIBUTES
    with thread.events.open("rb") as file:
        file.seek(EVENTS_HEADER_BYTES)
        while True:
            content = file.read(records * _RECORD.itemsize)
            chunk = np.frombuffer(content[: len(content) // _RECORD.itemsize * _RECORD.itemsize], _RECORD)
            used = _used(chunk)
            whole = np.concatenate((before, chunk[:used])) if len(before) else chunk[:used]
            kinds = _kinds(whole)
            known = _IS_KNOWN[kinds]
            sound = bool(known.all())
            if not sound:
                found = f"{thread.events} is damaged; the events after record {int(known.argmin())} are lost"
                notes.append(Message("events_damaged", found))
                whole, kinds = whole[: known.argmin()], kinds[: known.argmin()]
            events = np.flatnonzero(_IS_EVENT[kinds])
            if len(events):
                yield _decode(whole, kinds, events, held)
                held = _last_attributes(whole[: events[-1]], kinds[: events[-1]], held)
            if used < records or not sound:
                return
            # What stands after the last event belongs to the first one of the next chunk.
            before = whole[events[-1] + 1 :] if len(events) else whole


def _ring_events(path: Path, pieces: tuple[Piece, ...], notes: list[Message]) -> Iterator[Events]:
    for number, piece in enumerate(pieces):
        records = read_records(path, piece)
        kinds = _kinds(records)
        known = _IS_KNOWN[kinds]
        if not known.all():
            found = f"{path} is damaged; events of the segment at byte {piece.segment} are lost"
            notes.append(Message("events_damaged", found))
            records, kinds = records[: known.argmin()], kinds[: known.argmin()]
        # What is carried over from the segment before is known, unless there is none before.
        skipped = piece.carried if number else 0
        held = _last_attributes(records[:skipped], kinds[:skipped], _NO_ATTRIBUTES)
        records, kinds = records[skipped:], kinds[skipped:]
        places = np.flatnonzero(_IS_EVENT[kinds])
        if not len(places):
            continue
        events = _decode(records, kinds, places, held)
        # Texts are counted from the segment's begin.
        events.message[events.message & np.uint64(TEXT_BIT) != 0] += np.uint64(piece.segment // 8)
        yield events


def _kinds(records: NDArray[np.void]) -> NDArray[np.uint8]:
    """Return the kind of each record: the highest byte of its word, which stands last."""
    return np.ascontiguousarray(records).view(np.uint8)[_RECORD.itemsize - 1 :: _RECORD.itemsize].copy()


def _used(chunk: NDArray[np.void]) -> int:
    """Count the records before the first empty one, which is where the thread ended or the process died."""
    empty = chunk["word"] == 0
    return int(empty.argmax()) if empty.any() else len(chunk)


def _last_attributes(records: NDArray[np.void], kinds: NDArray[np.uint8], held: NDArray[np.void]) -> NDArray[np.void]:
    """Return the last record of attributes as an array of one, or `held` where there is none."""
    places = np.flatnonzero(kinds == _ATTRIBUTES)
    return records[places[-1:]].copy() if len(places) else held


def attributes_at(path: Path, place: int) -> bytes:
    """Return the record whose attributes hold at byte `place` of a thread's file; nothing where none are set."""
    begin = end = place
    with path.open("rb") as file:
        while end > EVENTS_HEADER_BYTES:
            begin = max(EVENTS_HEADER_BYTES, end - (_RECORD.itemsize << 14))
            file.seek(begin)
            records = np.frombuffer(file.read(end - begin), _RECORD)
            found = _last_attributes(records, _kinds(records), _NO_ATTRIBUTES)
            if found is not _NO_ATTRIBUTES:
                return found.tobytes()
            end = begin
    return b""


def _decode(
    records: NDArray[np.void], kinds: NDArray[np.uint8], places: NDArray[np.intp], held: NDArray[np.void]
) -> Events:
    """Decode the events at `places`; `held` are the attributes that hold where `records` begin."""
    kind, data, word = kinds[places], records["data"][places], records["word"][places]
    count = len(places)
    named = _IS_NAMED[kind]
    zero = np.uint64(0)
    color, category = _attributes(records, kinds, places, held)
    none = np.int64(-1)
    events = Events(
        kind=kind,
        time_ns=(word & np.uint64((1 << 56) - 1)).view(np.int64),
        domain=np.where(named, data >> np.uint64(40), np.where(kind == POP, data, zero)).astype(np.uint32),
        message=np.where(named, data & np.uint64((1 << 40) - 1), zero),
        range_id=np.where(kind == END, data, zero).view(np.int64),
        category=np.where(named, category, none),
        color=np.where(named, color, none),
        payload_type=np.zeros(count, np.uint8),
        payload=np.zeros(count, np.uint64),
    )
    # An event has at most two records before it, in a fixed order; look back one place, then two.
    rows = np.flatnonzero(places > 0) if _IS_BEFORE[kinds].any() else places[:0]
    for back in (1, 2):
        rows = rows[places[rows] >= back]
        rows = rows[_IS_BEFORE[kinds[places[rows] - back]]]
        _apply(events, rows, records[places[rows] - back], kinds[places[rows] - back])
    return events


def _attributes(
    records: NDArray[np.void],
    kinds: NDArray[np.uint8],
    places: NDArray[np.intp],
    held: NDArray[np.void],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return color and category where each event stands: what the last record of attributes before it says."""
    is_said = kinds == _ATTRIBUTES
    said = np.concatenate((held, records[is_said]))
    color, category = (
        np.where(said["word"] & np.uint64(flag), said["data"] >> np.uint64(shift) & np.uint64(0xFFFFFFFF), none)
        for flag, shift, none in ((1, 0, _NONE), (2, 32, _NONE))
    )
    if len(said) == 1:
        return color.view(np.int64), category.view(np.int64)
    number = np.cumsum(is_said, dtype=np.int32)[places]
    return color.view(np.int64)[number], category.view(np.int64)[number]


_NONE = np.uint64(2**64 - 1)
"""-1, in the bits of an int64."""


def _apply(events: Events, rows: NDArray[np.intp], records: NDArray[np.void], kinds: NDArray[np.uint8]) -> None:
    """Write what `records` say about the events at `rows` into their columns."""
    data, word = records["data"], records["word"]
    chosen = kinds == _PAYLOAD
    types = word[chosen] & np.uint64(0xFF)
    events.payload_type[rows[chosen]] = np.where(types <= _PAYLOAD_TYPES, types, 0)
    events.payload[rows[chosen]] = data[chosen]
    chosen = kinds == _RANGE_ID
    events.range_id[rows[chosen]] = data[chosen]
