"""One run from request to recording: choose the collector, make the run directory, supervise, finalise, write it down.

It prints nothing and reads no trace; `cli/run.py` does.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from traceable import collectors
from traceable.checks import machine_facts
from traceable.collectors import exec_shim
from traceable.collectors.base import Collector, CollectorResult, Gating, Plan
from traceable.collectors.recorder import collector as recorder
from traceable.errors import Message, TraceableError, UsageError, format_one_line
from traceable.launch import (
    control_client,
    expectations,
    finalize_progress,
    flight,
    local_client,
    lost_run,
    memory_limit,
    overhead,
    process_watcher,
    processes,
    provenance,
    range_counts,
    ranks,
    run_dir,
    supervisor,
    target,
    windows,
)
from traceable.launch.exit_release import ExitReleaser
from traceable.launch.worker import Worker, WorkerDiedError
from traceable.protocol import environment, redact, untrusted
from traceable.protocol.start_conditions import NO_CONDITIONS as NO_CONDITIONS
from traceable.protocol.start_conditions import Conditions
from traceable.selection import Rank


@dataclass(frozen=True)
class RunRequest:
    """What the user asked for.

    Attributes:
        target: the program.
        argv: the words of our command line, for the manifest.
        collector: a collector's name, or `auto`.
        directory: the run directory of -o, or None for a dated one.
        name: what the run and its files are called; by default after the program.
        force: take a directory that is not empty.
        expect: names of ranges that the run is to have.
        variables: what else to set in the program's environment.
        steps: which steps to record, as `TRACEABLE_STEPS` takes them; None for everything.
        windows: start and stop of each window of these; None for an endless row.
        control: windows may be asked for while it runs, and nothing else is recorded.
        conditions: what windows wait for and how long they last; without `steps` they ask for one.
        measure_overhead: run the program without a collector first, and note the times of all steps in both runs.
        gpu: where the recorder is used, have the GPU's work recorded beside it.
        quiet: say what goes wrong alone, not what is being done.
        settings: what the user asks of single collectors, as `collectors.named` takes it; `str` of each says it.
        rank: which rank the run is of; None for none.
        grouped: its directory lies in one for all ranks.
        process_filter: which of its processes are recorded; None for all.
    """

    target: target.Target
    argv: tuple[str, ...]
    collector: str = collectors.AUTO
    directory: Path | None = None
    name: str | None = None
    force: bool = False
    expect: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    steps: str | None = None
    windows: tuple[tuple[int, int], ...] | None = None
    conditions: Conditions = NO_CONDITIONS
    control: bool = False
    measure_overhead: bool = False
    gpu: bool = False
    quiet: bool = False
    settings: Mapping[str, object] = field(default_factory=dict)
    rank: Rank | None = None
    grouped: bool = False
    process_filter: ranks.ProcessFilter | None = None

    @property
    def stem(self) -> str:
        """The name of the run's files."""
        return self.name or self.target.name

    @property
    def timed(self) -> bool:
        """Whether the collector itself opens the one window of time, since no Python runs in the program to do it."""
        asked = self.conditions
        by_time = any(asked) and not asked.need_steps and not asked.requests
        return by_time and self.steps is None and not self.control and target.is_not_python(self.target)


@dataclass(frozen=True)
class RunResult:
    """A run that is over.

    Attributes:
        run_dir: its directory.
        status: how the program ended, as `os.waitpid` says it.
        recorded: what the collector left; None where it is not known (see `problem`).
        problem: why there is nothing to read.
        expected: names of ranges that the command line or the program said it is to have.
        readable: there is memory to load what reads a recording.
    """

    run_dir: Path
    status: int
    recorded: CollectorResult | None = None
    problem: Message | None = None
    expected: tuple[str, ...] = ()
    readable: bool = True


@dataclass
class _Run:
    """The manifest, as it grows during one run."""

    directory: Path
    manifest: dict[str, Any]
    say: Callable[[str], None]
    failed: bool = field(default=False)
    release: ExitReleaser | None = None

    def save(self) -> None:
        """Write the manifest. A disk that fills up during the run must not end it."""
        try:
            run_dir.write_json(self.directory / run_dir.MANIFEST, self.manifest)
        except OSError as error:
            if not self.failed and self.directory.is_dir():  # that the whole directory is gone is said once, at the end
                words = f"the manifest {self.directory / run_dir.MANIFEST} can't be written: {error.strerror}"
                self.say(Message("manifest_not_written", words))
            self.failed = True

    def started(self, pid: int) -> None:
        self.manifest["pid"] = pid
        self.manifest["start"]["program_wall_ns"] = overhead.read_start_ns(self.directory)
        self.save()


