"""A statement about time in which a thread had no range open. docs/findings.md explains when it is reported."""

from __future__ import annotations

import numpy as np

from traceable.analysis.grouping import number_groups, sum_groups
from traceable.analysis.intervals import Lanes, find_gaps, is_overlapping
from traceable.analysis.loop_blocks import find_blocks
from traceable.checks.performance_rules.evidence import Evidence
from traceable.checks.performance_rules.places import format_range_name
from traceable.checks.performance_rules.rule import (
    PerformanceRule,
    Threshold,
    Values,
    make_finding,
)
from traceable.finding import Finding
from traceable.protocol.nvtx import LOOP_DOMAIN
from traceable.trace.model import find_distinct
from traceable.units import format_count, format_duration, format_percent


def find_time_outside_ranges(evidence: Evidence, values: Values) -> list[Finding]:
    """Return the busiest thread of each process without GPU work, if much of its time is outside all ranges.

    No bound: nothing is recorded of that time.
    """
    evidence.require_ranges()
    context = evidence.context
    trace, instances = context.trace, context.instances
    process = evidence.process_of_thread
    # An event loop, or a thread whose GPU works meanwhile, may have nothing to do.
    others = np.isin(process, find_distinct(context.gpu.process))
    others[find_blocks(context).thread] = True
    start, end = evidence.clip_to_scope(instances.start_ns, instances.end_ns)
    of_thread = instances.thread
    some = instances.entered & (end > start) & ~others[of_thread]
    some &= instances.domain != trace.name_index(LOOP_DOMAIN)
    best: dict[int, tuple[int, Finding | None]] = {}
    for thread in find_distinct(of_thread[some]).tolist():
        rows = np.flatnonzero(some & (of_thread == thread))
        rows = rows[np.argsort(start[rows], kind="stable")]
        gaps = find_gaps(start, end, Lanes(rows, np.array([0, len(rows)])))
        gaps = gaps.take(~is_overlapping(gaps, *trace.windows.find_gaps()))
        outside = int((gaps.end_ns - gaps.start_ns).sum())
        first, last = int(start[rows].min()), int(end[rows].max())
        wall = evidence.measure_recorded_ns(first, last)
        covered = wall - outside
        here = int(process[thread])
        if here in best and best[here][0] >= covered:
            continue
        best[here] = covered, None
        if not outside or outside < values["outside"] * wall or outside < values["share"] * evidence.scope_ns:
            continue
        labels = evidence.labels.of_instance
        place, one = number_groups(labels[gaps.before], labels[gaps.after])
        most = int(np.argmax(sum_groups(place, gaps.end_ns - gaps.start_ns, len(one))))
        length = (gaps.end_ns - gaps.start_ns)[place == most]
        before, after = (evidence.labels.names[labels[side[one[most]]]][0] for side in (gaps.before, gaps.after))
        words = ("thread", trace.threads[thread].name or trace.processes[here].name, str(trace.threads[thread].tid))
        best[here] = (
            covered,
            make_finding(
                message=(
                    f"{' '.join(map(format_range_name, filter(None, words)))} is outside all ranges for "
                    f"{format_percent(outside / wall)} of {format_duration(wall)}: {format_duration(outside)} in "
                    f"{format_count(len(gaps), 'gap')}; most of it after {format_range_name(before)}, before "
                    f"{format_range_name(after)}: {format_count(len(length), 'gap')} of "
                    f"{format_duration(float(np.median(length)))} (p50)"
                ),
                fix=(
                    "annotate the code that runs there; a loop over traceable.steps(loader) records the time of the "
                    "loader"
                ),
                potential_saving_ns=None,
                total_ns=outside,
                range=before,
                pid=evidence.pids[here],
                count=len(gaps),
                start_ns=first,
                end_ns=last,
            ),
        )
    return [finding for _, finding in best.values() if finding is not None]


TIME_OUTSIDE_RANGES = PerformanceRule(
    "time_outside_ranges",
    "threads that are outside all ranges for much of the time",
    (
        Threshold("outside", 0.3, "share", "minimum share of the thread's time outside all ranges"),
        Threshold("share", 0.005, "share", "minimum such time, as a share of the steady part or the recording"),
    ),
    find_time_outside_ranges,
    view="ranges",
    needs_gpu=False,
)
