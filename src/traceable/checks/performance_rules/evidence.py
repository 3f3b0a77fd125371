"""Performance rules and their findings, and the evidence and formatting that the rules share.

Places in the program are ranges by name, and the tree of range paths with sums of their content. Names that differ only
by a number are one place: `layers.0` to `layers.31` are `layers.*`, with one finding about them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from traceable.analysis.cached_queries import cache_per_context, find_nccl_kernels
from traceable.analysis.context import Context
from traceable.analysis.gaps import CAUSES, classify_gaps
from traceable.analysis.gpus import Gpus, check_graphs_recorded, compute_timelines, find_gpus
from traceable.analysis.grouping import number_groups, sum_groups
from traceable.analysis.interval_index import expand_slices
from traceable.analysis.intervals import (
    Gaps,
    Union,
    build_lanes,
    measure_covered_ns,
    merge_intervals,
    overlaps_any,
    union_by_lane,
)
from traceable.analysis.labels import number_ranges, strip_call_version
from traceable.analysis.memory import ASYNCHRONOUS, SYNCHRONOUS, MemoryOperations, find_memory_operations
from traceable.analysis.name_patterns import fold_numbers
from traceable.analysis.operations import DIRECTIONS, GRAPH, KERNEL
from traceable.analysis.recording_gaps import find_unrecorded_spans, measure_unrecorded_ns
from traceable.analysis.steps import find_steady_interval
from traceable.analysis.sync import find_waiting_calls
from traceable.analysis.table import Table
from traceable.errors import MissingDataError
from traceable.finding import CERTAIN, NOTE, WARNING, Finding
from traceable.trace.model import NULL, Bool, Float64, Int8, Int64, NDArray
from traceable.trace.rows import distinct

LAUNCH_LATENCY_NS = 20_000
"""Maximum length of a gap explained by launch latency; the same as in the view `gaps`."""

_QUEUED = CAUSES.index("queued")

H2D, D2H = DIRECTIONS.index("h2d"), DIRECTIONS.index("d2h")

Values = Mapping[str, float]
"""The thresholds of one rule, by name."""

STEADY, RECORDING = "steady", "recording"
"""The scope of bounds: the steady part, or the whole recording if no steady part is known."""

MIN_CHILD_SHARE = 0.8
"""A range inside another is reported instead if it has this share of the other's sum."""

TRIM_DIVISOR = 20
"""Of the time of the copies, the first and the last part of so many may lie anywhere."""

RECURRENCE_DIVISOR = 10
"""Copies do not recur if between the rest of them the GPUs do less than one part in so many of their kernels' time."""

_LONGEST_NAME = 80


@dataclass(frozen=True)
class Threshold:
    """A number that decides whether a rule reports a finding.

    Attributes:
        name: within its rule; `rule.name` on the command line.
        default: in `unit`; never negative.
        unit: `bytes`, `us`, `share` (of 1) or `count`.
        description: half a sentence.
    """

    name: str
    default: float
    unit: str
    description: str


@dataclass(frozen=True)
class PerformanceRule:
    """One performance rule.

    Attributes:
        name: stable; the code of its findings.
        description: what it detects, as half a sentence.
        thresholds: decide whether it reports a finding. Each rule has `share` too: see `make_share_threshold`.
        find: returns its findings, made by `make_finding`, in any order; those with a bound under `share` are dropped
            later. Raises MissingDataError if the trace can't support it.
        needs_gpu: whether it uses GPU operations; without any it is not run.
    """

    name: str
    description: str
    thresholds: tuple[Threshold, ...]
    find: Callable[[Evidence, Values], list[Finding]]
    needs_gpu: bool = True

    def run(self, evidence: Evidence, values: Values) -> list[Finding]:
        """Return its findings.

        Raises:
            MissingDataError: the trace can't support it.
        """
        if self.needs_gpu:
            _ = evidence.active_gpus
        return [replace(finding, code=self.name, check=self.name) for finding in self.find(evidence, values)]


