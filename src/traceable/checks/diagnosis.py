"""A run or a report, afterwards: why data is missing.

Each rule evaluates the facts of one `Case` and finds its cause, rules it out, or does not apply. docs/diagnosis.md
describes the causes and how each is detected.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from traceable.checks import gpu_rules, range_rules, recording_rules
from traceable.checks.case import Case
from traceable.checks.completeness import RANGES_MISSING
from traceable.errors import Message
from traceable.finding import CERTAINTIES, NOTE, OK, SEVERITIES, Finding, Rule

SCHEMA = "traceable.diagnosis/2"
MANIFEST_KEY = "diagnosis"
"""The key of the diagnosis in `run.json` and `report.json`."""

RULES: tuple[Rule, ...] = (*recording_rules.RULES, *range_rules.RULES, *gpu_rules.RULES)
"""The rules for every collector; those for a single one are its own (`Collector.list_rules`)."""

FALLBACK = recording_rules.FALLBACK
"""Is evaluated if no rule finds a cause."""

_NOTHING_RECORDED = ("nothing_annotated", "nothing_entered", "process_not_recorded")
_CONSEQUENCES = {
    "annotations_disabled": _NOTHING_RECORDED,
    "environment_scrubbed": _NOTHING_RECORDED,
    "exec": ("nothing_annotated", "nothing_entered"),
    "forked_child": ("nothing_annotated", "nothing_entered"),
    "nvtx_not_traced": _NOTHING_RECORDED,
    "nsys_never_attached": _NOTHING_RECORDED,
    "nvtx_package_incompatible": ("nothing_annotated", "nothing_entered"),
    "process_not_recorded": ("nothing_annotated", "nothing_entered"),
    "program_failed": (*_NOTHING_RECORDED, "no_cuda_context"),
    "level_too_low": _NOTHING_RECORDED,
    "tail_lost": (*_NOTHING_RECORDED, "program_failed"),
    "closed_before_first_range": (*_NOTHING_RECORDED, "no_cuda_context"),
    "cupti_taken": ("no_cuda_context",),
    "driver_too_old": ("no_cuda_context",),
    "driver_too_new": ("no_cuda_context",),
}
"""The symptoms of each cause, which are not causes of their own then."""


@dataclass(frozen=True)
class Diagnosis:
    """The result of all rules.

    Attributes:
        findings: the most certain first, then the most severe; those without a loss come last.
        ruled_out: the causes that are ruled out, each with the reason as its message.
        not_applicable: names of the rules about whose causes nothing is known.
        failed_rules: the rules that raised, each with the error as its message: bugs of traceable.
    """

    findings: tuple[Finding, ...]
    ruled_out: tuple[Finding, ...] = ()
    not_applicable: tuple[str, ...] = ()
    failed_rules: tuple[Finding, ...] = ()

    @property
    def problems(self) -> tuple[Finding, ...]:
        """The findings because of which something is missing."""
        return tuple(finding for finding in self.findings if finding.severity != NOTE)

    @property
    def as_dict(self) -> dict[str, Any]:
        """The diagnosis, fit for JSON."""
        return {
            "schema": SCHEMA,
            "findings": [finding.as_dict for finding in self.findings],
            "ruled_out": [finding.as_dict for finding in self.ruled_out],
            "not_applicable": list(self.not_applicable),
            "failed_rules": [finding.as_dict for finding in self.failed_rules],
        }


def diagnose(case: Case, log: Callable[[str], None] | None = None) -> Diagnosis:
    """Evaluate every rule on a case.

    Args:
        case: the facts.
        log: is called with one line for each rule that failed.
    """
    findings: list[Finding] = []
    ruled_out: list[Finding] = []
    not_applicable: list[str] = []
    failed: list[Finding] = []
    for rule in (*RULES, *case.collector.list_rules()):
        try:
            results = rule.run(case)
        except Exception as error:  # noqa: BLE001 - a bug in one rule must not hide the findings of others
            message = f"rule {rule.name} failed: {type(error).__name__}: {error}; the others are not affected"
            fix = "report this to traceable's authors"
            failed.append(Finding("diagnosis_rule_failed", message, fix, NOTE, check=rule.name))
            if log is not None:
                log(Message("diagnosis_rule_failed", message))
            continue
        findings += [finding for finding in results if finding.severity != OK]
        ruled_out += [finding for finding in results if finding.severity == OK]
        not_applicable += [] if results else [rule.name]
    findings = findings or list(FALLBACK.run(case))
    consequences = {code for finding in findings for code in _CONSEQUENCES.get(finding.code, ())}
    findings = [finding for finding in findings if finding.code not in consequences]
    # A finding without a loss does not explain why data is missing, however certain it is.
    # Nor does the number of missing ranges, if another finding has the reason.
    findings.sort(
        key=lambda finding: (
            finding.severity == NOTE,
            finding.code == RANGES_MISSING,
            CERTAINTIES.index(finding.certainty),
            -SEVERITIES.index(finding.severity),
        )
    )
    return Diagnosis(tuple(findings), tuple(ruled_out), tuple(not_applicable), tuple(failed))
