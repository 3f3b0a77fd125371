"""The numbers of several recordings of one program side by side: one row a range, and for each recording its columns.

It lists numbers next to each other and does not rate them. Recordings are called A, B, C in the order in which they are
given; ratios are relative to A.
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from typing import Any

import numpy as np

from traceable.analysis.table import Table, compute_ratios, pack_objects
from traceable.trace.model import NULL, NDArray

LETTERS = string.ascii_uppercase
"""The names of the recordings, and so their maximum number."""

COUNTS = ("count",)
MEASURES = ("cpu_mean_ns", "cpu_p50_ns", "gpu_busy_mean_ns")
"""Of each range: columns of `ranges`. A measure also has a ratio to that of A."""

STEP_COLUMNS = ("steps", "steady", "wall_mean_ns", "wall_p50_ns", "wall_p99_ns", "steps_per_s", "gpu_busy_mean_ns")
"""Of the steady steps: columns of the table `summary` of `steps`."""

Key = tuple[tuple[str, ...], str | None, str]


def format_column_name(letter: str, name: str) -> str:
    """Return the name of a column of `ranges` for a recording.

    Examples:
        >>> format_column_name("B", "cpu_p50_ns")
        'b_cpu_p50_ns'
    """
    return f"{letter.lower()}_{name}"


def format_ratio_name(letter: str, measure: str) -> str:
    """Return the name of the ratio of a measure to that of A.

    Examples:
        >>> format_ratio_name("B", "cpu_p50_ns")
        'b_cpu_p50_ratio'
    """
    return format_column_name(letter, measure.removesuffix("_ns") + "_ratio")


def compare_ranges(tables: Sequence[Table]) -> Table:
    """Return one row for each range of any of the tables: its cost in each. Absent is absent, never 0.

    Ranges are the same where path (or, without paths, name), domain and style are. With paths, a range comes after the
    one it lies inside; else in the order of the first table, and of the next what it lacks.

    Args:
        tables: the result of `ranges` for each recording, by path or all by name; at least one.
    """
    by_path = "path" in tables[0].columns
    rows_by_key: list[dict[Key, int]] = []
    for table in tables:
        paths = table.column("path") if by_path else [[name] for name in table.column("name")]
        keys_of_rows = zip(map(tuple, paths), table.column("domain"), table.column("style"), strict=True)
        rows_by_key.append({key: row for row, key in enumerate(keys_of_rows)})
    keys = list(dict.fromkeys(key for rows in rows_by_key for key in rows))
    first_seen: dict[tuple[str, ...], int] = {}
    for path, _, _ in keys:
        for depth in range(1, len(path) + 1):
            first_seen.setdefault(path[:depth], len(first_seen))
    # Inner ranges come after those around them, and otherwise all in order of appearance.
    keys.sort(key=lambda key: [first_seen[key[0][:depth]] for depth in range(1, len(key[0]) + 1)])
    values: dict[str, NDArray[Any]] = {"path": pack_objects([list(key[0]) for key in keys])} if by_path else {}
    values["name"] = pack_objects([key[0][-1] for key in keys])
    values["domain"] = pack_objects([key[1] for key in keys])
    values["style"] = pack_objects([key[2] for key in keys])
    for letter, table, rows in zip(LETTERS, tables, rows_by_key, strict=False):
        place = np.array([rows.get(key, -1) for key in keys], np.int64)
        for name in (*COUNTS, *MEASURES):
            column = table.values[name]
            dtype, absent = (np.int64, NULL) if column.dtype.kind in "iu" else (np.float64, np.nan)
            # A range that the recording lacks has place -1, the last value.
            values[format_column_name(letter, name)] = np.append(column.astype(dtype), absent)[place]
        for name in MEASURES if letter != LETTERS[0] else ():
            values[format_ratio_name(letter, name)] = compute_ratios(
                values[format_column_name(letter, name)], values[format_column_name(LETTERS[0], name)]
            )
    return Table(values)


def compare_step_summaries(summaries: Sequence[Table | None]) -> Table:
    """Return one row for each process (and device) of each recording: the times of its steady steps.

    `wall_p50_ratio` is to that of A, where both have one process (and device).

    Args:
        summaries: the table `summary` of `steps` of each recording; None where it has no steps.
    """
    parts = [(letter, table) for letter, table in zip(LETTERS, summaries, strict=False) if table is not None]
    values: dict[str, NDArray[Any]] = {
        "recording": pack_objects([letter for letter, table in parts for _ in range(len(table))])
    }
    for name in ("pid", "device", *STEP_COLUMNS):
        columns = [table.values[name] for _, table in parts]
        values[name] = np.concatenate(columns) if columns else np.zeros(0)
    first = summaries[0] if summaries else None
    single = first.values["wall_p50_ns"] if first is not None and len(first) == 1 else np.array([np.nan])
    wall_ratios = [
        compute_ratios(table.values["wall_p50_ns"], single) if len(table) == 1 else np.full(len(table), np.nan)
        for letter, table in parts
    ]
    values["wall_p50_ratio"] = np.concatenate(wall_ratios) if wall_ratios else np.zeros(0)
    return Table(values)
