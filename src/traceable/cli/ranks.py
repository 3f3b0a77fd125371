"""The option --ranks of `run`, for a launcher in each rank: the program alone, or a run of this rank."""

from __future__ import annotations

import argparse
import dataclasses
import os
import shlex
from collections.abc import Callable
from pathlib import Path

from traceable.cli.console import print_command
from traceable.errors import TraceError
from traceable.launch import launcher, ranks, target
from traceable.protocol import run_dir
from traceable.protocol.ranks import Rank, has_rank, read_rank


def add_ranks_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the option."""
    parser.add_argument(
        "--ranks",
        metavar="LIST",
        type=ranks.check_ranks_option,
        help="with a launcher in each rank, record only these: 0,3 or 0-3, or !1 to exclude one (traceable help ranks)",
    )


def exec_if_unselected(arguments: argparse.Namespace) -> bool:
    """Exec the program where --ranks does not select the rank of this launcher; with --dry-run print it.

    Returns:
        Whether nothing is left to be done.

    Raises:
        UsageError: --ranks selects no existing rank, this launcher has no rank, or the program is invalid.
    """
    if arguments.ranks is None:
        return False
    program = target.parse_target(arguments.program)
    if ranks.is_selected(_read_own_rank(program), arguments.ranks):
        return False
    command = program.command(target.get_interpreter_flags())
    if not arguments.dry_run:
        ranks.exec_program(command)
    print_command(shlex.join(command))
    return True


def with_rank(
    request: launcher.RunRequest, arguments: argparse.Namespace, log: Callable[[str], None]
) -> launcher.RunRequest:
    """Return the request with the rank of this launcher, and with its name and directory next to the other ranks.

    Args:
        request: as the other options make it.
        arguments: of the command line; --ranks selects this rank.
        log: prints one line to the user.

    Raises:
        UsageError: the directory is itself a run.
    """
    rank = _read_own_rank(request.target)
    if rank is None or (rank.world_size == 1 and arguments.ranks is None):
        return dataclasses.replace(request, rank=rank)
    if arguments.ranks is not None:
        # In the first of the selected ranks alone.
        there = range(rank.world_size or 0)
        first = next((one for one in there if has_rank(arguments.ranks, one)), None)
        if rank.rank == first and (absent := ranks.find_absent_ranks(arguments.ranks, there)):
            log(absent)
    name = arguments.name or rank.role or request.target.name
    directory = ranks.make_rank_directory_path(rank, name, arguments.output)
    return dataclasses.replace(
        request, rank=rank, grouped=True, name=ranks.make_rank_name(rank, name), directory=directory
    )


def report_missing_processes(directory: Path, log: Callable[[str], None]) -> None:
    """Log which processes of a run, or of the ranks in a directory, nsys could not trace."""
    from traceable.launch import losses

    for one in (directory, *ranks.list_rank_runs(directory)):
        try:
            manifest = run_dir.load_manifest(one)
        except TraceError:
            continue
        for line in losses.explain_missing_processes(one, manifest):
            log(line)


def _read_own_rank(program: target.Target) -> Rank | None:
    """Return the rank that this launcher was started as; None where its children are to be ranks."""
    return None if ranks.is_rank_launcher(program) else read_rank(os.environ)
