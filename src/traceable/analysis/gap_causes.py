"""Why a GPU was idle: one cause for each gap, from what the host did until the operation that ended it.

Most of a gap is half of it or more. The launch is the call that put the operation on the GPU which ends the gap. The
causes are tried in this order, each on the evidence named, so that every gap has exactly one:

- profiler_flush: the profiler's own work in the operation's process (any row of PROFILER_OVERHEAD: flushes of buffers,
  but also what it does when a library is loaded) covers most of the gap, and the launch had not returned before the gap
  began: what is queued on the GPU does not wait for the profiler's side of the host.
- allocation, synchronisation: calls of that kind, made by the launching thread before the launch, cover most of it.
- waiting_copy: the same for copying calls, which stage pageable memory on the host; and the launch itself counts where
  it copies from or to pageable memory.
- launch_latency: the launch itself covers most of the gap, as where it first loads a kernel's code; or the launch began
  before the gap and the gap is short (a threshold), which is what the GPU takes to begin an operation it has.
- host_late: the launch began after the gap began. There was nothing for the GPU to do.
- waiting_nccl: the operation is a kernel of NCCL, which had been launched long before.
- waiting_other_device: an operation on another device ended within the threshold before the gap's end.
- waiting_stream: the operation is on another stream than the one before the gap.
- unknown: no launch is recorded, or none of these explains why a launched operation waited.

Nothing here tells how much faster the program would be without a gap.
"""

from __future__ import annotations

import numpy as np

from traceable.analysis.context import Context
from traceable.analysis.intervals import Between, Blocks, covered_ns, lanes_of, touched, union
from traceable.analysis.naming import ALLOCATING, COPYING, SYNCHRONISING
from traceable.analysis.shared import calls_like, nccl_kernels
from traceable.trace.model import Bool, Int8, Int64

CAUSES = (
    *("profiler_flush", "allocation", "synchronisation", "waiting_copy", "launch_latency"),
    *("host_late", "waiting_nccl", "waiting_other_device", "waiting_stream", "unknown"),
)
"""The causes, in the order in which they are tried. A gap holds the index of its own."""

CALLS_OF_CAUSE = {"allocation": ALLOCATING, "synchronisation": SYNCHRONISING, "waiting_copy": COPYING}
"""The causes that lie in calls of the launching thread, and which calls these are."""


def causes_of(context: Context, gaps: Between, gpu_of_operation: Int64, launch_latency_ns: int) -> Int8:
    """Return the cause of each gap, an index into CAUSES.

    Args:
        gaps: gaps of GPUs; `before` and `after` are operations of `context.gpu`.
        gpu_of_operation: the lane of each operation.
        launch_latency_ns: up to which length a gap is explained by the latency of a launch.
    """
    cause = np.full(len(gaps), CAUSES.index("unknown"), np.int8)
    if not len(gaps):
        return cause
    host = _Host(context, gaps)
    length = gaps.end_ns - gaps.start_ns
    pending = host.launched & ~host.late
    short = length <= launch_latency_ns
    waiting = np.flatnonzero(pending & ~short)
    operation = gaps.after[waiting]
    # Written from the last rule to the first, so that the first that holds counts.
    _set(cause, waiting[context.gpu.stream[gaps.before[waiting]] != context.gpu.stream[operation]], "waiting_stream")
    _set(cause, waiting[_another_ended(context, gaps, waiting, gpu_of_operation, launch_latency_ns)], _OTHER)
    _set(cause, waiting[np.isin(operation, nccl_kernels(context))], "waiting_nccl")
    _set(cause, host.late, "host_late")
    short &= pending
    short |= 2 * host.in_launch_ns >= length
    _set(cause, short, "launch_latency")
    for name in ("waiting_copy", "synchronisation", "allocation"):
        _set(cause, host.mostly_in(name), name)
    _set(cause, host.mostly_profiler(), "profiler_flush")
    return cause


