"""The rules of `checks/diagnosis.py` and their results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from traceable.checks.case import Case

CERTAIN, LIKELY, POSSIBLE = "certain", "likely", "possible"
CERTAINTIES = (CERTAIN, LIKELY, POSSIBLE)
"""`certain`: reported by the component at fault, or nothing else leaves such traces. `likely`: the usual cause of the
symptoms. `possible`: present, but perhaps without consequences."""

EVERYTHING, PART, NOTHING = "everything", "part", "nothing"
LOSSES = (EVERYTHING, PART, NOTHING)
"""How much of the requested data is missing because of it."""


@dataclass(frozen=True)
class Finding:
    """One cause of missing or wrong data.

    Attributes:
        cause: its name, as docs/diagnosis.md lists them.
        certainty: one of `CERTAINTIES`.
        message: a sentence without a full stop.
        evidence: the facts behind it, a clause each.
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
    """A cause that is ruled out, and the fact that rules it out."""

    reason: str


RuleResult: TypeAlias = Finding | RuledOut | None
"""None: the rule does not apply, or the facts it needs are not known."""


@dataclass(frozen=True)
class Rule:
    """One cause, or several that share the same facts.

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
