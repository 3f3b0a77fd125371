"""Copies to the GPU that happen once, as of weights at the start of a program: nothing that advice would make faster.

What recurs is spread over the work of the GPU; what is loaded once lies before it, or in one place of it.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from traceable.analysis.operations import DIRECTIONS, GRAPH, KERNEL
from traceable.analysis.rules.evidence import Evidence
from traceable.trace.model import Bool, Int64

FEW = 20
"""Of the time of the copies, the first and the last part of so many may lie anywhere."""

ONE_PLACE = 10
"""Copies do not recur if between the rest of them the GPUs do less than one part in so many of their kernels' time."""


class Loads:
    """Tells host-to-device copies that do not recur from those that do."""

    def __init__(self, evidence: Evidence) -> None:
        self.evidence = evidence

    def one_off(self, operation: Int64) -> Bool:
        """Return which of some operations are host-to-device copies if these, taken together, do not recur; else none.

        Only the part that bounds are of counts. The copies are taken by start; the first is that at which a twentieth
        of their time (FEW) is reached, the last that at which all but a twentieth is. They do not recur if the kernels
        and graphs that begin at the first or later and before the last have less than a tenth (ONE_PLACE) of the time
        of all of them. Where none ran, that can't be known, and the copies count as recurring.

        Args:
            operation: indices of GPU operations; -1 for none.
        """
        gpu, evidence = self.evidence.context.gpu, self.evidence
        copies = (operation >= 0) & (gpu.direction[operation] == DIRECTIONS.index("h2d"))
        rows = operation[copies]
        rows = rows[np.argsort(gpu.start_ns[rows], kind="stable")]
        lasting = np.cumsum(evidence.inside_ns(gpu.start_ns[rows], gpu.end_ns[rows]))
        starts, done = self._kernel_time
        nothing = np.zeros(len(operation), np.bool_)
        if not len(rows) or not lasting[-1] or not done[-1]:
            return nothing
        ends = np.searchsorted(FEW * lasting, np.array([1, FEW - 1]) * lasting[-1], "left")
        before, until = done[np.searchsorted(starts, gpu.start_ns[rows[ends]], "left")].tolist()
        return copies if ONE_PLACE * (until - before) < done[-1] else nothing

    @cached_property
    def _kernel_time(self) -> tuple[Int64, Int64]:
        """The start of each kernel and graph, in order; and the time of all before each, at the end that of all."""
        gpu, evidence = self.evidence.context.gpu, self.evidence
        kernels = gpu.by_start[np.isin(gpu.kind[gpu.by_start], (KERNEL, GRAPH))]
        start = gpu.start_ns[kernels]
        return start, np.cumsum(np.append(0, evidence.inside_ns(start, gpu.end_ns[kernels])))
