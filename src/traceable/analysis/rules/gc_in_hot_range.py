"""A finding about garbage collections inside ranges that take much of the time. docs/findings.md explains the bound."""

from __future__ import annotations

import numpy as np

from traceable.analysis.rules.evidence import Evidence, Finding, Rule, Threshold, Values, merged_ns, named, share_of
from traceable.analysis.units import count, share, time
from traceable.errors import UnanswerableError

GC_DOMAIN = "traceable.gc"
"""The domain of garbage collections: what `annotation.pauses` writes."""


def gc_in_hot_range(evidence: Evidence, values: Values) -> list[Finding]:
    """Return in which hot ranges Python collects garbage.

    won_ns: the time in which any of the collections lasted.
    """
    evidence.need_ranges()
    context = evidence.context
    instances, labels = context.found, evidence.labels
    rows = np.flatnonzero((instances.domain == context.trace.name_index(GC_DOMAIN)) & instances.entered)
    if not len(rows):
        raise UnanswerableError("gc_not_recorded", "no garbage collection in the trace", "record with --record-gc")
    process = np.array([thread.process for thread in context.trace.threads], np.int64)[instances.thread]
    trace = context.trace if context.trace.cut is None else context.trace.cut.whole
    generation = trace.ranges.payload[context.range_of_instance[rows]]
    parent = instances.parent[rows]
    label = labels.of_instance[parent]
    found = []
    for one, of in sorted({*zip(label[parent >= 0].tolist(), process[rows[parent >= 0]].tolist(), strict=True)}):
        here = np.flatnonzero((label == one) & (parent >= 0) & (process[rows] == of))
        start, end = instances.start_ns[rows[here]], instances.end_ns[rows[here]]
        around = np.flatnonzero((labels.of_instance[:-1] == one) & (process == of) & instances.entered)
        hot = evidence.any_ns(instances.start_ns[around], instances.end_ns[around])
        begin, until = evidence.clipped(start, end)
        inside = until > begin
        took = merged_ns(begin, until)
        if not inside.any() or hot < values["hot"] * evidence.window_ns:
            continue
        length, full = (end - start)[inside], int((generation[here][inside] == 2).sum())
        name, domain = labels.names[one]
        found.append(
            Finding(
                sentence=(
                    f"{named(name)}: {count(len(length), 'garbage collection')} ({count(full)} of generation 2) take "
                    f"{time(took)}, {share(took / max(1, hot))} of the range's time; {time(int(length.max()))} at most"
                ),
                advice="call gc.freeze() after the setup, collect where nobody waits (gc.disable(), gc.collect())",
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


GC_IN_HOT_RANGE = Rule(
    "gc_in_hot_range",
    "garbage collections inside ranges that take much of the time",
    (
        Threshold("hot", 0.1, "share", "a range is hot from this share of the time on"),
        share_of(0.005),
    ),
    gc_in_hot_range,
    needs_gpu=False,
)
