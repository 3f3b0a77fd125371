"""What `run` and `report` share: the output options, and printing the ranges."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from traceable.errors import Message, MissingDataError, UsageError
from traceable.report import OUTPUTS, Content, load_output
from traceable.report.text import escape_unencodable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from traceable.analysis.expectations import ExpectationResult
    from traceable.checks.completeness import Completeness
    from traceable.checks.windows import CaptureResult
    from traceable.recording import Recording
    from traceable.report.row_filter import RowFilter

STDOUT = "-"
"""Where --json and --csv go without a file."""

TERMINAL_ROWS = 50
"""How many rows the table shows without --top: a trace may have thousands of names."""


def add_view_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options on the printed ranges."""
    group = add_output_arguments(parser)
    group.add_argument(
        "--sort", metavar="COLUMN", type=parse_sort_column, help="sort by this column of the report, largest first"
    )


def add_output_arguments(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """Add those of these options that do not depend on what is shown, and return their group."""
    group = parser.add_argument_group("output")
    output = group.add_mutually_exclusive_group()
    for name, help_line in OUTPUTS.items():
        output.add_argument(f"--{name}", metavar="=FILE", nargs="?", const=STDOUT, help=help_line)
    add_raw_argument(group)
    group.add_argument("--quiet", action="store_true", help="print only errors, and the output of --json and --csv")
    group.add_argument("--top", metavar="N", type=parse_non_negative_int, help="print the N largest rows; 0 prints all")
    group.add_argument("--domain", metavar="D", help="print only ranges of this NVTX domain ('' is the default one)")
    group.add_argument("--match", metavar="GLOB", help="print only matching names, as in 'decode*'")
    return group


def show_profile(
    path: Path,
    arguments: argparse.Namespace,
    *,
    title: str,
    stream: TextIO,
    save_to: Path | None = None,
    expected: Sequence[str] = (),
    run_directory: Path | None = None,
    diagnose: Callable[[Recording], Mapping[str, Any]] | None = None,
) -> tuple[tuple[ExpectationResult, ...], CaptureResult | None, Completeness]:
    """Load a recording, save its report, print its ranges; return the results on expectations, windows and
    completeness.

    Args:
        path: what `traceable.load` reads.
        arguments: what `add_view_arguments` parsed. It narrows what is printed, never what is saved.
        title: the first line above the table.
        stream: where to print.
        save_to: where to write report.json; None for nowhere.
        expected: names of ranges (docs/contract.md).
        run_directory: as of `traceable.load`.
        diagnose: returns what is saved as `diagnosis`.

    Raises:
        TraceError: the file can't be read as a trace.
        TraceableError: the report can't be written.
    """
    # numpy takes a tenth of a second to import, which `run` must not spend before the program starts.
    from traceable.cli.progress import Progress
    from traceable.recording import load
    from traceable.report.document import build_bounded_report, write_report

    with Progress() as progress:
        recording = load(path, progress=progress, run_directory=run_directory)
        recording.query_all([("ranges", {}), ("findings", {})])
        verdict = recording.verdicts(expected)
        if save_to is not None:
            why = {} if diagnose is None else {"diagnosis": diagnose(recording)}
            write_report({**build_bounded_report(recording, verdict), **why}, save_to)
    print_ranges(recording, verdict, arguments, parse_row_filter(arguments), title=title, stream=stream)
    return verdict, recording.windows, recording.completeness


def print_ranges(
    recording: Recording,
    verdicts: Sequence[ExpectationResult],
    arguments: argparse.Namespace,
    choice: RowFilter,
    *,
    title: str,
    stream: TextIO,
    by: str = "path",
    thresholds: Mapping[str, float] | None = None,
) -> None:
    """Print the chosen ranges by path or by name, in the requested form; below them the findings.

    Args:
        thresholds: of the findings, as `Recording.findings` takes them. CSV has the ranges alone.
    """
    from traceable.report.document import build_header, build_report
    from traceable.report.row_filter import DEFAULT_SORT

    table = recording.profile.names if by == "name" else recording.profile.ranges
    content = Content(
        lambda: build_report(recording, choice, verdicts, thresholds),
        lambda: (choice.select_rows(table, DEFAULT_SORT), table.columns),
        arguments.raw,
    )
    write_content(content, arguments, stream)
    if has_table_output(arguments):
        from traceable.report.page import Page
        from traceable.report.terminal import (
            write_header,
            write_largest_findings,
            write_notes,
            write_outside_ranges,
            write_ranges,
            write_step_rates,
        )

        page = Page(stream)
        output = build_header(recording)
        write_header(page, output, title)
        shown = choice.apply_terminal_defaults(TERMINAL_ROWS)
        write_ranges(page, recording.profile, recording.counters(), shown, by, output["folded_names"])
        if choice.match is None and choice.domain is None and choice.name is None:
            write_outside_ranges(page, recording.outside_ranges())
        if recording.has_step_ranges:
            with contextlib.suppress(MissingDataError):
                write_step_rates(page, recording.steps().others["summary"])
        with contextlib.suppress(MissingDataError):
            write_largest_findings(page, recording.findings(thresholds=thresholds))
        write_notes(page, output)
    stream.flush()


def parse_row_filter(arguments: argparse.Namespace) -> RowFilter:
    """Return the row filter of the options."""
    from traceable.report.row_filter import RowFilter

    return RowFilter(sort=arguments.sort, top=arguments.top, domain=arguments.domain, match=arguments.match)


def has_stdout_output(arguments: argparse.Namespace) -> bool:
    """Whether an output is printed on stdout, where nothing else goes then."""
    return STDOUT in (getattr(arguments, name) for name in OUTPUTS)


def output_file(arguments: argparse.Namespace) -> str | None:
    """Return the file that an output is written to; None for none."""
    files = [getattr(arguments, name) for name in OUTPUTS]
    return next((file for file in files if file not in (None, STDOUT)), None)


def has_table_output(arguments: argparse.Namespace) -> bool:
    """Whether tables are printed."""
    return not (has_stdout_output(arguments) or arguments.quiet)


def check_output_files(arguments: argparse.Namespace) -> None:
    """Make the files of the outputs absolute, and reject those that can't be written.

    Raises:
        UsageError: such a file, or --raw without --csv.
    """
    check_raw(arguments)
    for option in OUTPUTS:
        name = getattr(arguments, option)
        if name in (None, STDOUT):
            continue
        path = Path(name).absolute()
        if not name or path.is_dir() or not path.parent.is_dir():
            why = f"{path} is a directory" if name and path.is_dir() else f"no such directory: {path.parent}"
            raise UsageError("output_file_invalid", f"--{option}={name} is not a file: {why}", f"write --{option}=FILE")
        setattr(arguments, option, str(path))


def add_raw_argument(group: argparse._ArgumentGroup) -> None:
    """Add --raw."""
    group.add_argument("--raw", action="store_true", help="with --csv: print texts as recorded, without escapes")


def check_raw(arguments: argparse.Namespace) -> None:
    """Reject --raw where it has no effect.

    Raises:
        UsageError: there is no --csv.
    """
    if arguments.raw and not arguments.csv:
        raise UsageError("raw_needs_csv", "--raw has no effect without --csv", "add --csv")


def remove_output_file(arguments: argparse.Namespace) -> None:
    """Remove what an earlier run wrote for --json or --csv: if this run records nothing, it must not look like its
    output.

    Raises:
        UsageError: it can't be removed, and so not be replaced.
    """
    name = output_file(arguments)
    if name is None or not Path(name).is_file():
        return
    try:
        Path(name).unlink()
    except OSError as error:
        raise UsageError(
            "file_not_replaced", f"{name} can't be replaced: {error.strerror}", "name another file"
        ) from None


def write_content(content: Content, arguments: argparse.Namespace, stream: TextIO) -> None:
    """Write the output that the options select, if any; `stream` as for `write_output`."""
    for name in OUTPUTS:
        if (destination := getattr(arguments, name)) is not None:
            write_output(destination, load_output(name).render(content), stream)


def write_output(destination: str, text: str, stream: TextIO) -> None:
    """Write the text of an output.

    Args:
        destination: STDOUT, or the path of a file.
        text: of many lines.
        stream: the stream for STDOUT; what it can't encode is escaped.

    Raises:
        TraceableError: the file can't be written.
    """
    if destination == STDOUT:
        stream.write(escape_unencodable(text, getattr(stream, "encoding", None)))
        return
    from traceable.report.document import write_file

    write_file(escape_unencodable(text, None), Path(destination))


def parse_positive_int(word: str) -> int:
    """Return a whole number of at least 1, for argparse."""
    number = int(word) if word.isascii() and word.isdigit() and len(word) < 19 else 0
    if number < 1:
        raise argparse.ArgumentTypeError(
            Message("number_invalid", f"{word[:40]!r} is not a whole number of at least 1")
        )
    return number


def parse_non_negative_int(word: str) -> int:
    """Return a whole number of at least 0, for argparse."""
    if word == "0":
        return 0
    try:
        return parse_positive_int(word)
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(
            Message("number_invalid", f"{word[:40]!r} is not a whole number of at least 0")
        ) from None


def parse_sort_column(request: str) -> str:
    """Check --sort before a program is run for hours."""
    from traceable.analysis.columns import RANGE_COLUMNS
    from traceable.report.row_filter import resolve_column

    if (column := resolve_column(request, RANGE_COLUMNS)) is None:
        raise argparse.ArgumentTypeError(
            Message(
                "no_such_column",
                f"the report has no column {request!r}; "
                "use one like count, total, p99, max, self, gpu_busy (all: traceable help report)",
            )
        )
    return column
