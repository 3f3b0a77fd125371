"""Write a recording in the format of another tool: `traceable export PATH --to perfetto -o step.perfetto-trace`.

A timeline for Perfetto or Chrome, its events as Parquet, or a table as CSV or Markdown. The file is new: nothing is
replaced, and an export that fails leaves nothing. See `traceable help export`.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from traceable.cli import report
from traceable.cli.console import log
from traceable.cli.selection import resolve_name_rules, select_requested_part
from traceable.errors import Message, UsageError
from traceable.report.export import FORMATS, load_exporter
from traceable.units import format_bytes

TEXTS = {"csv": "a table of the report as CSV", "markdown": "what `report` prints as GitHub Markdown"}
"""The formats that are outputs of the report, and the end of the names of their files."""

_SUFFIXES = {**{name: one.suffix for name, one in FORMATS.items()}, "csv": ".csv", "markdown": ".md"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what `export` takes."""
    helps = {**{name: one.help for name, one in FORMATS.items()}, **TEXTS}
    parser.add_argument(
        "--to",
        metavar="FORMAT",
        required=True,
        choices=list(helps),
        help="; ".join(f"{name}: {line}" for name, line in helps.items()),
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        type=Path,
        help="the new file, of parquet the new directory (default: in the current directory, named after PATH)",
    )
    report.add_path_arguments(parser)
    report.add_query_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Write the export; return the exit code.

    Raises:
        UsageError: the output exists, or an option has no effect on the format.
        TraceableError: the recording can't be read, has nothing to export, or the output can't be written.
    """
    if not arguments.paths:
        from traceable.protocol.run_dir import find_latest_run

        arguments.paths = [find_latest_run()]
    path = arguments.output or _make_default_name(arguments.paths[0], arguments.to)
    _check_new(path)
    if arguments.to in TEXTS:
        return report.print_to_file(arguments, arguments.to, path)
    report.reject_view_options(arguments, f"--to {arguments.to} writes events, of which there are no views")
    started = time.monotonic()
    from traceable.launch.memory import check_memory_limit, keep_freed_memory, use_one_blas_thread

    check_memory_limit(arguments.paths[0])
    use_one_blas_thread()
    rules = resolve_name_rules(arguments)
    from traceable.cli.progress import Progress
    from traceable.recording import normalize_names

    keep_freed_memory()
    with Progress() as progress:
        whole = report.load_recording(arguments, progress)
        if rules is not None:
            normalize_names([whole], rules, arguments.expand or ())
        recording = select_requested_part(whole, arguments)
        progress(f"writing {path}")
        notes = load_exporter(arguments.to).export(recording, path)
    size = sum(file.stat().st_size for file in (path.iterdir() if path.is_dir() else [path]))
    log(f"{path}: {format_bytes(size)}, written in {time.monotonic() - started:.1f} s")
    for note in notes:
        log(note)
    sys.stdout.flush()
    return 0
