"""What a run's expectations came to: as lines for people and as the `expectations` of report.json."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from traceable.analysis.contract import NEVER_ENTERED, WITHOUT_GPU_WORK, Verdict
from traceable.analysis.units import count
from traceable.errors import Message
from traceable.report.text import printable


def rows(verdicts: Sequence[Verdict]) -> list[dict[str, Any]]:
    """Return the verdicts as docs/contract.md describes them."""
    return [
        {
            "name": one.name,
            "verdict": one.verdict,
            "met": one.met,
            "count": one.count,
            "gpu_count": one.gpu_count,
            "near": list(one.near),
        }
        for one in verdicts
    ]


def lines(verdicts: Sequence[Verdict], *, unmet_alone: bool = False) -> list[str]:
    """Return one line an expectation, or an unmet one, and a last one where any is unmet."""
    said = [_outcome(one) for one in verdicts if not (one.met and unmet_alone)]
    unmet = sum(not one.met for one in verdicts)
    if not unmet:
        return said
    return [*said, Message("expectations_not_met", f"{count(unmet)} of {count(len(verdicts), 'expectation')} not met")]


def _outcome(verdict: Verdict) -> str:
    expected = f"expected {printable(verdict.name)}"
    if verdict.verdict == NEVER_ENTERED:
        near = " or ".join(map(printable, verdict.near))
        hint = f"; did you mean {near}?" if near else ""
        return Message("never_entered", f"{expected}: never entered{hint}")
    if verdict.verdict == WITHOUT_GPU_WORK:
        return Message("without_gpu_work", f"{expected}: entered {count(verdict.count, 'time')} without GPU work")
    return f"{expected}: seen {count(verdict.count, 'time')}"
