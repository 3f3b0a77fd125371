"""A table as CSV: one line a row, every column, full precision."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Sequence

from traceable.report.choice import Row


def to_csv(rows: Iterable[Row], columns: Sequence[str]) -> str:
    """Return the rows as CSV text with a header line. Absent is empty; a list, such as a path, or a dict is JSON."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        values = (row[name] for name in columns)
        writer.writerow([json.dumps(value) if isinstance(value, dict | list | bool) else value for value in values])
    return out.getvalue()
