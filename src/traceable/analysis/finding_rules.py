"""What a rule of the findings is, what it finds, and what it looks at. The rules stand in `finding_*.py`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from traceable.analysis.context import Context
from traceable.analysis.finding_places import Labels
from traceable.analysis.gap_causes import causes_of
from traceable.analysis.gpus import Gpus, gpus, timelines
from traceable.analysis.grouping import numbered
from traceable.analysis.intervals import Between, Union, lanes_of, touched, union
from traceable.analysis.shared import nccl_kernels
from traceable.analysis.statistics import totals
from traceable.analysis.table import Table
from traceable.analysis.unrecorded import unrecorded, unrecorded_ns
from traceable.errors import UnanswerableError
from traceable.trace.model import Bool, Int8, Int64

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
    """One sentence about time that could be won, as the row of the answer; None where a column does not apply.

    Attributes:
        sentence: what, where and how much, with units.
        advice: the next thing to do, as an imperative clause.
        won_ns: the most that could be won, in ns of wall time.
        range, domain: the innermost range that it is about.
        device: nsys's number of the GPU; pid: the process.
        call: the API call that takes most of the time.
        count: of the things that the sentence counts.
        start_ns, end_ns: where one place in time matters.
    """

    sentence: str
    advice: str
    won_ns: int
    range: str | None = None
    domain: str | None = None
    device: int | None = None
    pid: int | None = None
    call: str | None = None
    count: int | None = None
    start_ns: int | None = None
    end_ns: int | None = None


Values = Mapping[str, float]
"""The thresholds of one rule, by name."""


@dataclass(frozen=True)
class Rule:
    """One rule.

    Attributes:
        name: stable; what `Finding`s are known by.
        question: what it answers, as half a sentence.
        thresholds: what decides whether it speaks. Each rule has `share` too: see `share_of`.
        find: returns what it finds, in any order; what wins less than `share` is left out later. Raises
            UnanswerableError where the trace can't support it.
    """

    name: str
    question: str
    thresholds: tuple[Threshold, ...]
    find: Callable[[Evidence, Values], list[Finding]]


def share_of(default: float) -> Threshold:
    """Return the threshold that every rule has: what wins less of the recording is not said."""
    return Threshold("share", default, "share", "least time to be won, as a share of the recording")


class Evidence:
    """What rules look at, each part computed once and only if a rule asks for it.

    Args:
        context: of the trace.
        ask: answers another question, by its name, as it is answered without options.

    Raises:
        UnanswerableError: the trace holds no GPU operations.
    """

    def __init__(self, context: Context, ask: Callable[[str], Table]) -> None:
        self.context = context
        self.ask = ask
        self.used: Gpus = gpus(context)
        self.gpu_of_operation = self.used.of_operation
        self.pids = tuple(process.pid for process in context.trace.processes)
        self._cause = np.empty(0, np.int8)

    @cached_property
    def window_ns(self) -> int:
        """Length of the recording: from its first event to the end of its last, the time between windows left out."""
        trace = self.context.trace
        start, end = trace.extent_ns() or (0, 0)
        return end - start - int(unrecorded_ns(trace, np.array([start]), np.array([end]))[0])

    @property
    def gaps(self) -> Between:
        """When each GPU was idle between its first and its last operation, but for gaps that span two windows."""
        return self._recorded_and_not[0]

    @cached_property
    def _recorded_and_not(self) -> tuple[Between, Between]:
        gaps = timelines(self.context).gaps
        across = touched(gaps, *unrecorded(self.context.trace))
        return gaps.take(~across) if across.any() else gaps, gaps.take(across)

    @cached_property
    def idle_ns(self) -> Int64:
        """Summed length of the gaps of each GPU."""
        return totals(self.gaps.lane, self.gaps.end_ns - self.gaps.start_ns, len(self.used))

    @cached_property
    def total_ns(self) -> Int64:
        """Of each GPU the time from the start of its first operation to the end of its last, as `window_ns`."""
        when, apart = timelines(self.context), self._recorded_and_not[1]
        return when.last_ns - when.first_ns - totals(apart.lane, apart.end_ns - apart.start_ns, len(self.used))

    def causes(self, which: Bool) -> Int8:
        """Return the causes of these gaps, as indices into `gap_causes.CAUSES`."""
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
        gpu = self.context.gpu
        lane = self.gpu_of_operation.copy()
        lane[nccl_kernels(self.context)] = -1
        return union(gpu.start_ns, gpu.end_ns, lanes_of(lane, len(self.used), gpu.by_start))

    def room_ns(self, process: int | None = None) -> int:
        """Return how much of the recording a process could be faster if the host took no time: its GPU's work remains.

        The length of the recording less the time in which the busiest of its GPUs ran its operations; for no process
        in particular, that of the process with the most room.
        """
        busiest = self._busiest_ns
        if process is not None:
            return self.window_ns - int(busiest[process])
        return self.window_ns - int(busiest[sorted({one for users in self.used.processes for one in users})].min())

    @cached_property
    def _busiest_ns(self) -> Int64:
        gpu, processes = self.context.gpu, len(self.pids)
        if all(len(users) == 1 for users in self.used.processes):
            busy, owner = self.total_ns - self.idle_ns, np.array(self.used.processes, np.int64)[:, 0]
        else:
            pair, first = numbered(gpu.process, self.gpu_of_operation)
            busy = union(gpu.start_ns, gpu.end_ns, lanes_of(pair, len(first), gpu.by_start)).total_ns()
            owner = gpu.process[first].astype(np.int64)
        found = np.zeros(processes, np.int64)
        np.maximum.at(found, owner, busy)
        return found

    def device(self, place: int) -> int | None:
        """Return the number of a GPU, given its place in `used`; None where the trace does not tell."""
        number = self.used.number[place]
        return number if number >= 0 else None

    @cached_property
    def labels(self) -> Labels:
        """The ranges by name and domain."""
        return Labels(self.context)

    def need_calls(self) -> None:
        """Raise UnanswerableError where the trace holds no API calls."""
        if not len(self.context.trace.calls):
            raise UnanswerableError("no CUDA API calls in the trace", "record with --trace=cuda,nvtx")

    def need_ranges(self) -> None:
        """Raise UnanswerableError where the trace holds no ranges."""
        if not len(self.context.trace.ranges):
            raise UnanswerableError("no ranges in the trace", "annotate the program and record with --trace=cuda,nvtx")
