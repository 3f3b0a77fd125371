"""What recording cost: a run under a collector against the same run without one, step by step.

Both runs do the same work at the same step, so a step is compared with itself: the ratio of its two times. The result
is the median of these ratios; it does not move with steps that differ from each other, nor with the few that something
else on the machine delayed. The interval comes from six segments of the run, each with a median of its own: were half
of the true ratios above a number and half below, all six medians would lie on one side of it once in 32 times, so
their smallest and largest hold the true one between them in 31 of 32 (the sign test; it assumes no distribution of the
noise, and slow drifts, which segments have and single steps hide, widen it). It is widened by what waiting for a CPU
could explain, which on a busy machine is more than all else: of a step under the collector that waited a fifth of its
time, four fifths may be what it takes; of one without, likewise. Other differences that last from the first step to
the last are in no such interval, and the shorter the runs the larger these are; less than a second of steps proves
nothing.

It reads no trace. `capture/step_times.py` measures the times, `cli/overhead.py` reads them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from traceable.analysis.steps import MIN_STEPS_FOR_WARM_UP, WARM_UP_FACTOR
from traceable.trace.model import Int64

SEGMENTS = 6
"""Into how many segments the steps are split; with fewer steps there is no interval."""

_MAX_WAIT_SHARE = 0.99
"""The largest share of waiting that is taken into account: the divisor is 1 less this, or more."""

MIN_TOTAL_NS = 1_000_000_000
"""What the steps must take together for a difference to be significant: two runs of a training loop without any
collector differed by 51 % in the median of 300 steps that took 0.3 s in all, on two busy cores of a virtual machine."""


@dataclass(frozen=True)
class ProcessTimes:
    """One process that took steps.

    Attributes:
        pid: its number.
        step_times: three numbers a step, by index: begin and end in ns, 0 and 0 where they are not known; and how long
            its thread had waited for a CPU by its end, in ns plus 1, 0 where that was not measured.
        is_program: whether it is the program itself and none of its children.
        recorded_steps: the steps that were recorded, each pair from the first until before the second; None for all.
        stall_ns: how long opening and closing windows took.
    """

    pid: int | None
    step_times: Sequence[int]
    is_program: bool = False
    recorded_steps: tuple[tuple[int, int], ...] | None = None
    stall_ns: int = 0


_NO_PROCESS = ProcessTimes(None, ())


@dataclass(frozen=True)
class RunTimes:
    """One of the two runs.

    Attributes:
        ns: from the start of the program to its end; None where it is not known or did not end as the other.
        processes: those that took steps.
    """

    ns: int | None
    processes: tuple[ProcessTimes, ...] = ()


@dataclass(frozen=True)
class StepComparison:
    """The same steps with a collector and without, as docs/measure-overhead.md describes each attribute."""

    steps: int
    plain_p50_ns: float
    profiled_p50_ns: float
    overhead_share: float
    low_share: float | None
    high_share: float | None
    significant: bool
    plain_total_ns: int
    profiled_total_ns: int


@dataclass(frozen=True)
class Overhead:
    """What recording cost, as docs/measure-overhead.md describes each attribute."""

    recorded_steps: StepComparison | None
    other_steps: StepComparison | None
    warm_up_steps: int
    plain_steps: int
    profiled_steps: int
    pid: int | None
    stepping_processes: int
    stall_ns: int
    plain_cpu_wait_share: float | None
    profiled_cpu_wait_share: float | None
    plain_run_ns: int | None
    profiled_run_ns: int | None
    run_overhead_share: float | None


def compute_overhead(plain: RunTimes, profiled: RunTimes) -> Overhead:
    """Return what `profiled` cost more than `plain`."""
    pair = match_processes(plain.processes, profiled.processes) or (_NO_PROCESS, _NO_PROCESS)
    before_ns, after_ns = (compute_step_durations(process.step_times) for process in pair)
    warm_up = count_warm_up_steps(before_ns)
    both = min(len(before_ns), len(after_ns))
    is_known = (before_ns[:both] > 0) & (after_ns[:both] > 0)
    is_known[:warm_up] = False
    is_recorded = np.full(both, pair[1].recorded_steps is None)
    for start, stop in pair[1].recorded_steps or ():
        is_recorded[start:stop] = True
    wait_shares = [compute_cpu_wait_share(process.step_times, warm_up) for process in pair]
    recorded, other = (
        compare_steps(before_ns[:both][rows], after_ns[:both][rows], *wait_shares)
        for rows in (is_known & is_recorded, is_known & ~is_recorded)
    )
    run_ns = (plain.ns, profiled.ns) if plain.ns and profiled.ns else (None, None)
    return Overhead(
        recorded_steps=recorded,
        other_steps=other,
        warm_up_steps=warm_up,
        plain_steps=int((before_ns > 0).sum()),
        profiled_steps=int((after_ns > 0).sum()),
        pid=pair[1].pid,
        stepping_processes=len(profiled.processes),
        stall_ns=pair[1].stall_ns,
        plain_cpu_wait_share=wait_shares[0],
        profiled_cpu_wait_share=wait_shares[1],
        plain_run_ns=run_ns[0],
        profiled_run_ns=run_ns[1],
        run_overhead_share=profiled.ns / plain.ns - 1 if plain.ns and profiled.ns else None,
    )


def match_processes(
    plain: Sequence[ProcessTimes], profiled: Sequence[ProcessTimes]
) -> tuple[ProcessTimes, ProcessTimes] | None:
    """Return the process to compare, without a collector and with one; None where that is ambiguous.

    The program itself where it took steps, and those were recorded. Else that one of its children that recorded and
    took steps first, and its counterpart is the child whose first step has the same place in the order of as many.
    """
    recorded = [process for process in profiled if process.recorded_steps is None or process.recorded_steps]
    own = [process for process in (recorded or profiled) if process.is_program]
    counterpart = [process for process in plain if process.is_program]
    if own and counterpart:
        return counterpart[0], own[0]
    before = sorted((process for process in plain if not process.is_program), key=_get_first_ns)
    after = sorted((process for process in profiled if not process.is_program), key=_get_first_ns)
    candidates = [process for process in after if process in recorded] or after
    if not candidates or len(before) != len(after):
        return None
    return before[after.index(candidates[0])], candidates[0]


def _get_first_ns(process: ProcessTimes) -> int:
    return next((time for time in process.step_times if time > 0), 0)


def compute_step_durations(times: Sequence[int]) -> Int64:
    """Return how long each step took, in ns and at least 1, by index; 0 where it is not known.

    Args:
        times: as of `ProcessTimes`.
    """
    begin, end, _ = np.asarray(times, np.int64).reshape(-1, 3).T
    whole = (begin > 0) & (end >= begin)
    out = np.where(whole, np.maximum(end - begin, 1), 0)
    return np.asarray(np.trim_zeros(out, "b"), np.int64)


def count_warm_up_steps(duration_ns: Int64) -> int:
    """Return how many first steps are warm-up, by their indices: the rule of the steps of a trace, without memory.

    Args:
        duration_ns: of the run without a collector, whose first steps are slow for no other reason.
    """
    known = np.flatnonzero(duration_ns > 0)
    half = len(known) // 2
    if len(known) < MIN_STEPS_FOR_WARM_UP:
        return 0
    slow = duration_ns[known[:half]] > WARM_UP_FACTOR * np.median(duration_ns[known[half:]])
    leading = int(np.logical_and.accumulate(slow).sum())
    return int(known[leading - 1]) + 1 if leading else 0


def compute_cpu_wait_share(times: Sequence[int], first: int) -> float | None:
    """Return for which part of the time the thread waited for a CPU, from step `first` on; None if not measured.

    Args:
        times: as of `ProcessTimes`.
        first: the index of a step.
    """
    rows = np.asarray(times, np.int64).reshape(-1, 3)[first:]
    measured = rows[(rows[:, 2] > 0) & (rows[:, 1] > 0)]
    if len(measured) < 2 or measured[-1, 1] <= measured[0, 1]:
        return None
    return float(np.clip((measured[-1, 2] - measured[0, 2]) / (measured[-1, 1] - measured[0, 1]), 0, 1))


def compare_steps(
    plain_ns: Int64,
    profiled_ns: Int64,
    plain_wait_share: float | None = None,
    profiled_wait_share: float | None = None,
) -> StepComparison | None:
    """Compare the times of the same steps, in their order; None where there are none.

    Args:
        plain_ns, profiled_ns: of each step, above 0.
        plain_wait_share, profiled_wait_share: for which part of the time they waited for a CPU, as far as is known.
    """
    if not len(plain_ns):
        return None
    ratio = profiled_ns / plain_ns
    low_share = high_share = None
    if len(ratio) >= SEGMENTS:
        medians = [float(np.median(part)) for part in np.array_split(ratio, SEGMENTS)]
        low_share = min(medians) * (1 - (profiled_wait_share or 0)) - 1
        high_share = max(medians) / (1 - min(plain_wait_share or 0, _MAX_WAIT_SHARE)) - 1
    plain_total_ns = int(plain_ns.sum())
    excludes_zero = low_share is not None and high_share is not None and low_share * high_share > 0
    return StepComparison(
        steps=len(ratio),
        plain_p50_ns=float(np.median(plain_ns)),
        profiled_p50_ns=float(np.median(profiled_ns)),
        overhead_share=float(np.median(ratio)) - 1,
        low_share=low_share,
        high_share=high_share,
        significant=excludes_zero and plain_total_ns >= MIN_TOTAL_NS,
        plain_total_ns=plain_total_ns,
        profiled_total_ns=int(profiled_ns.sum()),
    )
