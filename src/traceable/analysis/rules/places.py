"""Where in the program something is: ranges by name, and the tree of range paths with sums of what lies inside.

Names that differ by a number only are one place: `layers.0` to `layers.31` are `layers.*`, and so there is one finding
about them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cached_property

import numpy as np

from traceable.analysis.context import Context
from traceable.analysis.named import range_labels
from traceable.analysis.naming import fold_numbers
from traceable.analysis.shared import once
from traceable.trace.model import Int64
from traceable.trace.rows import distinct

DEEPER = 0.8
"""A range inside another is the better place if it has this share of the other's sum."""


def folded(names: Iterable[str]) -> dict[str, str]:
    """Return what each name is called in findings: numbers are `*` where names differ by nothing else.

    Examples:
        >>> sorted(set(folded(["layers.0.mlp", "layers.1.mlp", "step 7", "conv1d", "conv2d"]).values()))
        ['conv1d', 'conv2d', 'layers.*.mlp', 'step 7']
    """
    patterns = {name: fold_numbers(name) for name in names}
    number = Counter(patterns.values())
    return {name: pattern if number[pattern] > 1 else name for name, pattern in patterns.items()}


@once
def range_names(context: Context) -> dict[int, str]:
    """Return what the ranges of a trace are called in findings, by the index of their name."""
    names = context.trace.names
    used = {name for path in context.found.paths for name in path}
    as_folded = folded(names[index] for index in used)
    return {index: as_folded[names[index]] for index in used}


class Labels:
    """The ranges of a trace by name and domain.

    Attributes:
        of_instance: the number of the range of each instance, and -1 at the end, so that instance -1 has it too.
        names: name and domain of each number, both None for the last one, which is what is outside every range.
    """

    def __init__(self, context: Context) -> None:
        trace, found = context.trace, context.found
        label, first = range_labels(found)
        numbers: dict[tuple[str | None, str | None], int] = {}
        merged = []
        for name, domain in zip(found.name[first].tolist(), found.domain[first].tolist(), strict=True):
            key = (range_names(context)[name], trace.names[domain] if domain >= 0 else None)
            merged.append(numbers.setdefault(key, len(numbers)))
        self.of_instance: Int64 = np.append(np.array(merged, np.int64)[label], -1)
        self.names = (*numbers, (None, None))


class Places:
    """The range paths of a trace, numbered, and one more for what is outside every range."""

    def __init__(self, context: Context) -> None:
        self._context = context
        names = range_names(context)
        numbers: dict[tuple[str, ...], int] = {}
        of_path = [
            numbers.setdefault(tuple(names[name] for name in path), len(numbers)) for path in context.found.paths
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
        return np.append(self._of_path[self._context.found.path], self.outside)

    def sums(self, operation: Int64, value: Int64 | None = None) -> Int64:
        """Return of each place the sum of a value (or the number) of the operations that belong to it."""
        of_place = np.zeros(self.outside + 1, np.int64)
        np.add.at(of_place, self._of_instance[self._context.innermost[operation]], 1 if value is None else value)
        for depth in range(int(self._depth.max(initial=0)), 1, -1):
            here = np.flatnonzero((self._depth == depth) & (self._parent >= 0))
            np.add.at(of_place, self._parent[here], of_place[here])
        return of_place

    def deepest(self, total: Int64, least: float) -> Iterator[int]:
        """Yield for each outermost path with at least `least` the deepest place that has most of its total.

        From each path it goes down to the one inside it that has the most (of equals the first), as long as that has
        DEEPER of it.
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
                if total[most] < DEEPER * total[at]:
                    break
                at = most
            yield at

    def range_of(self, place: int) -> tuple[str | None, str | None]:
        """Return the name of the range of a place, and the domain where it is the same for all of them."""
        if place == self.outside:
            return None, None
        names, found = self._context.trace.names, self._context.found
        domains = distinct(found.domain[self._of_instance[:-1] == place]).tolist()
        domain = names[domains[0]] if len(domains) == 1 and domains[0] >= 0 else None
        return self._paths[place][-1], domain
