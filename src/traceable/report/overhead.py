"""The overhead of recording: as lines for a terminal and as `overhead` of report.json and run.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from traceable.analysis.units import format_count, format_duration, format_percent
from traceable.errors import Message

TYPE_CHECKING = False
if TYPE_CHECKING:
    from traceable.analysis.overhead import Overhead, StepComparison

_WITHOUT = {
    "recorder": "without the recorder",
    "torch": "without torch.profiler",
    "none": "in the first run",
}
"""How the run that is compared with is called, by collector; else without it."""

_REPORTED_MIN_SHARE = 0.02
"""The share of the time from which on the wait of the steps for a CPU is reported."""

_REPORTED_MIN_NS = 10_000_000
"""The time from which on the pauses by opening and closing windows are reported."""


def overhead_to_dict(found: Overhead, collector: str) -> dict[str, Any]:
    """Return what was measured as docs/measure-overhead.md describes it.

    Args:
        found: what was measured.
        collector: the name of the collector whose cost it is.
    """
    before, after = found.plain_run_ns, found.profiled_run_ns
    more = None if before is None or after is None else after / before - 1
    return {
        "collector": collector,
        "recorded_steps": _compared(found.recorded_steps),
        "other_steps": _compared(found.other_steps),
        "warm_up_steps": found.warm_up_steps,
        "plain_steps": found.plain_steps,
        "profiled_steps": found.profiled_steps,
        "pid": found.pid,
        "stepping_processes": found.stepping_processes,
        "stall_ns": found.stall_ns,
        "plain_cpu_wait_share": found.plain_cpu_wait_share,
        "profiled_cpu_wait_share": found.profiled_cpu_wait_share,
        "plain_run_ns": before,
        "profiled_run_ns": after,
        "run_overhead_share": more,
    }


def format_overhead(overhead: Mapping[str, Any] | None) -> list[str]:
    """Return the lines about it: what a step costs, those that were not recorded, and the whole run."""
    if overhead is None:
        return []
    recorded, other = overhead["recorded_steps"], overhead["other_steps"]
    first = _WITHOUT.get(overhead["collector"], f"without {overhead['collector']}")
    lines = []
    if recorded is not None:
        lines.append(f"profiled step {_more(recorded)}: {_medians(recorded, first)}, over {_steps(recorded)}")
    if other is not None:
        lines.append(f"steps outside of the windows {_more(other)}: {_medians(other, first)}, over {_steps(other)}")
    if recorded is not None and overhead["warm_up_steps"]:
        lines[0] += f"; the first {overhead['warm_up_steps']} excluded as warm-up"
    if recorded is not None and overhead["stepping_processes"] > 1:
        lines[0] += f"; of process {overhead['pid']}, one of {overhead['stepping_processes']} processes with steps"
    waited = [overhead[key] for key in ("profiled_cpu_wait_share", "plain_cpu_wait_share")]
    if recorded is not None and max(part or 0 for part in waited) >= _REPORTED_MIN_SHARE:
        parts = ["an unknown part" if part is None else format_percent(part) for part in waited]
        waiting = f"the steps' thread waited for a CPU {parts[0]} of the time, {parts[1]} {first}"
        lines.append(Message("machine_busy", f"a busy machine: {waiting}"))
    if overhead["run_overhead_share"] is not None:
        lines.append(_run(overhead, first) + (f" ({_why_no_steps(overhead)})" if recorded is None else ""))
    elif recorded is None:
        why = f"{_why_no_steps(overhead)}, and the runs ended differently"
        lines.append(Message("overhead_unknown", f"the overhead is not known: {why}"))
    return lines


def _run(overhead: Mapping[str, Any], first: str) -> str:
    times = f"{format_duration(overhead['profiled_run_ns'])}, {format_duration(overhead['plain_run_ns'])} {first}"
    stall = overhead["stall_ns"]
    stalled = f", {format_duration(stall)} of it opening and closing windows" if stall >= _REPORTED_MIN_NS else ""
    return f"profiled run {format_change(overhead['run_overhead_share'])}: {times}{stalled}"


def _why_no_steps(overhead: Mapping[str, Any]) -> str:
    if not overhead["stepping_processes"]:
        return "no steps were taken, so its significance is not known"
    if overhead["pid"] is None:
        return "the processes of the two runs can't be matched"
    return "no recorded step can be compared"


def _more(part: Mapping[str, Any]) -> str:
    low, high = part["low_share"], part["high_share"]
    if low is None:
        return f"{format_change(part['overhead_share'])} (too few steps to be significant)"
    suffix = "" if part["significant"] else ", not significant"
    return f"{format_change(part['overhead_share'])} (between {format_change(low)} and {format_change(high)}{suffix})"


def _medians(part: Mapping[str, Any], first: str) -> str:
    return f"median {format_duration(part['profiled_p50_ns'])}, {format_duration(part['plain_p50_ns'])} {first}"


def _steps(part: Mapping[str, Any]) -> str:
    return format_count(part["steps"], "step")


def format_change(more: float) -> str:
    """Write a difference in percent: with a decimal below ten percent, and without where it would say nothing.

    Examples:
        >>> format_change(0.0614), format_change(0.184), format_change(-0.0004), format_change(12.5)
        ('+6.1 %', '+18 %', '+0.0 %', '+1 250 %')
    """
    percent = more * 100
    if abs(percent) < 9.95:
        return f"{round(percent, 1) + 0.0:+.1f} %"  # adding 0.0 makes -0.0 positive
    return f"{'-' if percent < 0 else '+'}{format_count(round(abs(percent)))} %"


def _compared(part: StepComparison | None) -> dict[str, Any] | None:
    if part is None:
        return None
    return {
        "steps": part.steps,
        "plain_p50_ns": part.plain_p50_ns,
        "profiled_p50_ns": part.profiled_p50_ns,
        "overhead_share": part.overhead_share,
        "low_share": part.low_share,
        "high_share": part.high_share,
        "significant": part.significant,
        "plain_total_ns": part.plain_total_ns,
        "profiled_total_ns": part.profiled_total_ns,
    }
