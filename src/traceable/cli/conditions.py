"""The options of `run` that say when windows may begin, how long they last, and what a step is (docs/windows.md)."""

from __future__ import annotations

import argparse
import os

from traceable import environment
from traceable.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from traceable.annotation.patterns import Target
    from traceable.capture.conditions import Conditions


def add_condition_arguments(parser: argparse.ArgumentParser) -> None:
    """Add --warmup-steps, --delay, --after-request, --idle, --duration and --step-function."""
    group = parser.add_argument_group("when windows begin (all that are given must be met), and how long they last")
    group.add_argument(
        "--warmup-steps", dest="warmup_steps", metavar="N", help="N steps are over; --steps counts from there"
    )
    group.add_argument(
        "--delay",
        dest="delay_s",
        metavar="S",
        help="S seconds since its first range or step; start+S: since the process began",
    )
    group.add_argument("--after-request", dest="requests", metavar="N", help="N requests are over")
    group.add_argument("--idle", dest="idle_s", metavar="S", help="no step has begun for S seconds")
    group.add_argument(
        "--duration", dest="duration_s", metavar="S", help="a window lasts S seconds; without --steps it is one"
    )
    parser.add_argument(
        "--step-function", metavar="MODULE:NAME", help="each call of this function is a step, as in engine:Engine.step"
    )


def asked(arguments: argparse.Namespace, *, steps: bool, controlled: bool) -> Conditions:
    """Return the conditions of the options, or of the environment where there is no option: the program reads both.

    Args:
        arguments: of the command line.
        steps: whether --steps names windows.
        controlled: whether windows are asked for while the program runs.

    Raises:
        UsageError: one is malformed, or there is no window to hold.
    """
    from traceable.capture import conditions

    by_option = {name: getattr(arguments, name) for name in conditions.OPTIONS}
    if any(text == "" for text in by_option.values()):
        raise UsageError("value_missing", "a condition has no value", "write one as in --delay 10")
    found = conditions.read(by_option)
    if not environment.flag(environment.DISABLE):
        by_variable = conditions.read(conditions.texts_of_environment(), by_option=False)
        found = conditions.merged(found, by_variable, (name for name, text in by_option.items() if text is None))
    if any(found) and controlled and not steps:
        raise UsageError(
            "conditions_without_windows",
            f"{str(found) or f'a duration of {found.duration_s:g} s'}: --control alone has no windows for it",
            "name some with --steps, or leave out --control",
        )
    return found


def variables(found: Conditions, *, steps: bool) -> dict[str, str]:
    """Return what to set in the program's environment."""
    said = found.variables()
    if said and not steps and not found.need_steps:
        from traceable.annotation.bootstrap import bootstrap_path

        # A window of time is for programs, too, that never import traceable.
        said["PYTHONPATH"] = bootstrap_path(os.environ)
    return said


def step_targets(arguments: argparse.Namespace) -> tuple[Target, ...]:
    """Return the function whose calls are steps, none or one.

    Raises:
        UsageError: the pattern does not parse.
    """
    text = arguments.step_function
    if text is None:
        text = "" if environment.flag(environment.DISABLE) else os.environ.get(environment.STEP_FUNCTION, "")
        if not text:
            return ()
    from traceable.annotation.patterns import parse_step_function

    try:
        return (parse_step_function(text),)
    except ValueError as error:
        raise UsageError("step_function_invalid", str(error), "name a function as in engine:Engine.step") from None


def step_variables(targets: tuple[Target, ...]) -> dict[str, str]:
    """Return what to set in the program's environment so that it and its Python children step by that function."""
    if not targets:
        return {}
    from traceable.annotation.bootstrap import bootstrap_path

    return {environment.STEP_FUNCTION: str(targets[0]), "PYTHONPATH": bootstrap_path(os.environ)}
