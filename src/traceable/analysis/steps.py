"""The eighth question: what does a step cost, which steps are the steady state, and what differs in the slowest.

Where the steps are is found in `step_detection`; the parts of single steps are compared in `step_parts`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from traceable.analysis.context import Context
from traceable.analysis.gpus import gpus, streams_of
from traceable.analysis.grouping import only_value, ranked
from traceable.analysis.intervals import narrowed
from traceable.analysis.select import gpu_number
from traceable.analysis.step_detection import (
    BOUNDARY,
    RANGE,
    SEQUENCE,
    Steps,
    begins_within,
    launched_within,
    steps_of,
)
from traceable.analysis.step_parts import breakdown, slowest
from traceable.analysis.step_rhythm import rhythm
from traceable.analysis.step_work import Work, columns_of, inferred, work_of
from traceable.analysis.table import Table, integers, objects, ratios
from traceable.analysis.unrecorded import unrecorded_ns
from traceable.analysis.windows import STEP
from traceable.errors import Message, UnanswerableError
from traceable.trace.model import NULL, Bool, Int64, NDArray
from traceable.trace.rows import distinct

WARM_UP_FACTOR = 1.5
"""A leading step is warm-up if it lasts longer than so many times the median of the later half."""

FEWEST_FOR_WARM_UP = 4
"""With fewer whole steps than these none is called warm-up: two against one prove nothing."""

_WARM_UP = re.compile(r"(?<![a-z])warm(ing)?[\s_.\-]*ups?(?![a-z])")
_NO_WARM_UP = re.compile(
    r"(?<![a-z])(after|post|no|non|not|without|skip)[\s_.\-]*(the[\s_]+)?warm"
    r"|(?<![a-z])(lr|learning|sched[a-z]*|optim[a-z]*)(?![a-z])"
)
"""What makes a name with warm-up in it another thing: what comes after it, or the warm-up of a learning rate."""

MEASURES = (
    *("gpu_busy_ns", "gpu_sum_ns", "idle_ns", "copy_ns", "nccl_ns", "launch_ns", "sync_ns"),
    *("operations", "kernels", "allocations"),
)
"""Columns of a step that `others["summary"]` gives the means of."""

_MEMBERS = {
    RANGE: Message(
        "operations_of_step_range",
        "a step has the operations that belong to its range, also those that ran on the GPU after it ended",
    ),
    SEQUENCE: Message(
        "operations_launched_in_step",
        "a step has the operations whose launch call began in it, also those that ran on the GPU after it ended",
    ),
    BOUNDARY: Message(
        "operations_begun_in_step", "a step has the operations of its process and device that began in it"
    ),
}


def steps(context: Context, *, range_name: str | None = None, step_kernel: str | None = None) -> Table:
    """Return one row a step, by process (and device) and time.

    Args:
        range_name: a step is an instance of the range of this name (or `domain:name`, or a glob).
        step_kernel: glob over kernel names, demangled or short: each such kernel ends a step of its process and
            device, which began when the one before ended. With neither, steps are found by themselves.

    Returns:
        The steps, with `others`: `summary`, one row a process (and device) over its steady steps; where there are
        steady steps, `breakdown`, the median of them by range, and `slowest`, those that took longest against it.

    Raises:
        UsageError: both are given.
        UnanswerableError: nothing has that name, or no steps are found.
    """
    if range_name is None and step_kernel is None:
        found, work = inferred(context)
    else:
        found = steps_of(context, range_name, step_kernel)
        work = work_of(context, found)
    columns = columns_of(context, found, work)
    phases = _phases(context, found, work, columns["allocations"])
    steady = ~phases.warm_up & ~phases.other & ~found.edge
    reasons = np.array([None, "warm-up", "other phase", "edge of the capture"], object)
    left_out = reasons[np.select([found.edge, phases.warm_up, phases.other], [3, 1, 2], 0)]
    first = np.flatnonzero(np.diff(found.lane, prepend=-1))
    table = {
        "step": np.arange(len(found)) - np.repeat(first, np.diff(np.append(first, len(found)))),
        "index": _index(context, found),
        **_whose(context, found, found.lane),
        **_devices(context, found, work),
        "name": objects(found.labels)[found.label],
        "source": np.full(len(found), found.source, object),
        "steady": steady,
        "warm_up": phases.warm_up,
        "left_out": left_out,
        **columns,
    }
    others = {"summary": _summary(context, found, columns, steady, phases.warm_up)}
    if steady.any():
        others["breakdown"] = breakdown(context, found, work, median_step(columns["wall_ns"], steady))
        others["slowest"] = slowest(context, found, work, table, median_step(columns["wall_ns"], steady))
    return Table(table, others, _notes(context, found, work, phases))


def steady_window(table: Table) -> tuple[int, int]:
    """Return the ns from which until which the steps of all processes and devices are steady.

    Where there is no such time, because they ran one after another, from the first steady step to the last.

    Args:
        table: what `steps` returned.

    Raises:
        UnanswerableError: no step is steady.
    """
    summary = table.others["summary"].values
    some = summary["steady"] > 0
    if not some.any():
        raise UnanswerableError(
            "no_steady_step", "no step is in the steady state", "record more steps, or leave --steady out"
        )
    starts, ends = summary["steady_start_ns"][some], summary["steady_end_ns"][some]
    if starts.max() < ends.min():
        return int(starts.max()), int(ends.min())
    return int(starts.min()), int(ends.max())


def median_step(wall_ns: Int64, steady: Bool) -> int:
    """Return the steady step of the lower median wall time, of equal ones the first."""
    rows = np.flatnonzero(steady)
    return int(rows[np.argsort(wall_ns[rows], kind="stable")[(len(rows) - 1) // 2]])


@dataclass(frozen=True)
class _Phases:
    """Which steps are warm-up; and which are not but are parted from the most of their lane by a warm-up.

    Attributes:
        warm_up: all that are warm-up.
        in_range: those of them which a range called warm-up says are: see `_in_warm_up`.
        other: not warm-up, but not of the phase, between two ranges called warm-up, that has most steps of the lane (of
            equal ones the first): what is steady follows one another.
    """

    warm_up: Bool
    in_range: Bool
    other: Bool


def _phases(context: Context, found: Steps, work: Work, allocations: Int64) -> _Phases:
    """Return which steps are warm-up, and which of the others are of another phase than the most."""
    process, start, end = warm_up_spans(context)
    in_range = _in_warm_up(context, found, work, process, start, end)
    other = np.zeros(len(found), np.bool_)
    for lane in np.flatnonzero(np.isin(found.process, process)).tolist():
        rows = np.flatnonzero(found.lane == lane)
        phase = np.cumsum(in_range[rows].astype(np.int64))
        if found.kind == RANGE:
            begins = np.sort(start[process == found.process[lane]])
            # A warm-up within a step is a part of that, and parts no phases.
            begins = begins[~begins_within(begins, found.start_ns[rows], found.end_ns[rows])]
            phase = phase + np.searchsorted(begins, found.start_ns[rows], "right")
        rows, phase = rows[~in_range[rows]], phase[~in_range[rows]]
        if len(rows):
            other[rows] = phase != np.argmax(np.bincount(phase))
    slow = warm_up_steps(found, found.end_ns - found.start_ns, allocations, in_range | other)
    return _Phases(in_range | slow, in_range, other)


def _in_warm_up(context: Context, found: Steps, work: Work, process: Int64, start_ns: Int64, end_ns: Int64) -> Bool:
    """Return which steps ranges called warm-up say are warm-up.

    RANGE: that begin within one of their process. SEQUENCE: also those within which one begins. BOUNDARY, steps of the
    GPU's time: those with an operation that was launched in one.
    """
    inside = np.zeros(len(found), np.bool_)
    if len(process) and found.kind == BOUNDARY:
        inside[work.step[launched_within(context, process, start_ns, end_ns)[work.operation]]] = True
        return inside
    for one in distinct(process).tolist():
        rows, here = np.flatnonzero(found.process[found.lane] == one), process == one
        inside[rows] = begins_within(found.start_ns[rows], start_ns[here], end_ns[here])
        if found.kind == SEQUENCE:
            begins = np.sort(start_ns[here])
            before = np.searchsorted(begins, found.start_ns[rows], "left")
            inside[rows] |= np.searchsorted(begins, found.end_ns[rows], "left") > before
    return inside


def warm_up_spans(context: Context) -> tuple[Int64, Int64, Int64]:
    """Return process (index into `Trace.processes`), start and end of the ranges that are called warm-up.

    Whatever their case, domain and nesting, and what stands between the two words: `warm up`, `warmup`, `Warm-Up`.
    """
    trace, found = context.trace, context.found
    named = np.zeros(len(trace.names), np.bool_)
    for index in distinct(found.name).tolist():
        if "arm" in trace.names[index] or "ARM" in trace.names[index]:
            named[index] = is_warm_up(trace.names[index])
    rows = np.flatnonzero(named[found.name] & found.entered)
    process = np.array([thread.process for thread in trace.threads], np.int64)[found.thread[rows]]
    return process, found.start_ns[rows], found.end_ns[rows]


def is_warm_up(name: str) -> bool:
    """Return whether a range of this name is a warm-up, whose steps are not steady.

    Examples:
        >>> [is_warm_up(name) for name in ("warm up", "modelWarmUp", "Warm_Up #3", "after warmup", "lr_warmup")]
        [True, True, True, False, False]
    """
    # `WarmUp` and `runWarmup` are words as well.
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).lower()
    return _WARM_UP.search(words) is not None and _NO_WARM_UP.search(words) is None


def warm_up_steps(found: Steps, wall_ns: Int64, allocations: Int64, left_out: Bool) -> Bool:
    """Return which steps are warm-up by what they took.

    In each lane, of the steps that neither the edge of the capture cut nor are left out: those from the first on, up
    to half of them, as long as each lasts longer than WARM_UP_FACTOR times the median of the later half, or allocates
    memory where the later half (by its median) does not. None where there are fewer than FEWEST_FOR_WARM_UP.
    """
    warm_up = np.zeros(len(found), np.bool_)
    for lane in range(len(found.process)):
        low, high = np.searchsorted(found.lane, [lane, lane + 1])
        rows = low + np.flatnonzero(~found.edge[low:high] & ~left_out[low:high])
        half = len(rows) // 2
        if len(rows) >= FEWEST_FOR_WARM_UP:
            slow = wall_ns[rows[:half]] > WARM_UP_FACTOR * np.median(wall_ns[rows[half:]])
            allocates = (allocations[rows[:half]] > 0) & (np.median(np.maximum(allocations[rows[half:]], 0)) == 0)
            warm_up[rows[:half]] = np.logical_and.accumulate(slow | allocates)
    return warm_up


def _whose(context: Context, found: Steps, lane: Int64) -> dict[str, NDArray[Any]]:
    """Return pid and name of the process of each lane."""
    processes = [context.trace.processes[index] for index in found.process.tolist()]
    return {
        "pid": np.array([process.pid for process in processes], np.int64)[lane],
        "process": objects(process.name or None for process in processes)[lane],
    }


def _devices(context: Context, found: Steps, work: Work) -> dict[str, NDArray[Any]]:
    """Return how many GPUs each step ran on, and the number of the GPU where it is one."""
    if found.kind == BOUNDARY:
        device = _lane_devices(context, found)[found.lane]
        return {"devices": np.ones(len(found), np.int64), "device": integers(device, device >= 0)}
    if not len(context.gpu):
        return {"devices": np.zeros(len(found), np.int64), "device": np.full(len(found), NULL)}
    used = gpus(context)
    on = narrowed(used.streams.gpu, len(used))[used.streams.of_operation][work.operation]
    # Of neighbours in one step and on one GPU the first will do.
    other = (work.step[1:] != work.step[:-1]) | (on[1:] != on[:-1])
    rows = np.flatnonzero(np.append(np.ones(min(1, len(on)), np.bool_), other))
    devices, device = only_value(work.step[rows], np.array(used.number)[on[rows]], len(found))
    return {"devices": devices, "device": device}


def _lane_devices(context: Context, found: Steps) -> Int64:
    return gpu_number(context.trace, found.process.astype(np.int32), found.device.astype(np.int32))


def _index(context: Context, found: Steps) -> Int64:
    """Return the index of each step as the program counted it (docs/windows.md); NULL for a step of another kind."""
    trace = context.trace
    index = np.full(len(found), NULL, np.int64)
    row = np.append(context.range_of_instance, -1)[found.instance]
    known = np.flatnonzero(row >= 0)
    row = row[known]
    name = trace.names.index(STEP) if STEP in trace.names else -2
    ranges = trace.ranges if trace.cut is None else trace.cut.whole.ranges
    counted = (ranges.name[row] == name) & (ranges.domain[row] == -1) & ranges.has_payload[row]
    index[known[counted]] = ranges.payload[row[counted]]
    return index


def _summary(context: Context, found: Steps, columns: dict[str, NDArray[Any]], steady: Bool, warm_up: Bool) -> Table:
    """Return one row a lane: how many steps, which of them are steady, and what those took."""
    lanes = len(found.process)
    of_steady = found.lane[steady]
    count = np.bincount(of_steady, minlength=lanes)
    start = np.full(lanes, np.iinfo(np.int64).max)
    end = np.full(lanes, NULL)
    np.minimum.at(start, of_steady, found.start_ns[steady])
    np.maximum.at(end, of_steady, found.end_ns[steady])
    device = _lane_devices(context, found)
    means: dict[str, NDArray[Any]] = {}
    for name in MEASURES:
        known = steady & (columns[name] != NULL)
        sums = np.bincount(found.lane[known], weights=columns[name][known], minlength=lanes)
        word = name.removesuffix("_ns")
        unit = "_ns" if name.endswith("_ns") else ""
        means[f"{word}_mean{unit}"] = ratios(sums, np.bincount(found.lane[known], minlength=lanes))
    # What steps that overlap (requests) do in a time is what counts, not the sum of their times.
    start_or_0, end_or_0 = np.where(count > 0, start, 0), np.where(count > 0, end, 0)
    elapsed = end_or_0 - start_or_0 - unrecorded_ns(context.trace, start_or_0, end_or_0)
    wall = np.bincount(of_steady, weights=columns["wall_ns"][steady], minlength=lanes)
    idle = np.where(columns["idle_ns"] == NULL, np.nan, columns["idle_ns"])
    busy = np.bincount(of_steady, weights=(columns["wall_ns"] - idle)[steady], minlength=lanes)
    return Table(
        {
            **_whose(context, found, np.arange(lanes)),
            "device": integers(device, device >= 0),
            "source": np.full(lanes, found.source, object),
            "steps": np.bincount(found.lane, minlength=lanes),
            "steady": count,
            "warm_up": np.bincount(found.lane[warm_up], minlength=lanes),
            "cut": np.bincount(found.lane[found.edge], minlength=lanes),
            "steady_start_ns": integers(start, count > 0),
            "steady_end_ns": integers(end, count > 0),
            **ranked(found.lane, columns["wall_ns"], lanes, steady).summary("wall"),
            "steps_per_s": ratios(count * 1e9, elapsed),
            **rhythm(context, found, steady, elapsed),
            "utilisation_share": ratios(busy, wall),
            **means,
        }
    )


def _notes(context: Context, found: Steps, work: Work, phases: _Phases) -> tuple[Message, ...]:
    """Say what a step is, which are left out of the steady state and why, and what is in no step."""
    gpu = context.gpu
    notes = [*found.rules, _MEMBERS[found.kind]]
    if phases.in_range.any():
        notes.append(
            Message(
                "steps_in_warm_up_range",
                f"left out of the steady state as warm-up: {_counted(phases.in_range)} in a range of that name",
            )
        )
    if phases.other.any():
        notes.append(
            Message(
                "steps_of_other_phase",
                f"left out of the steady state as of another phase: {_counted(phases.other)}, which a warm-up range "
                "parts from the most",
            )
        )
    slow = phases.warm_up & ~phases.in_range
    if slow.any():
        notes.append(
            Message(
                "warm_up_steps",
                f"left out of the steady state as warm-up: {_counted(slow)}, the first ones that last over "
                f"{WARM_UP_FACTOR:g} times the median of the later half, or allocate memory where the later half does "
                "not",
            )
        )
    if found.edge.any():
        why = "the first of its process and device, whose begin is not known" if found.kind == BOUNDARY else "cut"
        why = "the last, whose end is not known" if found.kind == SEQUENCE else why
        notes.append(
            Message(
                "steps_at_capture_edge",
                f"left out of the steady state at the edge of the capture: {_counted(found.edge)}, {why}",
            )
        )
    inside = np.zeros(len(gpu), np.bool_)
    inside[work.operation] = True
    outside = np.flatnonzero(~inside)
    if len(outside):
        time = int((gpu.end_ns[outside] - gpu.start_ns[outside]).sum())
        notes.append(
            Message(
                "operations_outside_steps",
                f"{len(outside)} GPU operations, {time / 1e6:.3f} ms in sum, are of no step",
            )
        )
    without = [
        str(process.pid)
        for index, process in enumerate(context.trace.processes)
        if index not in found.process and (streams_of(context).process == index).any()
    ]
    if without:
        notes.append(
            Message("process_without_steps", f"no step in process {', '.join(without[:20])}, which used the GPU")
        )
    return tuple(notes)


def _counted(which: Bool) -> str:
    number = int(which.sum())
    return f"{number} step" if number == 1 else f"{number} steps"
