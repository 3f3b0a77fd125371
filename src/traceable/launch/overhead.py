"""The run without a collector that `run --measure-overhead` begins with, and what both runs left of their times.

The program gets the same command line, working directory, standard streams and, as far as it is not about recording,
environment as in the run that follows. What the times come to is `analysis/overhead.py`.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from traceable.analysis.windows import Window
from traceable.collectors import exec_shim
from traceable.collectors.none import NoneCollector
from traceable.errors import Message, TraceError, UsageError
from traceable.launch import run_dir, supervisor, windows
from traceable.protocol import environment, untrusted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from traceable.analysis.overhead import ProcessTimes, RunTimes

PLAIN_DIRECTORY = "plain"
"""What the run without a collector leaves, within the run directory."""

OVERHEAD_KEY = "overhead"
"""Where `run.json` keeps what was measured."""

PLAIN_KEY = "plain"
"""Where `run.json` keeps how the run without a collector went."""

_RECORDING = (
    *(environment.ANNOTATE, environment.ANNOTATE_REPORTER, environment.GC, environment.LOOP_PAUSES),
    *(environment.STEPS, *environment.CONDITIONS, environment.FLIGHT_RECORDER),
)
"""What is about recording, and is not in the environment of the run without a collector. How windows are asked for is
in it: a SIGUSR2 that nobody heeds ends a program."""


class NotComparableError(Exception):
    """The run without a collector did not end well, so there is nothing to compare with, and no second run.

    Args:
        message: why, for the user.
        status: how it ended, as `os.waitpid` says it.
    """

    def __init__(self, message: Message, status: int) -> None:
        super().__init__(message)
        self.message = message
        self.status = status


def check_repeatable(directory: Path | None) -> None:
    """Refuse what can't be run twice, creating nothing.

    Raises:
        UsageError: what stands in stdin can be read once only, or the place of the first run is taken.
    """
    if sys.__stdin__ is not None and not os.isatty(0) and _position() is None:
        raise UsageError(
            "stdin_not_repeatable",
            "--measure-overhead runs the program twice, and what comes through a pipe to its stdin can be read once",
            "give it a file (`< FILE`), or nothing (`< /dev/null`)",
        )
    if directory is not None and not (directory / run_dir.MANIFEST).exists() and (directory / PLAIN_DIRECTORY).exists():
        raise UsageError(
            "plain_run_dir_taken",
            f"{directory / PLAIN_DIRECTORY} is where --measure-overhead keeps its first run",
            "name another directory with -o",
        )


def make_plain_environment(variables: Mapping[str, str], directory: Path) -> dict[str, str]:
    """Return the environment of the run without a collector.

    Args:
        variables: what the options set in the program's environment.
        directory: the run directory.
    """
    found = {name: value for name, value in {**os.environ, **variables}.items() if name not in _RECORDING}
    place = {environment.RUN_DIR: str(directory / PLAIN_DIRECTORY), environment.STEP_TIMES: "1"}
    return {**found, **place, environment.COLLECTOR: NoneCollector.name, environment.GATE: NoneCollector.name}


def run_plain(
    command: Sequence[str],
    full: Mapping[str, str],
    directory: Path,
    manifest: dict[str, Any],
    say: Callable[[str], None],
) -> None:
    """Run the program without a collector, and have its stdin stand where it stood before.

    Args:
        command: the program's command line.
        full: its environment.
        directory: the run directory.
        manifest: how it went is written into this.
        say: prints one line to the user.

    Raises:
        NotComparableError: it failed, or was told to end.
        UsageError: it can't be executed.
    """
    position = _position()
    plain: dict[str, Any] = {"pid": None, "start_wall_ns": None, "end_wall_ns": None, "exit_code": None, "signal": None}
    manifest[PLAIN_KEY] = plain
    (directory / PLAIN_DIRECTORY).mkdir()

    def started(pid: int) -> None:
        plain.update(pid=pid, start_wall_ns=time.time_ns())

    ended = supervisor.supervise(NoneCollector().plan(command, directory, ""), full, directory, started, say)
    plain["end_wall_ns"] = time.time_ns()
    code = os.waitstatus_to_exitcode(ended.status)
    plain.update(exit_code=code if code >= 0 else None, signal=-code if code < 0 else None)
    if position is not None:
        with contextlib.suppress(OSError):
            os.lseek(0, position, os.SEEK_SET)
    if code or ended.termination_requested:
        if ended.termination_requested:
            words = "the run without a collector was told to end: there is no second one to compare"
            raise NotComparableError(Message("plain_run_interrupted", words), ended.status)
        how = f"exit code {code}" if code >= 0 else f"signal {-code}"
        words = f"the run without a collector failed ({how}): there is no second one to compare"
        raise NotComparableError(Message("plain_run_failed", words), ended.status)


def read_start_ns(directory: Path) -> int:
    """Return the wall clock of the program's start, asked when that is known: nsys's side writes its pid at once."""
    try:
        return (directory / exec_shim.PID_FILE).stat().st_mtime_ns
    except OSError:
        return time.time_ns()


def read_end_ns(directory: Path) -> int:
    """Return the wall clock of the program's end, asked when that is known: nsys goes on for a while."""
    try:
        return int(untrusted.read_json_object(directory / exec_shim.EXIT_FILE, untrusted.EXIT)["end_ns"])
    except (OSError, ValueError, KeyError):
        return time.time_ns()


