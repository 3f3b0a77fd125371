"""A finding about waits for locks and queues, as far as ranges are named after them. docs/findings.md explains it."""

from __future__ import annotations

import re

import numpy as np

from traceable.analysis.rules.evidence import Evidence, Finding, Rule, Threshold, Values, merged_ns, named, share_of
from traceable.analysis.steps import loader_waits
from traceable.analysis.units import often, share, time
from traceable.errors import UnanswerableError
from traceable.trace.rows import distinct

_WAIT = re.compile(
    r"(?<![a-z])(waits?|waiting|acquire|lock|mutex|semaphore|enqueue|dequeue|queue[\s._]*(get|put|wait)|(get|put)[\s._]*queue)(?![a-z])"
)


def is_wait(name: str) -> bool:
    """Return whether a range of this name is a wait for a lock or a queue.

    Examples:
        >>> [is_wait(name) for name in ("acquire lock", "queue.get", "waitForSlot", "unlock", "await_x", "block")]
        [True, True, True, False, False, False]
    """
    return _WAIT.search(re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).lower()) is not None


def lock_wait(evidence: Evidence, values: Values) -> list[Finding]:
    """Return which ranges wait much of their time in ranges that are called as waits are.

    won_ns: the time in which any of the waits lasted.
    """
    evidence.need_ranges()
    context = evidence.context
    instances, labels, names = context.found, evidence.labels, context.trace.names
    called = np.zeros(len(names), np.bool_)
    for index in distinct(instances.name).tolist():
        called[index] = is_wait(names[index])
    waits = called[instances.name] & instances.entered
    waits[loader_waits(context)] = False
    # A worker that waits for work is idle; inside a range the wait holds something up.
    waits &= (instances.parent >= 0) & ~np.append(waits, False)[instances.parent]
    rows = np.flatnonzero(waits)
    if not called.any():
        raise UnanswerableError(
            "no_lock_waits_recorded", "no range is called as a wait for a lock or a queue is", "annotate the waits"
        )
    process = np.array([thread.process for thread in context.trace.threads], np.int64)[instances.thread]
    label, around = labels.of_instance[rows], labels.of_instance[instances.parent[rows]]
    found = []
    for one, outer, of in sorted({*zip(label.tolist(), around.tolist(), process[rows].tolist(), strict=True)}):
        here = rows[(label == one) & (around == outer) & (process[rows] == of)]
        start, end = instances.start_ns[here], instances.end_ns[here]
        begin, until = evidence.clipped(start, end)
        inside = until > begin
        waited = int((until - begin).sum())
        holders = np.flatnonzero((labels.of_instance[:-1] == outer) & (process == of) & instances.entered)
        held = int(evidence.inside_ns(instances.start_ns[holders], instances.end_ns[holders]).sum())
        if not inside.any() or waited < values["wait"] * held:
            continue
        length = (end - start)[inside]
        name, domain = labels.names[one]
        took = merged_ns(begin, until)
        found.append(
            Finding(
                sentence=(
                    f"{named(labels.names[outer][0])}: {named(name)}, a wait by its name, takes "
                    f"{share(waited / max(1, held))} of its time: {often(len(length))}, "
                    f"{time(float(np.median(length)))} each (p50; {time(int(length.max()))} at most)"
                ),
                advice="look for who holds it meanwhile, in the ranges of the other threads",
                won_ns=took,
                total_ns=merged_ns(start, end),
                before_steady_ns=evidence.before_steady(merged_ns(*evidence.clipped_before(start, end))),
                range=name,
                domain=domain,
                pid=evidence.pids[of],
                count=len(length),
                start_ns=int(begin[inside].min()),
                end_ns=int(until[inside].max()),
            )
        )
    return found


LOCK_WAIT = Rule(
    "lock_wait",
    "waits for locks and queues, by the names of ranges",
    (Threshold("wait", 0.1, "share", "least share of the range around it that is waited"), share_of(0.005)),
    lock_wait,
    needs_gpu=False,
)
