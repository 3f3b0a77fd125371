"""What the questions share about one trace: its operations, their launches, its ranges, and which belongs to which.

Each part is computed when it is first asked for, and once: a question about API calls never attributes a kernel.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import numpy as np

from traceable.analysis.attribution import Attribution, Coverage, attribute, coverage_of
from traceable.analysis.enclosure import Events, few_sorted, innermost_around, pairs
from traceable.analysis.instances import Instances, instances
from traceable.analysis.operations import GpuOperations, Launches, launches, operations
from traceable.errors import UnanswerableError
from traceable.trace.model import Bool, Int64, Trace


class Context:
    """A trace and what is derived from it. Immutable to its users.

    Args:
        trace: the recording, or the part of it that is asked about (`analysis.select`).
    """

    def __init__(self, trace: Trace) -> None:
        self.trace = trace

    @cached_property
    def gpu(self) -> GpuOperations:
        """All GPU operations: kernels, copies, memsets and graphs, in that order."""
        return operations(self.trace)

    @cached_property
    def launched(self) -> Launches:
        """Which API call put which operation on the GPU."""
        return launches(self.trace, self.gpu)

    @cached_property
    def attribution(self) -> Attribution:
        """Which range each operation belongs to, and how that is known."""
        return attribute(self.trace, self._instances, self.gpu, self.launched)

    @property
    def found(self) -> Instances:
        """The range instances; where CUDA graphs were traced by node, followed by their replays."""
        if len(self.trace.graph_nodes):
            return self.attribution.found
        return self._instances

    @cached_property
    def _instances(self) -> Instances:
        return instances(self.trace)

    @cached_property
    def coverage(self) -> Coverage:
        """How much of the GPU's work the ranges explain."""
        return coverage_of(self.gpu, self.attribution.rule)

    def prepare(self) -> None:
        """Compute what nearly every question needs, in two threads, so that two of them can be asked at a time."""
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(1) as worker:
            ranges = worker.submit(lambda: self._instances)
            _ = self.launched
            ranges.result()
            calls = worker.submit(lambda: self.innermost_of_call)
            _ = self.coverage
            calls.result()

    def operation_pairs(self) -> Iterator[tuple[Int64, Int64]]:
        """Yield pairs (instance, operation): every instance that an operation belongs to, by whichever rule.

        Sorted by instance and start of the operation, no pair twice, all pairs of an instance in one piece.
        """
        return self.attribution.pairs()

    def call_pairs(self) -> Iterator[tuple[Int64, Int64]]:
        """Yield pairs (instance, call): every instance around an API call on its thread; order as `operation_pairs`."""
        return pairs(self.found.stretches, self._call_events())

    def _call_events(self) -> Events:
        """Return the API calls by thread and start; not kept, for they take 36 bytes a call."""
        calls = self.trace.calls
        every = np.arange(len(calls))
        # Calls come by start: by thread is all that is left to sort.
        order = few_sorted(calls.thread)
        return Events(calls.thread[order], calls.start_ns[order], calls.end_ns[order], order, len(calls), every)

    @property
    def innermost(self) -> Int64:
        """Of each operation the instance that began last of those it belongs to; -1 for none."""
        return self.attribution.innermost

    @cached_property
    def innermost_of_call(self) -> Int64:
        """Of each API call the instance that began last of those around it; -1 for none."""
        # Replays have no place on a thread.
        return innermost_around(self._instances, self._call_events())

    def operations_in(self, name: str) -> Bool:
        """Return which operations belong to a range of this name.

        Raises:
            UnanswerableError: no range of the trace has that name.
        """
        return self._members(name, self.operation_pairs(), len(self.gpu))

    def calls_in(self, name: str) -> Bool:
        """Return which API calls lie inside a range of this name; raises as `operations_in`."""
        return self._members(name, self.call_pairs(), len(self.trace.calls))

    def instances_of(self, name: str) -> Bool:
        """Return which instances have this name, or `domain:name`; raises as `operations_in`."""
        names = self.trace.names
        wanted: Bool = self.found.name == (names.index(name) if name in names else -2)
        domain, colon, bare = name.partition(":")
        if colon and domain in names and bare in names:
            wanted |= (self.found.domain == names.index(domain)) & (self.found.name == names.index(bare))
        if not wanted.any():
            raise UnanswerableError(
                f"no range {name!r} in the trace", "`--view ranges` lists the ranges that there are"
            )
        return wanted

    def _members(self, name: str, found: Iterator[tuple[Int64, Int64]], items: int) -> Bool:
        wanted = self.instances_of(name)
        inside = np.zeros(items, np.bool_)
        for instance, item in found:
            inside[item[wanted[instance]]] = True
        return inside
