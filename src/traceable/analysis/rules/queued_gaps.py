"""Findings about operations that had been launched and did not run, and about a host that is far ahead of the GPU.

docs/findings.md explains each bound.
"""

from __future__ import annotations

import numpy as np

from traceable.analysis.gaps import CAUSES
from traceable.analysis.gpus import unseen_graphs
from traceable.analysis.grouping import numbered
from traceable.analysis.intervals import Between, Union, covered_ns, lanes_of, merged, union
from traceable.analysis.named import operation_labels
from traceable.analysis.naming import QUEUE_FULL_OVERHEAD
from traceable.analysis.rules.evidence import LAUNCH_LATENCY_NS, Evidence, Finding, Rule, Threshold, Values, share_of
from traceable.analysis.rules.words import gpu, listed
from traceable.analysis.shared import overheads_like
from traceable.analysis.units import count, share, time
from traceable.errors import UnanswerableError
from traceable.trace.model import Bool, Int64
from traceable.trace.rows import distinct

_QUEUED = CAUSES.index("queued")


def queued_gaps(evidence: Evidence, _: Values) -> list[Finding]:
    """Return which GPUs ran nothing although the next operation had been launched, and nothing recorded says why.

    won_ns: the summed length of the gaps whose cause is `queued`. The operations become no shorter by beginning at
    once.
    """
    gaps = _queued(evidence)
    found = []
    for lane in distinct(gaps.lane).tolist():
        mine = gaps.take(gaps.lane == lane)
        length = evidence.inside_ns(mine.start_ns, mine.end_ns)
        before = int(evidence.before_ns(mine.start_ns, mine.end_ns).sum())
        longest, number = int(length.argmax()), int((length > 0).sum())
        device = evidence.device(lane)
        found.append(
            Finding(
                sentence=(
                    f"{gpu(device)} runs nothing for {time(int(length.sum()))} in {count(number, 'gap')} although "
                    f"the operation after each had been launched; the longest gap is {time(int(length[longest]))} at "
                    f"{int(mine.start_ns[longest]) / 1e9:.6f} s"
                ),
                advice=(
                    "look for what holds the GPU: another process on it (nvidia-smi), a host function or a wait in the "
                    "stream; on Windows, launches that the driver collects before it submits them"
                ),
                won_ns=int(length.sum()),
                total_ns=int((mine.end_ns - mine.start_ns).sum()),
                before_steady_ns=evidence.before_steady(before),
                device=device,
                pid=evidence.only_pid(lane),
                count=number,
                start_ns=int(mine.start_ns[longest]),
                end_ns=int(mine.end_ns[longest]),
            )
        )
    return found


def shared_gpu(evidence: Evidence, values: Values) -> list[Finding]:
    """Return which GPUs seem to run another process in turns with the recorded ones.

    Of the gaps whose cause is `queued` and which lie in the part that bounds are of, those count that do not belong to
    the program: less than `recurs` of the times that the operation before the gap was followed by the one after it (by
    name, on that GPU) there was such a gap. A GPU speaks if there are `gaps` of them or more, and `alike` or more of
    these last as long as the commonest of them, give or take `spread` of its length. The commonest is the one that most
    last as long as; of several the shortest.

    won_ns: the summed length of those that are alike: on a GPU of its own the operations begin at once.
    """
    found = []
    queued = _queued(evidence)
    queued = queued.take(evidence.inside_ns(queued.start_ns, queued.end_ns) == queued.end_ns - queued.start_ns)
    for lane in distinct(queued.lane).tolist():
        mine = queued.take(queued.lane == lane)
        mine = mine.take(_by_chance(evidence, lane, mine, values["recurs"]))
        length = np.sort(mine.end_ns - mine.start_ns)
        if not len(mine) or len(mine) < values["gaps"]:
            continue
        first = np.searchsorted(length, length - values["spread"] * length, "left")
        last = np.searchsorted(length, length + values["spread"] * length, "right")
        most = int(np.argmax(last - first))
        alike = length[first[most] : last[most]]
        if len(alike) < values["alike"] * len(mine):
            continue
        device = evidence.device(lane)
        found.append(
            Finding(
                sentence=(
                    f"{gpu(device)} is likely shared with another process: {len(alike)} of "
                    f"{count(len(mine), 'gap')} before operations that had been launched last {time(int(alike[0]))} to "
                    f"{time(int(alike[-1]))}, {time(int(alike.sum()))} in all, at places where there mostly is none"
                ),
                advice="see with nvidia-smi what else runs on this GPU, and record without it, or use MPS or MIG",
                won_ns=int(alike.sum()),
                device=device,
                pid=evidence.only_pid(lane),
                count=len(alike),
            )
        )
    return found


