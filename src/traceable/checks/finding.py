"""The result of a check of `traceable doctor`: its state, a message, and the fix. Nothing is checked here.

- `ok`: nothing is missing, or only what this machine does not have anyway;
- `note`: something is missing that only a certain option or another package needs; a default run is complete;
- `warning`: runs are recorded, but something is missing from them, is slower, or may fail later;
- `problem`: something installed or requested does not work, and a run would fail or lose its recording.
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
    """The result of one check.

    Attributes:
        state: one of `STATES`.
        message: one line, with its code.
        fix: what to do, as an imperative clause; None if nothing.
        evidence: the facts behind it, fit for JSON.
    """

    state: str
    message: Message
    fix: str | None = None
    evidence: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Finding:
    """One line of the output.

    Attributes:
        name: of the check. One with several results has several lines.
        result: its result.
    """

    name: str
    result: CheckResult


def ok(code: str, message: str, **evidence: Any) -> CheckResult:
    """Return a result for which nothing has to be done."""
    return CheckResult(OK, Message(code, message), None, evidence)


def note(code: str, message: str, fix: str, **evidence: Any) -> CheckResult:
    """Return a result about something missing that a run with default options never needs."""
    return CheckResult(NOTE, Message(code, message), fix, evidence)


def warning(code: str, message: str, fix: str, **evidence: Any) -> CheckResult:
    """Return a result about something that runs will lack."""
    return CheckResult(WARNING, Message(code, message), fix, evidence)


def problem(code: str, message: str, fix: str, **evidence: Any) -> CheckResult:
    """Return a result about something that doesn't work."""
    return CheckResult(PROBLEM, Message(code, message), fix, evidence)


def worst_state(findings: Iterable[Finding]) -> str:
    """Return the worst state of all findings."""
    return max((finding.result.state for finding in findings), key=list(STATES).index, default=OK)
