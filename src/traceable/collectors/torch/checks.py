"""The rule of the diagnosis for torch.profiler."""

from __future__ import annotations

from traceable.finding import LIKELY, PROBLEM, Finding, Rule, RuleResult, rule_out

TYPE_CHECKING = False
if TYPE_CHECKING:
    from traceable.checks.case import Case


def diagnose_missing_torch_trace(case: Case) -> RuleResult:
    """The torch collector needs a program that imports torch and exits normally."""
    if case.directory is None:
        return None
    if case.recording is not None:
        return rule_out("torch.profiler left a trace")
    return Finding(
        "no_torch_trace",
        "torch.profiler left no trace",
        "let the program import torch and exit without a signal or os._exit, or use --collector recorder",
        PROBLEM,
        ("the run directory has no file of torch.profiler",),
        LIKELY,
    )


RULES = (Rule("no_torch_trace", diagnose_missing_torch_trace),)
