"""One run under Nsight Compute, from the request to the measured launches. It prints nothing.

Unlike `launcher` it records nothing: its directory has ncu's report, the CSV of it, and ncu's log.
"""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from traceable.collectors import ncu
from traceable.collectors.base import Plan
from traceable.errors import CollectorError, TraceableError, UsageError
from traceable.launch import launcher, supervisor, target
from traceable.protocol import environment, run_dir


@dataclass(frozen=True)
class NcuRequest:
    """The user's request.

    Attributes:
        target: the program.
        selection: the launches to profile.
        scope: the same in words, as a clause.
        directory: the directory of -o, or None for a dated one.
        force: allow a non-empty directory.
        variables: further variables for the program's environment.
    """

    target: target.Target
    selection: ncu.Selection
    scope: str
    directory: Path | None = None
    force: bool = False
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def folder_name(self) -> str:
        """The name part of a dated directory."""
        return f"{self.target.name}-ncu"

    def make_plan(self, executable: str, directory: Path) -> Plan:
        """Return how to start the program under this ncu, its files being in `directory`."""
        command = self.target.command(target.get_interpreter_flags())
        return ncu.make_plan(executable, self.selection, command, directory, self.target.name)


@dataclass(frozen=True)
class NcuResult:
    """A finished run.

    Attributes:
        directory: of its files.
        status: the program's wait status, as of `os.waitpid`.
        csv: every metric of every profiled launch, or the error for which there is none.
    """

    directory: Path
    status: int
    csv: Path | TraceableError


def check_ncu_request(request: NcuRequest) -> None:
    """Check that the request can run; creates nothing.

    Raises:
        UsageError: the program or the directory is invalid, or this runs under another profiler.
    """
    target.check_target(request.target, target.get_interpreter_flags())
    run_dir.check_run_dir(request.directory, request.target.name, force=request.force)
    if os.environ.get(environment.NVTX_INJECTION):
        raise UsageError(
            "under_another_profiler",
            f"this runs under another profiler ({environment.NVTX_INJECTION} is set)",
            "run `traceable ncu` without it: ncu can't share the GPU",
        )


def find_ncu(request: NcuRequest) -> ncu.Install:
    """Return the ncu to use.

    Raises:
        CollectorError: there is none that works, or it is too old for the request.
    """
    install = ncu.find_ncu()
    if request.selection.includes and not install.can_filter_ranges:
        oldest = ".".join(map(str, ncu.OLDEST_FOR_RANGES))
        raise CollectorError(
            "ncu_too_old",
            f"ncu {install.version} does not support regular expressions of ranges, {oldest} does",
            "install a newer one, or remove --range",
        )
    return install


def format_ncu_command_line(request: NcuRequest) -> str:
    """Return the environment and command line of `run_ncu`, as one line for a shell. Needs no ncu, starts nothing."""
    try:
        executable = str(find_ncu(request).executable)
    except CollectorError:
        executable = ncu.NAME
    directory = request.directory.absolute() if request.directory else run_dir.make_dated_path(request.folder_name)
    plan = request.make_plan(executable, directory)
    variables = {**request.variables, **plan.environment}
    words = [f"{name}={shlex.quote(value)}" for name, value in sorted(variables.items())]
    return " ".join([*words, shlex.join(plan.argv)])


def run_ncu(request: NcuRequest, install: ncu.Install, log: Callable[[str], None]) -> NcuResult:
    """Run the program under ncu, and return when its report is exported.

    Args:
        request: the program and the launches to profile; it was checked.
        install: the ncu to use, from `find_ncu`.
        log: prints one line to the user.

    Raises:
        UsageError: the directory can't be used.
        CollectorError: ncu failed before it started the program.
    """
    directory = run_dir.create_run_dir(request.directory, request.folder_name, force=request.force)
    plan = request.make_plan(str(install.executable), directory)
    place = launcher.format_path(directory)
    log(f"ncu {install.version} at {install.executable}; its report and {ncu.LOG} go to {place}")
    environ = {**os.environ, **request.variables, **plan.environment}
    try:
        end = supervisor.supervise(plan, environ, directory, lambda _pid: None, log)
    except supervisor.NeverStartedError:
        raise _explain_failure(directory, request) from None
    for name in (run_dir.PID_FILE, run_dir.EXIT_FILE):
        with contextlib.suppress(OSError):
            (directory / name).unlink()
    try:
        return NcuResult(directory, end.status, _export(directory, request, end))
    except TraceableError as error:
        return NcuResult(directory, end.status, error)


def _export(directory: Path, request: NcuRequest, end: supervisor.ProgramExit) -> Path:
    """Write the CSV of the report that ncu left, and return its path."""
    if end.pid is None:
        raise CollectorError("run_canceled", "the run was canceled", "run it again")
    if not end.complete:
        problem = "traceable stopped waiting for ncu"
        raise CollectorError("report_not_awaited", problem, f"read the report in {directory}")
    report = directory / f"{request.target.name}{ncu.SUFFIX}"
    if not (report.is_file() and report.stat().st_size):
        raise _explain_failure(directory, request)
    path = report.with_suffix(".csv")
    text = ncu.export_csv(report)
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        problem = f"{path} can't be written: {error.strerror}"
        raise TraceableError("file_not_written", problem, f"read {report} with --read") from None
    return path


def _explain_failure(directory: Path, request: NcuRequest) -> CollectorError:
    log = ""
    with contextlib.suppress(OSError):
        log = (directory / ncu.LOG).read_text(encoding="utf-8", errors="replace")
    return ncu.explain_failure(log, request.scope)


def find_report(path: Path) -> Path:
    """Return an ncu report, or the only one in a directory.

    Raises:
        UsageError: a directory without a report, or with several.
    """
    if not path.is_dir():
        return path
    reports = sorted(path.glob(f"*{ncu.SUFFIX}"))
    if len(reports) != 1:
        problem = f"{path} has {len(reports)} ncu reports"
        raise UsageError("not_one_ncu_report", problem, f"pass one {ncu.SUFFIX} or .csv file")
    return reports[0]
