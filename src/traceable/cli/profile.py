"""What `run` and `report` share: the options that say what of a profile is shown, and showing the ranges."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from traceable.analysis.columns import RANGE_COLUMNS
from traceable.errors import UnanswerableError
from traceable.report.choice import LARGEST, Choice, column_meant
from traceable.report.text import encodable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from traceable.analysis.contract import Verdict
    from traceable.analysis.windows import Windows
    from traceable.recording import Recording

TERMINAL_ROWS = 50
"""How many rows the table shows where --top does not say: a trace may have thousands of names."""


def add_view_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that say how the ranges are printed."""
    group = add_output_arguments(parser)
    group.add_argument(
        "--sort", metavar="COLUMN", type=sort_column, help="sort by this column of the report, largest first"
    )


def add_output_arguments(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """Add those of these options that do not depend on what is shown, and return their group."""
    group = parser.add_argument_group("what is printed")
    output = group.add_mutually_exclusive_group()
    output.add_argument("--json", action="store_true", help="print the report as JSON (docs/report.md)")
    output.add_argument("--csv", action="store_true", help="print the table as CSV, every column")
    group.add_argument("--top", metavar="N", type=whole, help="print the N largest rows; 0 prints all")
    group.add_argument("--domain", metavar="D", help="print only ranges of this NVTX domain ('' is the default one)")
    group.add_argument("--match", metavar="GLOB", help="print only what has a name that matches, as in 'decode*'")
    return group


def show(
    path: Path,
    arguments: argparse.Namespace,
    *,
    title: str,
    stream: TextIO,
    save_to: Path | None = None,
    expected: Sequence[str] = (),
    run_directory: Path | None = None,
    diagnose: Callable[[Recording], Mapping[str, Any]] | None = None,
) -> tuple[tuple[Verdict, ...], Windows | None]:
    """Load a recording, save its report, print its ranges; return what it says of ranges and steps asked for.

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
    from traceable.cli.allocation import keep_freed_memory, use_one_blas_thread

    use_one_blas_thread()
    # numpy takes a tenth of a second to import, which `run` must not spend before the program starts.
    from traceable.cli.progress import Progress
    from traceable.recording import load
    from traceable.report.document import document, save

    keep_freed_memory()
    with Progress() as progress:
        recording = load(path, progress=progress, run_directory=run_directory)
        recording.answers([("ranges", {}), ("findings", {})])
        judged = recording.verdicts(expected)
        if save_to is not None:
            why = {} if diagnose is None else {"diagnosis": diagnose(recording)}
            save({**document(recording, Choice(), judged), **why}, save_to)
    print_ranges(recording, judged, arguments, choice_of(arguments), title=title, stream=stream)
    return judged, recording.windows


def print_ranges(
    recording: Recording,
    verdicts: Sequence[Verdict],
    arguments: argparse.Namespace,
    choice: Choice,
    *,
    title: str,
    stream: TextIO,
    by: str = "path",
    thresholds: Mapping[str, float] | None = None,
) -> None:
    """Print the chosen ranges by path or by name, in the form that the options ask for; below them the findings.

    Args:
        thresholds: of the findings, as `Recording.findings` takes them. CSV has the ranges alone.
    """
    from traceable.report.delimited import to_csv
    from traceable.report.document import document, head, to_json

    if arguments.json:
        stream.write(to_json(document(recording, choice, verdicts, thresholds)) + "\n")
    elif arguments.csv:
        table = recording.profile.names if by == "name" else recording.profile.ranges
        write_text(stream, to_csv(choice.rows(table, LARGEST), table.columns))
    else:
        from traceable.report.terminal import (
            Page,
            write_head,
            write_largest_findings,
            write_notes,
            write_outside_ranges,
            write_ranges,
            write_rhythm,
        )

        page = Page(stream)
        said = head(recording)
        write_head(page, said, title)
        shown = choice.for_terminal(TERMINAL_ROWS)
        write_ranges(page, recording.profile, recording.counters(), shown, by, said["folded_names"])
        if choice.match is None and choice.domain is None and choice.name is None:
            write_outside_ranges(page, recording.outside_ranges())
        if recording.counts_steps:
            with contextlib.suppress(UnanswerableError):
                write_rhythm(page, recording.steps().others["summary"])
        with contextlib.suppress(UnanswerableError):
            write_largest_findings(page, recording.findings(thresholds=thresholds))
        write_notes(page, said)
    stream.flush()


def choice_of(arguments: argparse.Namespace) -> Choice:
    """Return which rows the options ask for."""
    return Choice(sort=arguments.sort, top=arguments.top, domain=arguments.domain, match=arguments.match)


def write_text(stream: TextIO, text: str) -> None:
    """Write a text of many lines, with escapes for what the stream can't encode."""
    stream.write(encodable(text, getattr(stream, "encoding", None)))


def positive(word: str) -> int:
    """Return a whole number of at least 1, for argparse."""
    number = int(word) if word.isascii() and word.isdigit() and len(word) < 19 else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{word[:40]!r} is not a whole number of at least 1")
    return number


def whole(word: str) -> int:
    """Return a whole number of at least 0, for argparse."""
    if word == "0":
        return 0
    try:
        return positive(word)
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(f"{word[:40]!r} is not a whole number of at least 0") from None


def sort_column(asked: str) -> str:
    """Check --sort before a program is run for hours."""
    if (column := column_meant(asked, RANGE_COLUMNS)) is None:
        raise argparse.ArgumentTypeError(
            f"the report has no column {asked!r}; "
            "use one like count, total, p99, max, self, gpu_busy (all: docs/report.md)"
        )
    return column
