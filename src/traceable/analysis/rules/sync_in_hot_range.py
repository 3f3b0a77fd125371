"""A finding about a host that waits for the GPU inside hot ranges. docs/findings.md explains the bound."""

from __future__ import annotations

import numpy as np

from traceable.analysis.grouping import numbered, totals
from traceable.analysis.named import call_name, operation_labels, operation_name
from traceable.analysis.naming import COPYING
from traceable.analysis.rules.evidence import (
    Evidence,
    Finding,
    Loads,
    Rule,
    Threshold,
    Values,
    listed,
    named,
    share_of,
    winnable_ns,
)
from traceable.analysis.sync import Waits, waited_for, waiting_calls
from traceable.analysis.units import count, share, time
from traceable.trace.model import Bool, Int64
from traceable.trace.rows import distinct


def sync_in_hot_range(evidence: Evidence, values: Values) -> list[Finding]:
    """Return in which ranges waits for the GPU take much of a range that takes much of the time.

    A range is hot if its instances last `hot` of the time or longer in all. It is reported if the waits in which it is
    the innermost range take `wait` of that time or more. What waits is the same as for `sync`; copies from or to
    pageable memory that do not recur (`Loads`) are left out.

    won_ns: the bound of `winnable_ns` for these waits.
    """
    evidence.need_calls()
    evidence.need_ranges()
    context = evidence.context
    waits = waiting_calls(context)
    if not len(waits):
        return []
    cpu_ns = _lasting_ns(evidence)
    label = evidence.labels.of_instance[context.innermost_around_calls(waits.call)]
    loads = Loads(evidence)
    found = []
    for one in distinct(label[label >= 0]).tolist():
        mine = np.flatnonzero(label == one)
        mine = mine[~loads.one_off(waits.own[mine])]
        waited = int(evidence.inside_ns(waits.start_ns[mine], waits.end_ns[mine]).sum())
        cpu = int(cpu_ns[one])
        if waited and waited >= values["wait"] * cpu and cpu >= values["hot"] * evidence.window_ns:
            found.append(_waiting(evidence, one, waits.take(mine), waited, cpu))
    return found


def _waiting(evidence: Evidence, label: int, waits: Waits, waited: int, cpu: int) -> Finding:
    names, calls = evidence.context.trace.names, evidence.context.trace.calls
    name, domain = evidence.labels.names[label]
    inside = evidence.inside_ns(waits.start_ns, waits.end_ns)
    some = inside > 0
    by_call: dict[str, int] = {}
    for index, ns in zip(calls.name[waits.call[some]].tolist(), inside[some].tolist(), strict=True):
        by_call[call_name(names[index])] = by_call.get(call_name(names[index]), 0) + ns
    most = sorted(by_call, key=lambda call: (-by_call[call], call))
    won, idle = winnable_ns(evidence, calls.thread[waits.call], waits.start_ns, waits.end_ns)
    operation, of_range = _longest_operation(evidence, waits.take(some))
    if operation is None:
        whom = "none of the operations that they wait for ran meanwhile"
    else:
        whom = f"mostly for {named(operation)}" + (f" of {named(of_range)}" if of_range is not None else "")
    return Finding(
        sentence=(
            f"{named(name)}: {count(int(some.sum()), 'wait')} in {listed(most[:3])} {_take(some)} {time(waited)}, "
            f"{share(waited / max(1, cpu))} of the range's time, {whom}; from these waits to the next ones the GPU is "
            f"idle {time(idle)} with no work queued"
        ),
        advice=_instead(most[0], operation),
        won_ns=won,
        total_ns=int((waits.end_ns - waits.start_ns).sum()),
        before_steady_ns=evidence.before_steady(int(evidence.before_ns(waits.start_ns, waits.end_ns).sum())),
        range=name,
        domain=domain,
        call=most[0],
        count=int(some.sum()),
    )


def _take(some: Bool) -> str:
    return "takes" if np.count_nonzero(some) == 1 else "take"


def _lasting_ns(evidence: Evidence) -> Int64:
    """Return how long the instances of each range last in all, by its number in `Labels`."""
    found, labels = evidence.context.found, evidence.labels
    real = np.flatnonzero(found.entered)
    lasting = evidence.inside_ns(found.start_ns[real], found.end_ns[real])
    return totals(labels.of_instance[real], lasting, len(labels.names))


def _longest_operation(evidence: Evidence, waits: Waits) -> tuple[str | None, str | None]:
    """Return the name of the operation that these waits were longest for, and its range; None where nothing ran."""
    context, labels = evidence.context, evidence.labels
    pieces = waited_for(context, waits)
    if not len(pieces.operation):
        return None, None
    name = operation_labels(context, pieces.operation)
    label = labels.of_instance[context.innermost[pieces.operation]]
    group, first = numbered(label, name)
    most = first[int(totals(group, pieces.ns, len(first)).argmax())]
    return operation_name(context.trace, int(name[most])), labels.names[label[most]][0]


def _instead(call: str, operation: str | None) -> str:
    if COPYING.match(call):
        return "copy from and to pinned memory, asynchronously, and wait only where the data is used"
    if operation is None:
        return "remove the wait: what it waits for is over by then"
    return "remove the wait, or wait later: an event, or the result one step later, lets the host run ahead"


SYNC_IN_HOT_RANGE = Rule(
    "sync_in_hot_range",
    "waits for the GPU inside ranges that take much of the time",
    (
        Threshold("hot", 0.1, "share", "a range is hot from this share of the time on"),
        Threshold("wait", 0.1, "share", "least share of the range's time that is waited"),
        share_of(0.005),
    ),
    sync_in_hot_range,
)
