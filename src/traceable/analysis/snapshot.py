"""What a comparison needs of one recording: its tables, and the times of single instances.

A snapshot is of plain values and columns, so that a baseline file can hold it (docs/compare.md) and a comparison needs
no recording any more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from traceable.analysis.table import Table
from traceable.trace.model import Int64


class SampleKey(NamedTuple):
    """What a list of samples is of.

    Attributes:
        path: names of the range from the outermost; `()` for the steps.
        domain, style: those of the range, as in the view `ranges`; None and "" for the steps.
        measure: `cpu`, `gpu_busy`, `gpu_span` or `sync_wait` of a range; `wall` or `gpu_busy` of a step.
    """

    path: tuple[str, ...]
    domain: str | None
    style: str
    measure: str


@dataclass(frozen=True, eq=False)
class Snapshot:
    """One recording, as a comparison sees it.

    Attributes:
        label: how the recording is called in the output: its path as the user gave it.
        facts: plain JSON values: `conditions` (what the recording was made with, see `analysis.comparability`),
            `steps`, `tokens`, `token_source`, ...
        tables: by name: what is summed and counted.
        samples: the time of each whole, steady, unthrottled instance in ns, in the order of their start.
    """

    label: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    tables: Mapping[str, Table] = field(default_factory=dict)
    samples: Mapping[SampleKey, Int64] = field(default_factory=dict)
