"""The options `--expect` and `--strict` of `run` and `report`, and the output about them.

The exit code of `--strict` is 0 if every expectation is met and everything emitted was recorded, and 3 if not or if
that is not known.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

from traceable.errors import Message, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path

    from traceable.analysis.expectations import ExpectationResult
    from traceable.checks.completeness import Completeness

EXIT_UNMET = 3


def add_expectation_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options `--expect` and `--strict`."""
    group = parser.add_argument_group("Assertions")
    group.add_argument(
        "--expect",
        metavar="NAME[,NAME]",
        action="extend",
        type=_names,
        default=[],
        help="check that these ranges were recorded; may be given several times",
    )
    group.add_argument(
        "--strict",
        action="store_true",
        help=f"exit with code {EXIT_UNMET} if the program succeeds but emitted ranges, expected ranges or steps "
        "are missing from the recording",
    )


def make_nothing_expected_error(complete: Completeness | None) -> UsageError:
    """Return the error of `--strict` if nothing is expected and no counts can be compared.

    Args:
        complete: has the reason, if known.
    """
    reason = complete.not_compared if complete is not None else None
    return UsageError(
        "nothing_expected",
        "--strict needs --expect or --steps: "
        + (f"range counts can't be compared ({reason})" if reason else "no process counted its ranges"),
        "add --expect NAME or --steps, or call traceable.expect(...)",
    )


def report_losses(complete: Completeness, log: Callable[[str], None]) -> None:
    """Print a line for each process with missing ranges."""
    for note in complete.notes:
        log(note)


def evaluate_unrecorded_run(directory: Path) -> Completeness:
    """Return the completeness of a run that recorded nothing."""
    from traceable.checks.completeness import evaluate_completeness
    from traceable.protocol import run_dir

    return evaluate_completeness(directory, run_dir.load_manifest(directory), None)


def report_expectations(
    verdicts: Sequence[ExpectationResult], log: Callable[[str], None], *, quiet: bool = False
) -> None:
    """Print a line for each result, only for unmet ones if `quiet`, and how many are unmet."""
    if verdicts:
        from traceable.report.expectations import format_expectations

        for line in format_expectations(verdicts, unmet_only=quiet):
            log(line)


def strict_exit_code(verdicts: Sequence[ExpectationResult], complete: Completeness | None) -> int:
    """Return the exit code of `--strict` for these results and missing ranges."""
    lost = complete is not None and complete.incomplete_processes
    return 0 if all(one.ok for one in verdicts) and not lost else EXIT_UNMET


def _names(words: str) -> list[str]:
    names = [word.strip() for word in words.split(",")]
    if not all(names):
        raise argparse.ArgumentTypeError(Message("name_empty", f"{words!r} contains an empty name"))
    return names
