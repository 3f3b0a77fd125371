"""Why a GPU was idle: one cause for each gap, from what the host did until the operation that ended it.

Most of a gap is half of it or more. The launch is the call that put the operation on the GPU which ends the gap. An
operation waited if its launch had returned for most of the gap, and for longer than a threshold, which is the time that
the GPU takes to begin an operation that it has. The causes are tried in this order, each on the evidence named, so that
every gap has exactly one:

- profiler_flush: the profiler's own work in the operation's process (rows of PROFILER_OVERHEAD that are known to be
  that: flushes of buffers, instrumentation, its own memory) covers most of the gap, and the launch had not returned
  before the gap began: what is queued on the GPU does not wait for the host.
- module_loading: the same for the driver's loading of the code of kernels, where it is recorded by name or, by
  profilers that have no name for it, as unknown overhead inside the first launch of a kernel; and where calls that load
  a module, made by the launching thread before the launch, cover most of the gap.
- allocation, synchronisation: calls of that kind, made by the launching thread before the launch, cover most of it.
- waiting_copy: the same for copying calls, which stage pageable memory on the host; and the launch itself counts where
  it copies from or to pageable memory.
- launch_latency: the launch itself covers most of the gap; or it began before the gap, and the operation did not wait.
- waiting_nccl: the operation waited and is a kernel of NCCL.
- waiting_other_device: it waited, and an operation on another device ended within the threshold before the gap's end.
- waiting_stream: it waited, and is on another stream than the operation before the gap.
- queued: it waited, and the GPU ran nothing that was recorded.
- host_late: the launch began after the gap began. There was nothing for the GPU to do.
- unknown: no launch is recorded.

Nothing here tells how much faster the program would be without a gap.
"""

from __future__ import annotations

import numpy as np

from traceable.analysis.context import Context
from traceable.analysis.intervals import Between, Blocks, covered_ns, lanes_of, touched, union
from traceable.analysis.naming import ALLOCATING, COPYING, LOADING, LOADING_OVERHEAD, PROFILING_OVERHEAD, SYNCHRONISING
from traceable.analysis.shared import calls_like, nccl_kernels, overheads_like
from traceable.trace.model import Bool, Int8, Int64
from traceable.trace.rows import distinct

CAUSES = (
    *("profiler_flush", "module_loading", "allocation", "synchronisation", "waiting_copy", "launch_latency"),
    *("waiting_nccl", "waiting_other_device", "waiting_stream", "queued", "host_late", "unknown"),
)
"""The causes, in the order in which they are tried. A gap holds the index of its own."""

CALLS_OF_CAUSE = {
    "module_loading": LOADING,
    "allocation": ALLOCATING,
    "synchronisation": SYNCHRONISING,
    "waiting_copy": COPYING,
}
"""The causes that lie in calls of the launching thread, and which calls these are."""

OVERHEADS_OF_CAUSE = {"profiler_flush": PROFILING_OVERHEAD, "module_loading": LOADING_OVERHEAD}
"""The causes that lie in overheads of the launching process, and which these are."""


def causes_of(context: Context, gaps: Between, gpu_of_operation: Int64, launch_latency_ns: int) -> Int8:
    """Return the cause of each gap, an index into CAUSES.

    Args:
        gaps: gaps of GPUs; `before` and `after` are operations of `context.gpu`.
        gpu_of_operation: the lane of each operation.
        launch_latency_ns: how long the GPU may take to begin an operation whose launch has returned.
    """
    cause = np.full(len(gaps), CAUSES.index("unknown"), np.int8)
    if not len(gaps):
        return cause
    host = _Host(context, gaps)
    length = gaps.end_ns - gaps.start_ns
    waited = (2 * host.since_launch_ns >= length) & (host.since_launch_ns > launch_latency_ns)
    waiting = np.flatnonzero(waited)
    operation = gaps.after[waiting]
    # Written from the last rule to the first, so that the first that holds counts.
    _set(cause, host.late, "host_late")
    _set(cause, waiting, "queued")
    _set(cause, waiting[context.gpu.stream[gaps.before[waiting]] != context.gpu.stream[operation]], "waiting_stream")
    _set(cause, waiting[_another_ended(context, gaps, waiting, gpu_of_operation, launch_latency_ns)], _OTHER)
    is_nccl = np.zeros(len(context.gpu), np.bool_)
    is_nccl[nccl_kernels(context)] = True
    _set(cause, waiting[is_nccl[operation]], "waiting_nccl")
    began_before = host.launched & ~host.late
    _set(cause, (began_before & ~waited) | (2 * host.in_launch_ns >= length), "launch_latency")
    for name in reversed(CALLS_OF_CAUSE):
        _set(cause, host.mostly_in(name), name)
    for name in reversed(OVERHEADS_OF_CAUSE):
        _set(cause, host.mostly_overhead(name), name)
    return cause


class _Host:
    """What the host did around each gap.

    Attributes:
        launched: whether the launch of the operation that ends the gap is recorded.
        begun_ns, ended_ns: of the launch; meaningless where not `launched`.
        late: whether it began after the gap began.
        in_launch_ns: how much of the gap the launch covers.
        since_launch_ns: how much of the gap lies after the launch returned; 0 where not `launched`.
    """

    def __init__(self, context: Context, gaps: Between) -> None:
        self.context, self.gaps = context, gaps
        calls = context.launched.calls
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
        since = gaps.end_ns - np.maximum(self.ended_ns, gaps.start_ns)
        np.maximum(since, 0, out=since)
        since *= self.launched
        self.since_launch_ns = since

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
        threads = self.context.launched.calls.thread[self.call[rows]]
        covered = covered_ns(inside, threads, gaps.start_ns[rows], until)
        covered += np.where(own[rows], self.in_launch_ns[rows], 0)
        return rows[2 * covered >= gaps.end_ns[rows] - gaps.start_ns[rows]]

    def mostly_overhead(self, name: str) -> Int64:
        """Return the gaps that overheads of a kind cover most of, and before which nothing had been launched."""
        gaps, overheads = self.gaps, self.context.trace.overheads
        which = overheads_like(self.context, OVERHEADS_OF_CAUSE[name])
        start, end = overheads.start_ns[which], overheads.end_ns[which]
        rows = np.flatnonzero(touched(gaps, start, end))
        rows = rows[~self.launched[rows] | (self.ended_ns[rows] > gaps.start_ns[rows])]
        lanes = lanes_of(overheads.process[which], len(self.context.trace.processes), np.arange(len(which)))
        process = self.context.gpu.process[gaps.after[rows]]
        begin, until = gaps.start_ns[rows], gaps.end_ns[rows]
        return rows[2 * covered_ns(union(start, end, lanes), process, begin, until) >= until - begin]


_OTHER = "waiting_other_device"


def _another_ended(context: Context, gaps: Between, which: Int64, gpu: Int64, within_ns: int) -> Bool:
    """Return where an operation of another GPU ended at most `within_ns` before the gap's end, and in the gap."""
    found = np.zeros(len(which), np.bool_)
    lanes = distinct(gaps.lane[which])
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
