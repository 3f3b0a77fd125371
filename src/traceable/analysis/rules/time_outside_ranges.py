"""A statement about time in which a thread had no range open. docs/findings.md says when it speaks."""

from __future__ import annotations

import numpy as np

from traceable.analysis.grouping import numbered, totals
from traceable.analysis.intervals import Lanes, between, touched
from traceable.analysis.loop_blocks import blocks
from traceable.analysis.pauses import LOOP_DOMAIN
from traceable.analysis.recording_gaps import unrecorded
from traceable.analysis.rules.evidence import Evidence, Finding, Rule, Threshold, Values, named, share_of
from traceable.analysis.units import count, share, time
from traceable.trace.rows import distinct


def time_outside_ranges(evidence: Evidence, values: Values) -> list[Finding]:
    """Return the busiest thread of each process without GPU work, if much of its time lies in no range.

    No bound: what happens there is not recorded.
    """
    evidence.need_ranges()
    context = evidence.context
    trace, instances = context.trace, context.found
    process = np.array([thread.process for thread in trace.threads], np.int64)
    # An event loop, or a thread whose GPU works meanwhile, may have nothing to do.
    others = np.isin(process, distinct(context.gpu.process))
    others[blocks(context).thread] = True
    start, end = evidence.clipped(instances.start_ns, instances.end_ns)
    of_thread = instances.thread
    some = instances.entered & (end > start) & ~others[of_thread]
    some &= instances.domain != trace.name_index(LOOP_DOMAIN)
    best: dict[int, tuple[int, Finding | None]] = {}
    for thread in distinct(of_thread[some]).tolist():
        rows = np.flatnonzero(some & (of_thread == thread))
        rows = rows[np.argsort(start[rows], kind="stable")]
        gaps = between(start, end, Lanes(rows, np.array([0, len(rows)])))
        gaps = gaps.take(~touched(gaps, *unrecorded(trace)))
        outside = int((gaps.end_ns - gaps.start_ns).sum())
        first, last = int(start[rows].min()), int(end[rows].max())
        wall = evidence.recorded_ns(first, last)
        covered = wall - outside
        here = int(process[thread])
        if here in best and best[here][0] >= covered:
            continue
        best[here] = covered, None
        if not outside or outside < values["outside"] * wall or outside < values["share"] * evidence.window_ns:
            continue
        labels = evidence.labels.of_instance
        place, one = numbered(labels[gaps.before], labels[gaps.after])
        most = int(np.argmax(totals(place, gaps.end_ns - gaps.start_ns, len(one))))
        length = (gaps.end_ns - gaps.start_ns)[place == most]
        before, after = (evidence.labels.names[labels[side[one[most]]]][0] for side in (gaps.before, gaps.after))
        words = ("thread", trace.threads[thread].name or trace.processes[here].name, str(trace.threads[thread].tid))
        best[here] = (
            covered,
            Finding(
                sentence=(
                    f"{' '.join(map(named, filter(None, words)))} is in no range for {share(outside / wall)} of "
                    f"{time(wall)}: {time(outside)} in {count(len(gaps), 'gap')}; most of it after {named(before)}, "
                    f"before {named(after)}: {count(len(length), 'gap')} of {time(float(np.median(length)))} (p50)"
                ),
                advice="annotate what runs there; a loop over traceable.steps(loader) records what the loader takes",
                won_ns=None,
                total_ns=outside,
                range=before,
                pid=evidence.pids[here],
                count=len(gaps),
                start_ns=first,
                end_ns=last,
            ),
        )
    return [finding for _, finding in best.values() if finding is not None]


TIME_OUTSIDE_RANGES = Rule(
    "time_outside_ranges",
    "threads that are in no range for much of the time",
    (
        Threshold("outside", 0.3, "share", "least share of the thread's time that is in no range"),
        share_of(0.005),
    ),
    time_outside_ranges,
    needs_gpu=False,
)
