"""The run without a collector that `run --measure-overhead` begins with, and the times of both runs.

The program gets the same command line, working directory, standard streams and, except for variables about recording,
environment as in the run that follows. `analysis/overhead.py` compares the times.
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

from traceable.collectors import exec_shim
from traceable.collectors.none import NoneCollector
from traceable.errors import Message, TraceError, UsageError
from traceable.launch import run_dir, supervisor, windows
from traceable.protocol import environment, untrusted
from traceable.protocol.windows import WindowRecord

TYPE_CHECKING = False
if TYPE_CHECKING:
    from traceable.analysis.overhead import ProcessTimes, RunTimes

PLAIN_DIRECTORY = "plain"
"""Subdirectory of the run directory for the run without a collector."""

OVERHEAD_KEY = "overhead"
"""Key of the measured overhead in `run.json`."""

PLAIN_KEY = "plain"
"""Key of the run without a collector in `run.json`."""

_RECORDING_VARIABLES = (
    *(environment.ANNOTATE, environment.ANNOTATE_REPORTER, environment.GC, environment.LOOP_PAUSES),
    *(environment.STEPS, *environment.CONDITIONS, environment.FLIGHT_RECORDER),
)
"""Variables about recording, which the run without a collector does not get. It does get those that say how windows are
requested: a SIGUSR2 without a handler ends a program."""


class NotComparableError(Exception):
    """The run without a collector failed, so there is nothing to compare with, and no second run.

    Args:
        message: the reason, for the user.
        status: its wait status, as of `os.waitpid`.
    """

    def __init__(self, message: Message, status: int) -> None:
        super().__init__(message)
        self.message = message
        self.status = status


def check_repeatable(directory: Path | None) -> None:
    """Reject a program that can't be run twice, creating nothing.

    Raises:
        UsageError: stdin can be read only once, or the directory of the first run exists.
    """
    if sys.__stdin__ is not None and not os.isatty(0) and _get_stdin_position() is None:
        raise UsageError(
            "stdin_not_repeatable",
            "--measure-overhead runs the program twice, but its stdin is a pipe, which can be read only once",
            "redirect stdin from a file (`< FILE`) or from `/dev/null`",
        )
    if directory is not None and not (directory / run_dir.MANIFEST).exists() and (directory / PLAIN_DIRECTORY).exists():
        raise UsageError(
            "plain_run_dir_taken",
            f"{directory / PLAIN_DIRECTORY} exists; --measure-overhead needs that path for its first run",
            "give another directory with -o",
        )


def make_plain_environment(variables: Mapping[str, str], directory: Path) -> dict[str, str]:
    """Return the environment of the run without a collector.

    Args:
        variables: additional variables in the program's environment.
        directory: the run directory.
    """
    inherited = {name: value for name, value in {**os.environ, **variables}.items() if name not in _RECORDING_VARIABLES}
    own = {environment.RUN_DIR: str(directory / PLAIN_DIRECTORY), environment.STEP_TIMES: "1"}
    return {**inherited, **own, environment.COLLECTOR: NoneCollector.name, environment.GATE: NoneCollector.name}


def run_plain(
    command: Sequence[str],
    full: Mapping[str, str],
    directory: Path,
    manifest: dict[str, Any],
    log: Callable[[str], None],
) -> None:
    """Run the program without a collector, then seek its stdin back to the position before.

    Args:
        command: the program's command line.
        full: its environment.
        directory: the run directory.
        manifest: gets the result, under `PLAIN_KEY`.
        log: prints one line to the user.

    Raises:
        NotComparableError: it failed, or a termination signal was received.
        UsageError: it can't be executed.
    """
    position = _get_stdin_position()
    plain: dict[str, Any] = {"pid": None, "start_wall_ns": None, "end_wall_ns": None, "exit_code": None, "signal": None}
    manifest[PLAIN_KEY] = plain
    (directory / PLAIN_DIRECTORY).mkdir()

    def started(pid: int) -> None:
        plain.update(pid=pid, start_wall_ns=time.time_ns())

    ended = supervisor.supervise(NoneCollector().plan(command, directory, ""), full, directory, started, log)
    plain["end_wall_ns"] = time.time_ns()
    code = os.waitstatus_to_exitcode(ended.status)
    plain.update(exit_code=code if code >= 0 else None, signal=-code if code < 0 else None)
    if position is not None:
        with contextlib.suppress(OSError):
            os.lseek(0, position, os.SEEK_SET)
    if code or ended.termination_requested:
        if ended.termination_requested:
            words = "the run without a collector was interrupted, so the second run is skipped"
            raise NotComparableError(Message("plain_run_interrupted", words), ended.status)
        how = f"exit code {code}" if code >= 0 else f"signal {-code}"
        words = f"the run without a collector failed ({how}), so the second run is skipped"
        raise NotComparableError(Message("plain_run_failed", words), ended.status)


def read_start_ns(directory: Path) -> int:
    """Return the wall clock of the program's start. Call it when its pid is known: under nsys from the pid file."""
    try:
        return (directory / exec_shim.PID_FILE).stat().st_mtime_ns
    except OSError:
        return time.time_ns()


