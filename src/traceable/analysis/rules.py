"""By which rule each GPU operation is known to belong to ranges, and through which place on a thread.

Tried in this order, from what is certain to what is likely:

- thread: its launch call lies inside a range on the calling thread. task: only inside the stretches of a coroutine.
- graph-node: it is a node of a CUDA graph, and a range was open when the node was captured (`analysis.replays`).
- adopted: its launch call lies outside every range of its own thread, while exactly one other thread of the process
  had a range open all through the call. This is autograd's thread, which works for the one that called `backward`.
- time: no launch call was recorded, and exactly one thread of the process had a range open when the operation began.

What none of them explains is unattributed, with the reason.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from traceable.analysis.enclosure import Events, Slices, covered, innermost_around, slices, sorted_events
from traceable.analysis.instances import Instances, Stretches, stretches_of
from traceable.analysis.operations import GpuOperations, Launches
from traceable.trace.model import Bool, Int8, Int32, Int64, NDArray, Trace

THREAD, TASK, GRAPH_NODE, ADOPTED, TIME = range(5)
NO_LAUNCH_CALL, OUTSIDE_RANGES, SEVERAL_THREADS = range(5, 8)

RULES = ("thread", "task", "graph-node", "adopted", "time")
"""The rules as they are written, in order of their numbers."""

REASONS = ("no_launch_call", "outside_ranges", "several_threads")
"""Why an operation is unattributed, in order of their numbers after those of the rules."""


@dataclass(frozen=True)
class Links:
    """Places on threads that stand for operations: whatever ran all around a place has the operation.

    Attributes:
        events: the places, each with its operation as `item`.
        rule: by which rule the place is the operation's: THREAD, ADOPTED or TIME.
        where: the slice of the places that each stretch of an instance holds.
    """

    events: Events
    rule: Int8
    where: Slices


def rules_of(trace: Trace, found: Instances, gpu: GpuOperations, launched: Launches) -> tuple[Int8, Links, Int64]:
    """Return of each operation the rule, or the reason, the places by which ranges are found, and the innermost range.

    GRAPH_NODE is no business of this function: who knows of captured nodes puts it over ADOPTED and what follows.
    """
    stretches, places = found.stretches, launch_events(gpu, launched)
    innermost = innermost_around(found, places)
    rule = np.full(len(gpu), NO_LAUNCH_CALL, np.int8)
    rule[launched.call_of >= 0] = OUTSIDE_RANGES
    rule[innermost >= 0] = THREAD
    if found.task.any():
        rule[innermost >= 0] = TASK
        rule[covered(stretches_of(stretches, ~found.task), places)] = THREAD
    homeless = np.flatnonzero(rule >= NO_LAUNCH_CALL)
    if not len(homeless):
        return rule, Links(places, np.full(len(places.item), THREAD, np.int8), slices(stretches, places)), innermost

    process_of_thread = np.array([thread.process for thread in trace.threads], np.int32)
    called = launched.call_of[homeless] >= 0
    start, end = gpu.start_ns[homeless], gpu.start_ns[homeless]
    call = launched.call_of[homeless[called]]
    start[called], end[called] = trace.calls.start_ns[call], trace.calls.end_ns[call]
    process = gpu.process[homeless]
    adopter, adopters = _sole_thread(_Cover(stretches), process_of_thread, process, start, end)
    alone = adopters == 1
    rule[homeless[adopters > 1]] = SEVERAL_THREADS
    rule[homeless[alone]] = np.where(called[alone], ADOPTED, TIME)
    taken_in = homeless[alone]
    more = sorted_events(adopter[alone], start[alone], end[alone], taken_in, places.order)
    innermost[taken_in] = innermost_around(found, more)[taken_in]
    events = _merged(places, more) if len(taken_in) else places
    by_rule = np.full(len(rule), THREAD, np.int8)
    by_rule[taken_in] = rule[taken_in]
    return rule, Links(events, by_rule[events.item], slices(stretches, events)), innermost


def launch_events(gpu: GpuOperations, launched: Launches) -> Events:
    """Return the launch calls as places for their operations: nsys's rule, which knows nothing else."""
    return Events(launched.thread, launched.start_ns, launched.end_ns, launched.operation, len(gpu), gpu.by_start)


def _merged(places: Events, more: Events) -> Events:
    """Return the launch calls as places, less those of operations that have further places, and these."""
    # An operation that was taken in has no range on the thread of its call: that place stands for nothing any more.
    homely = np.ones(places.items, np.bool_)
    homely[more.item] = False
    kept = np.flatnonzero(homely[places.item])
    at = _between(places, kept, more) + np.arange(len(more.item))
    other = np.ones(len(kept) + len(at), np.bool_)
    other[at] = False
    others = np.flatnonzero(other)

    def merged(ours: NDArray[Any], theirs: NDArray[Any]) -> NDArray[Any]:
        column = np.empty(len(other), ours.dtype)
        column[others], column[at] = ours[kept], theirs
        return column

    return Events(
        thread=merged(places.thread, more.thread),
        start_ns=merged(places.start_ns, more.start_ns),
        end_ns=merged(places.end_ns, more.end_ns),
        item=merged(places.item, more.item),
        items=places.items,
        order=places.order,
    )


def _between(places: Events, kept: Int64, more: Events) -> Int64:
    """Return before how many of the kept places each further one comes, by thread and start."""
    at = np.zeros(len(more.item), np.int64)
    for thread in np.unique(more.thread).tolist():
        low, high = np.searchsorted(places.thread, [thread, thread + 1])
        ours = slice(*np.searchsorted(kept, [low, high]).tolist())
        theirs = slice(*np.searchsorted(more.thread, [thread, thread + 1]).tolist())
        at[theirs] = ours.start + np.searchsorted(places.start_ns[kept[ours]], more.start_ns[theirs], "right")
    return at


def _sole_thread(
    cover: _Cover, process_of_thread: Int32, process: Int32, start: Int64, end: Int64
) -> tuple[Int32, Int64]:
    """Return, for each time in a process, a thread with a range open all through it, and how many such there are."""
    thread = np.full(len(process), -1, np.int32)
    number = np.zeros(len(process), np.int64)
    for candidate in cover.threads:
        here = np.flatnonzero(process == process_of_thread[candidate])
        open_there = here[cover.on_thread(candidate, start[here], end[here])]
        thread[open_there] = candidate
        number[open_there] += 1
    return thread, number


class _Cover:
    """Where, on each thread, some stretch runs: starts in order, and the latest end so far."""

    def __init__(self, stretches: Stretches) -> None:
        order = np.lexsort((stretches.start_ns, stretches.thread))
        thread = stretches.thread[order]
        self._on: dict[int, tuple[Int64, Int64]] = {}
        bounds = np.flatnonzero(np.diff(thread, prepend=-1, append=-1))
        for first, last in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
            rows = order[first:last]
            self._on[int(thread[first])] = (
                stretches.start_ns[rows],
                np.maximum.accumulate(stretches.end_ns[rows]),
            )

    @property
    def threads(self) -> list[int]:
        """The threads on which anything runs."""
        return list(self._on)

    def on_thread(self, thread: int, start: Int64, end: Int64) -> Bool:
        """Return which of these times lie wholly inside one stretch of the thread."""
        starts, latest = self._on[thread]
        at = np.searchsorted(starts, start, "right") - 1
        found: Bool = (at >= 0) & (latest[at] >= end)
        return found
