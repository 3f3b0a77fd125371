"""What `run` and `report` share: the options that say which ranges are expected, and what is said of them.

The exit code of `--strict` is this module's: 0 where every expectation is met and all that was emitted is there, 3
where that is not so or can't be judged.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

from traceable.errors import Message, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path

    from traceable.analysis.completeness import Completeness
    from traceable.analysis.expectations import ExpectationResult

EXIT_UNMET = 3


def add_expectation_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the contract."""
    group = parser.add_argument_group("assertions")
    group.add_argument(
        "--expect",
        metavar="NAME[,NAME]",
        action="extend",
        type=_names,
        default=[],
        help="check that ranges of these names were recorded; repeatable",
    )
    group.add_argument(
        "--strict",
        action="store_true",
        help=f"exit with code {EXIT_UNMET} if an emitted or expected range or a requested step is missing",
    )


def make_nothing_expected_error(complete: Completeness | None) -> UsageError:
    """Return the error of `--strict` where nothing was expected, and it is not known what was emitted.

    Args:
        complete: why not, where that is known.
    """
    why = complete.not_compared if complete is not None else None
    return UsageError(
        "nothing_expected",
        "--strict has nothing to judge: no range was expected, no steps were asked for, and "
        + (f"what was emitted can't be compared ({why})" if why else "no process counted its ranges"),
        "add --expect NAME or --steps, or call traceable.expect(...)",
    )


def report_losses(complete: Completeness, say: Callable[[str], None]) -> None:
    """Print a line for each process of which something is missing."""
    for note in complete.notes:
        say(note)


def evaluate_unrecorded_run(directory: Path) -> Completeness:
    """Return what was emitted of a run that recorded nothing."""
    from traceable.launch import range_counts, run_dir

    return range_counts.evaluate_completeness(directory, run_dir.load_manifest(directory), None)


def report_expectations(
    verdicts: Sequence[ExpectationResult], say: Callable[[str], None], *, quiet: bool = False
) -> None:
    """Print a line for each verdict, or each unmet one where `quiet`, and how many are unmet."""
    if verdicts:
        from traceable.report.expectations import format_expectations

        for line in format_expectations(verdicts, unmet_only=quiet):
            say(line)


def strict_exit_code(verdicts: Sequence[ExpectationResult], complete: Completeness | None) -> int:
    """Return the exit code that `--strict` makes of the verdicts, and of what is missing."""
    lost = complete is not None and complete.incomplete_processes
    return 0 if all(one.ok for one in verdicts) and not lost else EXIT_UNMET


def _names(words: str) -> list[str]:
    names = [word.strip() for word in words.split(",")]
    if not all(names):
        raise argparse.ArgumentTypeError(Message("name_empty", f"{words!r} holds an empty name"))
    return names
