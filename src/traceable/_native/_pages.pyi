"""Types of the decoder of SQLite tables (`pages.c`)."""

from typing import Any

INTEGER: int
SMALL: int
REAL: int
KEY: int
TEXT: int

class UnsupportedError(Exception):
    """What only SQLite should read."""

class DamagedError(UnsupportedError):
    """What no sound file holds, and SQLite would not always notice; its text is the kind of damage."""

class StoppedError(Exception):
    """The caller had it end."""

def decode_table(
    descriptor: int,
    page_size: int,
    usable: int,
    page_count: int,
    root: int,
    rowid_column: int,
    wanted: tuple[tuple[int, tuple[int, ...]], ...],
    stop: bytearray,
    /,
) -> tuple[int, list[Any]]:
    """Decode columns of the table with the b-tree at page `root`.

    Args:
        descriptor: of the file, open for reading; its position is neither used nor changed.
        page_size, usable: bytes of a page, and those of them that are not reserved.
        page_count: pages of the file.
        rowid_column: position of the column that stands for the rowid; -1 for none.
        wanted: for each column a kind and the positions it comes from: one, but for KEY any number.
        stop: decoding ends soon after another thread makes its first byte another than 0.

    Returns:
        The number of rows and, for each wanted column, its values: a number where all rows hold the same, else a
        buffer of int64 (INTEGER), int32 (SMALL, KEY, TEXT) or float64 (REAL). Of KEY and TEXT a pair: those numbers,
        and what each number stands for, a buffer of int64 with as many for each number as there are positions, or a
        list of str. NULL is the least int64 (INTEGER, KEY), -1 (SMALL, TEXT) or NaN. SMALL holds -1 for what is below 0
        or no int32, too.

    Raises:
        Unusual: only SQLite should read this table; the reason is its text.
        Damaged, Stopped: see there.
        OSError: a page can't be read.
    """
