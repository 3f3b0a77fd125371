"""Print what was recorded: a run directory, a .nsys-rep, an nsys .sqlite file or a trace of torch.profiler.

Without --view, one line a range path, with the time it took on the CPU and, where the recording holds it, on the GPU.
Nothing at PATH is changed or deleted; a .nsys-rep is exported to a temporary folder first.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias, Union

from traceable.cli import asked, windows
from traceable.cli.contract import (
    UNMET,
    add_contract_arguments,
    nothing_expected,
    strict_code,
    tell,
    tell_lost,
    unrecorded,
)
from traceable.cli.lines import say
from traceable.cli.profile import (
    add_output_arguments,
    check_output_files,
    choice_of,
    on_stdout,
    print_ranges,
    prints_tables,
    write_output,
)
from traceable.errors import TraceError, UnanswerableError, UsageError
from traceable.launch import memory
from traceable.report.choice import Choice, column_meant
from traceable.report.views import FINDINGS, RANGES, View

TYPE_CHECKING = False
if TYPE_CHECKING:
    from traceable.analysis.table import Table
    from traceable.recording import Recording

Answer: TypeAlias = Union["Table", UnanswerableError]
"""What a question was answered with, or why it was not."""

TERMINAL_ROWS = 30
"""How many rows of a table are shown where --top does not say."""

TERMINAL_ROWS_OF_MANY = 10
"""The same where all views are shown."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what `report` takes."""
    parser.add_argument(
        "paths",
        metavar="PATH",
        nargs="*",
        type=Path,
        help="a run directory, a .nsys-rep, .sqlite or torch.profiler trace (default: the latest run in "
        "traceable-runs); several are compared side by side",
    )
    parser.add_argument(
        "--allow-unrelated",
        action="store_true",
        help="read the torch.profiler traces of a directory as one recording even if they were made far apart",
    )
    asked.add_question_arguments(parser)
    group = add_output_arguments(parser)
    group.add_argument("--sort", metavar="COLUMN", help="sort by this column of the table, largest first")
    group.add_argument("--table", metavar="NAME", help="with --csv: print this further table of the view instead")
    add_contract_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print what is asked of PATH; return the exit code."""
    if not arguments.paths:
        from traceable.launch.run_dir import latest

        arguments.paths = [latest()]
    memory.check(arguments.paths[0])
    if len(arguments.paths) > 1:
        from traceable.cli import beside

        return beside.run(arguments)
    path: Path = arguments.paths[0]
    check_output_files(arguments)
    views = asked.views_asked(arguments)
    thresholds = asked.thresholds_of(arguments)
    expected = _expected(path, arguments)
    from traceable.cli.allocation import keep_freed_memory, use_one_blas_thread

    use_one_blas_thread()
    # numpy takes a tenth of a second to import: what can be refused is refused before.
    rules = asked.names_requested(arguments)
    from traceable.analysis.completeness import UNKNOWN
    from traceable.cli.progress import Progress
    from traceable.recording import load, normalize_names
    from traceable.report.document import document, head
    from traceable.report.overhead import lines as overhead_lines

    keep_freed_memory()
    with Progress() as progress:
        try:
            whole = load(path, progress=progress, allow_unrelated=arguments.allow_unrelated, raw_names=True)
        except TraceError as error:
            # A window that was never reached leaves nothing to read, and that is the answer.
            lost = _tell_lost(path)
            if not _tell_unread(path):
                if lost and arguments.strict:
                    return UNMET
                raise
            if arguments.strict:
                return UNMET
            raise TraceError(error.code, error.found, "ask for steps that the program reaches") from None
        if rules is not None:
            normalize_names([whole], rules, arguments.expand or ())
        judged = whole.verdicts(expected) if expected else ()
        recording = asked.part_asked(whole, arguments)
        # By path and by name the ranges are a document of their own, the one that `run` saves.
        by = arguments.by or RANGES.by[0]
        documented = asked.documented(views, arguments)
        if arguments.range_name is not None:
            recording = recording.with_range(arguments.range_name)
        answers = _answers(recording, views, documented, arguments)
    refused = next((answer for answer in answers.values() if isinstance(answer, UnanswerableError)), None)
    if refused is not None and len(views) == 1:
        raise refused
    ranges = _of_ranges(recording, by, arguments) if documented else None
    if ranges is not None and not answers:
        title = f"profile of {path}"
        print_ranges(recording, judged, arguments, ranges, title=title, stream=sys.stdout, by=by, thresholds=thresholds)
    else:
        if arguments.json:
            report = head(recording) if ranges is None else document(recording, ranges, judged, thresholds)
            _print_json(report, answers, arguments)
        elif arguments.csv:
            _print_csv(next(iter(answers.values())), arguments)
        if prints_tables(arguments):
            _print_tables(recording, ranges, answers, arguments)
    sys.stdout.flush()
    met = whole.windows is None or whole.windows.met
    if not met if arguments.quiet else on_stdout(arguments):
        windows.tell(whole.windows, say)
    if on_stdout(arguments) and not arguments.quiet:
        for line in overhead_lines(whole.overhead):
            say(line)
    tell(judged, say, quiet=arguments.quiet)
    if path.is_dir():
        from traceable.cli import flight, ranks

        ranks.tell(path, say)
        if not arguments.quiet:
            flight.tell_dumps(path, say)
    if not prints_tables(arguments):
        tell_lost(whole.completeness, say)
    if not arguments.strict:
        return 0
    if not expected and whole.windows is None and whole.completeness.state == UNKNOWN:
        raise nothing_expected(whole.completeness)
    return strict_code(judged, whole.completeness) if met else UNMET


def _tell_unread(path: Path) -> bool:
    """Say what became of the windows of a run that is over and left nothing to read; whether it was asked for any."""
    from traceable.launch import run_dir

    if not path.is_dir() or not (path / run_dir.MANIFEST).exists() or not run_dir.is_over(run_dir.read(path), path):
        return False
    found = windows.without_recording(path)
    windows.tell(found, say)
    return found is not None


def _tell_lost(path: Path) -> bool:
    """Say what was emitted of a run that left nothing to read; whether anything was."""
    if not (path.is_dir() and (path / "run.json").exists()):
        return False
    lost = unrecorded(path)
    tell_lost(lost, say)
    return bool(lost.incomplete)


def _expected(path: Path, arguments: argparse.Namespace) -> tuple[str, ...]:
    expected = list(arguments.expect)
    if path.is_dir():
        # What knows of runs takes longer to import than a small file takes to read.
        from traceable.launch import contract
        from traceable.launch.reports import manifest_of

        expected = [*contract.expected(path, manifest_of(path)), *expected]
    return tuple(dict.fromkeys(expected))


def _of_ranges(recording: Recording, by: str, arguments: argparse.Namespace) -> Choice:
    """Return which ranges the options ask for."""
    table = recording.profile.names if by == "name" else recording.profile.ranges
    return dataclasses.replace(choice_for(arguments, table), name=arguments.range_name)


def _answers(
    recording: Recording, views: Sequence[View], documented: bool, arguments: argparse.Namespace
) -> dict[View, Answer]:
    """Ask for the views; where the ranges are a document of their own, for what that holds as well."""
    options = {view: asked.options_of(view, arguments) for view in views}
    if documented:
        options[RANGES] = {"by": RANGES.by[0]}
        options.setdefault(FINDINGS, {"thresholds": asked.thresholds_of(arguments)})
    found = recording.answers([(view.name, options[view]) for view in options])
    answers = dict(zip(options, found, strict=True))
    return {view: answers[view] for view in views if not (documented and view is RANGES)}


def _print_json(report: dict[str, Any], answers: Mapping[View, Answer], arguments: argparse.Namespace) -> None:
    from traceable.report.document import answer, to_json, unanswered

    for view, found in answers.items():
        if view is FINDINGS and FINDINGS.name in report:
            # The list of them, here as in report.json.
            continue
        # `ranges` is the list of the range paths, here as in report.json.
        key = f"ranges_by_{arguments.by}" if view is RANGES else view.name
        if isinstance(found, UnanswerableError):
            report[key] = unanswered(found)
        else:
            report[key] = answer(found, choice_for(arguments, found))
    write_output(arguments.json, to_json(report) + "\n", sys.stdout)


def _print_csv(found: Answer, arguments: argparse.Namespace) -> None:
    from traceable.report.delimited import to_csv

    assert not isinstance(found, UnanswerableError), "raised before"
    table = found
    if arguments.table is not None:
        if arguments.table not in found.others:
            there = f"it has {', '.join(found.others)}" if found.others else "it has no further tables"
            raise UsageError("no_such_table", f"--view {arguments.view} has no table {arguments.table!r}", there)
        table = found.others[arguments.table]
    write_output(
        arguments.csv, to_csv(choice_for(arguments, table).rows(table), table.columns, arguments.raw), sys.stdout
    )


def _print_tables(
    recording: Recording, ranges: Choice | None, answers: Mapping[View, Answer], arguments: argparse.Namespace
) -> None:
    """Print the ranges, where these are asked for, and the answers."""
    from traceable.report.document import head
    from traceable.report.terminal import Page, write_head, write_notes, write_ranges, write_view

    many = ranges is not None
    report = head(recording)
    rows = TERMINAL_ROWS_OF_MANY if many else TERMINAL_ROWS
    tables = {view: found for view, found in answers.items() if not isinstance(found, UnanswerableError)}
    # What can be refused is refused before anything is printed.
    choices = {
        view: dataclasses.replace(choice_for(arguments, found).for_terminal(rows), fold=False)
        for view, found in tables.items()
    }
    page = Page(sys.stdout)
    write_head(page, report, f"{'profile' if many else next(iter(answers)).name} of {arguments.paths[0]}")
    if ranges is not None:
        shown = ranges.for_terminal(rows)
        write_ranges(page, recording.profile, recording.counters(), shown, "path", report["folded_names"])
    for view, found in answers.items():
        page.line()
        if many:
            page.line(f"{view.name}: {view.help}")
        if isinstance(found, UnanswerableError):
            page.line(f"not answered: {found}")
        else:
            write_view(page, view, found, choices[view], TERMINAL_ROWS_OF_MANY if many else TERMINAL_ROWS)
    write_notes(page, report)


def choice_for(arguments: argparse.Namespace, table: Table) -> Choice:
    """Return which rows of a table the options ask for.

    Raises:
        UsageError: the table has no such column.
    """
    choice = choice_of(arguments)
    if choice.match is not None and "name" not in table.columns:
        raise UsageError("rows_without_names", "the rows of this table have no names to --match", "leave --match out")
    if choice.sort is None:
        return choice
    column = column_meant(choice.sort, table.columns)
    if column is None:
        raise UsageError(
            "no_such_column", f"the table has no column {choice.sort!r}", f"it has {', '.join(table.columns)}"
        )
    return dataclasses.replace(choice, sort=column)
