"""After a run, and for any report: why there is nothing to see, or less than there should be.

Each rule looks at the facts of one `Case` and finds its cause, rules it out, or does not apply. Nothing is printed
here: `cli/diagnosis.py` does. What each cause is known by stands in docs/diagnosis.md.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from traceable.analysis.completeness import RANGES_MISSING
from traceable.checks import gpu_rules, range_rules, recording_rules
from traceable.checks.diagnosis_case import Case
from traceable.checks.rule import CERTAINTIES, LOSSES, NOTHING, Finding, Rule, RuledOut
from traceable.errors import Message, TraceError
from traceable.launch import run_dir

SCHEMA = "traceable.diagnosis/1"
MANIFEST_KEY = "diagnosis"
"""Where `run.json` keeps it; `report.json` has it under the same name."""

RULES: tuple[Rule, ...] = (*recording_rules.RULES, *range_rules.RULES, *gpu_rules.RULES)

_CONSEQUENCES = {
    "annotations_disabled": ("nothing_annotated", "nothing_entered", "process_not_recorded"),
    "environment_scrubbed": ("nothing_annotated", "nothing_entered", "process_not_recorded"),
    "exec": ("nothing_annotated", "nothing_entered"),
    "forked_child": ("nothing_annotated", "nothing_entered"),
    "nvtx_not_traced": ("nothing_annotated", "nothing_entered", "process_not_recorded"),
    "nsys_never_listened": ("nothing_annotated", "nothing_entered"),
    "nvtx_silent": ("nothing_annotated", "nothing_entered"),
    "process_not_recorded": ("nothing_annotated", "nothing_entered"),
    "program_failed": ("nothing_annotated", "nothing_entered", "process_not_recorded", "no_cuda_context"),
    "level_too_low": ("nothing_annotated", "nothing_entered", "process_not_recorded"),
    "tail_lost": ("nothing_annotated", "nothing_entered", "process_not_recorded", "program_failed"),
    "closed_before_first_range": ("nothing_annotated", "nothing_entered", "process_not_recorded", "no_cuda_context"),
    "cupti_taken": ("no_cuda_context",),
    "driver_too_old": ("no_cuda_context",),
    "driver_too_new": ("no_cuda_context",),
}
"""What each cause brings about, which is no cause of its own then."""


@dataclass(frozen=True)
class Diagnosis:
    """What came of it.

    Attributes:
        findings: the most certain first, of these the one that cost most; what cost nothing comes last.
        ruled_out: causes that it is not, with what that is known by.
        not_applicable: causes that nothing is known of.
        failed_rules: rules that failed, with the error: faults of ours.
    """

    findings: tuple[Finding, ...]
    ruled_out: tuple[tuple[str, str], ...] = ()
    not_applicable: tuple[str, ...] = ()
    failed_rules: tuple[tuple[str, str], ...] = ()

    @property
    def problems(self) -> tuple[Finding, ...]:
        """The findings because of which something is missing."""
        return tuple(one for one in self.findings if one.loss != NOTHING)


def diagnose(case: Case, say: Callable[[str], None] | None = None, rules: tuple[Rule, ...] = RULES) -> Diagnosis:
    """Judge a case by every rule.

    Args:
        case: what is known.
        say: hears of each rule that failed, in one line.
        rules: which.
    """
    found: list[Finding] = []
    out: list[tuple[str, str]] = []
    unknown: list[str] = []
    failed: list[tuple[str, str]] = []
    for rule in rules:
        try:
            judged = rule.evaluate(case)
        except Exception as error:  # noqa: BLE001 - a fault of one rule must not hide what the others find
            failed.append((rule.cause, f"{type(error).__name__}: {error}"))
            if say is not None:
                words = f"the diagnosis of {rule.cause} failed ({failed[-1][1]}); the others stand"
                say(Message("diagnosis_rule_failed", words))
            continue
        if isinstance(judged, Finding):
            found.append(judged)
        elif isinstance(judged, RuledOut):
            out.append((rule.cause, judged.reason))
        else:
            unknown.append(rule.cause)
    if not found and (last := recording_rules.FALLBACK.evaluate(case)) and isinstance(last, Finding):
        found.append(last)
    found = _without_consequences(found)
    # What costs nothing is no answer to why something is missing, however certain it is.
    # Nor is how much is missing, where another finding knows why.
    found.sort(
        key=lambda one: (
            one.loss == NOTHING,
            one.cause == RANGES_MISSING,
            CERTAINTIES.index(one.certainty),
            LOSSES.index(one.loss),
        )
    )
    return Diagnosis(tuple(found), tuple(out), tuple(unknown), tuple(failed))


def _without_consequences(found: list[Finding]) -> list[Finding]:
    told = {consequence for one in found for consequence in _CONSEQUENCES.get(one.cause, ())}
    return [one for one in found if one.cause not in told]


def diagnosis_to_dict(diagnosis: Diagnosis) -> dict[str, Any]:
    """Return it as JSON has it."""
    return {
        "schema": SCHEMA,
        "findings": [{**asdict(one), "evidence": list(one.evidence)} for one in diagnosis.findings],
        "ruled_out": [{"cause": cause, "reason": why} for cause, why in diagnosis.ruled_out],
        "not_applicable": list(diagnosis.not_applicable),
        "failed_rules": [{"cause": cause, "error": error} for cause, error in diagnosis.failed_rules],
    }


def write_diagnosis(content: dict[str, Any], directory: Path) -> None:
    """Write what `diagnosis_to_dict` returns into `run.json`. Where that can't be, the run still has said it."""
    with contextlib.suppress(OSError, TraceError):
        run_dir.write_json(directory / run_dir.MANIFEST, {**run_dir.load_manifest(directory), MANIFEST_KEY: content})
