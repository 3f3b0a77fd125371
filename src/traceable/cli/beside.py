"""`traceable report A B ...`: the ranges and steps of several recordings side by side. Nothing is judged."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from traceable.cli import asked, windows
from traceable.cli.lines import say
from traceable.cli.profile import TERMINAL_ROWS, check_output_files, on_stdout, prints_tables, write_output
from traceable.cli.report import choice_for
from traceable.errors import Message, UnanswerableError, UsageError
from traceable.report.choice import Choice
from traceable.report.views import RANGES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from traceable.analysis.table import Table
    from traceable.recording import Recording

BY = ("path", "name")
MOST = 26
"""One letter each."""

_OF_ONE = {
    "names": "--names",
    "families": "--families",
    "threshold": "--threshold",
    "slowest": "--slowest",
    "expect": "--expect",
    "strict": "--strict",
}
"""Options that say something about one recording alone, by the name of their value."""


def run(arguments: argparse.Namespace) -> int:
    """Print the recordings at `arguments.paths` side by side; return the exit code.

    Raises:
        UsageError: an option that says nothing about several recordings.
        TraceableError: one of them can't be read.
    """
    by = _by(arguments)
    check_output_files(arguments)
    # numpy takes a tenth of a second to import: what can be refused is refused before.
    rules = asked.names_requested(arguments)
    from traceable.cli.allocation import keep_freed_memory
    from traceable.cli.progress import Progress
    from traceable.recording import load, normalize_names
    from traceable.report.beside import document, write
    from traceable.report.document import head, to_json
    from traceable.report.terminal import Page

    keep_freed_memory()
    with Progress() as progress:
        recordings = [
            load(path, progress=progress, allow_unrelated=arguments.allow_unrelated, raw_names=True)
            for path in arguments.paths
        ]
        if rules is not None:
            # Together, so that what is folded in one of them is in the others.
            normalize_names(recordings, rules, arguments.expand or ())
        recordings = [asked.part_asked(recording, arguments) for recording in recordings]
        if arguments.range_name is not None:
            recordings = [recording.with_names_matching(arguments.range_name) for recording in recordings]
        table = _table(recordings, by, arguments)
        heads = [head(recording) for recording in recordings]
    choice = dataclasses.replace(choice_for(arguments, table), name=arguments.range_name)
    if arguments.json:
        write_output(arguments.json, to_json(document(heads, by, table, choice)) + "\n", sys.stdout)
    elif arguments.csv:
        _print_csv(table, choice, arguments)
    if prints_tables(arguments):
        shown = dataclasses.replace(choice.for_terminal(TERMINAL_ROWS), fold=False)
        write(Page(sys.stdout), heads, list(map(str, arguments.paths)), table, shown)
    sys.stdout.flush()
    for path, recording in zip(arguments.paths, recordings, strict=True):
        met = recording.windows is None or recording.windows.met
        if not met if arguments.quiet else on_stdout(arguments):
            windows.tell(recording.windows, partial(_say, path))
    return 0


def _say(path: Path, line: str) -> None:
    words = f"{path}: {line}"
    say(Message(line.code, words) if isinstance(line, Message) else words)


def _by(arguments: argparse.Namespace) -> str:
    """Return what a row is about, after refusing what says nothing about several recordings."""
    if arguments.view != RANGES.name:
        raise UsageError(
            "view_of_one_recording",
            f"--view {arguments.view} is of one recording; several have ranges and steps side by side",
            "leave --view out, or give one PATH",
        )
    for name, flag in _OF_ONE.items():
        if getattr(arguments, name):
            raise UsageError(
                "option_of_one_recording", f"{flag} is about one recording", "leave it out, or give one PATH"
            )
    if arguments.by not in (None, *BY):
        raise UsageError(
            "no_such_grouping",
            f"several recordings side by side have no --by {arguments.by}",
            f"use {' or '.join(BY)}",
        )
    if arguments.table is not None and not arguments.csv:
        raise UsageError(
            "table_needs_csv", "--table says which table --csv prints", "add --csv; without it all tables are printed"
        )
    if len(arguments.paths) > MOST:
        raise UsageError(
            "too_many_recordings",
            f"{len(arguments.paths)} recordings are too many to be side by side",
            f"give up to {MOST}",
        )
    return arguments.by or BY[0]


def _table(recordings: Sequence[Recording], by: str, arguments: argparse.Namespace) -> Table:
    """Return the ranges of all recordings, with their steps and what is to be said of them."""
    from traceable.analysis.beside import LETTERS, beside, steps_beside

    asked_steps = ("steps", {"range_name": arguments.step_range, "step_kernel": arguments.step_kernel})
    steps = [recording.answers([asked_steps])[0] for recording in recordings]
    summaries = [None if isinstance(found, UnanswerableError) else found.others["summary"] for found in steps]
    notes = [
        Message("steps_not_shown", f"{letter} has no steps to show: {found.message}")
        for letter, found in zip(LETTERS, steps, strict=False)
        if isinstance(found, UnanswerableError)
    ]
    ranges = [recording.profile.names if by == "name" else recording.profile.ranges for recording in recordings]
    return dataclasses.replace(beside(ranges), others={"steps": steps_beside(summaries)}, notes=tuple(notes))


def _print_csv(table: Table, choice: Choice, arguments: argparse.Namespace) -> None:
    from traceable.report.delimited import to_csv

    other = arguments.table
    if other is None:
        text = to_csv(choice.rows(table), table.columns, arguments.raw)
    elif other in table.others:
        text = to_csv(table.others[other].rows(), table.others[other].columns, arguments.raw)
    else:
        raise UsageError(
            "no_such_table",
            f"several recordings side by side have no table {other!r}",
            f"they have {', '.join(table.others)}",
        )
    write_output(arguments.csv, text, sys.stdout)
