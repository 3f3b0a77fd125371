"""What is known around a run of its windows: which were asked for, and what its processes said became of them.

The writing side within the process is `capture/status.py`. The verdict, which also looks into the trace, is
`analysis/windows.py`.
"""

from __future__ import annotations

import json
import re
import signal
import struct
from pathlib import Path
from typing import Any

from traceable.analysis.windows import ON_REQUEST, Asked, Said, Window
from traceable.errors import TraceError
from traceable.launch import run_dir

MANIFEST_KEY = "window"
"""Where `run.json` keeps what was asked, and what was captured of it."""


def in_manifest(
    text: str | None, windows: tuple[tuple[int, int], ...] | None, *, on_request: bool = False
) -> dict[str, Any] | None:
    """Return what the manifest says of what is asked, before anything was captured; None for no window.

    Args:
        text: what was asked.
        windows: start and stop of each window; None for an endless row.
        on_request: whether more windows may be asked for while it runs.
    """
    if text is None and not on_request:
        return None
    return {
        "asked": text if text is not None else ON_REQUEST,
        "on_request": on_request,
        "windows": None if windows is None else [list(window) for window in windows],
        "captured": None,
    }


_STATUS = re.compile(r"status\.(\d+)\.json")
_SCHEMA = "traceable.status/1"


def asked(directory: Path, manifest: dict[str, Any]) -> Asked | None:
    """Return what the run in `directory` was asked to record and what its processes said; None for everything.

    Args:
        directory: the run directory.
        manifest: its manifest. A status file that is none of ours is passed over.
    """
    window = manifest.get(MANIFEST_KEY)
    if not isinstance(window, dict) or not isinstance(window.get("asked"), str):
        return None
    end = manifest.get("end") or {}
    listed = window.get("windows")
    processes = tuple(sorted(filter(None, map(_said, directory.glob("status.*.json"))), key=lambda one: one.pid))
    text = window["asked"]
    if text == ON_REQUEST:
        opened = (f"{one.start_step}:{one.stop_step}" for process in processes for one in process.windows)
        text = ",".join(dict.fromkeys(opened)) or ON_REQUEST
    return Asked(
        text=text,
        windows=None if listed is None else tuple((int(start), int(stop)) for start, stop in listed),
        processes=processes,
        pid=manifest.get("pid"),
        end=_end(end),
    )


def databases(directory: Path, manifest: dict[str, Any], first: Path) -> list[Path]:
    """Return the databases of a run, of which `first` is one: with several windows nsys writes several."""
    stem = manifest.get("stem")
    if not isinstance(manifest.get(MANIFEST_KEY), dict) or first.parent != directory:
        return [first]
    named = re.compile(rf"{re.escape(str(stem))}\.(\d+)\.sqlite")
    found = [(int(match[1]), entry) for entry in directory.iterdir() if (match := named.fullmatch(entry.name))]
    return [entry for _, entry in sorted(found)] or [first]


def write_captured(directory: Path, captured: dict[str, Any]) -> None:
    """Write into the manifest what was captured.

    Raises:
        OSError: it can't be written.
        TraceError: it can't be read.
    """
    manifest = run_dir.read(directory)
    if not isinstance(manifest.get(MANIFEST_KEY), dict):
        raise TraceError(f"{directory} was asked for no window", "run with --steps")
    manifest[MANIFEST_KEY]["captured"] = captured
    run_dir.write(directory / run_dir.MANIFEST, manifest)


def _said(path: Path) -> Said | None:
    try:
        content = json.loads(path.read_bytes())
        if _STATUS.fullmatch(path.name) is None or content["schema"] != _SCHEMA:
            return None
        begun, ended = _steps(path.with_suffix(".steps")) or (content["steps"]["begun"], content["steps"]["ended"])
        return Said(
            pid=int(content["pid"]),
            begun=int(begun),
            ended=int(ended),
            refused=int(content["refused"]),
            end=content["end"],
            windows=tuple(_window(window, int(begun)) for window in content["windows"]),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _steps(path: Path) -> tuple[int, int] | None:
    """Return how many steps have begun and ended, by the counter that survives the process."""
    try:
        begun, ended = struct.unpack("<qq", path.read_bytes())
    except (OSError, struct.error):
        return None
    return begun, ended


def _window(content: dict[str, Any], begun: int) -> Window:
    opened, closed = content["opened"] or {}, content["closed"] or {}
    start, stop = int(content["start_step"]), content["stop_step"]
    if stop is None:  # it was to last until somebody stops it
        stop = max(begun, start + 1)
    return Window(
        id=str(content["id"]),
        start_step=start,
        stop_step=int(stop),
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