class _Host:
    """What the host did around each gap.

    Attributes:
        launched: whether the launch of the operation that ends the gap is recorded.
        begun_ns, ended_ns: of the launch; meaningless where not `launched`.
        late: whether it began after the gap began.
        in_launch_ns: how much of the gap the launch covers.
    """

    def __init__(self, context: Context, gaps: Between) -> None:
        self.context, self.gaps = context, gaps
        calls = context.trace.calls
        self.call = context.launched.call_of[gaps.after]
        self.launched = self.call >= 0
        if self.launched.any():
            self.begun_ns, self.ended_ns = calls.start_ns[self.call], calls.end_ns[self.call]
        else:
            self.begun_ns = self.ended_ns = self.call.astype(np.int64)
        self.late = self.launched & (self.begun_ns > gaps.start_ns)
        inside = np.minimum(self.ended_ns, gaps.end_ns)
        inside -= np.maximum(self.begun_ns, gaps.start_ns)
        np.maximum(inside, 0, out=inside)
        inside *= self.launched
        self.in_launch_ns = inside

    def mostly_in(self, name: str) -> Int64:
        """Return the gaps that calls of a kind cover most of, made by the launching thread before the launch."""
        trace, gaps = self.context.trace, self.gaps
        which = calls_like(self.context, CALLS_OF_CAUSE[name])
        own = np.zeros(len(gaps), np.bool_)
        if name == "waiting_copy":
            # Kernels, which nearly all are, stand first among the operations and copy nothing.
            copies = np.flatnonzero(self.launched & (gaps.after >= len(trace.kernels)))
            own[copies] = self.context.gpu.pageable_bytes(gaps.after[copies]) > 0
        if not len(which) and not own.any():
            return which
        start, end, thread = trace.calls.start_ns[which], trace.calls.end_ns[which], trace.calls.thread[which]
        # No call lies between the begin of the gap and that of a launch before it.
        rows = np.flatnonzero((touched(gaps, start, end) & self.late) | own)
        inside = union(start, end, lanes_of(thread, len(trace.threads), np.arange(len(which))))
        until = np.minimum(self.begun_ns[rows], gaps.end_ns[rows])
        threads = trace.calls.thread[self.call[rows]]
        covered = covered_ns(inside, threads, gaps.start_ns[rows], until)
        covered += np.where(own[rows], self.in_launch_ns[rows], 0)
        return rows[2 * covered >= gaps.end_ns[rows] - gaps.start_ns[rows]]

    def mostly_profiler(self) -> Int64:
        """Return the gaps that the profiler's own work covers most of, and before which nothing had been launched."""
        gaps, overheads = self.gaps, self.context.trace.overheads
        rows = np.flatnonzero(touched(gaps, overheads.start_ns, overheads.end_ns))
        rows = rows[~self.launched[rows] | (self.ended_ns[rows] > gaps.start_ns[rows])]
        lanes = lanes_of(overheads.process, len(self.context.trace.processes), np.arange(len(overheads)))
        own = union(overheads.start_ns, overheads.end_ns, lanes)
        process = self.context.gpu.process[gaps.after[rows]]
        start, end = gaps.start_ns[rows], gaps.end_ns[rows]
        return rows[2 * covered_ns(own, process, start, end) >= end - start]


_OTHER = "waiting_other_device"


def _another_ended(context: Context, gaps: Between, which: Int64, gpu: Int64, within_ns: int) -> Bool:
    """Return where an operation of another GPU ended at most `within_ns` before the gap's end, and in the gap."""
    found = np.zeros(len(which), np.bool_)
    lanes = np.unique(gaps.lane[which])
    if not len(lanes) or (gpu == lanes[0]).all():
        return found
    ends, until = context.gpu.end_ns, gaps.end_ns[which]
    # Exclusive of the gap's begin: what ended then, or before, was no reason to wait.
    since = np.maximum(gaps.start_ns[which], until - within_ns - 1)
    near = Blocks(context.gpu.start_ns, ends).near(since, until)
    near = near[np.argsort(ends[near], kind="stable")]
    ends, gpu = ends[near], gpu[near]
    for lane in lanes.tolist():
        here = np.flatnonzero(gaps.lane[which] == lane)
        others = ends[gpu != lane]
        found[here] = np.searchsorted(others, until[here], "right") > np.searchsorted(others, since[here], "right")
    return found


def _set(cause: Int8, which: Bool | Int64, name: str) -> None:
    cause[which] = CAUSES.index(name)