def launch_queue_full(evidence: Evidence, values: Values) -> list[Finding]:
    """Return which processes launch so far ahead of the GPU that their calls wait for room in the launch queue.

    A statement: what the host does while the GPU works costs nothing, and without the wait nothing would be earlier.
    """
    context = evidence.context
    trace, overheads = context.trace, context.trace.overheads
    which = overheads_like(context, QUEUE_FULL_OVERHEAD)
    if not len(which) and _KINDS_OF_OVERHEAD not in trace.source.tables:
        raise UnanswerableError(
            "launch_queue_not_recorded",
            "the recording does not tell whether the launch queue was full",
            "record with a current version of nsys",
        )
    found = []
    for process in distinct(overheads.process[which]).tolist():
        mine = which[overheads.process[which] == process]
        start, end = evidence.clipped(overheads.start_ns[mine], overheads.end_ns[mine])
        start, end = start[end > start], end[end > start]
        waits = merged(start, end)
        took = int(waits.total_ns()[0])
        if process < 0 or not took or took < values["share"] * evidence.window_ns:
            continue
        working = _working_shares(evidence, process, waits)
        free = bool(working) and min(part for _, part in working) >= _ALL_THE_TIME
        which_work = listed([f"{gpu(device)} works during {share(part)}" for device, part in working])
        found.append(
            Finding(
                sentence=(
                    f"process {evidence.pids[process]}: {count(len(start), 'call')} wait {time(took)} for room in "
                    f"the full launch queue, {share(took / max(1, evidence.window_ns))} of the time"
                    + (f"; {which_work} of that" if working else "")
                    + (": the host is ahead, and its time is free" if free else "")
                ),
                advice=(
                    "make the GPU's work shorter: faster host code wins nothing here"
                    if free
                    else "see in `--view streams` what runs meanwhile: the blocked thread launches nothing else"
                ),
                won_ns=None,
                pid=evidence.pids[process],
                count=len(start),
                start_ns=int(start.min()),
                end_ns=int(end.max()),
            )
        )
    return found


def _working_shares(evidence: Evidence, process: int, waits: Union) -> list[tuple[int | None, float]]:
    """Return the GPUs that a process used, and for which share of some times each ran anything."""
    operations = evidence.context.gpu
    busy = union(
        operations.start_ns,
        operations.end_ns,
        lanes_of(evidence.gpu_of_operation, len(evidence.used), operations.by_start),
    )
    found = []
    for lane in [lane for lane, users in enumerate(evidence.used.processes) if process in users]:
        ran = covered_ns(busy, np.full(len(waits.start_ns), lane), waits.start_ns, waits.end_ns).sum()
        found.append((evidence.device(lane), float(ran / waits.total_ns()[0])))
    return found


_ALL_THE_TIME = 0.99
"""From which share on a GPU works all the time that calls wait for room."""

_KINDS_OF_OVERHEAD = "ENUM_CUPTI_OVERHEAD_TYPE"
"""The table of an export whose profiler knows a full launch queue when it sees one."""


def _queued(evidence: Evidence) -> Between:
    """Return the gaps whose cause is `queued`.

    Raises:
        UnanswerableError: no launch is recorded, or graphs ran that left no operation.
    """
    if not (evidence.context.launched.call_of >= 0).any():
        raise UnanswerableError(
            "launches_not_recorded",
            "no launch call is recorded for any GPU operation",
            "record the launches too, with --trace=cuda,nvtx",
        )
    unseen = unseen_graphs(evidence.context)
    if unseen is not None:
        raise unseen
    gaps = evidence.gaps
    # Why a gap is there takes longest to say: shorter ones are never queued.
    which = gaps.end_ns - gaps.start_ns > LAUNCH_LATENCY_NS
    which[which] = evidence.causes(which) == _QUEUED
    return gaps.take(which)


def _by_chance(evidence: Evidence, lane: int, gaps: Between, recurs: float) -> Bool:
    """Return which gaps lie between operations that mostly follow each other without one."""
    context = evidence.context
    gpu = context.gpu
    rows: Int64 = gpu.by_start[evidence.gpu_of_operation[gpu.by_start] == lane]
    label = operation_labels(context, rows)
    pair, first = numbered(label[:-1], label[1:])
    place = np.empty(len(gpu), np.int64)
    place[rows] = np.arange(len(rows))
    of_gap = pair[place[gaps.after] - 1]
    often, with_gap = np.bincount(pair, minlength=len(first)), np.bincount(of_gap, minlength=len(first))
    chance: Bool = with_gap[of_gap] < recurs * often[of_gap]
    return chance


QUEUED_GAPS = Rule(
    "queued_gaps",
    "GPUs that run nothing although operations had been launched",
    (share_of(0.005),),
    queued_gaps,
)

SHARED_GPU = Rule(
    "shared_gpu",
    "GPUs that seem to work for another process in between",
    (
        Threshold("gaps", 10, "count", "fewest gaps before operations that had been launched"),
        Threshold("spread", 0.1, "share", "how much such gaps may differ from the commonest one to be alike"),
        Threshold("alike", 0.5, "share", "least share of them that are alike"),
        Threshold("recurs", 0.5, "share", "a gap is the program's own from this share of its occasions on"),
        share_of(0.005),
    ),
    shared_gpu,
)

LAUNCH_QUEUE_FULL = Rule(
    "launch_queue_full",
    "hosts that are so far ahead of the GPU that launches wait for room",
    (Threshold("share", 0.01, "share", "least time that calls wait for room, as a share of the recording"),),
    launch_queue_full,
)
