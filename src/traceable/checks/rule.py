"""What a rule of `checks/diagnosis.py` is, and what it returns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from traceable.checks.diagnosis_case import Case

CERTAIN, LIKELY, POSSIBLE = "certain", "likely", "possible"
CERTAINTIES = (CERTAIN, LIKELY, POSSIBLE)
"""`certain`: said by what was at fault, or nothing else leaves such traces. `likely`: the usual cause of what is seen.
`possible`: seen, and it may be of no consequence."""

EVERYTHING, PART, NOTHING = "everything", "part", "nothing"
LOSSES = (EVERYTHING, PART, NOTHING)
"""How much of what was to be seen is missing because of it."""


@dataclass(frozen=True)
class Finding:
    """One cause of what is missing or wrong.

    Attributes:
        cause: its name, as docs/diagnosis.md lists them.
        certainty: one of `CERTAINTIES`.
        message: a sentence without a full stop.
        evidence: what it is judged by, a clause each.
        fix: what to do, as an imperative clause.
        loss: one of `LOSSES`.
    """

    cause: str
    certainty: str
    message: str
    evidence: tuple[str, ...]
    fix: str
    loss: str = PART


@dataclass(frozen=True)
class RuledOut:
    """A cause that it is not, and by what that is known."""

    reason: str


RuleResult: TypeAlias = Finding | RuledOut | None
"""None: it does not apply, or nothing is known that it could be judged by."""


@dataclass(frozen=True)
class Rule:
    """One cause, or several that are judged by the same.

    Attributes:
        cause: its name; a finding may have a more exact one.
        evaluate: a pure function.
    """

    cause: str
    evaluate: Callable[[Case], RuleResult]


def join_first(words: tuple[str, ...] | list[str], most: int = 4) -> str:
    """Join words, the first ones where there are many."""
    more = f" and {len(words) - most} more" if len(words) > most else ""
    return ", ".join(words[:most]) + more
