"""A program of CUDA calls and ranges as columns, and what a machine makes of one run of it.

A `Program` is written once, call by call, and run thousands of times with other durations. A run is numpy over the
whole program: the host's time is a cumulative sum, a stream's a running maximum. Contention between processes is not
modelled: on one device their operations overlap, as under MPS.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Int64 = NDArray[np.int64]
Float64 = NDArray[np.float64]

COMPUTE, NCCL, COPY = 0, 1, 2
"""The streams of each device."""

LANES = 3
"""How many they are. A lane is a stream of one device: `device * LANES + stream`."""

KERNEL, MEMCPY, MEMSET = 0, 1, 2
"""The kinds of operation."""

EVENT, STREAM_WAIT, STREAM, CONTEXT = 1, 2, 3, 4
"""CUPTI's kinds of synchronization."""

_SPACING_NS = 900
"""From the end of an operation to the earliest start of the next one on its stream."""

_WAKE_NS = 1800
"""From the end of what a call waits for to the end of the call."""


@dataclass(frozen=True)
class Copy:
    """A memory copy; the kinds are CUPTI's numbers."""

    size: int
    kind: int
    source: int
    target: int


@dataclass(frozen=True)
class Memset:
    """A memory set."""

    size: int


@dataclass
class _Operation:
    kind: int
    item: int
    lane: int
    wave: int
    what: int
    duration: float
    latency: float
    after: int
    node: int


@dataclass
class Range:
    """A pushed and popped range: the items that did it, and its name."""

    push: int
    pop: int
    name: str
    domain: int
    thread: int


@dataclass
class Sync:
    """A synchronization: the call, its kind, and where it waits."""

    item: int
    kind: int
    device: int
    stream: int


@dataclass
class Allocation:
    """An allocation (`release` 0) or a release (1) that the call `item` makes; `pool` if it is stream-ordered."""

    item: int
    device: int
    size: int
    release: int
    pool: bool


@dataclass
class Node:
    """The creation of a graph node by the call `item`; `original` is 0 unless it is a copy."""

    item: int
    node: int
    original: int


@dataclass
class _Group:
    """Operations that follow each other on one lane, in one segment and wave."""

    lane: int
    operations: Int64
    items: Int64
    dependent: Int64
    dependency: Int64


@dataclass
class _Segment:
    """The items up to one that waits, with their operations."""

    first: int
    last: int
    groups: list[_Group]
    waits_for: list[int] = field(default_factory=list)


@dataclass
class Outcome:
    """One run: start and end of each item and of each operation, in ns; `end` is when the last item ended."""

    start: Int64
    stop: Int64
    operation_start: Int64
    operation_stop: Int64
    end: int