def read_end_ns(directory: Path) -> int:
    """Return the wall clock of the program's end. Call it when that is known: under nsys from the exit file."""
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
    # It imports numpy, which a start must not load.
    from traceable.analysis.overhead import RunTimes

    plain, start, end = manifest.get(PLAIN_KEY) or {}, manifest.get("start") or {}, manifest.get("end") or {}
    has_windows = manifest.get(windows.WINDOW_KEY) is not None
    # Without requested windows the program may open its own: the recorder follows them, nsys records everything.
    follows_program = manifest["collector"]["name"] == "recorder"
    both_succeeded = plain.get("exit_code") == end.get("exit_code") == 0
    return (
        RunTimes(
            _get_duration_ns(plain.get("start_wall_ns"), plain.get("end_wall_ns")) if both_succeeded else None,
            _load_process_times(directory / PLAIN_DIRECTORY, plain.get("pid")),
        ),
        RunTimes(
            _get_duration_ns(start.get("program_wall_ns"), end.get("program_wall_ns")) if both_succeeded else None,
            _load_process_times(
                directory, manifest.get("pid"), has_windows=has_windows, follows_program=follows_program
            ),
        ),
    )


def _load_process_times(
    directory: Path, program: int | None, *, has_windows: bool = False, follows_program: bool = False
) -> tuple[ProcessTimes, ...]:
    """Return the step times of the processes of a run, by pid.

    Args:
        directory: the directory of the run.
        program: the pid of the program itself.
        has_windows: whether windows were requested, so that nothing else is recorded.
        follows_program: whether the same holds if a process opened one.
    """
    from traceable.analysis.overhead import ProcessTimes

    statuses = {one.pid: one for one in windows.load_statuses(directory)}
    processes = []
    for path in directory.glob("status.*.times"):
        with contextlib.suppress(OSError, ValueError):
            pid = int(path.name.split(".")[1])
            content = untrusted.read_file(path)
            times = array("q", content[: len(content) // 24 * 24])
            reported = statuses[pid].windows if pid in statuses else ()
            opened = [window for window in reported if window.opened_step is not None]
            processes.append(
                ProcessTimes(
                    pid=pid,
                    step_times=times,
                    is_program=pid == program,
                    recorded_steps=tuple(map(_span, opened)) if has_windows or (follows_program and opened) else None,
                    stall_ns=sum((one.open_stall_ns or 0) + (one.close_stall_ns or 0) for one in opened),
                )
            )
    return tuple(sorted(processes, key=lambda one: one.pid))


def _span(window: WindowRecord) -> tuple[int, int]:
    assert window.opened_step is not None
    return window.opened_step, window.stop_step if window.closed_step is None else window.closed_step


def write_overhead(directory: Path, measured: dict[str, Any]) -> None:
    """Write the measured overhead into the manifest.

    Raises:
        OSError: it can't be written.
        TraceError: it can't be read.
    """
    manifest = run_dir.load_manifest(directory)
    if OVERHEAD_KEY not in manifest:
        raise TraceError(
            "overhead_not_measured",
            f"the run in {directory} did not measure its overhead",
            "record one with `traceable run --measure-overhead`",
        )
    manifest[OVERHEAD_KEY] = measured
    run_dir.write_json(directory / run_dir.MANIFEST, manifest)


def _get_stdin_position() -> int | None:
    """Return the position of stdin; None where it is not seekable."""
    try:
        return os.lseek(0, 0, os.SEEK_CUR)
    except OSError:
        return None


def _get_duration_ns(start: Any, end: Any) -> int | None:
    return end - start if isinstance(start, int) and isinstance(end, int) and end > start else None
