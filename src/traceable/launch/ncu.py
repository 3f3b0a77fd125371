"""One run under Nsight Compute, from what is asked to the launches it measured. It prints nothing.

Unlike `launcher` it records nothing: what it leaves in its directory is ncu's report, the CSV of it, and ncu's words.
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
class Request:
    """What the user asked for.

    Attributes:
        target: the program.
        selection: which launches are profiled.
        where: the same in words, as a clause.
        directory: the directory of -o, or None for a dated one.
        force: take a directory that is not empty.
        variables: what else to set in the program's environment.
    """

    target: target.Target
    selection: ncu.Selection
    where: str
    directory: Path | None = None
    force: bool = False
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def folder_name(self) -> str:
        """What a dated directory is called after."""
        return f"{self.target.name}-ncu"


@dataclass(frozen=True)
class Finished:
    """A run that is over.

    Attributes:
        directory: where everything lies.
        status: how the program ended, as `os.waitpid` says it.
        csv: every metric of every profiled launch; None where there is none (see `problem`).
        problem: why not.
    """

    directory: Path
    status: int
    csv: Path | None = None
    problem: TraceableError | None = None


def check(request: Request) -> None:
    """Refuse what can't run, creating nothing.

    Raises:
        UsageError: the program, the directory, or another profiler around this.
    """
    target.check(request.target, target.interpreter_flags())
    run_dir.check(request.directory, request.target.name, force=request.force)
    if os.environ.get(environment.NVTX_INJECTION):
        raise UsageError(
            "under_another_profiler",
            f"this runs under another profiler ({environment.NVTX_INJECTION} is set)",
            "run `traceable ncu` by itself: ncu shares the GPU with no other profiler",
        )


def describe(request: Request) -> str:
    """Return the environment and command line that `launch` would use, as one line for a shell. Starts nothing.

    Raises:
        UsageError: as for `check`.
    """
    check(request)
    try:
        executable = str(installed(request).executable)
    except CollectorError:
        executable = ncu.NAME
    directory = request.directory.absolute() if request.directory else run_dir.dated(request.folder_name)
    plan = _plan(executable, request, directory)
    variables = {**request.variables, **plan.environment}
    words = [f"{name}={shlex.quote(value)}" for name, value in sorted(variables.items())]
    return " ".join([*words, shlex.join(plan.argv)])


def launch(request: Request, install: ncu_install.Install, say: Callable[[str], None]) -> Finished:
    """Run the program under ncu, and return when its report is read.

    Args:
        request: what to run.
        install: the ncu to use, as `installed` found it.
        say: prints one line to the user.

    Raises:
        UsageError: the program can't run, or the directory can't be used.
        CollectorError: ncu failed before it started the program.
    """
    check(request)
    directory = run_dir.create(request.directory, request.folder_name, force=request.force)
    plan = _plan(str(install.executable), request, directory)
    say(f"ncu {install.version} at {install.executable}; its report and {ncu.LOG} go to {launcher.short(directory)}")
    full = {**os.environ, **request.variables, **plan.environment}
    try:
        ended = supervisor.run(plan, full, directory, lambda _pid: None, say)
    except supervisor.NeverStartedError:
        raise ncu.failure(_said(directory), request.where) from None
    for name in (exec_shim.PID_FILE, exec_shim.EXIT_FILE):
        with contextlib.suppress(OSError):
            (directory / name).unlink()
    said = _said(directory)
    if ended.pid is None:
        return Finished(
            directory, ended.status, problem=CollectorError("run_canceled", "the run was cancelled", "run it again")
        )
    if not ended.complete:
        return Finished(
            directory,
            ended.status,
            problem=CollectorError("report_not_awaited", "ncu was left alone", f"read its report in {directory}"),
        )
    report = ncu.report_in(directory, request.target.name)
    if report is None:
        return Finished(directory, ended.status, problem=ncu.failure(said, request.where))
    try:
        return Finished(directory, ended.status, _exported(report))
    except TraceableError as error:
        return Finished(directory, ended.status, problem=error)


def read(path: Path) -> str:
    """Return the CSV text of a report of ncu's, or of the one report in a directory.

    Raises:
        UsageError: a directory without a report, or with several.
        CollectorError: ncu is missing or can't read it.
    """
    if path.is_dir():
        reports = sorted(path.glob(f"*{ncu.SUFFIX}"))
        if len(reports) != 1:
            raise UsageError(
                "not_one_ncu_report",
                f"{path} holds {len(reports)} reports of ncu's",
                f"name one {ncu.SUFFIX} or .csv file",
            )
        path = reports[0]
    return ncu_install.export(path)


def installed(request: Request) -> ncu_install.Install:
    """Return the ncu to use.

    Raises:
        CollectorError: there is none that answers, or it is too old for what is asked.
    """
    install = ncu_install.find()
    if request.selection.includes and not install.filters_ranges:
        oldest = ".".join(map(str, ncu_install.OLDEST_FOR_RANGES))
        raise CollectorError(
            "ncu_too_old",
            f"ncu {install.version} takes no regular expressions of ranges, {oldest} does",
            "install a newer one, or leave --range out",
        )
    return install


def _plan(executable: str, request: Request, directory: Path) -> Plan:
    command = request.target.command(target.interpreter_flags())
    return ncu.plan(executable, request.selection, command, directory, request.target.name)


def _exported(report: Path) -> Path:
    text = ncu_install.export(report)
    path = report.with_suffix(".csv")
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise TraceableError(
            "file_not_written", f"{path} can't be written: {error.strerror}", f"read {report} with --read"
        ) from None
    return path


def _said(directory: Path) -> str:
    """Return what ncu said; empty where that can't be read."""
    try:
        return (directory / ncu.LOG).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
