"""Which range each GPU operation belongs to, how that is known, and how much of the GPU's work is so explained.

The rules stand in `analysis.rules`, what CUDA graphs repeat in `analysis.replays`, the sums in `analysis.profile`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from traceable.analysis.enclosure import pairs
from traceable.analysis.instances import Instances
from traceable.analysis.operations import KERNEL, GpuOperations, Launches
from traceable.analysis.replays import Replayed, with_replays
from traceable.analysis.rules import GRAPH_NODE, INFERRED, INHERITED, REASONS, RULES, TASK, Links, rules_of
from traceable.trace.model import Bool, Int8, Int64, Trace


@dataclass(frozen=True)
class Attribution:
    """What belongs to which range.

    Attributes:
        found: the range instances, and after them the replays of CUDA graphs.
        rule: of each operation the number of the rule that explains it, or of the reason that none does.
        links: the places on threads by which ranges have operations.
        replayed: what the replays ran.
        innermost: of each operation the instance that began last of those it belongs to; -1 for none.
    """

    found: Instances
    rule: Int8
    links: Links
    replayed: Replayed
    innermost: Int64

    def pairs(self) -> Iterator[tuple[Int64, Int64]]:
        """Yield pairs (instance, operation), sorted by instance and start of the operation, no pair twice.

        All pairs of an instance come in one piece.
        """
        yield from pairs(self.found.stretches, self.links.events)
        if len(self.replayed.instance):
            yield self.replayed.instance, self.replayed.operation


@dataclass(frozen=True)
class Share:
    """A number of GPU operations and their summed time in ns."""

    operations: int
    gpu_ns: int


@dataclass(frozen=True)
class Coverage:
    """How much of the GPU's work is attributed: by which rule, or why not.

    Attributes:
        total: all operations of the trace.
        attributed: by rule, as in RULES.
        unattributed: by reason, as in REASONS.
        kernels, attributed_kernels, kernels_by_launch: of these operations the kernels: in all, attributed, and
            attributed by their launch.
    """

    total: Share
    attributed: dict[str, Share]
    unattributed: dict[str, Share]
    kernels: Share
    attributed_kernels: Share
    kernels_by_launch: Share

    @property
    def by_launch(self) -> Share:
        """What is attributed by the launch call: it is certain."""
        return _sum(share for rule, share in self.attributed.items() if rule not in INFERRED)

    @property
    def inferred(self) -> Share:
        """What is attributed by inference: it is likely."""
        return _sum(share for rule, share in self.attributed.items() if rule in INFERRED)


def _sum(shares: Iterable[Share]) -> Share:
    operations, gpu_ns = 0, 0
    for share in shares:
        operations, gpu_ns = operations + share.operations, gpu_ns + share.gpu_ns
    return Share(operations, gpu_ns)


def attribute(trace: Trace, found: Instances, gpu: GpuOperations, launched: Launches) -> Attribution:
    """Return what belongs to which range, and by which rule."""
    rule, links, innermost = rules_of(trace, found, gpu, launched)
    joined, replayed = with_replays(trace, found, gpu, launched, links, innermost)
    if len(replayed.instance):
        rule[replayed.operation[rule[replayed.operation] > TASK]] = GRAPH_NODE
        innermost[replayed.operation] = -1
        # Outermost first: what is written last stays.
        order = np.argsort(replayed.depth, kind="stable")
        innermost[replayed.operation[order]] = replayed.instance[order]
    return Attribution(joined, rule, links, replayed, innermost)


def coverage_of(gpu: GpuOperations, rule: Int8) -> Coverage:
    """Return how much of the GPU's work each rule explains, and for which reasons the rest is unexplained."""
    duration = gpu.end_ns - gpu.start_ns

    def share(which: Bool) -> Share:
        return Share(int(which.sum()), int(duration[which].sum()))

    kernels = gpu.kind == KERNEL
    return Coverage(
        total=Share(len(gpu), int(duration.sum())),
        attributed={label: share(rule == number) for number, label in enumerate(RULES)},
        unattributed={reason: share(rule == number) for number, reason in enumerate(REASONS, len(RULES))},
        kernels=share(kernels),
        attributed_kernels=share(kernels & (rule < len(RULES))),
        kernels_by_launch=share(kernels & (rule < INHERITED)),
    )
