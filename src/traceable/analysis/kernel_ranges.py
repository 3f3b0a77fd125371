"""Kernels by range: which range ran which kernel how often, and beside it what nsys says of the same.

Ours: each kernel once in each range name that it belongs to, by whichever rule (`analysis.rules`). nsys's
`nvtx_kern_sum`: by thread and launch call alone, and once for every instance, so that a kernel inside two nested
ranges of one name counts twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from traceable.analysis.context import Context
from traceable.analysis.enclosure import Events, pairs
from traceable.analysis.grouping import distinct_counts, distinct_pairs, numbered, only_value, ranked
from traceable.analysis.kernel_names import KernelNames, Kinds
from traceable.analysis.range_rows import OUTSIDE, Credits, credits_of, in_order, of_ranges, range_and_style
from traceable.analysis.statistics import totals
from traceable.analysis.table import Table, objects
from traceable.errors import UnanswerableError
from traceable.trace.model import NULL, Bool, Int64, NDArray


@dataclass(frozen=True)
class _Items:
    """What is credited to ranges, as equally long columns.

    Attributes:
        kernel: index into `Trace.kernels`; several items may be of one.
        cell: number of its thread and label.
        thread, label: of each cell: the thread that made the launch call, OUTSIDE where the trace holds none; and
            the kernel's label.
    """

    kernel: Int64
    cell: Int64
    thread: Int64
    label: Int64


def by_range(context: Context, kinds: Kinds, named: KernelNames, range_name: str | None) -> Table:
    """Return one row a range (domain, name, style), launching thread and kernel; what lies outside ranges last.

    Args:
        range_name: only the rows of ranges of this name, or `domain:name`.

    Raises:
        UnanswerableError: the trace has no ranges, or none of that name, or none of that name ran a kernel.
    """
    found = context.found
    if not len(found):
        raise UnanswerableError(
            "no_ranges_recorded", "the trace holds no ranges", "annotate the program, and have nvtx in --trace"
        )
    of_instance, first = numbered(found.domain, found.name, found.style)
    wanted = None
    if range_name is not None:
        wanted = np.zeros(len(first), np.bool_)
        wanted[of_instance[context.instances_of(range_name)]] = True
    label = named.label[kinds.of_kernel]
    key, ours = _ours(context, label, of_instance, wanted)
    if not len(key):
        raise UnanswerableError(
            "no_kernels_in_range",
            f"no kernel belongs to a range {range_name!r}",
            "`--view ranges` shows what each range put on the GPU",
        )
    their_key, theirs = _theirs(context, label, of_instance, wanted)
    split = len(key)
    keys = np.concatenate([key, their_key]).T
    row, one = numbered(*keys)
    number, thread, of_label = keys[:, one]
    values = {
        **range_and_style(context.trace, found, first, number),
        **_thread_columns(context, thread),
        "name": objects(named.texts[code] for code in of_label.tolist()),
        "family": _families(named, of_label),
        **_spread_out(ours, row[:split], len(one)),
        **_spread_out(theirs, row[split:], len(one)),
    }
    return Table(values).take(in_order(number, np.maximum(values["total_ns"], 0)))


def _ours(context: Context, label: Int64, of_instance: Int64, wanted: Bool | None) -> _Measured:
    """Measure each kernel once for each range that it belongs to, and those that belong to none."""
    kernels = len(label)
    call, calls = context.launched.call_of[:kernels], context.launched.calls
    thread = np.where(call >= 0, calls.thread[call], OUTSIDE) if len(calls) else call
    cell, first = numbered(thread, label)
    items = _Items(np.arange(kernels), cell, thread[first], label[first])
    seen = _Instances(of_instance, items)
    found = credits_of(seen.passing(_kernels_of(context), wanted), of_instance, kernels, wanted is None)
    # Each kernel once, in however many instances of the range it is.
    return _measured(context, "", found.once(), items, seen)


def _kernels_of(context: Context) -> Iterator[tuple[Int64, Int64]]:
    kernels = len(context.trace.kernels)
    for instance, operation in context.operation_pairs():
        here = np.flatnonzero(operation < kernels)
        yield instance[here], operation[here]


def _theirs(context: Context, label: Int64, of_instance: Int64, wanted: Bool | None) -> _Measured:
    """Measure what nsys joins: each kernel with each of its launch calls, and each range around that on its thread."""
    launched = context.launched
    of_kernel = np.flatnonzero(launched.operation < len(label))
    kernel, links = launched.operation[of_kernel], np.arange(len(of_kernel))
    thread, start, end = launched.thread[of_kernel], launched.start_ns[of_kernel], launched.end_ns[of_kernel]
    found = pairs(context.found.stretches, Events(thread, start, end, links, len(links), links))
    alone = np.ones(len(label), np.bool_)
    alone[kernel] = False
    # What has no launch call lies outside every range, on no thread.
    kernel = np.concatenate([kernel, np.flatnonzero(alone)])
    thread = np.concatenate([thread, np.full(len(kernel) - len(links), OUTSIDE, thread.dtype)])
    cell, first = numbered(thread, label[kernel])
    items = _Items(kernel, cell, thread[first].astype(np.int64), label[kernel[first]])
    seen = _Instances(of_instance, items)
    credited = credits_of(seen.passing(found, wanted), of_instance, len(kernel), wanted is None)
    return _measured(context, "nsys_", credited, items, seen)


class _Instances:
    """Counts, while pairs pass, how many instances of a range have an item of a cell."""

    def __init__(self, of_instance: Int64, items: _Items) -> None:
        self._of_instance, self._cell, self._cells = of_instance, items.cell, max(1, len(items.thread))
        self._counts = [np.zeros((2, 0), np.int64)]

    def passing(self, pieces: Iterable[tuple[Int64, Int64]], wanted: Bool | None) -> Iterator[tuple[Int64, Int64]]:
        """Yield the pairs (instance, item) of `wanted` ranges, None for all; an instance's in one piece."""
        for instance, item in of_ranges(pieces, self._of_instance, wanted):
            each, cell = distinct_pairs(instance, self._cell[item], self._cells)
            code = (self._of_instance[each] + 1) * self._cells + cell
            self._counts.append(np.stack(np.unique(code, return_counts=True)))
            yield instance, item

    def counted(self, code: Int64) -> Int64:
        """Return the number for each range (from 1, 0 for none) and cell, given as range * cells + cell."""
        every, times = np.concatenate(self._counts, axis=1)
        place, first = numbered(every)
        sums = np.append(totals(place, times, len(first)), 0)
        at = np.searchsorted(every[first], code)
        found = np.append(every[first], -1)[at] == code
        return np.where(found, sums[at], 0)


