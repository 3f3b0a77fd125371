"""What is known around a run of its windows: which were asked for, and what its processes said became of them.

The writing side within the process is `capture/status.py`. The verdict, which also looks into the trace, is
`analysis/windows.py`.
"""

from __future__ import annotations

import re
import signal
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

from traceable.analysis.windows import ON_REQUEST, WHOLE_RUN, CaptureRequest, ProcessStatus, Window
from traceable.errors import Message, TraceError
from traceable.launch import processes, run_dir
from traceable.protocol import untrusted
from traceable.protocol.start_conditions import NO_CONDITIONS, Conditions, pluralize

WINDOW_KEY = "window"
"""Where `run.json` keeps what was asked, and what was captured of it."""


TIMED_WINDOW_KEY = "timed_window"
"""Where it keeps the window of time that the collector opens itself, in a program that is no Python; null for none."""


def describe_timed_window(conditions: Conditions) -> str:
    """Return what the manifest says of such a window: `for 0.5 s, after 1 s from the start of the process`."""
    lasting = f"for {conditions.duration_s:g} s" if conditions.duration_s else ""
    return ", ".join(filter(None, (lasting, str(conditions))))


def make_window_entry(
    text: str | None,
    windows: tuple[tuple[int, int], ...] | None,
    *,
    on_request: bool = False,
    conditions: Conditions = NO_CONDITIONS,
) -> dict[str, Any] | None:
    """Return what the manifest says of what is asked, before anything was captured; None for no window.

    Args:
        text: what was asked.
        windows: start and stop of each window; None for an endless row.
        on_request: whether more windows may be asked for while it runs.
        conditions: what windows wait for, and how long they last.
    """
    if text is None and not on_request and not any(conditions):
        return None
    return {
        "requested": text if text is not None else ON_REQUEST if on_request else WHOLE_RUN,
        "on_request": on_request,
        "conditions": conditions._asdict() if any(conditions) else None,
        "windows": None if windows is None else [list(window) for window in windows],
        "captured": None,
    }


_STATUS = re.compile(r"status\.(\d+)\.json")
_SCHEMA = "traceable.status/1"


def load_capture_request(directory: Path, manifest: dict[str, Any]) -> CaptureRequest | None:
    """Return what the run in `directory` was asked to record and what its processes said; None for everything.

    Args:
        directory: the run directory.
        manifest: its manifest. A status file that is none of ours is passed over.
    """
    window = manifest.get(WINDOW_KEY)
    if window is None or window.get("requested") is None:
        return None
    conditions = _conditions(window)
    end = manifest.get("end") or {}
    listed = window.get("windows")
    names = processes.load_labels(directory, manifest)
    said = tuple(replace(one, label=names.get(one.pid, "")) for one in load_statuses(directory, conditions))
    text = window["requested"]
    if text == ON_REQUEST:
        opened = (f"{one.start_step}:{one.stop_step}" for process in said for one in process.windows)
        text = ",".join(dict.fromkeys(opened)) or ON_REQUEST
    return CaptureRequest(
        text=text,
        windows=None if listed is None else tuple((start, stop) for start, stop in listed),
        processes=said,
        pid=manifest.get("pid"),
        end=_end(end),
        conditions=str(conditions),
        duration_s=conditions.duration_s,
        need_steps=conditions.need_steps,
    )


def _conditions(window: dict[str, Any]) -> Conditions:
    try:
        return Conditions(**(window.get("conditions") or {}))
    except TypeError:  # of a newer traceable
        return NO_CONDITIONS


def _lacking(conditions: Conditions, content: dict[str, Any], ended: int, requests: int) -> tuple[Message, ...]:
    """Return how far a process came with each condition that was not met."""
    if content.get("counted_from", 0) is not None:
        return ()
    waited_s = content.get("delay_waited_s")
    pause_s = content.get("longest_pause_s") or 0.0
    lacks = []
    if ended < conditions.warmup_steps:
        words = f"{ended} of {pluralize(conditions.warmup_steps, 'warm-up step')} were over"
        lacks.append(Message("warmup_not_over", words))
    # Without Python's own end nobody noted how old it became.
    if (waited_s or 0.0) < conditions.delay_s and waited_s is None and content["end"]:
        words = "no range and no step began, from which the delay is counted (--delay start+S counts from the start of "
        lacks.append(Message("delay_not_begun", f"{words}the process)"))
    elif (waited_s or 0.0) < conditions.delay_s:
        so_far = f"{waited_s or 0.0:.3g} of " if content["end"] else "fewer than "
        words = f"{so_far}{conditions.delay_s:g} s from {conditions.delay_origin} were over"
        lacks.append(Message("delay_not_over", words))
    if requests < conditions.requests:
        words = f"{requests} of {pluralize(conditions.requests, 'request')} were over"
        lacks.append(Message("requests_not_over", words))
    if pause_s < conditions.idle_s:
        words = f"no step came after {conditions.idle_s:g} s without one (the longest was {pause_s:.3g} s)"
        lacks.append(Message("no_idle_pause", words))
    return tuple(lacks) or (Message("no_step_after_conditions", "no step began after its conditions were met"),)