def make_finding(
    *,
    message: str,
    fix: str,
    potential_saving_ns: int | None,
    certainty: str = CERTAIN,
    total_ns: int | None = None,
    before_steady_ns: int | None = None,
    range: str | None = None,  # noqa: A002 - the name of the column
    domain: str | None = None,
    device: int | None = None,
    pid: int | None = None,
    call: str | None = None,
    count: int | None = None,
    start_ns: int | None = None,
    end_ns: int | None = None,
) -> Finding:
    """Return a finding about time that could be saved; its data become columns, None where one does not apply.

    Args:
        message: what, where and how much, with units; its numbers are of the scope.
        fix: the next thing to do, as an imperative clause.
        potential_saving_ns: an upper bound on the wall time that can be saved, in ns, within `Evidence.scope`; 0 or
            less if the rule saw the same outside the scope only. None for a statement, which promises nothing: its
            rule decides what is worth reporting.
        certainty: whether it is measured (`certain`), or concluded from names or patterns (`likely`).
        total_ns: how long what the finding is about lasted in the whole recording (waits, copies, gaps, ...).
        before_steady_ns: how much of `total_ns` lies before the steady part; None if no such part is known.
        range: name of the innermost range that it is about.
        domain: its domain.
        device: nsys's number of the GPU.
        pid: the process.
        call: the API call that takes most of the time.
        count: of the things that the message counts.
        start_ns: where one place in time matters, its begin.
        end_ns: its end.
    """
    data = {
        "potential_saving_ns": potential_saving_ns,
        "total_ns": total_ns,
        "before_steady_ns": before_steady_ns,
        "range": range,
        "domain": domain,
        "device": device,
        "pid": pid,
        "call": call,
        "count": count,
        "start_ns": start_ns,
        "end_ns": end_ns,
    }
    severity = NOTE if potential_saving_ns is None else WARNING
    return Finding("", message, fix, severity, certainty=certainty, data=data)


@dataclass(frozen=True)
class Scope:
    """The time to which bounds refer.

    Attributes:
        start_ns, end_ns: of the steady part (`steps.find_steady_interval`), or from the first event to the end of the
            last.
        unsteady_reason: why no steady part is known; None for a steady part.
    """

    start_ns: int
    end_ns: int
    unsteady_reason: MissingDataError | None = None

    @property
    def kind(self) -> str:
        """STEADY or RECORDING."""
        return RECORDING if self.unsteady_reason else STEADY


