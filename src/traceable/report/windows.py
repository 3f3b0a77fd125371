"""What became of the steps that were asked for: as lines for people and as `capture` of report.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from traceable.analysis.units import count, time
from traceable.analysis.windows import CAPTURED, ON_REQUEST, Verdict, Windows
from traceable.report.text import printable

_WORTH_SAYING_NS = 10_000_000
"""From when on it is said how long opening and closing took: less is not felt by anybody."""

_LINES_MAX = 20


def plain(windows: Windows | None) -> dict[str, Any] | None:
    """Return the verdicts as docs/report.md describes them; None where no steps were asked for."""
    if windows is None:
        return None
    return {
        "asked": windows.asked,
        "asked_steps": sum(one.steps for one in windows.verdicts),
        "captured_steps": sum(one.captured for one in windows.verdicts),
        "met": windows.met,
        "problems": list(windows.problems),
        "windows": [_row(one) for one in windows.verdicts],
    }


def lines(capture: Mapping[str, Any] | None) -> list[str]:
    """Return what is said of it: first how many steps were captured, then what went wrong, then what it cost."""
    if capture is None:
        return []
    if capture["asked"] == ON_REQUEST:
        return ["no window was asked for while it ran, so nothing is recorded"]
    rows = capture["windows"]
    files = sorted({row["file"] for row in rows if row["file"]})
    asked = capture["asked"] if capture["asked"].startswith("every") else capture["asked"].replace(":", "-")
    first = f"asked steps {asked}, captured {count(capture['captured_steps'])} of {count(capture['asked_steps'])}"
    if len(rows) > 1:
        first += f" in {count(sum(row['outcome'] == CAPTURED for row in rows))} of {count(len(rows))} windows"
    said = [first + (f" ({len(files)} reports)" if len(files) > 1 else "")]
    several = len({row["pid"] for row in rows}) > 1
    bad = [row for row in rows if row["outcome"] != CAPTURED]
    for row in bad[:_LINES_MAX]:
        of = f" of process {row['pid']}" if several else ""
        steps = f"{row['start_step']}-{row['stop_step']}"
        never = "never reached: " if row["outcome"] == "never_reached" else ""
        said.append(f"steps {steps}{of}: {never}{printable(row['why'])}")
    if len(bad) > _LINES_MAX:
        said.append(f"{count(len(bad) - _LINES_MAX)} more windows were not captured: --json has all")
    said += [printable(problem) for problem in capture["problems"]]
    stalls = [max((row[key] or 0 for row in rows), default=0) for key in ("open_stall_ns", "close_stall_ns")]
    if max(stalls) >= _WORTH_SAYING_NS:
        said.append(
            f"opening a window held the program up for {time(stalls[0])}, closing it for {time(stalls[1])} at most; "
            "no step holds any of it"
        )
    return said


def _row(one: Verdict) -> dict[str, Any]:
    window = one.window
    return {
        "start_step": one.start_step,
        "stop_step": one.stop_step,
        "steps": one.steps,
        "captured_steps": one.captured,
        "outcome": one.outcome,
        "why": one.why or None,
        "pid": one.pid,
        "id": window.id if window else None,
        "file": one.file,
        "opened_step": window.opened_step if window else None,
        "opened_wall_ns": window.opened_wall_ns if window else None,
        "open_stall_ns": window.open_stall_ns if window else None,
        "closed_step": window.closed_step if window else None,
        "closed_wall_ns": window.closed_wall_ns if window else None,
        "close_stall_ns": window.close_stall_ns if window else None,
    }