def check_run_request(request: RunRequest) -> None:
    """Refuse what can't run, creating nothing.

    Raises:
        UsageError: the program, the name or the directory.
    """
    if request.name is not None and (
        request.name.startswith(".") or not all(c.isalnum() or c in "._-" for c in request.name) or not request.name
    ):
        raise UsageError(
            "name_invalid", f"--name {request.name!r} is no file name", "use letters, digits, `.`, `_` and `-`"
        )
    target.check_target(request.target, target.get_interpreter_flags())
    run_dir.check_run_dir(request.directory, request.stem, force=request.force)
    if request.measure_overhead:
        overhead.check_repeatable(request.directory)


def format_command_line(request: RunRequest, say: Callable[[str], None]) -> str:
    """Return the environment and command line that `run_program` would use, as one line for a shell. Starts nothing.

    Of a run that measures its overhead it is the second one, under the collector.

    Args:
        request: what would be run.
        say: prints one line to the user: what `run_program` would say of the plan.

    Raises:
        TraceableError: as for `run_program`.
    """
    check_run_request(request)
    choice = _chosen(request)
    directory = request.directory.absolute() if request.directory else run_dir.make_dated_path(request.stem)
    plan, planned = _plan(choice.collector, request, directory)
    for note in [*_unused(request, choice.collector.name), *plan.notes]:
        say(note)
    words = [f"{name}={shlex.quote(value)}" for name, value in sorted(planned.items())]
    return " ".join([*words, shlex.join(plan.argv)])


def run_program(request: RunRequest, say: Callable[[str], None], worker: Worker) -> RunResult:
    """Run the program, and return when its recording is on disk and exported.

    Args:
        request: what to run.
        say: prints one line to the user.
        worker: reads the recording back.

    Raises:
        UsageError: the program can't run, or the directory can't be used.
        CollectorError: no collector works, or the one asked for failed before it started the program.
        NotComparableError: the run without a collector, which was to come first, did not end well.
    """
    check_run_request(request)
    choice = _chosen(request)
    _plan(choice.collector, request, Path("/"))  # refuses what it can't do, before anything is created
    directory = run_dir.create_run_dir(request.directory, request.stem, force=request.force)
    if others := run_dir.find_other_writers(directory):
        words = f"{others}, who can replace what this run writes: name a directory of your own with -o"
        say(Message(others.code, words))
    run = _Run(directory, _manifest(request, directory), say)
    if request.measure_overhead:
        _run_plain(request, run)
    with finalize_progress.FinalizeSignals(say) as finishing:
        choice, ended = _started(request, choice, run, finishing)
        return _finish(run, choice, request, ended, finishing, worker)


def _started(
    request: RunRequest, choice: collectors.Choice, run: _Run, finishing: finalize_progress.FinalizeSignals
) -> tuple[collectors.Choice, supervisor.ProgramExit]:
    """Run the program under the collector, or under the next one where that can't start it."""
    unusable: dict[str, Message] = {}
    again = True
    while True:
        try:
            return choice, _start(request, choice, run, finishing)
        except supervisor.NeverStartedError as error:  # noqa: PERF203 - once or twice
            if error.transient and again:
                again = False
                run.say(Message("collector_start_retried", f"{error.problem}: trying once more"))
                continue
            # What was asked of one collector is no wish for another.
            if request.collector != collectors.AUTO or choice.collector.name in request.settings:
                run.manifest["end"] = {"wall_ns": time.time_ns(), "error": error.cause.as_dict}
                run.save()
                raise
            unusable[choice.collector.name] = error.cause
            choice = _chosen(request, unusable)


def _chosen(request: RunRequest, unusable: Mapping[str, Message] | None = None) -> collectors.Choice:
    choice = collectors.choose_collector(request.collector, unusable, request.settings)
    return collectors.with_gpu(choice) if request.gpu else choice


def _run_plain(request: RunRequest, run: _Run) -> None:
    command = request.target.command(target.get_interpreter_flags())
    if not request.quiet:
        run.say("first run, without a collector")
    full = overhead.make_plain_environment(request.variables, run.directory)
    run.manifest[overhead.OVERHEAD_KEY] = None
    run.save()
    try:
        overhead.run_plain(command, full, run.directory, run.manifest, run.say)
    except overhead.NotComparableError as error:
        run.manifest["end"] = {"wall_ns": time.time_ns(), "error": error.message.as_dict}
        raise
    finally:
        run.save()


