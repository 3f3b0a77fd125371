"""A finding about loops that wait for the next item: a data loader, or whatever `traceable.steps` iterates over.

docs/findings.md explains the bound.
"""

from __future__ import annotations

import numpy as np

from traceable.analysis.rules.evidence import Evidence, Finding, Rule, Threshold, Values, merged_ns, share_of
from traceable.analysis.steps import loader_waits
from traceable.analysis.units import often, share, time
from traceable.errors import UnanswerableError
from traceable.trace.rows import distinct


def loader_wait(evidence: Evidence, values: Values) -> list[Finding]:
    """Return which processes wait much of the time for the next item of their loop.

    won_ns: the time in which any of the waits lasted; of a process that uses a GPU no more than the host can win at all
    (`Evidence.room_ns`).
    """
    evidence.need_ranges()
    context = evidence.context
    waits, instances = loader_waits(context), context.found
    if not len(waits):
        raise UnanswerableError(
            "no_loader_waits_recorded",
            "no wait for the next item of a loop in the trace",
            "iterate over traceable.steps(loader)",
        )
    process = np.array([thread.process for thread in context.trace.threads], np.int64)[instances.thread[waits]]
    found = []
    for one in distinct(process).tolist():
        start, end = instances.start_ns[waits[process == one]], instances.end_ns[waits[process == one]]
        begin, until = evidence.clipped(start, end)
        inside = until > begin
        took = merged_ns(begin, until)
        if not inside.any() or took < values["wait"] * evidence.window_ns:
            continue
        length = (end - start)[inside]
        name = context.trace.names[instances.name[waits[process == one][0]]]
        uses_gpu = len(context.gpu) > 0 and bool((context.gpu.process == one).any())
        found.append(
            Finding(
                sentence=(
                    f"process {evidence.pids[one]}: the loop waits for its next item {often(len(length))}, "
                    f"{time(float(np.median(length)))} each (p50; {time(int(length.max()))} at most), "
                    f"{share(took / max(1, evidence.window_ns))} of the time"
                ),
                advice=(
                    "load ahead of the loop: DataLoader(num_workers=..., prefetch_factor=...), "
                    "or a thread that fills a queue"
                ),
                won_ns=min(took, evidence.room_ns(one)) if uses_gpu else took,
                total_ns=merged_ns(start, end),
                before_steady_ns=evidence.before_steady(merged_ns(*evidence.clipped_before(start, end))),
                range=name,
                pid=evidence.pids[one],
                count=len(length),
                start_ns=int(begin[inside].min()),
                end_ns=int(until[inside].max()),
            )
        )
    return found


LOADER_WAIT = Rule(
    "loader_wait",
    "loops that wait for their next item",
    (Threshold("wait", 0.1, "share", "least share of the time that is waited"), share_of(0.005)),
    loader_wait,
    needs_gpu=False,
)
