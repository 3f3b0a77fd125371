"""What became of the one window of a run that was asked for no steps: for some time, or until the program's end.

It begins when its conditions are met, with a step where the program takes any. What it is to hold is what there was:
so it is whole where every step from its beginning to its end is in the report, and its end came as it was asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from traceable.analysis.windows import (
    CAPTURED,
    MISSING_REPORT,
    MISSING_STEPS,
    NEVER_OPENED,
    NO_STEP_BEGAN,
    STOPPED_EARLY,
    Asked,
    Captured,
    Said,
    Verdict,
    Window,
    Windows,
    cause_of,
    conditions_not_met,
    lacking,
    steps_not_whole,
)
from traceable.errors import Message


def judged(asked: Asked, by_id: Mapping[str, Captured]) -> Windows:
    """Return what became of it, a verdict for each process that opened it."""
    found = [
        replace(verdict, label=process.label, rank=process.rank, counted_from=process.counted_from or 0)
        for process in asked.processes
        for window in process.windows[:1]
        if (verdict := _verdict(asked, process, window, by_id.get(window.id))) is not None
    ]
    return Windows(asked.text, tuple(found), () if found else (_never_reached(asked),))


def _verdict(asked: Asked, process: Said, window: Window, file: Captured | None) -> Verdict | None:
    begin = window.opened_step if window.opened_step is not None else window.start_step
    steps = range(begin, max(begin, process.ended if window.closed_step is None else window.closed_step))
    held = set(file.steps) if file else set()
    missing = lacking(steps, held)

    def say(outcome: str, why: Message | None = None) -> Verdict:
        captured, name = len(steps) - sum(map(len, missing)), file.file if file else None
        return Verdict(steps.start, steps.stop, outcome, captured, why, process.pid, window, name)

    if window.opened_step is None:
        return say(NEVER_OPENED, Message("window_never_opened", window.error or "it was not opened"))
    if file is None:
        # nsys records all processes while one has its window open, so those of helpers may come to nothing.
        if not steps and process.pid != asked.pid:
            return None
        ended = f": {cause_of(asked, process, window)} came before it was closed" if window.reason is None else ""
        return say(MISSING_REPORT, Message("window_missing_report", f"no report holds the window {window.id}{ended}"))
    if window.reason == "stopped" or (asked.duration_s and window.reason != "duration"):
        stopped = f"stopped early, {_after(asked, window)} by {cause_of(asked, process, window)}"
        return say(STOPPED_EARLY, Message("window_stopped_early", stopped))
    if missing:
        return say(MISSING_STEPS, steps_not_whole(missing))
    return say(CAPTURED)


def _after(asked: Asked, window: Window) -> str:
    limit = f" of {asked.duration_s:g} s" if asked.duration_s else ""
    if window.opened_wall_ns is None or window.closed_wall_ns is None:
        return f"before its end{limit},"
    lasted_ns = window.closed_wall_ns - (window.close_stall_ns or 0) - window.opened_wall_ns
    return f"after {lasted_ns / 1e9:.3g} s{limit},"


def _never_reached(asked: Asked) -> Message:
    why = _why_never(asked)
    return Message(why.code, f"never reached: {why}")


def _why_never(asked: Asked) -> Message:
    told = sorted(asked.processes, key=lambda process: process.pid != asked.pid)
    for process in told:
        if process.lacking:
            return conditions_not_met(process)
    if asked.need_steps:
        return NO_STEP_BEGAN
    return Message(
        "traceable_not_loaded",
        "no Python of the run loaded traceable (-I, -E or -S keep it out), or it was killed before",
    )
