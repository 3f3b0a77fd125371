"""Damage to SQLite files, drawn from a seed: where files are damaged in life, and where a decoder of pages is led."""

from __future__ import annotations

import random
from collections.abc import Callable

HEADER_FIELDS = (
    (16, 2),
    (18, 1),
    (19, 1),
    (20, 1),
    (21, 3),
    (24, 4),
    (28, 4),
    (32, 4),
    (44, 4),
    (52, 4),
    (56, 4),
    (92, 4),
)
INTERIOR, LEAF = 0x05, 0x0D


def mutate(whole: bytes, random_: random.Random) -> bytes:
    """Return the file with one to three kinds of damage."""
    data = bytearray(whole)
    for _ in range(random_.choice([1, 1, 1, 2, 3])):
        if len(data) > 100:
            random_.choice(KINDS)(data, random_)
    return bytes(data)


def _page_size(data: bytearray) -> int:
    size = int.from_bytes(data[16:18], "big")
    return 65536 if size == 1 else max(size, 512)


def _pages(data: bytearray, kind: int | None = None) -> list[int]:
    """Return the offsets of the pages behind the first one; only those of one kind."""
    starts = range(_page_size(data), len(data) - 12, _page_size(data))
    return [start for start in starts if kind is None or data[start] == kind]


def _number(random_: random.Random, size: int) -> bytes:
    value = random_.choice([0, 1, 2, 255, 1 << (8 * size - 1), (1 << 8 * size) - 1, random_.getrandbits(8 * size)])
    return (value & ((1 << 8 * size) - 1)).to_bytes(size, "big")


def cut_off(data: bytearray, random_: random.Random) -> None:
    del data[random_.randrange(len(data)) :]


def cut_off_at_a_page(data: bytearray, random_: random.Random) -> None:
    """Whole by its header, and yet pages are missing that the rest points to."""
    size = _page_size(data)
    pages = random_.randrange(1, max(2, len(data) // size))
    del data[pages * size :]
    data[28:32] = pages.to_bytes(4, "big")


def change_bytes(data: bytearray, random_: random.Random) -> None:
    for _ in range(random_.choice([1, 1, 3, 30])):
        data[random_.randrange(len(data))] = random_.randrange(256)


def flip_a_bit(data: bytearray, random_: random.Random) -> None:
    data[random_.randrange(100, len(data))] ^= 1 << random_.randrange(8)


def change_the_header(data: bytearray, random_: random.Random) -> None:
    offset, size = random_.choice(HEADER_FIELDS)
    data[offset : offset + size] = _number(random_, size)


def change_a_page_header(data: bytearray, random_: random.Random) -> None:
    pages = _pages(data)
    if pages:
        start = random_.choice(pages)
        offset, size = random_.choice([(0, 1), (1, 2), (3, 2), (5, 2), (7, 1), (8, 4)])
        small = random_.randrange(12).to_bytes(size, "big")
        data[start + offset : start + offset + size] = random_.choice([small, _number(random_, size)])


def change_a_cell_pointer(data: bytearray, random_: random.Random) -> None:
    pages = _pages(data, LEAF) + _pages(data, INTERIOR)
    if pages:
        start = random_.choice(pages)
        cells = int.from_bytes(data[start + 3 : start + 5], "big") or 1
        at = start + (8 if data[start] == LEAF else 12) + 2 * random_.randrange(cells)
        value = random_.choice([random_.randrange(_page_size(data)), random_.getrandbits(16)])
        data[at : at + 2] = value.to_bytes(2, "big")


def change_a_cell(data: bytearray, random_: random.Random) -> None:
    """The lengths and types with which a row begins, or the page that a cell points to."""
    pages = _pages(data, random_.choice([LEAF, LEAF, INTERIOR]))
    if pages:
        start = random_.choice(pages)
        cells = int.from_bytes(data[start + 3 : start + 5], "big") or 1
        pointer = start + (8 if data[start] == LEAF else 12) + 2 * random_.randrange(cells)
        at = start + int.from_bytes(data[pointer : pointer + 2], "big") + random_.randrange(random_.choice([4, 12, 30]))
        if at < len(data):
            data[at] = random_.choice([0, 1, 6, 7, 8, 9, 10, 11, 127, 128, 129, 255, random_.randrange(256)])


def change_a_child(data: bytearray, random_: random.Random) -> None:
    pages = _pages(data, INTERIOR)
    if pages:
        start = random_.choice(pages)
        cells = int.from_bytes(data[start + 3 : start + 5], "big")
        cell = int.from_bytes(data[start + 12 : start + 14], "big")
        at = start + random_.choice([8, cell] if cells else [8])
        number = random_.choice([random_.randrange(len(data) // _page_size(data) + 2), random_.getrandbits(32)])
        if at + 4 <= len(data):
            data[at : at + 4] = number.to_bytes(4, "big")


def swap_pages(data: bytearray, random_: random.Random) -> None:
    pages, size = _pages(data), _page_size(data)
    if len(pages) > 1:
        one, other = random_.sample(pages, 2)
        data[one : one + size], data[other : other + size] = data[other : other + size], data[one : one + size]


def copy_a_page(data: bytearray, random_: random.Random) -> None:
    pages, size = _pages(data), _page_size(data)
    if len(pages) > 1:
        one, other = random_.sample(pages, 2)
        data[one : one + size] = data[other : other + size]


def blank_a_stretch(data: bytearray, random_: random.Random) -> None:
    start = random_.randrange(len(data))
    length = min(random_.choice([8, 64, 512, 4096]), len(data) - start)
    data[start : start + length] = bytes(length)


KINDS: tuple[Callable[[bytearray, random.Random], None], ...] = (
    cut_off,
    cut_off_at_a_page,
    change_bytes,
    flip_a_bit,
    change_the_header,
    *[change_a_page_header] * 2,
    *[change_a_cell_pointer] * 2,
    *[change_a_cell] * 4,
    *[change_a_child] * 2,
    swap_pages,
    copy_a_page,
    blank_a_stretch,
)