def load_runs(directory: Path, manifest: Mapping[str, Any]) -> tuple[RunTimes, RunTimes]:
    """Return the run without a collector and the one under it, as far as they are known.

    Args:
        directory: the run directory.
        manifest: its manifest.
    """
    # It imports numpy, which a start must do without.
    from traceable.analysis.overhead import RunTimes

    plain, start, end = manifest.get(PLAIN_KEY) or {}, manifest.get("start") or {}, manifest.get("end") or {}
    asked = manifest.get(windows.WINDOW_KEY) is not None
    # Where the launcher asked for no window, the program may have: the recorder heeds it, nsys has recorded all.
    heeds = manifest["collector"]["name"] == "recorder"
    alike = plain.get("exit_code") == end.get("exit_code") == 0
    return (
        RunTimes(
            _between(plain.get("start_wall_ns"), plain.get("end_wall_ns")) if alike else None,
            _processes(directory / PLAIN_DIRECTORY, plain.get("pid")),
        ),
        RunTimes(
            _between(start.get("program_wall_ns"), end.get("program_wall_ns")) if alike else None,
            _processes(directory, manifest.get("pid"), asked=asked, heeds=heeds),
        ),
    )


def _processes(
    directory: Path, program: int | None, *, asked: bool = False, heeds: bool = False
) -> tuple[ProcessTimes, ...]:
    """Return what the processes of a run left of their steps, by pid.

    Args:
        directory: where.
        program: the pid of the program itself.
        asked: whether windows were asked for, so that nothing else is recorded.
        heeds: whether the same holds if a process opened one.
    """
    from traceable.analysis.overhead import ProcessTimes

    told = {one.pid: one for one in windows.load_statuses(directory)}
    found = []
    for path in directory.glob("status.*.times"):
        with contextlib.suppress(OSError, ValueError):
            pid = int(path.name.split(".")[1])
            content = untrusted.read_file(path)
            times = array("q", content[: len(content) // 24 * 24])
            windows_told = told[pid].windows if pid in told else ()
            opened = [window for window in windows_told if window.opened_step is not None]
            found.append(
                ProcessTimes(
                    pid=pid,
                    step_times=times,
                    is_program=pid == program,
                    recorded_steps=tuple(map(_span, opened)) if asked or (heeds and opened) else None,
                    stall_ns=sum((one.open_stall_ns or 0) + (one.close_stall_ns or 0) for one in opened),
                )
            )
    return tuple(sorted(found, key=lambda one: one.pid))


def _span(window: Window) -> tuple[int, int]:
    assert window.opened_step is not None
    return window.opened_step, window.stop_step if window.closed_step is None else window.closed_step


def write_overhead(directory: Path, measured: dict[str, Any]) -> None:
    """Write into the manifest what was measured.

    Raises:
        OSError: it can't be written.
        TraceError: it can't be read.
    """
    manifest = run_dir.load_manifest(directory)
    if OVERHEAD_KEY not in manifest:
        raise TraceError(
            "overhead_not_measured", f"{directory} did not measure its overhead", "run with --measure-overhead"
        )
    manifest[OVERHEAD_KEY] = measured
    run_dir.write_json(directory / run_dir.MANIFEST, manifest)


def _position() -> int | None:
    """Return where stdin stands; None where it can't be set back."""
    try:
        return os.lseek(0, 0, os.SEEK_CUR)
    except OSError:
        return None


def _between(start: Any, end: Any) -> int | None:
    return end - start if isinstance(start, int) and isinstance(end, int) and end > start else None
