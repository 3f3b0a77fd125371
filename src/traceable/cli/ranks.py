"""The options --ranks and --processes of `run`, and what they make of a run: another program, name or directory."""

from __future__ import annotations

import argparse
import dataclasses
import os
import shlex
from collections.abc import Callable
from pathlib import Path

from traceable import selection
from traceable.annotation.bootstrap import find_bootstrap_problem, make_bootstrap_path
from traceable.cli import nsys
from traceable.cli.console import print_command
from traceable.errors import TraceError, UsageError
from traceable.launch import launcher, processes, ranks, run_dir, target
from traceable.protocol import environment

_COLLECTORS_OWN = frozenset(
    {environment.RUN_DIR, environment.COLLECTOR, environment.GATE, selection.LAUNCHER, selection.NAME}
)


def add_ranks_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "--ranks",
        metavar="LIST",
        type=ranks.check_ranks_option,
        help="record only these ranks of a distributed job: 0,3 or 0-3, or !1 to exclude one (traceable help ranks)",
    )
    parser.add_argument(
        "--processes",
        metavar="GLOBS",
        type=ranks.check_processes_option,
        help="record processes of these names only: 'worker*', or '!worker-1' to exclude one (traceable help ranks)",
    )


def exec_if_unselected(arguments: argparse.Namespace) -> bool:
    """Exec the program where this is the launcher of a rank that is not requested; with --dry-run print it.

    Returns:
        Whether nothing is left to be done.

    Raises:
        UsageError: no existing rank is requested, or the program is invalid.
    """
    # Not for the program, nor for what it starts.
    arguments.part_of = os.environ.pop(environment.PART_OF, None)
    if arguments.part_of is not None:
        _adopt_environment()
    program = target.parse_target(arguments.program)
    rank = _own_rank(program, arguments)
    if rank is None or arguments.ranks is None or ranks.is_requested_for(rank, arguments.ranks):
        return False
    command = program.command(target.get_interpreter_flags())
    if not arguments.dry_run:
        ranks.exec_program(command)
    print_command(shlex.join(command))
    return True


def with_rank(
    request: launcher.RunRequest, arguments: argparse.Namespace, log: Callable[[str], None]
) -> launcher.RunRequest:
    """Return the request with what ranks and processes make of it.

    Args:
        request: as the other options make it.
        arguments: of the command line.
        log: prints one line to the user.

    Raises:
        UsageError: the selection is invalid.
    """
    rank = selection.rank_of(os.environ)
    if arguments.part_of is not None:
        return dataclasses.replace(request, rank=rank)
    own = _own_rank(request.target, arguments)
    inside = own is not None and (own.world_size != 1 or arguments.ranks is not None)
    by_rank = None if inside else arguments.ranks
    asked = by_rank is not None or arguments.processes is not None
    chosen = ranks.ProcessFilter(by_rank, arguments.processes, arguments.name, _options(request)) if asked else None
    if chosen is not None:
        _check(request, arguments)
    if not inside:
        return dataclasses.replace(request, rank=own, process_filter=chosen)
    assert own is not None
    if arguments.ranks is not None:
        _log_absent_ranks(own, arguments.ranks, log)
    name = arguments.name or own.role or request.target.name
    directory = ranks.make_rank_directory_path(own, name, arguments.output)
    return dataclasses.replace(
        request,
        rank=own,
        grouped=True,
        process_filter=chosen,
        name=ranks.make_rank_name(own, name),
        directory=directory,
    )


def report_process_notes(directory: Path, log: Callable[[str], None]) -> None:
    """Log the notes on the selection of processes, of a run or of the ranks that make up one."""
    for one in (directory, *processes.list_parts(directory)):
        try:
            manifest = run_dir.load_manifest(one)
        except TraceError:
            continue
        for line in processes.check_selection(one, manifest):
            log(line)


def _own_rank(program: target.Target, arguments: argparse.Namespace) -> selection.Rank | None:
    """Return the rank that this launcher was started as; None where its children are to be ranks."""
    if arguments.part_of is not None or ranks.is_rank_launcher(program):
        return None
    return selection.rank_of(os.environ)


def _log_absent_ranks(own: selection.Rank, text: str, log: Callable[[str], None]) -> None:
    """Log, in the first of the selected ranks alone, the requested ranks that do not exist."""
    there = range(own.world_size or 0)
    if own.rank == next((rank for rank in there if selection.rank_asked(text, rank)), None):
        missing = ranks.find_absent_ranks(text, there)
        if missing:
            log(missing)


def _check(request: launcher.RunRequest, arguments: argparse.Namespace) -> None:
    """Reject options that conflict with a selection of processes."""
    if arguments.measure_overhead:
        raise UsageError(
            "overhead_of_all_processes",
            "--measure-overhead compares the whole program",
            "leave --ranks and --processes out",
        )
    problem = find_bootstrap_problem(request.target.command(target.get_interpreter_flags()))
    if problem is not None:
        raise UsageError(
            "python_isolated",
            f"{problem.partition(',')[0]}, so no process can be selected",
            "leave the flag out",
        )


def _options(request: launcher.RunRequest) -> tuple[str, ...]:
    """Return the options with which a chosen process is to become a run of its own."""
    return ("--collector", request.collector, *nsys.format_nsys_options(request.settings))


def _adopt_environment() -> None:
    """Adopt the environment of the launcher above: it is in the environment of a recorded process, ours now."""
    given = selection.from_text(os.environ.pop(environment.CHOSEN, ""))
    os.environ.update({name: value for name, value in given.items() if name not in _COLLECTORS_OWN})
    # Patterns and pauses need it; a process with neither is not changed by it.
    os.environ["PYTHONPATH"] = make_bootstrap_path(os.environ)
