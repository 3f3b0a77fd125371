"""`run --measure-overhead` (docs/measure-overhead.md): the option, and saying what the two runs come to."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from traceable.errors import Message, TraceError


def add_overhead_arguments(parser: argparse.ArgumentParser) -> None:
    """Add --measure-overhead."""
    parser.add_argument(
        "--measure-overhead",
        action="store_true",
        help="run the program twice, first without a collector, and say how much longer it takes with one",
    )


def measure(directory: Path, say: Callable[[str], None]) -> None:
    """Write into the manifest of the run in `directory` what recording it cost: `load` finds it there.

    What goes wrong is said, and leaves the profile to be printed without it.
    """
    try:
        _measure(directory)
    except (TraceError, OSError) as error:
        why = error.message if isinstance(error, TraceError) else error
        say(Message("overhead_not_saved", f"what recording cost can't be kept: {why}"))
    except Exception as error:  # noqa: BLE001 - a fault of ours must not hide the profile
        say(Message("overhead_failed", f"what recording cost could not be told ({type(error).__name__}: {error})"))


def _measure(directory: Path) -> None:
    from traceable.analysis.overhead import overhead
    from traceable.launch import overhead as kept
    from traceable.launch import run_dir
    from traceable.report.overhead import plain

    manifest = run_dir.read(directory)
    found = overhead(*kept.runs(directory, manifest))
    kept.write(directory, plain(found, manifest["collector"]["name"]))


def tell(directory: Path, say: Callable[[str], None]) -> None:
    """Print what recording the run in `directory` cost, where that was measured.

    Raises:
        TraceError: it is no run directory.
    """
    from traceable.launch import overhead as kept
    from traceable.launch import run_dir
    from traceable.report.overhead import lines

    for line in lines(run_dir.read(directory).get(kept.MANIFEST_KEY)):
        say(line)
