"""The options of `run` that are for nsys: `--trace-preset` and `--nsys-args`."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence

from traceable.errors import Message

TYPE_CHECKING = False
if TYPE_CHECKING:
    from traceable.collectors.nsys.user_options import NsysRequest

PRESET = "--trace-preset"
ARGUMENTS = "--nsys-args"
PRESETS = ("light", "default", "python", "full")
"""The names of `collectors.nsys.user_options.PRESETS`, which a run that does not use nsys does not load."""


def add_nsys_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        PRESET,
        metavar="NAME",
        choices=PRESETS,
        help=f"what nsys records: {', '.join(PRESETS)} (default: default; traceable help nsys)",
    )
    parser.add_argument(
        ARGUMENTS,
        metavar="OPTIONS",
        action="append",
        type=_words,
        help="extra `nsys profile` options, split as in a shell; they override traceable's",
    )


def join_nsys_args(words: Sequence[str]) -> list[str]:
    """Join what follows `--nsys-args` to it: argparse takes a word that begins with a dash for an option."""
    joined: list[str] = []
    for word in words:
        if joined and joined[-1] == ARGUMENTS:
            joined[-1] += f"={word}"
        else:
            joined.append(word)
    return joined


def parse_nsys_options(arguments: argparse.Namespace) -> dict[str, NsysRequest]:
    """Return the settings for nsys, as the collectors take them; empty for none."""
    words = tuple(word for one in arguments.nsys_args or () for word in one)
    if arguments.trace_preset is None and not words:
        return {}
    from traceable.collectors.nsys.user_options import NsysRequest

    return {"nsys": NsysRequest(arguments.trace_preset, words)}


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        refused = Message("quoting_invalid", f"{text!r} can't be split as a shell does: {error}")
        raise argparse.ArgumentTypeError(refused) from None