class Evidence:
    """The data that rules use, each part computed once and only if needed.

    Args:
        context: of the trace.
        get_view: returns the table of another view, by its name, without options.
    """

    def __init__(self, context: Context, get_view: Callable[[str], Table]) -> None:
        self.context = context
        self.get_view = get_view
        self.pids = tuple(process.pid for process in context.trace.processes)
        self._cause = np.empty(0, np.int8)

    @cached_property
    def active_gpus(self) -> Gpus:
        """The GPUs that ran anything.

        Raises:
            MissingDataError: the trace holds no GPU operations.
        """
        return find_gpus(self.context)

    @cached_property
    def gpu_of_operation(self) -> Int64:
        """The place of each operation's GPU in `active_gpus`."""
        return self.active_gpus.gpu_of_operation

    @cached_property
    def steps(self) -> Table:
        """The steps, without options.

        Raises:
            MissingDataError: no steps are known.
        """
        return self.get_view("steps")

    @cached_property
    def scope(self) -> Scope:
        """The time to which bounds refer."""
        try:
            return Scope(*find_steady_interval(self.steps))
        except MissingDataError as error:
            return Scope(*self.extent_ns, unsteady_reason=error)

    @cached_property
    def extent_ns(self) -> tuple[int, int]:
        """The start of the first event of the recording and the end of the last."""
        return self.context.trace.extent_ns() or (0, 0)

    @cached_property
    def scope_ns(self) -> int:
        """Length of the scope, the time between windows excluded."""
        return self.recorded_ns(self.scope.start_ns, self.scope.end_ns)

    def recorded_ns(self, start_ns: int, end_ns: int) -> int:
        """Return the length of a time, that between windows excluded."""
        outside = measure_unrecorded_ns(self.context.trace, np.array([start_ns]), np.array([end_ns]))
        return end_ns - start_ns - int(outside[0])

    def clip_to_scope(self, start_ns: Int64, end_ns: Int64) -> tuple[Int64, Int64]:
        """Return what of intervals lies in the scope; one that lies outside is empty."""
        start = np.clip(start_ns, self.scope.start_ns, self.scope.end_ns)
        return start, np.maximum(start, np.minimum(end_ns, self.scope.end_ns))

    def clip_before_steady(self, start_ns: Int64, end_ns: Int64) -> tuple[Int64, Int64]:
        """Return what of intervals lies before the steady part; all are empty where no steady part is known."""
        until = NULL if self.scope.unsteady_reason else self.scope.start_ns
        return np.minimum(start_ns, until), np.minimum(end_ns, until)

    def in_scope_ns(self, start_ns: Int64, end_ns: Int64) -> Int64:
        """Return how much of each interval lies in the scope."""
        start, end = self.clip_to_scope(start_ns, end_ns)
        length: Int64 = end - start
        return length

    def in_scope_share(self, start_ns: Int64, end_ns: Int64) -> Float64:
        """Return which share of each interval lies in the scope; an empty one is in it or not."""
        length = end_ns - start_ns
        within = (start_ns >= self.scope.start_ns) & (start_ns < self.scope.end_ns)
        return np.where(length > 0, self.in_scope_ns(start_ns, end_ns) / np.maximum(1, length), within)

    def before_steady_ns(self, start_ns: Int64, end_ns: Int64) -> Int64:
        """Return how much of each interval lies before the steady part; 0 where no steady part is known."""
        start, end = self.clip_before_steady(start_ns, end_ns)
        length: Int64 = end - start
        return length

    def union_in_scope_ns(self, start_ns: Int64, end_ns: Int64) -> int:
        """Return in how much of the scope any of the intervals lasts."""
        return union_ns(*self.clip_to_scope(start_ns, end_ns))

    def before_steady_or_none(self, ns: int) -> int | None:
        """Return a sum of `before_steady_ns` as the column of a finding: None where no steady part is known."""
        return None if self.scope.unsteady_reason else ns

    @property
    def gaps(self) -> Gaps:
        """When each GPU was idle between its first and its last operation, but for gaps that span two windows.

        They are whole, in or outside the scope: `gap_ns` is what a bound may count.
        """
        return self._recorded_and_not[0]

    @cached_property
    def _recorded_and_not(self) -> tuple[Gaps, Gaps]:
        gaps = compute_timelines(self.context).gaps
        across = overlaps_any(gaps, *find_unrecorded_spans(self.context.trace))
        return gaps.take(~across) if across.any() else gaps, gaps.take(across)

    @cached_property
    def gap_ns(self) -> Int64:
        """How much of each gap lies in the scope."""
        return self.in_scope_ns(self.gaps.start_ns, self.gaps.end_ns)

    @cached_property
    def idle_ns(self) -> Int64:
        """Summed length of the gaps of each GPU in the scope."""
        return sum_groups(self.gaps.lane, self.gap_ns, len(self.active_gpus))

    @cached_property
    def total_ns(self) -> Int64:
        """Of each GPU the time from its first operation to the end of its last, within the scope."""
        when, apart = compute_timelines(self.context), self._recorded_and_not[1]
        whole = self.in_scope_ns(when.first_ns, when.last_ns)
        return whole - sum_groups(apart.lane, self.in_scope_ns(apart.start_ns, apart.end_ns), len(self.active_gpus))

    def causes(self, which: Bool) -> Int8:
        """Return the causes of these gaps, as indices into `gaps.CAUSES`."""
        if not len(self._cause):
            self._cause = np.full(len(self.gaps), -1, np.int8)
        missing = np.flatnonzero(which & (self._cause < 0))
        if len(missing):
            causes = classify_gaps(self.context, self.gaps.take(missing), self.gpu_of_operation, LAUNCH_LATENCY_NS)
            self._cause[missing] = causes
        return self._cause[which]

    @cached_property
    def busy_without_nccl(self) -> Union:
        """When each GPU ran anything but kernels of NCCL, which wait for other GPUs while they run."""
        return self._union(self.gpu_of_operation, len(self.active_gpus))

    def busy_without_nccl_ns(self, gpu: Int64, start_ns: Int64, end_ns: Int64) -> Int64:
        """Return how much of each time a GPU, given its place in `active_gpus`, ran anything but kernels of NCCL."""
        return measure_covered_ns(self.busy_without_nccl, gpu, start_ns, end_ns)

    def max_host_saving_ns(self, process: int | None = None) -> int:
        """Return how much shorter the scope could be if the host took no time.

        Its length less the time in which the busiest GPU of a process worked for it: that work remains. NCCL's kernels
        are no such work, because they may wait for a GPU that waits for the host. For no process in particular, that of
        the process with the most room.
        """
        busiest = self._busiest_ns
        if process is not None:
            return self.scope_ns - int(busiest[process])
        return self.scope_ns - int(
            busiest[sorted({one for users in self.active_gpus.processes for one in users})].min()
        )

    @cached_property
    def _busiest_ns(self) -> Int64:
        gpu, processes = self.context.gpu, len(self.pids)
        if all(len(users) == 1 for users in self.active_gpus.processes):
            worked, owner = self.busy_without_nccl, np.array(self.active_gpus.processes, np.int64)[:, 0]
        else:
            pair, first = number_groups(gpu.process, self.gpu_of_operation)
            worked, owner = self._union(pair, len(first)), gpu.process[first].astype(np.int64)
        lanes = np.arange(len(worked))
        start, end = (np.full(len(lanes), time) for time in (self.scope.start_ns, self.scope.end_ns))
        busiest = np.zeros(processes, np.int64)
        np.maximum.at(busiest, owner, measure_covered_ns(worked, lanes, start, end))
        return busiest

    def _union(self, lane: Int64, lanes: int) -> Union:
        gpu, lane = self.context.gpu, lane.copy()
        lane[find_nccl_kernels(self.context)] = -1
        return union_by_lane(gpu.start_ns, gpu.end_ns, build_lanes(lane, lanes, gpu.by_start))

    def device_number(self, place: int) -> int | None:
        """Return the number of a GPU, given its place in `active_gpus`; None if the trace has none."""
        number = self.active_gpus.number[place]
        return number if number >= 0 else None

    def only_pid(self, place: int) -> int | None:
        """Return the process that used a GPU, given its place in `active_gpus`, where it was one."""
        users = self.active_gpus.processes[place]
        return self.pids[users[0]] if len(users) == 1 else None

    @cached_property
    def labels(self) -> Labels:
        """The ranges by name and domain."""
        return Labels(self.context)

    def require_calls(self) -> None:
        """Raise MissingDataError where the trace holds no API calls."""
        if not len(self.context.trace.calls):
            raise MissingDataError(
                "no_calls_recorded", "no CUDA API calls in the trace", "record with --trace=cuda,nvtx"
            )

    def require_ranges(self) -> None:
        """Raise MissingDataError where the trace holds no ranges."""
        if not len(self.context.instances):
            raise MissingDataError(
                "no_ranges_recorded", "no ranges in the trace", "annotate the program and record with --trace=cuda,nvtx"
            )


