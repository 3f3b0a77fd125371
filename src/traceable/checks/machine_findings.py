"""What a check of `traceable doctor` says: its state, what was found, and what to do. Judges nothing itself.

- `ok`: nothing is lost, or only what this machine has not got anyway;
- `note`: something named is missing that only an option of its own or another package asks for; a default run is whole;
- `warning`: runs are recorded, and something named is missing from them, slower, or may fail later;
- `problem`: what is installed or asked for does not work, and a run would fail or lose its recording.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from traceable.errors import Message

OK, NOTE, WARNING, PROBLEM = "ok", "note", "warning", "problem"
STATES = {OK: 0, NOTE: 0, WARNING: 1, PROBLEM: 2}
"""Best first, each with the exit code where it is the worst."""


@dataclass(frozen=True)
class CheckResult:
    """What one check says.

    Attributes:
        state: one of `STATES`.
        message: what is there, as one line, with its code.
        fix: what to do, as an imperative clause; None where nothing is to be done.
        evidence: what it was judged by, fit for JSON.
    """

    state: str
    message: Message
    fix: str | None = None
    evidence: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Finding:
    """One line of the answer.

    Attributes:
        name: of the check. One that finds several things has several lines.
        result: what it says.
    """

    name: str
    result: CheckResult


def ok(code: str, found: str, **evidence: Any) -> CheckResult:
    """Say that nothing is to be done."""
    return CheckResult(OK, Message(code, found), None, evidence)


def note(code: str, found: str, fix: str, **evidence: Any) -> CheckResult:
    """Say what is missing that a run with default options never needs, and what to do for it."""
    return CheckResult(NOTE, Message(code, found), fix, evidence)


def warning(code: str, found: str, fix: str, **evidence: Any) -> CheckResult:
    """Say what runs will lack, and what to do."""
    return CheckResult(WARNING, Message(code, found), fix, evidence)


def problem(code: str, found: str, fix: str, **evidence: Any) -> CheckResult:
    """Say what doesn't work, and what to do."""
    return CheckResult(PROBLEM, Message(code, found), fix, evidence)


def worst_state(findings: Iterable[Finding]) -> str:
    """Return the state of the whole."""
    return max((finding.result.state for finding in findings), key=list(STATES).index, default=OK)
