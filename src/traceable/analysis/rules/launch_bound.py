"""Findings about GPUs that do nothing: for want of launches, in general, and against other GPUs.

docs/findings.md explains each bound.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from traceable.analysis.gaps import CAUSES
from traceable.analysis.gpus import unseen_graphs
from traceable.analysis.grouping import numbered
from traceable.analysis.operations import KERNEL
from traceable.analysis.rules.evidence import Evidence, Finding, Rule, Threshold, Values, share_of
from traceable.analysis.rules.places import Places
from traceable.analysis.rules.words import gpu, listed, named
from traceable.analysis.statistics import totals
from traceable.analysis.units import count, share, time
from traceable.errors import UnanswerableError
from traceable.trace.model import Bool, Int64
from traceable.trace.rows import distinct

_LAUNCHING = (CAUSES.index("host_late"), CAUSES.index("launch_latency"))
_FLUSH = CAUSES.index("profiler_flush")

_CAUSES = {
    "module_loading": ("the driver was loading the code of kernels", "warm up, or set CUDA_MODULE_LOADING=EAGER"),
    "allocation": ("memory was being allocated", "allocate before, or use a caching allocator"),
    "synchronisation": ("the host waited for the GPU before it launched more", "let the host run ahead: wait later"),
    "waiting_copy": ("the host was copying", "copy from pinned memory, asynchronously, ahead of time"),
    "launch_latency": ("the launch took that long", "launch less: CUDA graphs, fused kernels, a larger batch"),
    "host_late": ("the host had not launched anything", "see in `--view gaps` what the host did, do it ahead"),
    "waiting_nccl": ("the GPU was about to run NCCL", "see in `--view gaps` which GPU came late"),
    "waiting_other_device": ("the GPU waited for another one", "see in `--view gaps` which operations wait"),
    "waiting_stream": ("the GPU waited for another stream", "see in `--view gaps` which streams wait for each other"),
    "queued": ("the GPU had work and did not run it", "see `queued_gaps`: another process, or waits in the stream"),
    "unknown": ("the trace does not tell why", "see `--view gaps`"),
}
"""What is said of the cause of most idle time, and what to do."""


def launch_bound(evidence: Evidence, values: Values) -> list[Finding]:
    """Return in which ranges a GPU waits for the launch of its next kernel again and again.

    A gap counts if it is at most `gap` long, its cause is that the host was late or launch latency, and the launch of
    the operation that ends it had not returned when the gap began: what had been launched waits for the GPU, not for
    the host. A range speaks for a GPU if such gaps are `idle` or more of their sum and the time of all its operations
    there, and its kernels last `kernel` or less on average. Ranges are paths: of a path and those inside it the
    deepest is named that still has four fifths of the gaps of the one around it.

    won_ns: the summed length of these gaps, as far as they lie in the part that bounds are of. The operations
    themselves become no shorter by being launched earlier.
    """
    context = evidence.context
    evidence.need_calls()
    call = context.launched.call_of[evidence.gaps.after]
    if not (context.launched.call_of >= 0).any():
        raise UnanswerableError(
            "launches_not_recorded",
            "no launch call is recorded for any GPU operation",
            "record the launches too, with --trace=cuda,nvtx",
        )
    gaps = evidence.gaps
    length = gaps.end_ns - gaps.start_ns
    late = (length <= 1_000 * values["gap"]) & (call >= 0)
    late[late] = context.launched.calls.end_ns[call[late]] > gaps.start_ns[late]
    least = values["share"] * evidence.window_ns
    # The causes of gaps are the most expensive part: they are computed only where they can matter.
    late &= totals(gaps.lane[late], evidence.gap_ns[late], len(evidence.used))[gaps.lane] >= least
    late[late] = np.isin(evidence.causes(late), _LAUNCHING)
    return [
        finding
        for lane in distinct(gaps.lane[late]).tolist()
        for finding in _launch_bound(evidence, values, lane, late & (gaps.lane == lane), least)
    ]


def _launch_bound(evidence: Evidence, values: Values, lane: int, late: Bool, least: float) -> Iterator[Finding]:
    context, gaps = evidence.context, evidence.gaps
    places = Places(context)
    here = evidence.gpu_of_operation == lane
    duration = evidence.inside_ns(context.gpu.start_ns, context.gpu.end_ns)
    kernels = here & (context.gpu.kind == KERNEL) & (duration > 0)
    idle = places.sums(gaps.after[late], evidence.gap_ns[late])
    number = places.sums(gaps.after[late & (evidence.gap_ns > 0)])
    whole = places.sums(gaps.after[late], (gaps.end_ns - gaps.start_ns)[late])
    before = places.sums(gaps.after[late], evidence.before_ns(gaps.start_ns[late], gaps.end_ns[late]))
    work = places.sums(np.flatnonzero(here), duration[here])
    kernel_ns, kernel_number = (
        places.sums(np.flatnonzero(kernels), duration[kernels]),
        places.sums(np.flatnonzero(kernels)),
    )
    for place in places.deepest(idle, least):
        mean = kernel_ns[place] / max(1, kernel_number[place])
        if not kernel_number[place] or mean > 1_000 * values["kernel"]:
            continue
        if idle[place] < values["idle"] * (idle[place] + work[place]):
            continue
        name, domain = places.range_of(place)
        device = evidence.device(lane)
        yield Finding(
            sentence=(
                f"{named(name)}: {gpu(device)} waits {time(int(idle[place]))} for launches in "
                f"{count(int(number[place]), 'gap')} of up to {time(1_000 * values['gap'])}, compared with "
                f"{time(int(work[place]))} of work in {count(int(kernel_number[place]), 'kernel')} of {time(mean)} on "
                "average"
            ),
            advice="launch more at once: a CUDA graph (torch.compile with mode='reduce-overhead'), or a larger batch",
            won_ns=int(idle[place]),
            total_ns=int(whole[place]),
            before_steady_ns=evidence.before_steady(int(before[place])),
            range=name,
            domain=domain,
            device=device,
            pid=evidence.only_pid(lane),
            count=int(number[place]),
        )


def low_utilisation(evidence: Evidence, values: Values) -> list[Finding]:
    """Return which GPUs are busy for less than `utilisation` of the time from their first operation to their last.

    won_ns: the time in which the GPU was idle, less the gaps that the profiler made: its operations remain. Those gaps
    do not count against its utilisation either. Both are of the part that bounds are of.
    """
    context = evidence.context
    unseen = unseen_graphs(context)
    if unseen is not None:
        raise unseen
    gaps = evidence.gaps
    idle, total = evidence.idle_ns, evidence.total_ns
    # What the profiler made idle can only raise it.
    low = np.flatnonzero(total - idle < values["utilisation"] * total)
    found_low = []
    for lane in low.tolist():
        mine = gaps.lane == lane
        cause = evidence.causes(mine)
        length, whole = evidence.gap_ns[mine], (gaps.end_ns - gaps.start_ns)[mine]
        before = evidence.before_ns(gaps.start_ns[mine], gaps.end_ns[mine])
        own = cause != _FLUSH
        won = int(length[own].sum())
        busy = int(total[lane] - idle[lane])
        if not won or busy >= values["utilisation"] * (busy + won):
            continue
        by_cause = totals(cause[own].astype(np.int64), length[own], len(CAUSES))
        most = int(by_cause.argmax())
        longest = int(np.where(own, length, -1).argmax())
        start, end = (times[mine][[longest]] for times in (gaps.start_ns, gaps.end_ns))
        (start,), (end,) = evidence.clipped(start, end)
        why, advice = _CAUSES[CAUSES[most]]
        device = evidence.device(lane)
        found_low.append(
            Finding(
                sentence=(
                    f"{gpu(device)} is busy {share(busy / (busy + won))} of {time(busy + won)} and idle {time(won)} in "
                    f"{count(int((own & (length > 0)).sum()), 'gap')}; for {time(int(by_cause[most]))} of that {why}; "
                    f"the longest gap is {time(int(length[longest]))} at {int(start) / 1e9:.6f} s"
                ),
                advice=advice,
                won_ns=won,
                total_ns=int(whole[own].sum()),
                before_steady_ns=evidence.before_steady(int(before[own].sum())),
                device=device,
                pid=evidence.only_pid(lane),
                count=int((own & (length > 0)).sum()),
                start_ns=int(start),
                end_ns=int(end),
            )
        )
    return found_low


def device_imbalance(evidence: Evidence, values: Values) -> list[Finding]:
    """Return whether one GPU works longer than the others.

    Work is the union of a GPU's operations but for kernels of NCCL, which run while they wait for other GPUs. GPUs
    that work less than `member` of what the busiest does take no part. It speaks if the least busy of those that do
    works `spread` less than the busiest, or more.

    won_ns: what the busiest works more than the mean of those that take part, step by step where steps are known: from
    the begin of each steady step of the process that has most of them to that of the next. With the same work shared
    out evenly within each step, each GPU takes the mean of the step.
    """
    if len(evidence.used) < 2:
        raise UnanswerableError(
            "single_gpu", "the recording has one GPU only", "record the processes of all GPUs together"
        )
    part = evidence.part
    work = _work_between(evidence, np.array([part.start_ns, part.end_ns]))[0]
    member = np.flatnonzero(work >= max(1.0, values["member"] * work.max()))
    if len(member) < 2 or work[member].min() > (1 - values["spread"]) * work.max():
        return []
    busiest, idlest = int(member[work[member].argmax()]), int(member[work[member].argmin()])
    mean = float(work[member].mean())
    by_step = _work_between(evidence, _step_bounds(evidence))[:, member]
    won = by_step.max(axis=1) - by_step.mean(axis=1)
    others = [f"{gpu(evidence.device(i))} {time(int(work[i]))}" for i in member.tolist() if i != busiest]
    listing = listed(others[:8]) + (f" and {count(len(others) - 8, 'other')}" if len(others) > 8 else "")
    return [
        Finding(
            sentence=(
                f"{gpu(evidence.device(idlest))} is busy {share(1 - work[idlest] / work[busiest])} less than "
                f"{gpu(evidence.device(busiest))} (excluding NCCL): {gpu(evidence.device(busiest))} works "
                f"{time(int(work[busiest]))}, {listing}; the mean is {time(mean)}"
            ),
            advice="distribute the work more evenly: the batch, the layers or the requests of each GPU",
            won_ns=int(won.sum()),
            device=evidence.device(busiest),
            pid=evidence.only_pid(busiest),
            count=len(member),
        )
    ]


def _step_bounds(evidence: Evidence) -> Int64:
    """Return the ends of the part that bounds are of and, between them, where the steady steps of one process begin."""
    part = evidence.part
    if part.unsteady:
        return np.array([part.start_ns, part.end_ns])
    steps = evidence.steps.values
    starts = steps["start_ns"][steps["steady"]]
    pid, first = numbered(steps["pid"][steps["steady"]])
    mine = starts[pid == int(np.bincount(pid, minlength=len(first)).argmax())]
    inside = mine[(mine > part.start_ns) & (mine < part.end_ns)]
    return distinct(np.concatenate([[part.start_ns], inside, [part.end_ns]]))


def _work_between(evidence: Evidence, bounds_ns: Int64) -> Int64:
    """Return how long each GPU worked from each of some times to the next, shape (times - 1, GPUs)."""
    gpus, times = len(evidence.used), len(bounds_ns) - 1
    lane = np.tile(np.arange(gpus), times)
    worked = evidence.working_ns(lane, np.repeat(bounds_ns[:-1], gpus), np.repeat(bounds_ns[1:], gpus))
    return worked.reshape(times, gpus)


LAUNCH_BOUND = Rule(
    "launch_bound",
    "small kernels that are over before the next is launched",
    (
        Threshold("gap", 100, "us", "longest gap that a launch explains; longer ones are other work of the host"),
        Threshold("kernel", 20, "us", "longest mean time of a kernel"),
        Threshold("idle", 0.2, "share", "least share of such gaps in them and the GPU's work together"),
        share_of(0.005),
    ),
    launch_bound,
)

LOW_UTILISATION = Rule(
    "low_utilisation",
    "GPUs that are idle much of the time",
    (
        Threshold("utilisation", 0.5, "share", "a GPU is busy enough from this share of its time on"),
        share_of(0.005),
    ),
    low_utilisation,
)

DEVICE_IMBALANCE = Rule(
    "device_imbalance",
    "GPUs that work longer than others",
    (
        Threshold("spread", 0.1, "share", "how much less than the busiest the least busy GPU works, at least"),
        Threshold("member", 0.05, "share", "a GPU takes part from this share of the busiest one's work on"),
        share_of(0.005),
    ),
    device_imbalance,
)
