"""A finding about GPUs that are idle because launches come too late. docs/findings.md explains the bound."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from traceable.analysis.gaps import CAUSES
from traceable.analysis.grouping import sum_groups
from traceable.analysis.operations import KERNEL
from traceable.checks.performance_rules.evidence import (
    Evidence,
    PerformanceRule,
    RangePaths,
    Threshold,
    Values,
    format_gpu,
    format_range_name,
    make_finding,
    make_share_threshold,
)
from traceable.errors import MissingDataError
from traceable.finding import Finding
from traceable.trace.model import Bool
from traceable.trace.rows import distinct
from traceable.units import format_count, format_duration

_LAUNCHING = (CAUSES.index("host_late"), CAUSES.index("launch_latency"))


def find_launch_bound_ranges(evidence: Evidence, values: Values) -> list[Finding]:
    """Return in which ranges a GPU waits for the launch of its next kernel again and again.

    A gap counts if it is at most `gap` long, its cause is `host_late` or `launch_latency`, and the launch of the
    operation that ends it had not returned when the gap began: an operation that was already launched waits for the
    GPU, not for the host. A range is reported for a GPU if such gaps are `idle` or more of their sum and the time of
    all its operations there, and its kernels last `kernel` or less on average. Ranges are paths: of a path and those
    inside it the deepest is reported that still has four fifths of the gaps of its parent.

    potential_saving_ns: the summed length of these gaps, within the scope. The operations
    themselves become no shorter by being launched earlier.
    """
    context = evidence.context
    evidence.require_calls()
    call = context.launches.call_of[evidence.gaps.after]
    if not (context.launches.call_of >= 0).any():
        raise MissingDataError(
            "launches_not_recorded",
            "no launch call is recorded for any GPU operation",
            "record the launches too, with --trace=cuda,nvtx",
        )
    gaps = evidence.gaps
    length = gaps.end_ns - gaps.start_ns
    late = (length <= 1_000 * values["gap"]) & (call >= 0)
    late[late] = context.launches.calls.end_ns[call[late]] > gaps.start_ns[late]
    least = values["share"] * evidence.scope_ns
    # The causes of gaps are the most expensive part: they are computed only where they can matter.
    late &= sum_groups(gaps.lane[late], evidence.gap_ns[late], len(evidence.active_gpus))[gaps.lane] >= least
    late[late] = np.isin(evidence.causes(late), _LAUNCHING)
    return [
        finding
        for lane in distinct(gaps.lane[late]).tolist()
        for finding in _launch_bound(evidence, values, lane, late & (gaps.lane == lane), least)
    ]


def _launch_bound(evidence: Evidence, values: Values, lane: int, late: Bool, least: float) -> Iterator[Finding]:
    context, gaps = evidence.context, evidence.gaps
    places = RangePaths(context)
    here = evidence.gpu_of_operation == lane
    duration = evidence.in_scope_ns(context.gpu.start_ns, context.gpu.end_ns)
    kernels = here & (context.gpu.kind == KERNEL) & (duration > 0)
    idle = places.sum_operations(gaps.after[late], evidence.gap_ns[late])
    number = places.sum_operations(gaps.after[late & (evidence.gap_ns > 0)])
    whole = places.sum_operations(gaps.after[late], (gaps.end_ns - gaps.start_ns)[late])
    before = places.sum_operations(gaps.after[late], evidence.before_steady_ns(gaps.start_ns[late], gaps.end_ns[late]))
    work = places.sum_operations(np.flatnonzero(here), duration[here])
    kernel_ns, kernel_number = (
        places.sum_operations(np.flatnonzero(kernels), duration[kernels]),
        places.sum_operations(np.flatnonzero(kernels)),
    )
    for place in places.find_deepest(idle, least):
        mean = kernel_ns[place] / max(1, kernel_number[place])
        if not kernel_number[place] or mean > 1_000 * values["kernel"]:
            continue
        if idle[place] < values["idle"] * (idle[place] + work[place]):
            continue
        name, domain = places.get_range(place)
        device = evidence.device_number(lane)
        yield make_finding(
            message=(
                f"{format_range_name(name)}: {format_gpu(device)} waits {format_duration(int(idle[place]))} for "
                f"launches in {format_count(int(number[place]), 'gap')} of up to "
                f"{format_duration(1_000 * values['gap'])}, compared with {format_duration(int(work[place]))} of work "
                f"in {format_count(int(kernel_number[place]), 'kernel')} of {format_duration(mean)} on average"
            ),
            fix="launch more at once: a CUDA graph (torch.compile with mode='reduce-overhead'), or a larger batch",
            potential_saving_ns=int(idle[place]),
            total_ns=int(whole[place]),
            before_steady_ns=evidence.before_steady_or_none(int(before[place])),
            range=name,
            domain=domain,
            device=device,
            pid=evidence.only_pid(lane),
            count=int(number[place]),
        )


LAUNCH_BOUND = PerformanceRule(
    "launch_bound",
    "small kernels that are over before the next is launched",
    (
        Threshold("gap", 100, "us", "longest gap that counts; longer ones are other work of the host"),
        Threshold("kernel", 20, "us", "longest mean time of a kernel"),
        Threshold("idle", 0.2, "share", "minimum share of such gaps in their sum with the GPU's work"),
        make_share_threshold(0.005),
    ),
    find_launch_bound_ranges,
)
