"""What a rule of the findings is, what it finds, and what it looks at. The rules stand in `analysis/rules/`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from traceable.analysis.context import Context
from traceable.analysis.gaps import causes_of
from traceable.analysis.gpus import Gpus, gpus, timelines
from traceable.analysis.grouping import numbered
from traceable.analysis.intervals import Between, Union, covered_ns, lanes_of, merged, touched, union
from traceable.analysis.rules.places import Labels
from traceable.analysis.shared import nccl_kernels
from traceable.analysis.statistics import totals
from traceable.analysis.table import Table
from traceable.analysis.unrecorded import unrecorded, unrecorded_ns
from traceable.errors import UnanswerableError
from traceable.trace.model import NULL, Bool, Float64, Int8, Int64

LAUNCH_LATENCY_NS = 20_000
"""Up to which length a gap is explained by the latency of a launch: what the question of gaps takes."""


@dataclass(frozen=True)
class Threshold:
    """A number that decides whether a rule speaks.

    Attributes:
        name: within its rule; `rule.name` on the command line.
        default: in `unit`; never negative.
        unit: `bytes`, `us`, `share` (of 1) or `count`.
        meaning: half a sentence.
    """

    name: str
    default: float
    unit: str
    meaning: str


@dataclass(frozen=True)
class Finding:
    """One sentence about time that could be saved, as a row of the result; None where a column does not apply.

    Attributes:
        sentence: what, where and how much, with units; its numbers are of the part that the bound is of.
        advice: the next thing to do, as an imperative clause.
        won_ns: an upper bound on the wall time that can be saved, in ns, within `Evidence.part`; 0 or less where the
            rule saw the same outside of that part only. None for a statement, which promises nothing: its rule decides
            what is worth stating.
        total_ns: how long what the finding is about lasted in the whole recording (waits, copies, gaps, ...).
        before_steady_ns: how much of `total_ns` lies before the steady part; None where no such part is known.
        range, domain: the innermost range that it is about.
        device: nsys's number of the GPU; pid: the process.
        call: the API call that takes most of the time.
        count: of the things that the sentence counts.
        start_ns, end_ns: where one place in time matters.
    """

    sentence: str
    advice: str
    won_ns: int | None
    total_ns: int | None = None
    before_steady_ns: int | None = None
    range: str | None = None
    domain: str | None = None
    device: int | None = None
    pid: int | None = None
    call: str | None = None
    count: int | None = None
    start_ns: int | None = None
    end_ns: int | None = None


def merged_ns(start_ns: Int64, end_ns: Int64) -> int:
    """Return for how long any of the intervals lasts."""
    some = end_ns > start_ns
    return int(merged(start_ns[some], end_ns[some]).total_ns()[0])


Values = Mapping[str, float]
"""The thresholds of one rule, by name."""


@dataclass(frozen=True)
class Rule:
    """One rule.

    Attributes:
        name: stable; what `Finding`s are known by.
        question: what it answers, as half a sentence.
        thresholds: what decides whether it speaks. Each rule has `share` too: see `share_of`.
        find: returns its findings, in any order; those with a bound under `share` are dropped later. Raises
            UnanswerableError where the trace can't support it.
        needs_gpu: whether it looks at GPU operations; without any it is not asked.
    """

    name: str
    question: str
    thresholds: tuple[Threshold, ...]
    find: Callable[[Evidence, Values], list[Finding]]
    needs_gpu: bool = True


def share_of(default: float) -> Threshold:
    """Return the threshold that every rule has: findings with a lower bound are not reported."""
    return Threshold("share", default, "share", "least bound, as a share of the time that bounds are of")


STEADY, RECORDING = "steady", "recording"
"""What bounds are of: the steady part, or the whole recording where no steady part is known."""


@dataclass(frozen=True)
class Part:
    """The time that bounds are of.

    Attributes:
        start_ns, end_ns: of the steady part (`steps.steady_window`), or from the first event to the end of the last.
        unsteady: why no steady part is known; None for a steady part.
    """

    start_ns: int
    end_ns: int
    unsteady: UnanswerableError | None = None

    @property
    def kind(self) -> str:
        """STEADY or RECORDING."""
        return RECORDING if self.unsteady else STEADY


class Evidence:
    """What rules look at, each part computed once and only if a rule asks for it.

    Args:
        context: of the trace.
        ask: answers another question, by its name, as it is answered without options.
    """

    def __init__(self, context: Context, ask: Callable[[str], Table]) -> None:
        self.context = context
        self.ask = ask
        self.pids = tuple(process.pid for process in context.trace.processes)
        self._cause = np.empty(0, np.int8)

    @cached_property
    def used(self) -> Gpus:
        """The GPUs that ran anything.

        Raises:
            UnanswerableError: the trace holds no GPU operations.
        """
        return gpus(self.context)

    @cached_property
    def gpu_of_operation(self) -> Int64:
        """The place of each operation's GPU in `used`."""
        return self.used.of_operation

    @cached_property
    def steps(self) -> Table:
        """The steps, without options.

        Raises:
            UnanswerableError: no steps are known.
        """
        return self.ask("steps")

    @cached_property
    def part(self) -> Part:
        """The time that bounds are of."""
        # Loaded only where a rule has something to bound: finding steps takes longer than reading a small recording.
        from traceable.analysis.steps import steady_window

        try:
            return Part(*steady_window(self.steps))
        except UnanswerableError as error:
            return Part(*self.extent_ns, unsteady=error)

    @cached_property
    def extent_ns(self) -> tuple[int, int]:
        """The start of the first event of the recording and the end of the last."""
        return self.context.trace.extent_ns() or (0, 0)

    @cached_property
    def window_ns(self) -> int:
        """Length of the part that bounds are of, the time between windows excluded."""
        return self.recorded_ns(self.part.start_ns, self.part.end_ns)

    def recorded_ns(self, start_ns: int, end_ns: int) -> int:
        """Return the length of a time, that between windows excluded."""
        outside = unrecorded_ns(self.context.trace, np.array([start_ns]), np.array([end_ns]))
        return end_ns - start_ns - int(outside[0])

    def clipped(self, start_ns: Int64, end_ns: Int64) -> tuple[Int64, Int64]:
        """Return what of intervals lies in the part that bounds are of; one that lies outside is empty."""
        start = np.clip(start_ns, self.part.start_ns, self.part.end_ns)
        return start, np.maximum(start, np.minimum(end_ns, self.part.end_ns))

    def clipped_before(self, start_ns: Int64, end_ns: Int64) -> tuple[Int64, Int64]:
        """Return what of intervals lies before the steady part; all are empty where no steady part is known."""
        until = NULL if self.part.unsteady else self.part.start_ns
        return np.minimum(start_ns, until), np.minimum(end_ns, until)

    def inside_ns(self, start_ns: Int64, end_ns: Int64) -> Int64:
        """Return how much of each interval lies in the part that bounds are of."""
        start, end = self.clipped(start_ns, end_ns)
        length: Int64 = end - start
        return length

    def inside_share(self, start_ns: Int64, end_ns: Int64) -> Float64:
        """Return which share of each interval lies in the part that bounds are of; an empty one is in it or not."""
        length = end_ns - start_ns
        within = (start_ns >= self.part.start_ns) & (start_ns < self.part.end_ns)
        return np.where(length > 0, self.inside_ns(start_ns, end_ns) / np.maximum(1, length), within)

    def before_ns(self, start_ns: Int64, end_ns: Int64) -> Int64:
        """Return how much of each interval lies before the steady part; 0 where no steady part is known."""
        start, end = self.clipped_before(start_ns, end_ns)
        length: Int64 = end - start
        return length

    def any_ns(self, start_ns: Int64, end_ns: Int64) -> int:
        """Return in how much of the part that bounds are of any of the intervals lasts."""
        return merged_ns(*self.clipped(start_ns, end_ns))

    def before_steady(self, ns: int) -> int | None:
        """Return a sum of `before_ns` as the column of a finding: None where no steady part is known."""
        return None if self.part.unsteady else ns

    @property
    def gaps(self) -> Between:
        """When each GPU was idle between its first and its last operation, but for gaps that span two windows.

        They are whole, in or outside the part that bounds are of: `gap_ns` is what a bound may count.
        """
        return self._recorded_and_not[0]

    @cached_property
    def _recorded_and_not(self) -> tuple[Between, Between]:
        gaps = timelines(self.context).gaps
        across = touched(gaps, *unrecorded(self.context.trace))
        return gaps.take(~across) if across.any() else gaps, gaps.take(across)

    @cached_property
    def gap_ns(self) -> Int64:
        """How much of each gap lies in the part that bounds are of."""
        return self.inside_ns(self.gaps.start_ns, self.gaps.end_ns)

    @cached_property
    def idle_ns(self) -> Int64:
        """Summed length of the gaps of each GPU in the part that bounds are of."""
        return totals(self.gaps.lane, self.gap_ns, len(self.used))

    @cached_property
    def total_ns(self) -> Int64:
        """Of each GPU the time from its first operation to the end of its last, within the part that bounds are of."""
        when, apart = timelines(self.context), self._recorded_and_not[1]
        whole = self.inside_ns(when.first_ns, when.last_ns)
        return whole - totals(apart.lane, self.inside_ns(apart.start_ns, apart.end_ns), len(self.used))

    def causes(self, which: Bool) -> Int8:
        """Return the causes of these gaps, as indices into `gaps.CAUSES`."""
        if not len(self._cause):
            self._cause = np.full(len(self.gaps), -1, np.int8)
        missing = np.flatnonzero(which & (self._cause < 0))
        if len(missing):
            found = causes_of(self.context, self.gaps.take(missing), self.gpu_of_operation, LAUNCH_LATENCY_NS)
            self._cause[missing] = found
        return self._cause[which]

    @cached_property
    def working(self) -> Union:
        """When each GPU ran anything but kernels of NCCL, which wait for other GPUs while they run."""
        return self._union(self.gpu_of_operation, len(self.used))

    def working_ns(self, gpu: Int64, start_ns: Int64, end_ns: Int64) -> Int64:
        """Return how much of each time a GPU, given its place in `used`, ran anything but kernels of NCCL."""
        return covered_ns(self.working, gpu, start_ns, end_ns)

    def room_ns(self, process: int | None = None) -> int:
        """Return how much shorter the part that bounds are of could be if the host took no time.

        Its length less the time in which the busiest GPU of a process worked for it: that work remains. NCCL's kernels
        are no such work, because they may wait for a GPU that waits for the host. For no process in particular, that of
        the process with the most room.
        """
        busiest = self._busiest_ns
        if process is not None:
            return self.window_ns - int(busiest[process])
        return self.window_ns - int(busiest[sorted({one for users in self.used.processes for one in users})].min())

    @cached_property
    def _busiest_ns(self) -> Int64:
        gpu, processes = self.context.gpu, len(self.pids)
        if all(len(users) == 1 for users in self.used.processes):
            worked, owner = self.working, np.array(self.used.processes, np.int64)[:, 0]
        else:
            pair, first = numbered(gpu.process, self.gpu_of_operation)
            worked, owner = self._union(pair, len(first)), gpu.process[first].astype(np.int64)
        lanes = np.arange(len(worked))
        start, end = (np.full(len(lanes), time) for time in (self.part.start_ns, self.part.end_ns))
        found = np.zeros(processes, np.int64)
        np.maximum.at(found, owner, covered_ns(worked, lanes, start, end))
        return found

    def _union(self, lane: Int64, lanes: int) -> Union:
        gpu, lane = self.context.gpu, lane.copy()
        lane[nccl_kernels(self.context)] = -1
        return union(gpu.start_ns, gpu.end_ns, lanes_of(lane, lanes, gpu.by_start))

    def device(self, place: int) -> int | None:
        """Return the number of a GPU, given its place in `used`; None where the trace does not tell."""
        number = self.used.number[place]
        return number if number >= 0 else None

    def only_pid(self, place: int) -> int | None:
        """Return the process that used a GPU, given its place in `used`, where it was one."""
        users = self.used.processes[place]
        return self.pids[users[0]] if len(users) == 1 else None

    @cached_property
    def labels(self) -> Labels:
        """The ranges by name and domain."""
        return Labels(self.context)

    def need_calls(self) -> None:
        """Raise UnanswerableError where the trace holds no API calls."""
        if not len(self.context.trace.calls):
            raise UnanswerableError(
                "no_calls_recorded", "no CUDA API calls in the trace", "record with --trace=cuda,nvtx"
            )

    def need_ranges(self) -> None:
        """Raise UnanswerableError where the trace holds no ranges."""
        if not len(self.context.found):
            raise UnanswerableError(
                "no_ranges_recorded", "no ranges in the trace", "annotate the program and record with --trace=cuda,nvtx"
            )
