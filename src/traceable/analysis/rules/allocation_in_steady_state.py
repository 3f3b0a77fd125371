"""A finding about memory that is allocated in the steady state. docs/findings.md explains the bound."""

from __future__ import annotations

import numpy as np

from traceable.analysis.grouping import numbered, totals
from traceable.analysis.intervals import merged
from traceable.analysis.named import call_name
from traceable.analysis.naming import ALLOCATING
from traceable.analysis.rules.evidence import (
    Evidence,
    Finding,
    Rule,
    Threshold,
    Values,
    contains,
    listed,
    merged_ns,
    named,
    share_of,
    winnable_ns,
)
from traceable.analysis.shared import calls_like
from traceable.analysis.units import count, time
from traceable.errors import UnanswerableError
from traceable.trace.model import Int64
from traceable.trace.rows import distinct


def allocation_in_steady_state(evidence: Evidence, values: Values) -> list[Finding]:
    """Return which processes allocate or release memory in the steps after the warm-up.

    Calls that allocate or release memory and begin during a steady step of their process, on whichever of its threads;
    `per_step` of them a steady step, or more. What steps are and which are steady is the question of steps.

    won_ns: the bound of `winnable_ns` for these calls.
    """
    evidence.need_calls()
    trace, calls = evidence.context.trace, evidence.context.trace.calls
    allocating = calls_like(evidence.context, ALLOCATING)
    if not len(allocating):
        return []
    steps = evidence.steps.values
    steady = steps["steady"]
    if not steady.any():
        raise UnanswerableError("no_steady_step", "no step is in the steady state", "record more steps")
    pid = np.array([trace.processes[thread.process].pid for thread in trace.threads], np.int64)
    of_call = pid[calls.thread[allocating]]
    found = []
    for one in distinct(steps["pid"][steady]).tolist():
        mine = steady & (steps["pid"] == one)
        inside = contains(merged(steps["start_ns"][mine], steps["end_ns"][mine]), calls.start_ns[allocating])
        call, number = allocating[inside & (of_call == one)], int(mine.sum())
        if len(call) and len(call) >= values["per_step"] * number:
            found.append(_allocation(evidence, one, call, number))
    return found


def _allocation(evidence: Evidence, pid: int, call: Int64, steps: int) -> Finding:
    trace, calls = evidence.context.trace, evidence.context.trace.calls
    start, end = calls.start_ns[call], calls.end_ns[call]
    took = merged_ns(start, end)
    name, first = numbered(calls.name[call])
    total = totals(name, end - start, len(first))
    order = np.argsort(-total, kind="stable")
    names = [call_name(trace.names[calls.name[call[first[i]]]]) for i in order.tolist()]
    often = np.bincount(name)[order].tolist()
    label = evidence.labels.of_instance[evidence.context.innermost_around_calls(call)]
    around, of_range = numbered(label)
    most = int(totals(around, end - start, len(of_range)).argmax())
    range_name, domain = evidence.labels.names[label[of_range[most]]]
    which = listed([f"{count(number)} of {one}" for one, number in list(zip(names, often, strict=True))[:3]])
    where = f", most of it in {named(range_name)}" if range_name is not None else ""
    return Finding(
        sentence=(
            f"process {pid} allocates or releases memory {count(len(call), 'time')} in "
            f"{count(steps, 'steady step')}, {len(call) / steps:.3g} a step ({which}), which takes {time(took)}{where}"
        ),
        advice="allocate before the steps and reuse it, or use a caching allocator",
        won_ns=winnable_ns(evidence, calls.thread[call], start, end)[0],
        range=range_name,
        domain=domain,
        pid=pid,
        call=names[0],
        count=len(call),
        start_ns=int(start.min()),
        end_ns=int(end.max()),
    )


ALLOCATION_IN_STEADY_STATE = Rule(
    "allocation_in_steady_state",
    "memory allocated or released in steps after the warm-up",
    (
        Threshold("per_step", 1, "count", "fewest such calls a steady step"),
        share_of(0.001),
    ),
    allocation_in_steady_state,
)