def _start(
    request: RunRequest, choice: collectors.Choice, run: _Run, finishing: finalize_progress.FinalizeSignals
) -> supervisor.ProgramExit:
    collector = choice.collector
    plan, planned = _plan(collector, request, run.directory)
    if not request.quiet:
        run.say(f"collector {collector.name} ({choice.reason}); run directory {format_path(run.directory)}")
    run.manifest["collector"] = {"asked": request.collector, "name": collector.name, "reason": choice.reason}
    run.manifest[ranks.SELECTION_KEY] = ranks.make_selection_entry(request.process_filter, collector.name)
    notes = [*_unused(request, collector.name), *plan.notes]
    for note in notes:
        run.say(note)
    words = redact.redact_command(plan.argv)
    run.manifest["plan"] = {
        "argv": words,
        "environment_names": sorted(planned),
        "notes": [note.as_dict for note in notes],
    }
    run.manifest["start"] = {"wall_ns": time.time_ns()}
    run.save()

    run.release = ExitReleaser(run.say) if plan.detached else None
    looking = process_watcher.ProcessWatcher(run.directory, run.release)

    def started(pid: int) -> None:
        finishing.set_started()
        looking.start(pid)
        run.manifest[lost_run.STREAMS_KEY] = lost_run.find_streams(supervisor.find_collector_processes(run.directory))
        run.started(pid)

    try:
        return supervisor.supervise(plan, {**os.environ, **planned}, run.directory, started, run.say)
    finally:
        looking.stop()
        run.manifest[local_client.CLIENT_OF_KEY] = looking.find_server(request.target.command(()))


def _unused(request: RunRequest, name: str) -> list[Message]:
    return [
        Message("option_without_effect", f"{asked}: of no effect without {one}")
        for one, asked in request.settings.items()
        if one != name
    ]


def _plan(collector: Collector, request: RunRequest, directory: Path) -> tuple[Plan, Mapping[str, str]]:
    gating = None
    if request.control:
        gating = Gating(None)
    elif request.steps is not None:
        gating = Gating(None if request.windows is None else len(request.windows))
    elif any(request.conditions):
        held = request.conditions
        gating = Gating(1, request.timed, held.delay_s, held.duration_s, held.delay_from_start)
    command = request.target.command(target.get_interpreter_flags())
    plan = collector.plan(command, directory, request.stem, gating)
    ours = {environment.RUN_DIR: str(directory), environment.COLLECTOR: collector.name}
    if request.steps is not None:
        ours[environment.STEPS] = request.steps
    if request.measure_overhead:
        ours[environment.STEP_TIMES] = "1"
    given = {**request.variables, **plan.environment, **ours}
    if request.process_filter is not None:
        plan = request.process_filter.adapt_plan(plan, command, given, collector.name)
        return plan, plan.environment
    return plan, given


def _manifest(request: RunRequest, directory: Path) -> dict[str, Any]:
    return {
        "schema": run_dir.SCHEMA,
        "run_dir": str(directory),
        "argv": redact.redact_command(request.argv),
        "target": {
            "kind": request.target.kind,
            "program": request.target.program,
            "arguments": redact.redact_command(request.target.arguments),
            "command": redact.redact_command(request.target.command(target.get_interpreter_flags())),
        },
        "stem": request.stem,
        ranks.RANK_KEY: ranks.make_rank_entry(request.rank, grouped=request.grouped),
        ranks.SELECTION_KEY: None,
        expectations.EXPECT_KEY: list(request.expect),
        windows.WINDOW_KEY: windows.make_window_entry(
            request.steps,
            request.windows,
            on_request=request.control,
            conditions=NO_CONDITIONS if request.timed else request.conditions,
        ),
        windows.TIMED_WINDOW_KEY: windows.describe_timed_window(request.conditions) if request.timed else None,
        flight.FLIGHT_RECORDER_KEY: flight.make_flight_recorder_entry(request.variables),
        **provenance.collect_provenance(),
        "profilers": sorted({name for _, name in machine_facts.find_running_profilers().profilers}),
        "launcher_pid": os.getpid(),
        "pid": None,
        "collector": None,
        "start": None,
        "end": None,
        local_client.CLIENT_OF_KEY: None,
        "files": [],
        "notes": [],
    }


