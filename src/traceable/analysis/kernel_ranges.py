"""Kernels by range: which range ran which kernel how often, and beside it what nsys says of the same.

Ours: each kernel once in each range name that it belongs to, by whichever rule (`analysis.rules`). nsys's
`nvtx_kern_sum`: by thread and launch call alone, and once for every instance, so that a kernel inside two nested
ranges of one name counts twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traceable.analysis.context import Context
from traceable.analysis.enclosure import Events, pairs
from traceable.analysis.grouping import Ranked, distinct_counts, distinct_pairs, numbered, only_value, ranked
from traceable.analysis.kernel_names import KernelNames
from traceable.analysis.range_rows import OUTSIDE, in_order, range_and_style
from traceable.analysis.table import Table, integers, objects
from traceable.errors import UnanswerableError
from traceable.trace.model import NULL, Int64


@dataclass(frozen=True)
class _Credits:
    """Which kernel is credited to which range, as equally long columns.

    Attributes:
        instance: of the range, OUTSIDE for none.
        range: number of its domain, name and style, OUTSIDE for none.
        thread: that made the launch call, OUTSIDE where the trace holds none.
        kernel: index into `Trace.kernels`.
    """

    instance: Int64
    range: Int64
    thread: Int64
    kernel: Int64

    def take(self, index: Any) -> _Credits:
        return _Credits(self.instance[index], self.range[index], self.thread[index], self.kernel[index])


def by_range(context: Context, named: KernelNames, range_name: str | None) -> Table:
    """Return one row a range (domain, name, style), launching thread and kernel; what lies outside ranges last.

    Args:
        range_name: only the rows of ranges of this name, or `domain:name`.

    Raises:
        UnanswerableError: the trace has no ranges, or none of that name, or none of that name ran a kernel.
    """
    found = context.found
    if not len(found):
        raise UnanswerableError("the trace holds no ranges", "annotate the program, and have nvtx in --trace")
    of_instance, first = numbered(found.domain, found.name, found.style)
    ours, theirs = _ours(context, of_instance), _theirs(context, of_instance)
    if range_name is not None:
        wanted = np.zeros(len(first) + 1, np.bool_)
        wanted[of_instance[context.instances_of(range_name)]] = True
        ours, theirs = ours.take(wanted[ours.range]), theirs.take(wanted[theirs.range])
        if not len(ours.kernel):
            raise UnanswerableError(
                f"no kernel belongs to a range {range_name!r}", "`--view ranges` shows what each range put on the GPU"
            )
    keys = [np.concatenate([getattr(ours, name), getattr(theirs, name)]) for name in ("range", "thread")]
    label = named.label[np.concatenate([ours.kernel, theirs.kernel])]
    group, row = numbered(*keys, label)
    split = len(ours.kernel)
    values = {
        **range_and_style(context.trace, found, first, keys[0][row]),
        **_thread_columns(context, keys[1][row]),
        "name": objects(named.texts[code] for code in label[row].tolist()),
        "family": _families(named, np.concatenate([ours.kernel, theirs.kernel])[row]),
        **_measured(context, "", ours, group[:split], len(row)),
        **_measured(context, "nsys_", theirs, group[split:], len(row)),
    }
    return Table(values).take(in_order(keys[0][row], np.maximum(values["total_ns"], 0)))


def _ours(context: Context, of_instance: Int64) -> _Credits:
    """Return each kernel once for each instance that it belongs to, and those that belong to none."""
    kernels = len(context.trace.kernels)
    call = context.launched.call_of[:kernels]
    thread = np.where(call >= 0, context.trace.calls.thread[call], OUTSIDE) if len(context.trace.calls) else call
    pieces = [(instance[kernel < kernels], kernel[kernel < kernels]) for instance, kernel in context.operation_pairs()]
    instance, kernel = _with_outside(pieces, kernels)
    return _Credits(instance, np.append(of_instance, OUTSIDE)[instance], thread[kernel], kernel)


def _theirs(context: Context, of_instance: Int64) -> _Credits:
    """Return what nsys joins: each kernel with each of its launch calls, and each range around that on its thread."""
    kernels = len(context.trace.kernels)
    launched = context.launched
    of_kernel = np.flatnonzero(launched.operation < kernels)
    kernel, links = launched.operation[of_kernel], np.arange(len(of_kernel))
    thread, start, end = launched.thread[of_kernel], launched.start_ns[of_kernel], launched.end_ns[of_kernel]
    events = Events(thread, start, end, links, len(links), links)
    instance, link = _with_outside(list(pairs(context.found.stretches, events)), len(links))
    alone = np.flatnonzero(np.bincount(kernel, minlength=kernels) == 0)
    nowhere = np.full(len(alone), OUTSIDE)
    instance = np.concatenate([instance, nowhere])
    return _Credits(
        instance,
        np.append(of_instance, OUTSIDE)[instance],
        np.concatenate([thread[link], nowhere]),
        np.concatenate([kernel[link], alone]),
    )


def _with_outside(pieces: list[tuple[Int64, Int64]], items: int) -> tuple[Int64, Int64]:
    """Join pairs (instance, item), and add (OUTSIDE, item) for the items that are in none."""
    instance = np.concatenate([np.empty(0, np.int64), *(piece[0] for piece in pieces)])
    item = np.concatenate([np.empty(0, np.int64), *(piece[1] for piece in pieces)])
    outside = np.ones(items, np.bool_)
    outside[item] = False
    alone = np.flatnonzero(outside)
    return np.concatenate([instance, np.full(len(alone), OUTSIDE)]), np.concatenate([item, alone])


def _measured(context: Context, prefix: str, credited: _Credits, group: Int64, groups: int) -> dict[str, NDArray[Any]]:
    """Return the numbers of each row; absent in a row that only the other rule has."""
    kernels = context.trace.kernels
    inside = credited.instance != OUTSIDE
    instances = distinct_counts(group[inside], credited.instance[inside], groups)
    kernel = credited.kernel
    if prefix:
        count = distinct_counts(group, credited.kernel, groups)
    else:
        # Each kernel once, in however many instances of the name it is.
        group, kernel = distinct_pairs(group, credited.kernel, len(kernels))
        count = np.bincount(group, minlength=groups)
    spread = ranked(group, kernels.end_ns[kernel] - kernels.start_ns[kernel], groups)
    some = count > 0
    return {
        f"{prefix}range_instances": integers(instances, some),
        f"{prefix}count": integers(count, some),
        f"{prefix}total_ns": integers(spread.totals(), some),
        **_spread(f"{prefix}kernel", spread),
    }


def _spread(prefix: str, found: Ranked) -> dict[str, NDArray[Any]]:
    return {**found.spread(prefix), f"{prefix}_stddev_ns": found.deviations()}


def _thread_columns(context: Context, thread: Int64) -> dict[str, NDArray[Any]]:
    trace = context.trace
    threads = [trace.threads[one] if one != OUTSIDE else None for one in thread.tolist()]
    return {
        "pid": np.array([NULL if one is None else trace.processes[one.process].pid for one in threads], np.int64),
        "tid": np.array([NULL if one is None else one.tid for one in threads], np.int64),
    }


def _families(named: KernelNames, kernel: Int64) -> NDArray[np.object_]:
    """Return the family of each row; absent where kernels of the row's name are of several families."""
    code = only_value(named.label, named.family, len(named.texts))[1][named.label[kernel]]
    return objects(named.families[one] if one != NULL else None for one in code.tolist())