class Labels:
    """The ranges of a trace by name and domain.

    Attributes:
        of_instance: the number of the range of each instance, and -1 at the end, so that instance -1 has it too.
        names: name and domain of each number, both None for the last one, which is what is outside every range.
    """

    def __init__(self, context: Context) -> None:
        trace, instances = context.trace, context.instances
        label, first = number_ranges(instances)
        numbers: dict[tuple[str | None, str | None], int] = {}
        merged = []
        for name, domain in zip(instances.name[first].tolist(), instances.domain[first].tolist(), strict=True):
            key = (fold_range_names(context)[name], trace.names[domain] if domain >= 0 else None)
            merged.append(numbers.setdefault(key, len(numbers)))
        self.of_instance: Int64 = np.append(np.array(merged, np.int64)[label], -1)
        self.names = (*numbers, (None, None))


class RangePaths:
    """The range paths of a trace, numbered, and one more for what is outside every range."""

    def __init__(self, context: Context) -> None:
        self._context = context
        names = fold_range_names(context)
        numbers: dict[tuple[str, ...], int] = {}
        of_path = [
            numbers.setdefault(tuple(names[name] for name in path), len(numbers)) for path in context.instances.paths
        ]
        self._of_path = np.array([*of_path, len(numbers)], np.int64)
        self._paths = tuple(numbers)
        self._parent = np.array([numbers.get(path[:-1], -1) for path in self._paths], np.int64)
        self._depth = np.array([len(path) for path in self._paths], np.int64)

    @property
    def outside(self) -> int:
        """The number of what is outside every range."""
        return len(self._paths)

    @cached_property
    def _of_instance(self) -> Int64:
        return np.append(self._of_path[self._context.instances.path], self.outside)

    def sum_operations(self, operation: Int64, value: Int64 | None = None) -> Int64:
        """Return of each place the sum of a value (or the number) of the operations that belong to it."""
        of_place = np.zeros(self.outside + 1, np.int64)
        np.add.at(of_place, self._of_instance[self._context.innermost[operation]], 1 if value is None else value)
        for depth in range(int(self._depth.max(initial=0)), 1, -1):
            here = np.flatnonzero((self._depth == depth) & (self._parent >= 0))
            np.add.at(of_place, self._parent[here], of_place[here])
        return of_place

    def find_deepest(self, total: Int64, least: float) -> Iterator[int]:
        """Yield for each outermost path with at least `least` the deepest place that has most of its total.

        From each path it goes down to the one inside it that has the most (of equals the first), as long as that has
        MIN_CHILD_SHARE of it.
        """
        inside: dict[int, list[int]] = {}
        for path, parent in enumerate(self._parent.tolist()):
            inside.setdefault(parent, []).append(path)
        for place in [*inside.get(-1, ()), self.outside]:
            if total[place] < max(1.0, least):
                continue
            at = place
            while children := inside.get(at):
                most = max(children, key=lambda child: int(total[child]))
                if total[most] < MIN_CHILD_SHARE * total[at]:
                    break
                at = most
            yield at

    def get_range(self, place: int) -> tuple[str | None, str | None]:
        """Return the name of the range of a place, and the domain where it is the same for all of them."""
        if place == self.outside:
            return None, None
        names, instances = self._context.trace.names, self._context.instances
        domains = distinct(instances.domain[self._of_instance[:-1] == place]).tolist()
        domain = names[domains[0]] if len(domains) == 1 and domains[0] >= 0 else None
        return self._paths[place][-1], domain