def load_statuses(directory: Path, conditions: Conditions = NO_CONDITIONS) -> tuple[ProcessStatus, ...]:
    """Return what the processes of the run in `directory` said, by pid. A file that is none of ours is passed over."""
    said = (_said(path, conditions) for path in directory.glob("status.*.json"))
    return tuple(sorted(filter(None, said), key=lambda one: one.pid))


def list_databases(manifest: dict[str, Any], first: Path) -> list[Path]:
    """Return the databases of a run, of which `first` is one: with several windows nsys writes several."""
    stem = manifest.get("stem")
    if not isinstance(manifest.get(WINDOW_KEY), dict) or not first.name.startswith(f"{stem}."):
        return [first]
    named = re.compile(rf"{re.escape(str(stem))}\.(\d+)\.sqlite")
    found = [
        (int(match[1]), entry)
        for entry in first.parent.iterdir()
        if (match := named.fullmatch(entry.name)) and untrusted.is_regular(entry)
    ]
    return [entry for _, entry in sorted(found)] or [first]


def write_captured_windows(directory: Path, captured: dict[str, Any]) -> None:
    """Write into the manifest what was captured.

    Raises:
        OSError: it can't be written.
        TraceError: it can't be read.
    """
    manifest = run_dir.load_manifest(directory)
    if not isinstance(manifest.get(WINDOW_KEY), dict):
        raise TraceError("run_without_windows", f"{directory} was asked for no window", "run with --steps")
    manifest[WINDOW_KEY]["captured"] = captured
    run_dir.write_json(directory / run_dir.MANIFEST, manifest)


def _said(path: Path, conditions: Conditions) -> ProcessStatus | None:
    try:
        content = untrusted.read_json_object(path, untrusted.STATUS)
    except (OSError, ValueError):  # said by `processes.damaged`
        return None
    if _STATUS.fullmatch(path.name) is None or content["schema"] != _SCHEMA:
        return None
    begun, ended, requests = _steps(path.with_suffix(".steps")) or (
        content["steps"]["begun"],
        content["steps"]["ended"],
        0,
    )
    process = content.get("process") or {}
    return ProcessStatus(
        rank=process.get("rank"),
        pid=content["pid"],
        begun_steps=begun,
        ended_steps=ended,
        nested_steps=content["nested_steps"],
        end=content["end"],
        windows=tuple(_window(window, begun) for window in content["windows"]),
        counted_from=content.get("counted_from", 0),
        unmet_conditions=_lacking(conditions, content, ended, requests),
        first_range_wall_ns=content.get("first_range_wall_ns"),
    )


def _steps(path: Path) -> tuple[int, int, int] | None:
    """Return how many steps have begun and ended, and how many requests, by the counter that survives the process."""
    try:
        begun, ended, requests = struct.unpack("<qqq", untrusted.read_file(path, 24).ljust(24, b"\0"))
    except OSError:
        return None
    sane = all(0 <= count < untrusted.LATEST_NS for count in (begun, ended, requests))
    return (begun, ended, requests) if sane else None


def _window(content: dict[str, Any], begun: int) -> Window:
    opened, closed = content["opened"] or {}, content["closed"] or {}
    start, stop = content["start_step"], content["stop_step"]
    if stop is None:  # it was to last until somebody stops it
        stop = max(begun, start + 1)
    return Window(
        id=content["id"],
        start_step=start,
        stop_step=stop,
        opened_step=opened.get("step"),
        opened_wall_ns=opened.get("wall_ns"),
        open_stall_ns=opened.get("stall_ns"),
        closed_step=closed.get("step"),
        closed_wall_ns=closed.get("wall_ns"),
        close_stall_ns=closed.get("stall_ns"),
        reason=closed.get("reason"),
        error=closed.get("error"),
    )


def _end(end: dict[str, Any]) -> str | None:
    """Return how the program ended, as the end of `stopped early by ...`; None where that is not known."""
    number = end.get("signal")
    if isinstance(number, int):
        try:
            return signal.Signals(number).name
        except ValueError:
            return f"signal {number}"
    code = end.get("exit_code")
    return None if code is None else f"the end of the program (exit code {code})"