_Measured = tuple[Int64, dict[str, NDArray[Any]]]
"""Of each row range (OUTSIDE for none), thread and label, shape (rows, 3); and the columns."""


def _measured(context: Context, prefix: str, credited: Credits, items: _Items, seen: _Instances) -> _Measured:
    """Return the numbers of each row, one range after another."""
    parts = [_part(context, prefix, number, item, items, seen) for number, item in credited.parts()]
    rows = np.concatenate([part[0] for part in parts])
    return rows, {name: np.concatenate([part[1][name] for part in parts]) for name in parts[0][1]}


def _part(context: Context, prefix: str, number: Int64, item: Int64, items: _Items, seen: _Instances) -> _Measured:
    kernels, cells = context.trace.kernels, max(1, len(items.thread))
    kernel = items.kernel[item]
    group, first = numbered(number, items.cell[item])
    groups = len(first)
    number, cell = number[first], items.cell[item[first]]
    found = ranked(group, kernels.end_ns[kernel] - kernels.start_ns[kernel], groups)
    columns = {
        f"{prefix}range_instances": seen.counted(number * cells + cell),
        f"{prefix}count": _different(group, item, kernel, groups, len(items.kernel) == len(kernels)),
        f"{prefix}total_ns": found.totals(),
        **found.summary(f"{prefix}kernel"),
    }
    return np.stack([number - 1, items.thread[cell], items.label[cell]], axis=1), columns


def _different(group: Int64, item: Int64, kernel: Int64, groups: int, single: bool) -> Int64:
    """Return how many kernels each group has; `single` says that no kernel has several items."""
    if not single:
        return distinct_counts(group, kernel, groups)
    # Items come in ascending order within a range, so that equal ones are neighbours.
    again = np.flatnonzero((item[1:] == item[:-1]) & (group[1:] == group[:-1])) + 1
    return np.bincount(group, minlength=groups) - np.bincount(group[again], minlength=groups)


def _spread_out(columns: dict[str, NDArray[Any]], row: Int64, rows: int) -> dict[str, NDArray[Any]]:
    """Return the columns with the values in these rows; absent in a row that only the other rule has."""
    absent = {"i": NULL, "f": np.nan}
    whole = {name: np.full(rows, absent[values.dtype.kind], values.dtype) for name, values in columns.items()}
    for name, values in columns.items():
        whole[name][row] = values
    return whole


def _thread_columns(context: Context, thread: Int64) -> dict[str, NDArray[Any]]:
    trace = context.trace
    threads = [trace.threads[one] if one != OUTSIDE else None for one in thread.tolist()]
    return {
        "pid": np.array([NULL if one is None else trace.processes[one.process].pid for one in threads], np.int64),
        "tid": np.array([NULL if one is None else one.tid for one in threads], np.int64),
    }


def _families(named: KernelNames, label: Int64) -> NDArray[np.object_]:
    """Return the family of each row; absent where kernels of the row's name are of several families."""
    code = only_value(named.label, named.family, len(named.texts))[1][label]
    return objects(named.families[one] if one != NULL else None for one in code.tolist())