class OneOffCopies:
    """Distinguishes host-to-device copies that do not recur from those that do."""

    def __init__(self, evidence: Evidence) -> None:
        self.evidence = evidence

    def is_one_off(self, operation: Int64) -> Bool:
        """Return which of some operations are host-to-device copies if these, taken together, do not recur; else none.

        Only the scope counts. The copies are taken by start; the first is that at which a twentieth
        of their time (TRIM_DIVISOR) is reached, the last that at which all but a twentieth is. They do not recur if the
        kernels and graphs that begin at the first or later and before the last have less than a tenth
        (RECURRENCE_DIVISOR) of the time of all of them. Where none ran, that can't be known, and the copies count as
        recurring.

        Args:
            operation: indices of GPU operations; -1 for none.
        """
        gpu, evidence = self.evidence.context.gpu, self.evidence
        copies = (operation >= 0) & (gpu.direction[operation] == DIRECTIONS.index("h2d"))
        rows = operation[copies]
        rows = rows[np.argsort(gpu.start_ns[rows], kind="stable")]
        lasting = np.cumsum(evidence.in_scope_ns(gpu.start_ns[rows], gpu.end_ns[rows]))
        starts, done = self._kernel_time
        nothing = np.zeros(len(operation), np.bool_)
        if not len(rows) or not lasting[-1] or not done[-1]:
            return nothing
        ends = np.searchsorted(TRIM_DIVISOR * lasting, np.array([1, TRIM_DIVISOR - 1]) * lasting[-1], "left")
        before, until = done[np.searchsorted(starts, gpu.start_ns[rows[ends]], "left")].tolist()
        return copies if RECURRENCE_DIVISOR * (until - before) < done[-1] else nothing

    @cached_property
    def _kernel_time(self) -> tuple[Int64, Int64]:
        """The start of each kernel and graph, in order; and the time of all before each, at the end that of all."""
        gpu, evidence = self.evidence.context.gpu, self.evidence
        kernels = gpu.by_start[np.isin(gpu.kind[gpu.by_start], (KERNEL, GRAPH))]
        start = gpu.start_ns[kernels]
        return start, np.cumsum(np.append(0, evidence.in_scope_ns(start, gpu.end_ns[kernels])))


def union_ns(start_ns: Int64, end_ns: Int64) -> int:
    """Return for how long any of the intervals lasts."""
    some = end_ns > start_ns
    return int(merge_intervals(start_ns[some], end_ns[some]).total_ns()[0])


def make_share_threshold(default: float) -> Threshold:
    """Return the threshold that every rule has: findings with a lower bound are not reported."""
    return Threshold("share", default, "share", "least bound, as a share of the time that bounds are of")


def fold_names(names: Iterable[str]) -> dict[str, str]:
    """Return the name of each range as used in findings: numbers are `*` where names differ by nothing else.

    Examples:
        >>> sorted(set(fold_names(["layers.0.mlp", "layers.1.mlp", "step 7", "conv1d", "conv2d"]).values()))
        ['conv1d', 'conv2d', 'layers.*.mlp', 'step 7']
    """
    patterns = {name: fold_numbers(name) for name in names}
    number = Counter(patterns.values())
    return {name: pattern if number[pattern] > 1 else name for name, pattern in patterns.items()}


@cache_per_context
def fold_range_names(context: Context) -> dict[int, str]:
    """Return the names of the ranges as used in findings, by the index of their name."""
    names = context.trace.names
    used = {name for path in context.instances.paths for name in path}
    as_folded = fold_names(names[index] for index in used)
    return {index: as_folded[names[index]] for index in used}


