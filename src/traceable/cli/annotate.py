"""The options of `run` that annotate code from outside (docs/annotate-from-outside.md).

Order is precedence: a function that several patterns name has the first one's range; those of --annotate go
before files, and files before presets.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from traceable.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from traceable.annotation.external.patterns import Target

_HELP = "see `traceable help annotate-from-outside`"


def add_annotate_arguments(parser: argparse.ArgumentParser) -> None:
    """Add --annotate, --annotate-file and --annotate-preset."""
    group = parser.add_argument_group("annotation of code that can't be edited")
    group.add_argument(
        "--annotate",
        metavar="MODULE:NAME[=RANGE]",
        action="append",
        default=[],
        help="annotate these functions, `*` and `?` being wildcards; repeatable",
    )
    group.add_argument(
        "--annotate-file",
        metavar="FILE",
        action="append",
        default=[],
        type=Path,
        help="a TOML file of such patterns; repeatable",
    )
    group.add_argument(
        "--annotate-preset",
        metavar="NAME[,NAME]",
        action="append",
        default=[],
        help="ready-made patterns for a package: asyncio, grpc, torch, transformers, uvicorn",
    )


def load_option_targets(arguments: argparse.Namespace) -> tuple[Target, ...]:
    """Return the targets of the options, in order of precedence.

    Raises:
        UsageError: a pattern does not parse, a file can't be read, or there is no such preset.
    """
    if not (arguments.annotate or arguments.annotate_file or arguments.annotate_preset):
        return ()
    from traceable.annotation.external.patterns import load_targets, parse_pattern
    from traceable.annotation.external.presets import preset_targets

    targets: list[Target] = []
    try:
        targets += [parse_pattern(text) for text in arguments.annotate]
    except ValueError as error:
        raise UsageError("pattern_invalid", str(error), _HELP) from None
    try:
        for path in arguments.annotate_file:
            targets += load_targets(path)
    except ValueError as error:
        if isinstance(error.__context__, OSError):
            raise UsageError("file_unreadable", str(error), _HELP) from None
        raise UsageError("annotate_file_invalid", str(error), _HELP) from None
    try:
        for names in arguments.annotate_preset:
            targets += preset_targets(names)
    except ValueError as error:
        raise UsageError("no_such_preset", str(error), _HELP) from None
    return tuple(targets)


def make_annotate_environment(targets: Sequence[Target]) -> dict[str, str]:
    """Return what to set in the program's environment so that it and its Python children are annotated."""
    if not targets:
        return {}
    from traceable.capture.bootstrap import make_bootstrap_environment

    return make_bootstrap_environment(targets, os.environ)


def check_reachable(targets: Sequence[Target], command: Sequence[str]) -> None:
    """Refuse patterns that can't reach the program `command` starts.

    Raises:
        UsageError: an interpreter option keeps them out.
    """
    if not targets:
        return
    from traceable.capture.bootstrap import find_bootstrap_problem

    if problem := find_bootstrap_problem(command):
        raise UsageError("python_isolated", problem, "or annotate in the code with traceable.annotate_targets")


def find_unmatched(targets: Sequence[Target], run_dir: Path) -> tuple[str, ...]:
    """Return a sentence for each pattern that matched nothing in any process of the run."""
    if not targets:
        return ()
    from traceable.annotation.external.patch_report import collect_warnings

    return collect_warnings(run_dir, targets)
