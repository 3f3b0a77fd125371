"""After a run, and for any report: why data is missing.

Each rule evaluates the facts of one `Case` and finds its cause, rules it out, or does not apply. Nothing is printed
here; `cli/diagnosis.py` does that. docs/diagnosis.md describes the causes and how each is detected.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from traceable.analysis.completeness import RANGES_MISSING
from traceable.checks import gpu_rules, range_rules, recording_rules
from traceable.checks.case import Case
from traceable.checks.rule import CERTAINTIES, LOSSES, NOTHING, Finding, Rule, RuledOut
from traceable.errors import Message, TraceError
from traceable.launch import run_dir

SCHEMA = "traceable.diagnosis/1"
MANIFEST_KEY = "diagnosis"
"""The key of the diagnosis in `run.json` and `report.json`."""

RULES: tuple[Rule, ...] = (*recording_rules.RULES, *range_rules.RULES, *gpu_rules.RULES)

_CONSEQUENCES = {
    "annotations_disabled": ("nothing_annotated", "nothing_entered", "process_not_recorded"),
    "environment_scrubbed": ("nothing_annotated", "nothing_entered", "process_not_recorded"),
    "exec": ("nothing_annotated", "nothing_entered"),
    "forked_child": ("nothing_annotated", "nothing_entered"),
    "nvtx_not_traced": ("nothing_annotated", "nothing_entered", "process_not_recorded"),
    "nsys_never_attached": ("nothing_annotated", "nothing_entered"),
    "nvtx_package_incompatible": ("nothing_annotated", "nothing_entered"),
    "process_not_recorded": ("nothing_annotated", "nothing_entered"),
    "program_failed": ("nothing_annotated", "nothing_entered", "process_not_recorded", "no_cuda_context"),
    "level_too_low": ("nothing_annotated", "nothing_entered", "process_not_recorded"),
    "tail_lost": ("nothing_annotated", "nothing_entered", "process_not_recorded", "program_failed"),
    "closed_before_first_range": ("nothing_annotated", "nothing_entered", "process_not_recorded", "no_cuda_context"),
    "cupti_taken": ("no_cuda_context",),
    "driver_too_old": ("no_cuda_context",),
    "driver_too_new": ("no_cuda_context",),
}
"""The symptoms of each cause, which are not causes of their own then."""


@dataclass(frozen=True)
class Diagnosis:
    """The result of all rules.

    Attributes:
        findings: the most certain first, then the largest loss; those without a loss come last.
        ruled_out: causes that are ruled out, each with the reason.
        not_applicable: causes about which nothing is known.
        failed_rules: rules that raised, each with the error: bugs of traceable.
    """

    findings: tuple[Finding, ...]
    ruled_out: tuple[tuple[str, str], ...] = ()
    not_applicable: tuple[str, ...] = ()
    failed_rules: tuple[tuple[str, str], ...] = ()

    @property
    def problems(self) -> tuple[Finding, ...]:
        """The findings because of which something is missing."""
        return tuple(one for one in self.findings if one.loss != NOTHING)


def diagnose(case: Case, log: Callable[[str], None] | None = None, rules: tuple[Rule, ...] = RULES) -> Diagnosis:
    """Evaluate every rule on a case.

    Args:
        case: the facts.
        log: is called with one line for each rule that failed.
        rules: the rules to evaluate.
    """
    findings: list[Finding] = []
    ruled_out: list[tuple[str, str]] = []
    not_applicable: list[str] = []
    failed: list[tuple[str, str]] = []
    for rule in rules:
        try:
            result = rule.evaluate(case)
        except Exception as error:  # noqa: BLE001 - a bug in one rule must not hide the findings of others
            failed.append((rule.cause, f"{type(error).__name__}: {error}"))
            if log is not None:
                text = f"the diagnosis of {rule.cause} failed ({failed[-1][1]}); the others are not affected"
                log(Message("diagnosis_rule_failed", text))
            continue
        if isinstance(result, Finding):
            findings.append(result)
        elif isinstance(result, RuledOut):
            ruled_out.append((rule.cause, result.reason))
        else:
            not_applicable.append(rule.cause)
    if not findings and (fallback := recording_rules.FALLBACK.evaluate(case)) and isinstance(fallback, Finding):
        findings.append(fallback)
    findings = _remove_consequences(findings)
    # A finding without a loss does not explain why data is missing, however certain it is.
    # Nor does the number of missing ranges, if another finding has the reason.
    findings.sort(
        key=lambda one: (
            one.loss == NOTHING,
            one.cause == RANGES_MISSING,
            CERTAINTIES.index(one.certainty),
            LOSSES.index(one.loss),
        )
    )
    return Diagnosis(tuple(findings), tuple(ruled_out), tuple(not_applicable), tuple(failed))


def _remove_consequences(findings: list[Finding]) -> list[Finding]:
    consequences = {consequence for one in findings for consequence in _CONSEQUENCES.get(one.cause, ())}
    return [one for one in findings if one.cause not in consequences]


def diagnosis_to_dict(diagnosis: Diagnosis) -> dict[str, Any]:
    """Return it as in the JSON output."""
    return {
        "schema": SCHEMA,
        "findings": [{**asdict(one), "evidence": list(one.evidence)} for one in diagnosis.findings],
        "ruled_out": [{"cause": cause, "reason": reason} for cause, reason in diagnosis.ruled_out],
        "not_applicable": list(diagnosis.not_applicable),
        "failed_rules": [{"cause": cause, "error": error} for cause, error in diagnosis.failed_rules],
    }


def write_diagnosis(content: dict[str, Any], directory: Path) -> None:
    """Write the result of `diagnosis_to_dict` to `run.json`. If that fails, the run has printed it anyway."""
    with contextlib.suppress(OSError, TraceError):
        run_dir.write_json(directory / run_dir.MANIFEST, {**run_dir.load_manifest(directory), MANIFEST_KEY: content})