def format_range_name(name: str | None) -> str:
    """Write the name of a range, cut where it is long.

    Examples:
        >>> format_range_name("forward"), format_range_name(None)
        ('forward', 'outside every range')
    """
    if name is None:
        return "outside every range"
    return name if len(name) <= _LONGEST_NAME else name[: _LONGEST_NAME - 2] + ".."


def format_gpu(number: int | None) -> str:
    """Write which GPU; its number may be unknown.

    Examples:
        >>> format_gpu(1), format_gpu(None)
        ('GPU 1', 'the GPU')
    """
    return "the GPU" if number is None else f"GPU {number}"


def join_words(words: Sequence[str]) -> str:
    """Join words.

    Examples:
        >>> join_words(["a"]), join_words(["a", "b", "c"])
        ('a', 'a, b and c')
    """
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def has_known_peak(evidence: Evidence, copies: Copies, row: Int64) -> Bool:
    """Return which copies go over a link whose peak is known.

    Raises:
        MissingDataError: there are some, and none of them does.
    """
    known: Bool = ~np.isnan(copies.peak_gb_per_s[row])
    if len(row) and not known.any():
        used = {int(gpu) for gpu in distinct(copies.memory_operations.gpu[row]).tolist()}
        names = [device.name or "without a name" for device in evidence.context.trace.devices if device.number in used]
        of = f" ({join_words(names)})" if names else ""
        raise MissingDataError(
            "link_peak_unknown",
            f"the peak rate of the link to the GPU{of} is not known, so there is no bound",
            "`--view memory` shows the rate that the copies reached",
        )
    return known


def compute_copy_shares(evidence: Evidence, copies: Copies, row: Int64) -> tuple[Float64, Bool]:
    """Return which share of each copy lies in the scope, and whether any of it does."""
    gpu, operation = evidence.context.gpu, copies.first_operation + row
    part = evidence.in_scope_share(gpu.start_ns[operation], gpu.end_ns[operation])
    return part, part > 0


def sum_bytes_and_min_ns(copies: Copies, row: Int64, part: Float64) -> tuple[float, float]:
    """Return the bytes of these shares of the copies, and the ns that they take at the peak of the link."""
    moved = copies.memory_operations.size_bytes[row] * part
    return float(moved.sum()), float((moved / copies.peak_gb_per_s[row]).sum())


def max_copy_saving_ns(evidence: Evidence, copies: Copies, row: Int64) -> int:
    """Return the length of the scope, less the time in which their GPU worked on anything else.

    NCCL's kernels are no such work: they may wait for a GPU that waits for these copies.

    Args:
        row: copies of one GPU.
    """
    gpu, operation = evidence.context.gpu, copies.first_operation + row
    other = evidence.gpu_of_operation == evidence.gpu_of_operation[operation[0]]
    other[operation] = False
    other[find_nccl_kernels(evidence.context)] = False
    rows = gpu.by_start[other[gpu.by_start]]
    return evidence.scope_ns - evidence.union_in_scope_ns(gpu.start_ns[rows], gpu.end_ns[rows])


@dataclass(frozen=True)
class CopyPlace:
    """Where copies were made: the innermost range, the process and the GPU; with a description as long as needed."""

    range: str | None
    domain: str | None
    device: int | None
    pid: int
    description: str


