"""What `run` and `report` share: the options that say which ranges are expected, and what is said of them.

The exit code of `--strict` is this module's: 0 where every expectation is met, 3 where one is not or can't be judged.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

from traceable.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from traceable.analysis.contract import Verdict

UNMET = 3


def add_contract_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the contract."""
    group = parser.add_argument_group("what is expected")
    group.add_argument(
        "--expect",
        metavar="NAME[,NAME]",
        action="extend",
        type=_names,
        default=[],
        help="say of each whether a range of that name was entered; may be given several times",
    )
    group.add_argument(
        "--strict",
        action="store_true",
        help=f"exit code {UNMET} where the program succeeded and an expectation is unmet or a step is missing",
    )


def nothing_expected() -> UsageError:
    """Return the error of `--strict` without any expectation."""
    return UsageError(
        "--strict has nothing to judge: no range was expected and no steps were asked for",
        "add --expect NAME or --steps, or call traceable.expect(...)",
    )


def tell(verdicts: Sequence[Verdict], say: Callable[[str], None], *, quiet: bool = False) -> None:
    """Print a line for each verdict, or each unmet one where `quiet`, and how many are unmet."""
    if verdicts:
        from traceable.report.contract import lines

        for line in lines(verdicts, unmet_alone=quiet):
            say(line)


def strict_code(verdicts: Sequence[Verdict]) -> int:
    """Return the exit code that `--strict` makes of the verdicts."""
    return 0 if all(one.met for one in verdicts) else UNMET


def _names(words: str) -> list[str]:
    names = [word.strip() for word in words.split(",")]
    if not all(names):
        raise argparse.ArgumentTypeError(f"{words!r} holds an empty name")
    return names
