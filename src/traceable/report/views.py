"""The views of a report: which there are, what each may be asked, and what of its tables a terminal shows.

Registering a question is one entry here: its function is `analysis.<name>.<name>`. Nothing else is loaded for that, so
that the command line knows the views before numpy is there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from traceable.analysis.columns import FIELD
from traceable.report import view_columns as shown
from traceable.report.columns import Column
from traceable.report.view_columns import Other

ALL = "all"
"""What asks for every view."""


@dataclass(frozen=True, eq=False)
class View:
    """One view; there is one object of each.

    Attributes:
        name: the view's, its question's, and in JSON its key.
        help: what it answers, as half a sentence.
        columns: of the main table, those that a terminal shows, in order, as far as the table has them. The first of
            them is what the row is about, and is never dropped.
        by: what its rows may be by; the first is the default. Empty where that is fixed.
        fields: whether they may also be by the value of a field of the ranges.
        options: the options that its question takes beside `by`, and its keyword argument for each.
        chooses: which of `match` and `domain` can choose among its rows: they have names, and domains.
        others: heading and columns of the further tables, by name; all columns where none are said.
        sentences: whether its rows are findings, which a terminal shows as wrapped sentences instead of columns.
    """

    name: str
    help: str
    columns: tuple[Column, ...]
    by: tuple[str, ...] = ()
    fields: bool = False
    options: Mapping[str, str] = field(default_factory=dict)
    chooses: frozenset[str] = frozenset()
    others: Mapping[str, Other] = field(default_factory=dict)
    sentences: bool = False

    def takes_by(self, by: str) -> bool:
        """Whether the rows may be by this."""
        return by in self.by or (self.fields and by.startswith(FIELD) and by != FIELD)


_BY_RANGE = {"range_name": "range_name"}

RANGES = View(
    "ranges",
    "what each range cost on the CPU and the GPU",
    by=("path", "name", "instance", "process", "thread", "device"),
    fields=True,
    options={**_BY_RANGE, "slowest": "slowest"},
    chooses=frozenset({"domain", "match"}),
    columns=shown.RANGES,
)
"""The view that is shown where none is asked for; by path and by name it is the document of `run`."""

_KERNELS = View(
    "kernels",
    "how long which kernels took",
    by=("kernel", "family", "range", "geometry", "launch"),
    options={**_BY_RANGE, "names": "names", "families": "families"},
    chooses=frozenset({"match"}),
    columns=shown.KERNELS,
)

_API = View(
    "api",
    "how long CUDA API calls took",
    by=("call", "kind", "range"),
    options=_BY_RANGE,
    chooses=frozenset({"match"}),
    columns=shown.API,
    others=shown.API_OTHERS,
)

_MEMORY = View(
    "memory",
    "what was copied, set and allocated, and how fast",
    by=("operation", "range", "process"),
    options=_BY_RANGE,
    columns=shown.MEMORY,
    others=shown.MEMORY_OTHERS,
)

_GAPS = View(
    "gaps",
    "when each GPU was idle, and why",
    options={**_BY_RANGE, "top": "top"},
    columns=shown.GAPS,
    others=shown.GAPS_OTHERS,
)

_SYNC = View(
    "sync",
    "who waited how long for what",
    options=_BY_RANGE,
    columns=shown.SYNC,
    others=shown.SYNC_OTHERS,
)

_STEPS = View(
    "steps",
    "what each step took, and what the slow ones did",
    options={"step_range": "range_name", "step_kernel": "step_kernel"},
    columns=shown.STEPS,
    others=shown.STEPS_OTHERS,
)

_STREAMS = View(
    "streams",
    "what each stream did, and what ran side by side",
    options=_BY_RANGE,
    columns=shown.STREAMS,
    others=shown.STREAMS_OTHERS,
)

FINDINGS = View(
    "findings",
    "where time can be saved",
    options={"threshold": "thresholds"},
    columns=(),
    others={"rules": Other("rules")},
    sentences=True,
)
"""Of all findings the largest also stand below the ranges."""

VIEWS: dict[str, View] = {
    view.name: view for view in (RANGES, _KERNELS, _API, _MEMORY, _SYNC, _GAPS, _STEPS, _STREAMS, FINDINGS)
}
"""The views by name, in the order of `--view all`."""