def _finish(
    run: _Run,
    choice: collectors.Choice,
    request: RunRequest,
    ended: supervisor.ProgramExit,
    finishing: finalize_progress.FinalizeSignals,
    worker: Worker,
) -> RunResult:
    code = os.waitstatus_to_exitcode(ended.status)
    own = run.release is None or run.release.check_exit(run.directory, ended.pid, code)
    run.manifest["end"] = {
        "wall_ns": time.time_ns(),
        "program_wall_ns": overhead.read_end_ns(run.directory),
        # Some of nsys's processes live as long as a daemon that the program left behind.
        "collector_ended": ended.complete,
        "exit_code": code if code >= 0 else None,
        "signal": -code if code < 0 and own else None,
    }
    # Whoever gave the launcher ten seconds may kill it in what follows, and how the program ended is known now.
    run.save()
    recorded, problem, readable = None, None, True
    if ended.pid is None:
        problem = Message("run_canceled", "the run was cancelled before the program started")
    elif not ended.complete:
        problem = Message("report_not_awaited", f"{choice.collector.name} was left to finish its report alone")
    elif not run.directory.is_dir():
        words = f"{format_path(run.directory)} is gone, and with it what was recorded: the program deleted it"
        problem = Message("run_dir_deleted", words)
    else:
        in_parts = run.manifest[ranks.SELECTION_KEY] and run.manifest[ranks.SELECTION_KEY]["parts"]
        try:
            run_dir.check_not_replaced(run.directory)
            memory_limit.check_memory_limit(run.directory)
            with finishing.stage("reading the recording back"):
                if in_parts:
                    recorded = processes.load_recorded_parts(run.directory)
                else:
                    recorded, problem = worker.call(_read_back, choice.collector, run.directory, request.stem)
        except finalize_progress.NotAwaited:
            words = "the recording was not read back, as you asked; nothing of it is lost"
            problem = Message("reading_back_skipped", words)
        except WorkerDiedError as error:
            words = (
                f"reading the recording back {error}; nothing of it is lost: read it where there is more memory, with "
                f"`python -m traceable report {format_path(run.directory)}`"
            )
            problem = Message("reading_back_died", words)
        except untrusted.RejectedFileError as error:
            problem = Message("run_dir_replaced", f"{format_path(run.directory)} is not read: {error.strerror}")
        except memory_limit.MemoryLimitError as error:
            problem, readable = error.message, False
        except TraceableError as error:
            problem = error.message
        except Exception as error:  # noqa: BLE001 - a fault of ours must not hide how the program ended
            problem = Message(
                "reading_back_failed", f"the recording could not be read ({format_one_line(error)}); it is kept"
            )
        if recorded is None:
            recorder.remove_unfinished_exports(run.directory / f"{request.stem}.sqlite")
    range_counts.store_range_counts(run.directory, run.manifest, recorded)
    released = run.release.notes if run.release is not None else []
    notes = [*(recorded.notes if recorded else ()), *released, *([problem] if problem else [])]
    run.manifest["notes"] = [note.as_dict for note in notes]
    flight.add_intervals(run.manifest, recorded.database if recorded else None)
    control_client.remove_stale_sockets(run.directory)
    run.manifest["files"] = list_run_files(run.directory)
    run.save()
    for name in (exec_shim.PID_FILE, exec_shim.EXIT_FILE):
        if not run.failed:
            with contextlib.suppress(OSError):
                (run.directory / name).unlink()
    expected = expectations.load_expected_names(run.directory, run.manifest)
    return RunResult(run.directory, ended.status, recorded, problem, expected, readable)


def _read_back(collector: Collector, directory: Path, stem: str) -> tuple[CollectorResult | None, Message | None]:
    """Return what the collector left, or why that is not known."""
    try:
        return collector.finalize(directory, stem), None
    except TraceableError as error:
        return None, lost_run.add_remaining_data(error, directory, run_dir.load_manifest(directory)).message


def list_run_files(directory: Path) -> list[str]:
    """What lies in a run directory, by name, its manifest and the launcher's own marks left out."""
    ours = {run_dir.MANIFEST, exec_shim.PID_FILE, exec_shim.EXIT_FILE}
    try:
        found = list(directory.iterdir())
    except OSError:  # the program has deleted it
        return []
    return sorted(entry.name for entry in found if entry.name not in ours and entry.name[0] != ".")


def format_path(path: Path) -> str:
    """The path as the user would type it: relative where it lies below the working directory."""
    with contextlib.suppress(OSError):
        if path.is_relative_to(Path.cwd()):
            return str(path.relative_to(Path.cwd())) or "."
    return str(path)
