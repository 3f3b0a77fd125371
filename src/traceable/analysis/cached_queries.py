"""Data that several analyses derive from the same trace, computed on first use and once for each `Context`.

Data that nearly all analyses need is part of the `Context` itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import wraps
from typing import TypeVar

import numpy as np

from traceable.analysis.context import Context
from traceable.analysis.intervals import Union, build_lanes, measure_covered_ns, union_by_lane
from traceable.analysis.name_patterns import (
    ALLOCATION_CALLS,
    COPY_CALLS,
    GRAPH_LAUNCH_CALLS,
    MODULE_LOAD_CALLS,
    MODULE_LOAD_OVERHEAD,
    NCCL_KERNEL,
    PROFILING_OVERHEAD,
    QUEUE_FULL_OVERHEAD,
    SYNCHRONIZATION_CALLS,
    UNNAMED_OVERHEAD,
    classify_names,
    match_names,
)
from traceable.trace.model import NULL, Bool, Int64, distinct

T = TypeVar("T")


def cache_per_context(part: Callable[[Context], T]) -> Callable[[Context], T]:
    """Cache the result of a function of a context for each context. Callers must not change the result.

    Exceptions are not cached.
    """
    name = f"{part.__module__}.{part.__qualname__}"

    @wraps(part)
    def cached(context: Context) -> T:
        parts = vars(context)
        if name not in parts:
            parts[name] = part(context)
        result: T = parts[name]
        return result

    return cached


def select_calls(context: Context, pattern: re.Pattern[str]) -> Int64:
    """Return the API calls of a kind, in order: one of the patterns `*_CALLS` of `name_patterns`."""
    return _calls_by_kind(context)[pattern]


@cache_per_context
def _calls_by_kind(context: Context) -> dict[re.Pattern[str], Int64]:
    # No name is of two of these kinds, so that one pass over the calls finds all of them.
    kinds = (ALLOCATION_CALLS, SYNCHRONIZATION_CALLS, COPY_CALLS, MODULE_LOAD_CALLS, GRAPH_LAUNCH_CALLS)
    name = context.trace.calls.name
    kind = classify_names(context.trace, kinds, name)[name]
    return {pattern: np.flatnonzero(kind == number) for number, pattern in enumerate(kinds)}


def select_overheads(context: Context, pattern: re.Pattern[str]) -> Int64:
    """Return the overheads of a kind, in order: PROFILING_OVERHEAD, LOADING_OVERHEAD or QUEUE_FULL_OVERHEAD.

    An overhead without a known name is LOADING_OVERHEAD where it lies inside the first launch of a kernel (by name, of
    its process) and no overhead of that process is called so: profilers that know the name use it.
    """
    return _overheads_by_kind(context)[pattern]


@cache_per_context
def _overheads_by_kind(context: Context) -> dict[re.Pattern[str], Int64]:
    overheads = context.trace.overheads
    # A name is of the first kind that it matches: some carry CUPTI's name before that of the driver's work.
    kinds = (MODULE_LOAD_OVERHEAD, QUEUE_FULL_OVERHEAD, PROFILING_OVERHEAD, UNNAMED_OVERHEAD)
    kind = classify_names(context.trace, kinds, overheads.name)[overheads.name]
    kind[overheads.name < 0] = kinds.index(UNNAMED_OVERHEAD)
    overheads_by_pattern = {pattern: np.flatnonzero(kind == number) for number, pattern in enumerate(kinds)}
    unnamed = overheads_by_pattern.pop(UNNAMED_OVERHEAD)
    # Of the whole recording, of which the time that the trace was cut to may hold none.
    every = (context.whole or context).trace.overheads
    is_module_load = match_names(context.trace, MODULE_LOAD_OVERHEAD, every.name)[every.name]
    unnamed = unnamed[~np.isin(overheads.process[unnamed], every.process[is_module_load])]
    overheads_by_pattern[MODULE_LOAD_OVERHEAD] = np.sort(
        np.append(overheads_by_pattern[MODULE_LOAD_OVERHEAD], unnamed[_in_first_launch(context, unnamed)])
    )
    return overheads_by_pattern


def _in_first_launch(context: Context, overhead: Int64) -> Bool:
    """Return which overheads lie inside a call that was the first to launch some kernel, by name, of their process."""
    overheads = context.trace.overheads
    # The first in the recording, though it may lie before the time that the trace was cut to.
    whole = context.whole or context
    calls, kernels = whole.trace.calls, whole.trace.kernels
    inside = np.zeros(len(overhead), np.bool_)
    for process in distinct(overheads.process[overhead]).tolist():
        call_of = whole.launches.call_of[: len(kernels)]
        launched = np.flatnonzero((kernels.process == process) & (call_of >= 0))
        earliest = np.full(len(context.trace.names) + 1, len(calls), np.int64)
        # Calls come by start, so that the earliest has the least index.
        np.minimum.at(earliest, kernels.name[launched], call_of[launched])
        first = distinct(earliest[earliest < len(calls)])
        if len(first):
            rows = np.flatnonzero(overheads.process[overhead] == process)
            begun = np.searchsorted(calls.start_ns[first], overheads.start_ns[overhead[rows]], "right")
            latest = np.maximum.accumulate(calls.end_ns[first])
            inside[rows] = (begun > 0) & (latest[begun - 1] >= overheads.end_ns[overhead[rows]])
    return inside


@cache_per_context
def find_nccl_kernels(context: Context) -> Int64:
    """Return the operations that are kernels of NCCL, by their short or demangled name, in order."""
    kernels = context.trace.kernels
    matching = match_names(context.trace, NCCL_KERNEL, kernels.name, kernels.short_name)
    if not matching.any():
        return np.empty(0, np.int64)
    return np.flatnonzero(matching[kernels.name] | matching[kernels.short_name])


@cache_per_context
def group_waits_by_thread(context: Context) -> Union:
    """Return when each thread was in a synchronizing call; the lanes are the threads."""
    calls = context.trace.calls
    waiting = select_calls(context, SYNCHRONIZATION_CALLS)
    lanes = build_lanes(calls.thread[waiting], len(context.trace.threads), np.arange(len(waiting)))
    return union_by_lane(calls.start_ns[waiting], calls.end_ns[waiting], lanes)


def measure_sync_waits(context: Context) -> Int64:
    """Return the ns that each instance's thread spent in synchronizing calls while it ran, one value an instance.

    Calls inside one another count once, and a call that the range's edge cuts counts with what lies inside. NULL where
    the trace holds no API calls, the range ended on another thread than it began, or it lies outside the time that the
    trace was cut to.
    """
    waits = np.full(len(context.instances), NULL, np.int64)
    if not len(context.trace.calls):
        return waits
    segments = context.instances.segments
    blocked = measure_covered_ns(group_waits_by_thread(context), segments.thread, segments.start_ns, segments.end_ns)
    waits[segments.owner] = 0
    np.add.at(waits, segments.owner, blocked)
    waits[context.instances.outside] = NULL
    return waits
