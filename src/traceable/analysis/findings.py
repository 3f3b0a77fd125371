"""The tenth question: where is time to be won, in sentences with numbers and the place.

Each rule is one object; what it says, when it is silent and how the time is estimated stands in docs/findings.md. The
rules themselves stand in `finding_copies`, `finding_waits` and `finding_idle`. Nothing here measures anything.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from traceable.analysis.context import Context
from traceable.analysis.finding_copies import PAGEABLE_COPIES, SMALL_H2D_COPIES
from traceable.analysis.finding_idle import DEVICE_IMBALANCE, LAUNCH_BOUND, LOW_UTILISATION
from traceable.analysis.finding_rules import Evidence, Finding, Rule
from traceable.analysis.finding_waits import ALLOCATION_IN_STEADY_STATE, SYNC_IN_HOT_RANGE
from traceable.analysis.table import Table, objects
from traceable.errors import UnanswerableError, UsageError
from traceable.trace.model import NULL, NDArray

RULES: tuple[Rule, ...] = (
    *(SMALL_H2D_COPIES, PAGEABLE_COPIES, SYNC_IN_HOT_RANGE, ALLOCATION_IN_STEADY_STATE),
    *(LAUNCH_BOUND, LOW_UTILISATION, DEVICE_IMBALANCE),
)
"""The rules, in the order of the documentation."""

FOUND, NOTHING, UNSUPPORTED = "found", "nothing", "unsupported"
"""What became of a rule."""

NOT_ADDITIVE = "several findings may be about the same time: what each could win at most must not be added up"

_UNKNOWN_REMEDY = "`--view findings` lists the rules and their thresholds"


def findings(
    context: Context,
    *,
    thresholds: Mapping[str, float] | None = None,
    ask: Callable[[str], Table] | None = None,
) -> Table:
    """Return what the rules find, most time to be won first.

    Args:
        thresholds: numbers that decide whether a rule speaks, by `rule.name`; for the rest the defaults hold.
        ask: answers another question, by its name, as it is answered without options: for a caller that keeps answers.

    Returns:
        One row a finding. `won_ns` is the most wall time that could be won, and `won_share` its share of the recording,
        from the first event to the last; no finding exceeds that. Findings overlap: their times must not be added up.
        `others["rules"]` has one row a rule: the thresholds that held, what became of it, and why where the trace does
        not support it.

    Raises:
        UsageError: a threshold that there is not, or a value that is no number from 0 on.
        UnanswerableError: the trace supports none of the rules.
    """
    values = checked(thresholds or {})
    evidence = Evidence(context, ask or (lambda question: _asked(context, question)))
    found: list[tuple[Rule, Finding]] = []
    refused: dict[str, UnanswerableError] = {}
    for rule in RULES:
        try:
            said = rule.find(evidence, values[rule.name])
        except UnanswerableError as error:
            refused[rule.name] = error
            continue
        found += [(rule, one) for one in said if _worth_saying(evidence, values[rule.name], one)]
    if len(refused) == len(RULES):
        raise next(iter(refused.values()))
    found.sort(key=lambda pair: -_won_ns(evidence, pair[1]))
    notes = (NOT_ADDITIVE,) if found else (_nothing(len(RULES) - len(refused), len(refused)),)
    rules = _rules(values, refused, [rule.name for rule, _ in found])
    return Table(_columns(evidence, found), {"rules": rules}, notes)


def checked(thresholds: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """Return the thresholds of each rule, the defaults where nothing else is said.

    Raises:
        UsageError: there is no such rule or threshold, or the value is no number from 0 on.
    """
    values = {rule.name: {one.name: float(one.default) for one in rule.thresholds} for rule in RULES}
    known = [f"{rule}.{name}" for rule, names in values.items() for name in names]
    for full, value in thresholds.items():
        if full not in known:
            import difflib

            near = difflib.get_close_matches(full, known, n=1)
            mean = f"did you mean {near[0]}? " if near else ""
            raise UsageError(f"no rule has a threshold {full!r}", f"{mean}there are {', '.join(known)}")
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
            raise UsageError(f"{value!r} is no value for {full}", f"give a number from 0 on, {_unit(full)}")
        rule, _, name = full.partition(".")
        values[rule][name] = float(value)
    return values


def _asked(context: Context, question: str) -> Table:
    ask = getattr(importlib.import_module(f"traceable.analysis.{question}"), question)
    answer: Table = ask(context)
    return answer


def _unit(full: str) -> str:
    rule, _, name = full.partition(".")
    units = {"us": "in microseconds", "bytes": "in bytes", "share": "as a share of 1", "count": "a count"}
    return next(units[one.unit] for r in RULES if r.name == rule for one in r.thresholds if one.name == name)


def _won_ns(evidence: Evidence, finding: Finding) -> int:
    """Return what could be won: nothing wins more than there is."""
    return min(finding.won_ns, evidence.window_ns)


def _worth_saying(evidence: Evidence, values: Mapping[str, float], finding: Finding) -> bool:
    won = _won_ns(evidence, finding)
    return won > 0 and won >= values["share"] * evidence.window_ns


def _columns(evidence: Evidence, found: Sequence[tuple[Rule, Finding]]) -> dict[str, NDArray[Any]]:
    won = np.array([_won_ns(evidence, one) for _, one in found], np.int64)
    words = {"sentence", "advice", "range", "domain", "call"}
    columns: dict[str, NDArray[Any]] = {"rule": objects(rule.name for rule, _ in found)}
    for field in fields(Finding):
        values = [getattr(one, field.name) for _, one in found]
        if field.name == "won_ns":
            columns["won_ns"] = won
            columns["won_share"] = won / max(1, evidence.window_ns)
        elif field.name in words:
            columns[field.name] = objects(values)
        else:
            columns[field.name] = np.array([NULL if value is None else value for value in values], np.int64)
    return columns


def _rules(
    values: Mapping[str, Mapping[str, float]], refused: Mapping[str, UnanswerableError], found: Sequence[str]
) -> Table:
    states = [UNSUPPORTED if rule.name in refused else FOUND if rule.name in found else NOTHING for rule in RULES]
    errors = [refused.get(rule.name) for rule in RULES]
    return Table(
        {
            "rule": objects(rule.name for rule in RULES),
            "question": objects(rule.question for rule in RULES),
            "state": objects(states),
            "findings": np.array(
                [NULL if rule.name in refused else found.count(rule.name) for rule in RULES], np.int64
            ),
            "reason": objects(error.found if error else None for error in errors),
            "remedy": objects(error.remedy if error else None for error in errors),
            "thresholds": objects([f"{name}={value:g}" for name, value in values[rule.name].items()] for rule in RULES),
        }
    )


def _nothing(looked: int, refused: int) -> str:
    rest = f"; the recording does not support {refused} more" if refused else ""
    return f"{looked} {'rule' if looked == 1 else 'rules'} looked, and found nothing{rest}"
