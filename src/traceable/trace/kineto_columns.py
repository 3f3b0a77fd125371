"""The columns into which the events of one torch.profiler trace are sorted, and the values that stand in them."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from traceable.trace.model import NULL, Bool, Int64

RANGES = ("start", "end", "name", "thread", "payload", "open", "domain", "category", "style", "end_thread")
MARKS = ("start", "end", "name", "thread", "payload", "real", "domain", "category")
CALLS = ("start", "end", "name", "thread", "correlation", "driver")
_OPERATION = ("start", "end", "device", "context", "stream", "correlation", "graph_node")
KERNELS = (*_OPERATION, "name", "geometry")
COPIES = (*_OPERATION, "size_bytes", "kind", "source_kind", "target_kind", "source_device", "target_device")
MEMSETS = (*_OPERATION, "size_bytes", "memory_kind")
SYNCHRONISATIONS = (*_OPERATION, "kind")
OVERHEADS = ("start", "end", "name")
"""The columns of each kind of event; those of `Trace` but that a thread is an index into `Events.threads`."""

OPERATIONS = {
    "kernels": ("name", "geometry"),
    "copies": ("kind", "source_kind", "target_kind", "source_device", "target_device"),
    "memsets": ("memory_kind",),
    "synchronisations": ("kind",),
}
"""The small columns that each kind of operation has beyond those of all."""


@dataclass
class Table:
    """Rows of one kind of event: int64 values, one row after the other."""

    columns: tuple[str, ...]
    values: array[int] = field(default_factory=lambda: array("q"))

    def __len__(self) -> int:
        return len(self.values) // len(self.columns)

    def column(self, name: str) -> Int64:
        """Return one column; it may be written as long as no row is added."""
        return self._rows()[:, self.columns.index(name)]

    def _rows(self) -> Int64:
        return np.asarray(self.values).reshape(-1, len(self.columns))

    def keep(self, which: Bool) -> None:
        """Keep these rows alone."""
        kept = self._rows()[which]
        self.values = array("q", kept.tobytes())


def arguments(event: dict[str, Any]) -> dict[str, Any]:
    """Return the `args` of an event."""
    args = event.get("args")
    return args if type(args) is dict else {}


def text(value: Any) -> str | None:
    """Return a text; None for anything else."""
    return value if type(value) is str else None


def integer(value: Any) -> int:
    """Return a whole number of 64 bits; NULL for anything else."""
    return value if type(value) is int and -(1 << 63) < value < 1 << 63 else NULL


def size(value: Any) -> int:
    """Return a number of bytes or the like; NULL for anything else."""
    return value if type(value) is int and 0 <= value < 1 << 63 else NULL


def small(value: Any) -> int:
    """Return a number that fits an int32 column; -1 for anything else."""
    return value if type(value) is int and 0 <= value < 1 << 31 else -1