class Program:
    """What one process does in one step. Written with the methods, then compiled, then run."""

    def __init__(self) -> None:
        self.ranges: list[Range] = []
        self.syncs: list[Sync] = []
        self.allocations: list[Allocation] = []
        self.nodes: list[Node] = []
        self._cost: list[float] = []
        self._pause: list[float] = []
        self._name: list[str] = []
        self._driver: list[int] = []
        self._thread: list[int] = []
        self._result: list[int] = []
        self._operations: list[_Operation] = []
        self._waits: dict[int, list[int]] = {}
        self._wave = 0

    # ---- writing

    def _add_item(self, name: str, cost: float, pause: float, driver: int, thread: int, result: int) -> int:
        self._name.append(name)
        self._cost.append(cost)
        self._pause.append(pause)
        self._driver.append(driver)
        self._thread.append(thread)
        self._result.append(result)
        return len(self._name) - 1

    @contextmanager
    def range(self, name: str, domain: int = 0, thread: int = 0, before: float = 300) -> Iterator[None]:
        """Push the range, `before` ns after what went before, and pop it at the end of the block."""
        opened = Range(self._add_item("", 60, before, 0, thread, 0), 0, name, domain, thread)
        self.ranges.append(opened)
        yield
        opened.pop = self._add_item("", 60, 250, 0, thread, 0)

    def work(self, duration: float) -> None:
        """Pass time on the host without calling CUDA."""
        self._add_item("", 1, duration, 0, 0, 0)

    def call(
        self, name: str, cost: float, pause: float = 700, driver: bool = False, thread: int = 0, result: int = 0
    ) -> int:
        """Call `name`, which takes `cost` ns, `pause` ns after what went before; return the item's number."""
        return self._add_item(name, cost, pause, int(driver), thread, result)

    def operation(
        self, kind: int, item: int, lane: int, what: int, duration: float, after: int = -1, node: int = 0
    ) -> int:
        """Put an operation on `lane` by the call `item`; return its number.

        Args:
            what: number of the kernel, copy or memset.
            after: an earlier operation that has to end first; -1 for none. On another lane of this wave it must have
                a lower lane.
            node: number of the graph node that it executes.
        """
        latency = 5200.0 if kind == KERNEL else 3800.0
        self._operations.append(_Operation(kind, item, lane, self._wave, what, duration, latency, after, node))
        return len(self._operations) - 1

    def join(self) -> None:
        """Let the operations from here on depend on any of those so far, whichever lane they are on."""
        self._wave += 1

    def block(self, item: int, lanes: list[int], sync: Sync | None = None) -> None:
        """Let the call `item`, the last one so far, return when everything on `lanes` has ended."""
        self._waits[item] = lanes
        if sync is not None:
            self.syncs.append(sync)

    # ---- compiling

    def compile(self) -> None:
        """Turn the lists into columns; nothing can be added afterwards."""
        operations = self._operations
        self.kind = np.array([each.kind for each in operations], np.int64)
        self.lane = np.array([each.lane for each in operations], np.int64)
        self.what = np.array([each.what for each in operations], np.int64)
        self.node = np.array([each.node for each in operations], np.int64)
        self.item = np.array([each.item for each in operations], np.int64)
        self.duration = np.array([each.duration for each in operations], np.float64)
        self.latency = np.array([each.latency for each in operations], np.float64)
        self.cost = np.array(self._cost, np.float64)
        self.pause = np.array(self._pause, np.float64)
        self.names = self._name
        is_call = np.array([bool(name) for name in self._name])
        self.calls = np.flatnonzero(is_call)
        self.call_rank = np.cumsum(is_call) - 1
        self.driver = np.array(self._driver, np.int64)
        self.thread = np.array(self._thread, np.int64)
        self.result = np.array(self._result, np.int64)
        self.kernels = int((self.kind == KERNEL).sum())
        self.segments = self._split_segments()

    def _split_segments(self) -> list[_Segment]:
        stops = sorted({*(item + 1 for item in self._waits), len(self._name)})
        segments = []
        for first, last in zip([0, *stops[:-1]], stops, strict=True):
            inside = [number for number, each in enumerate(self._operations) if first <= each.item < last]
            grouped: dict[tuple[int, int], list[int]] = {}
            for number in inside:
                grouped.setdefault((self._operations[number].wave, self._operations[number].lane), []).append(number)
            groups = [self._group(lane, numbers) for (_, lane), numbers in sorted(grouped.items())]
            segments.append(_Segment(first, last, groups, self._waits.get(last - 1, [])))
        return segments

    def _group(self, lane: int, numbers: list[int]) -> _Group:
        selected = [self._operations[number] for number in numbers]
        dependent = [place for place, each in enumerate(selected) if each.after >= 0]
        return _Group(
            lane,
            np.array(numbers, np.int64),
            np.array([each.item for each in selected], np.int64),
            np.array(dependent, np.int64),
            np.array([selected[place].after for place in dependent], np.int64),
        )

    # ---- running

    def run(self, begin: int, lanes: Int64, random: np.random.Generator, host: float, device: float) -> Outcome:
        """Run it once from `begin` on.

        Args:
            lanes: when each lane is free, in ns; updated.
            host, device: by what its durations on the host and on the GPU are multiplied.
        """
        noise = random.random(len(self.cost) + 2 * len(self.kind))
        on_host, on_device = noise[: len(self.cost)], noise[len(self.cost) :].reshape(2, -1)
        # A long tail, as call times have, without a function whose last digit depends on the platform.
        tail = np.where(on_host > 0.99, 3.0, 0.8 + 0.4 * on_host) * host
        cost = (self.cost * tail).astype(np.int64) + 1
        pause = (self.pause * tail).astype(np.int64)
        duration = (self.duration * (0.93 + 0.14 * on_device[0]) * device).astype(np.int64) + 600
        latency = (self.latency * (0.8 + 0.5 * on_device[1])).astype(np.int64)
        start, stop = np.empty(len(cost), np.int64), np.empty(len(cost), np.int64)
        operation_start, operation_stop = np.empty(len(duration), np.int64), np.empty(len(duration), np.int64)
        clock = begin
        for segment in self.segments:
            here = slice(segment.first, segment.last)
            stop[here] = clock + np.cumsum(cost[here] + pause[here])
            start[here] = stop[here] - cost[here]
            for group in segment.groups:
                selected = group.operations
                ready = start[group.items] + latency[selected]
                if len(group.dependent):
                    reached = operation_stop[group.dependency] + _SPACING_NS
                    ready[group.dependent] = np.maximum(ready[group.dependent], reached)
                ready[0] = max(ready[0], lanes[group.lane])
                taken = duration[selected] + _SPACING_NS
                total = np.cumsum(taken)
                free = total + np.maximum.accumulate(ready - total + taken)
                operation_stop[selected] = free - _SPACING_NS
                operation_start[selected] = free - taken
                lanes[group.lane] = free[-1]
            if segment.waits_for:
                woken = int(lanes[segment.waits_for].max()) - _SPACING_NS + _WAKE_NS
                stop[segment.last - 1] = max(int(stop[segment.last - 1]), woken)
            clock = int(stop[segment.last - 1])
        return Outcome(start, stop, operation_start, operation_stop, clock)