class Copies:
    """The copies of a trace; rows are those of `Trace.copies`."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.memory_operations: MemoryOperations = find_memory_operations(context)
        self.first_operation = self.memory_operations.first_operation
        self.direction = context.gpu.direction[self.first_operation : self.first_operation + len(self)]
        self.has_size: Bool = context.trace.copies.size_bytes >= 0

    def __len__(self) -> int:
        return len(self.context.trace.copies)

    @property
    def peak_gb_per_s(self) -> Float64:
        """Of each copy the peak of its link, in bytes a ns; NaN where it is not known."""
        return self.memory_operations.peak_gb_per_s[: len(self)]

    def intervals(self, row: Int64, from_copy: Bool) -> tuple[Int64, Int64]:
        """Return when these copies lasted, and the copying calls that made them.

        Args:
            from_copy: of which of them the call counts from the begin of the copy only.
        """
        gpu, calls = self.context.gpu, self.context.trace.calls
        start, end = gpu.start_ns[self.first_operation + row], gpu.end_ns[self.first_operation + row]
        call = self._copying_call(row)
        called = np.flatnonzero(call >= 0)
        begun = calls.start_ns[call[called]]
        begun = np.where(from_copy[called], np.maximum(begun, start[called]), begun)
        ended = np.maximum(begun, calls.end_ns[call[called]])
        return np.append(start, begun), np.append(end, ended)

    def find_longest_call(self, row: Int64) -> str | None:
        """Return the copying call that took most time to make these copies."""
        calls = self.context.trace.calls
        call = distinct(self._copying_call(row))
        call = call[call >= 0]
        if not len(call):
            return None
        name, first = number_groups(calls.name[call])
        total = sum_groups(name, calls.end_ns[call] - calls.start_ns[call], len(first))
        return strip_call_version(self.context.trace.names[int(calls.name[call[first[int(total.argmax())]]])])

    def _copying_call(self, row: Int64) -> Int64:
        """Return the call of each copy that was made by a call that copies, not by the launch of a graph; else -1."""
        kind = self.memory_operations.call_kind[row]
        copying = (kind == SYNCHRONOUS) | (kind == ASYNCHRONOUS)
        # One outside the time that the trace was cut to took none of it.
        copying &= self.memory_operations.call[row] < len(self.context.trace.calls)
        call: Int64 = np.where(copying, self.memory_operations.call[row], -1)
        return call


def group_copies_by_place(
    evidence: Evidence, copies: Copies, row: Int64, further: Int64 | None = None
) -> list[tuple[Int64, CopyPlace]]:
    """Return the places in `row` of the copies of each range, process and GPU (and of each value of `further`)."""
    context, labels = evidence.context, evidence.labels
    operation = copies.first_operation + row
    of_row = labels.of_instance[context.innermost[operation]]
    process, gpu = context.gpu.process[operation], evidence.active_gpus.index_of(operation)
    keys = (of_row, process, gpu) if further is None else (of_row, process, gpu, further)
    group, first = number_groups(*keys)
    order = np.argsort(group, kind="stable")
    bounds = np.searchsorted(group[order], np.arange(len(first) + 1))
    places = []
    for i, one in enumerate(first.tolist()):
        name, domain = labels.names[of_row[one]]
        device, pid = evidence.device_number(int(gpu[one])), evidence.pids[int(process[one])]
        words = format_range_name(name)
        if len(evidence.active_gpus) > 1:
            words += f" on {format_gpu(device)}"
        if len(evidence.active_gpus.processes[int(gpu[one])]) > 1:
            words += f" by process {pid}"
        places.append((order[bounds[i] : bounds[i + 1]], CopyPlace(name, domain, device, pid, words)))
    return places


def max_saving_ns(evidence: Evidence, thread: NDArray[np.integer], start_ns: Int64, end_ns: Int64) -> tuple[int, int]:
    """Return how much wall time can be saved at most if some calls took no time, in the scope.

    Without a call its thread goes on that much earlier. That saves time only where the GPU then gets work that it is
    idle for, and only until the thread waits for the GPU again: from there on the two are in step as before. So the
    saving is at most

    - the time in which any of the calls lasted,
    - the time in which a GPU of the process was idle without work between the begin of any of the calls and the
      end of the next wait of its thread (`sync.find_waiting_calls`), or the end of the recording where none follows.
      Idle time at which an operation of the process had been launched for that GPU and had not begun counts for the
      moment of that launch (of several operations the earliest): what was launched before a call does not wait for it,
    - what the GPU leaves (`Evidence.max_host_saving_ns`).

    Times are unions: overlapping calls, GPUs and processes count once. It is a bound as long as an operation that was
    launched later does not run in the place of one that was launched before.

    Args:
        thread: of each call, an index into `Trace.threads`.
        start_ns, end_ns: when it lasted.

    Returns:
        The bound in ns, and the second of the three times.
    """
    trace = evidence.context.trace
    process = np.array([one.process for one in trace.threads], np.int64)[thread]
    until = _next_wait_ns(evidence.context, thread, start_ns)
    starts, ends = [start_ns[:0]], [start_ns[:0]]
    processes = distinct(process).tolist()
    for one in processes:
        mine = process == one
        period = merge_intervals(start_ns[mine], until[mine])
        for lane, users in enumerate(evidence.active_gpus.processes):
            if one in users:
                idle = _idle(evidence, one, lane)
                _, free_start, free_end = _shared(idle.start_ns, np.minimum(idle.end_ns, idle.launched_ns), period)
                queued = np.flatnonzero(idle.launched_ns < idle.end_ns)
                caused = queued[contains(period, idle.launched_ns[queued])]
                starts += [free_start, np.maximum(idle.start_ns[caused], idle.launched_ns[caused])]
                ends += [free_end, idle.end_ns[caused]]
    idle_ns = evidence.union_in_scope_ns(np.concatenate(starts), np.concatenate(ends))
    room = max((evidence.max_host_saving_ns(one) for one in processes), default=0)
    return max(0, min(evidence.union_in_scope_ns(start_ns, end_ns), idle_ns, room)), idle_ns


@dataclass(frozen=True)
class _Idle:
    """When a GPU was idle, and from when on work of one process was queued for it, as equally long columns.

    Attributes:
        start_ns, end_ns: of the idle time.
        launched_ns: the earliest begin of a launch call of the operations of the process that begin on the GPU after
            that; the largest int64 where there is none.
    """

    start_ns: Int64
    end_ns: Int64
    launched_ns: Int64


def _idle(evidence: Evidence, process: int, lane: int) -> _Idle:
    """Return when a GPU was idle, from the first event of the recording to the end of its last.

    The time between windows is left out: nothing is known of it.
    """
    trace, gpu = evidence.context.trace, evidence.context.gpu
    when, first, last = compute_timelines(evidence.context), *evidence.extent_ns
    mine = when.gaps.lane == lane
    start = np.concatenate([[first], when.gaps.start_ns[mine], when.last_ns[lane : lane + 1]])
    end = np.concatenate([when.first_ns[lane : lane + 1], when.gaps.end_ns[mine], [last]])
    own = gpu.by_start[((evidence.gpu_of_operation == lane) & (gpu.process == process))[gpu.by_start]]
    call = evidence.context.launches.call_of[own]
    never = np.iinfo(np.int64).max
    begun = np.full(len(own), never)
    begun[call >= 0] = evidence.context.launches.calls.start_ns[call[call >= 0]]
    earliest = np.append(np.minimum.accumulate(begun[::-1])[::-1], never)
    launched = earliest[np.searchsorted(gpu.start_ns[own], end, "left")]
    closed, opened = find_unrecorded_spans(trace)
    recorded = merge_intervals(np.append(first, opened), np.append(closed, last))
    row, start, end = _shared(start, end, recorded)
    return _Idle(start, end, launched[row])


def _next_wait_ns(context: Context, thread: NDArray[np.integer], start_ns: Int64) -> Int64:
    """Return when the first wait ends that a thread begins after each of these times; the largest int64 for none."""
    waits = find_waiting_calls(context)
    of_wait = context.trace.calls.thread[waits.call]
    until = np.full(len(thread), np.iinfo(np.int64).max)
    for one in distinct(thread).tolist():
        # The waits of a thread come by start.
        mine = of_wait == one
        rows = thread == one
        ends = np.append(waits.end_ns[mine], np.iinfo(np.int64).max)
        until[rows] = ends[np.searchsorted(waits.start_ns[mine], start_ns[rows], "right")]
    return until


def _shared(start_ns: Int64, end_ns: Int64, within: Union) -> tuple[Int64, Int64, Int64]:
    """Return what intervals share with those of a union of one lane: the rows of the intervals, starts and ends."""
    first = np.searchsorted(within.end_ns, start_ns, "right")
    number = np.maximum(0, np.searchsorted(within.start_ns, end_ns, "left") - first)
    number[end_ns <= start_ns] = 0
    row, other = np.repeat(np.arange(len(start_ns)), number), expand_slices(first, number)
    return row, np.maximum(start_ns[row], within.start_ns[other]), np.minimum(end_ns[row], within.end_ns[other])


def contains(within: Union, at_ns: Int64) -> Bool:
    """Return which times lie in a union of one lane, the ends of its intervals not included."""
    if not len(within.start_ns):
        return np.zeros(len(at_ns), np.bool_)
    last = np.searchsorted(within.start_ns, at_ns, "right") - 1
    is_inside: Bool = (last >= 0) & (at_ns < within.end_ns[np.maximum(last, 0)])
    return is_inside


def select_queued_gaps(evidence: Evidence) -> Gaps:
    """Return the gaps whose cause is `queued`.

    Raises:
        MissingDataError: no launch is recorded, or graphs ran that left no operation.
    """
    if not (evidence.context.launches.call_of >= 0).any():
        raise MissingDataError(
            "launches_not_recorded",
            "no launch call is recorded for any GPU operation",
            "record the launches too, with --trace=cuda,nvtx",
        )
    error = check_graphs_recorded(evidence.context)
    if error is not None:
        raise error
    gaps = evidence.gaps
    # Causes are expensive to compute; shorter gaps are never queued.
    which = gaps.end_ns - gaps.start_ns > LAUNCH_LATENCY_NS
    which[which] = evidence.causes(which) == _QUEUED
    return gaps.take(which)
