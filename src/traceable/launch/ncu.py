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

from traceable.collectors import exec_shim
from traceable.collectors.base import Plan
from traceable.collectors.ncu import collector as ncu
from traceable.collectors.ncu import install as ncu_install
from traceable.errors import CollectorError, TraceableError, UsageError
from traceable.launch import launcher, run_dir, supervisor, target
from traceable.protocol import environment


@dataclass(frozen=True)
class NcuRequest:
    """The user's request.

    Attributes:
        target: the program.
        selection: the launches to profile.
        selection_text: the same in words, as a clause.
        directory: the directory of -o, or None for a dated one.
        force: allow a non-empty directory.
        variables: further variables for the program's environment.
    """

    target: target.Target
    selection: ncu.Selection
    selection_text: str
    directory: Path | None = None
    force: bool = False
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def folder_name(self) -> str:
        """The name part of a dated directory."""
        return f"{self.target.name}-ncu"


@dataclass(frozen=True)
class NcuResult:
    """A finished run.

    Attributes:
        directory: of its files.
        status: the program's wait status, as of `os.waitpid`.
        csv: every metric of every profiled launch; None if there is none (see `problem`).
        problem: the reason for that.
    """

    directory: Path
    status: int
    csv: Path | None = None
    problem: TraceableError | None = None


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


def format_ncu_command_line(request: NcuRequest) -> str:
    """Return the environment and command line that `run_ncu` would use, as one line for a shell. Starts nothing.

    Raises:
        UsageError: as for `check_ncu_request`.
    """
    check_ncu_request(request)
    try:
        executable = str(find_ncu(request).executable)
    except CollectorError:
        executable = ncu.NAME
    directory = request.directory.absolute() if request.directory else run_dir.make_dated_path(request.folder_name)
    plan = _make_plan(executable, request, directory)
    variables = {**request.variables, **plan.environment}
    words = [f"{name}={shlex.quote(value)}" for name, value in sorted(variables.items())]
    return " ".join([*words, shlex.join(plan.argv)])


def run_ncu(request: NcuRequest, install: ncu_install.Install, log: Callable[[str], None]) -> NcuResult:
    """Run the program under ncu, and return when its report is exported.

    Args:
        request: the program and the launches to profile.
        install: the ncu to use, from `find_ncu`.
        log: prints one line to the user.

    Raises:
        UsageError: the program can't run, or the directory can't be used.
        CollectorError: ncu failed before it started the program.
    """
    check_ncu_request(request)
    directory = run_dir.create_run_dir(request.directory, request.folder_name, force=request.force)
    plan = _make_plan(str(install.executable), request, directory)
    output = launcher.format_path(directory)
    log(f"ncu {install.version} at {install.executable}; its report and {ncu.LOG} go to {output}")
    environ = {**os.environ, **request.variables, **plan.environment}
    try:
        ended = supervisor.supervise(plan, environ, directory, lambda _pid: None, log)
    except supervisor.NeverStartedError:
        raise ncu.explain_failure(_read_log(directory), request.selection_text) from None
    for name in (exec_shim.PID_FILE, exec_shim.EXIT_FILE):
        with contextlib.suppress(OSError):
            (directory / name).unlink()
    ncu_log = _read_log(directory)
    if ended.pid is None:
        return NcuResult(
            directory, ended.status, problem=CollectorError("run_canceled", "the run was canceled", "run it again")
        )
    if not ended.complete:
        return NcuResult(
            directory,
            ended.status,
            problem=CollectorError(
                "report_not_awaited", "traceable stopped waiting for ncu", f"read the report in {directory}"
            ),
        )
    report = ncu.find_report(directory, request.target.name)
    if report is None:
        return NcuResult(directory, ended.status, problem=ncu.explain_failure(ncu_log, request.selection_text))
    try:
        return NcuResult(directory, ended.status, _write_csv(report))
    except TraceableError as error:
        return NcuResult(directory, ended.status, problem=error)


def read_report_csv(path: Path) -> str:
    """Return the CSV text of an ncu report, or of the only report in a directory.

    Raises:
        UsageError: a directory without a report, or with several.
        CollectorError: ncu is missing or can't read it.
    """
    if path.is_dir():
        reports = sorted(path.glob(f"*{ncu.SUFFIX}"))
        if len(reports) != 1:
            raise UsageError(
                "not_one_ncu_report",
                f"{path} has {len(reports)} ncu reports",
                f"pass one {ncu.SUFFIX} or .csv file",
            )
        path = reports[0]
    return ncu_install.export_csv(path)


def find_ncu(request: NcuRequest) -> ncu_install.Install:
    """Return the ncu to use.

    Raises:
        CollectorError: there is none that works, or it is too old for the request.
    """
    install = ncu_install.find_ncu()
    if request.selection.includes and not install.can_filter_ranges:
        oldest = ".".join(map(str, ncu_install.OLDEST_FOR_RANGES))
        raise CollectorError(
            "ncu_too_old",
            f"ncu {install.version} does not support regular expressions of ranges, {oldest} does",
            "install a newer one, or remove --range",
        )
    return install


def _make_plan(executable: str, request: NcuRequest, directory: Path) -> Plan:
    command = request.target.command(target.get_interpreter_flags())
    return ncu.make_plan(executable, request.selection, command, directory, request.target.name)


def _write_csv(report: Path) -> Path:
    text = ncu_install.export_csv(report)
    path = report.with_suffix(".csv")
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise TraceableError(
            "file_not_written", f"{path} can't be written: {error.strerror}", f"read {report} with --read"
        ) from None
    return path


def _read_log(directory: Path) -> str:
    """Return ncu's log; empty if it can't be read."""
    try:
        return (directory / ncu.LOG).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
