"""When the windows may begin, and how long one lasts: the one place where these conditions are written and read.

All that are given must be met. From the step at which they are, the steps of `--steps` are counted; without `--steps`
everything is recorded from there on, as one window. Whether they are met is looked at by `plan` when a step begins;
what becomes of them is told to the launcher in the status file.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from traceable.errors import UsageError
from traceable.protocol import environment

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any

_LARGEST_COUNT = 10**15
_LARGEST_S = 10**9


class Conditions(NamedTuple):
    """What was asked; 0 is what was not.

    Attributes:
        warmup_steps: so many steps are over.
        delay_s: so long ago its first range or step began.
        requests: so many requests are over (`annotation/request_counter.py`).
        idle_s: no step began for so long before the one with which windows may begin.
        duration_s: how long a window lasts at most. It is over at the end of the step that is open by then.
        delay_from_start: the delay is counted from the start of the process (`start+10`).
    """

    warmup_steps: int = 0
    delay_s: float = 0.0
    requests: int = 0
    idle_s: float = 0.0
    duration_s: float = 0.0
    delay_from_start: bool = False

    @property
    def has_start_condition(self) -> bool:
        """Whether windows have anything to wait for."""
        return bool(self.warmup_steps or self.delay_s or self.requests or self.idle_s)

    @property
    def need_steps(self) -> bool:
        """Whether only a program that takes steps can meet them."""
        return bool(self.warmup_steps or self.idle_s)

    def to_environment(self) -> dict[str, str]:
        """Return them as the environment says them to a process."""
        given = {variable: getattr(self, name) for name, (variable, _, _) in _READ.items()}
        said = {
            name: f"{value:.15g}" if isinstance(value, float) else str(value) for name, value in given.items() if value
        }
        if self.delay_from_start:
            said[environment.DELAY] = _FROM_START + said[environment.DELAY]
        return said

    @property
    def delay_origin(self) -> str:
        """What the delay is counted from."""
        return "the start of the process" if self.delay_from_start else "the first range or step"

    def __str__(self) -> str:
        """Return what is waited for as the end of a sentence: `after 5 warm-up steps and 3 s`; empty for nothing."""
        words = [
            pluralize(self.warmup_steps, "warm-up step") if self.warmup_steps else "",
            f"{self.delay_s:g} s from {self.delay_origin}" if self.delay_s else "",
            pluralize(self.requests, "request") if self.requests else "",
            f"{self.idle_s:g} s without a step" if self.idle_s else "",
        ]
        given = [word for word in words if word]
        return f"after {' and '.join(given)}" if given else ""


def pluralize(number: int, thing: str) -> str:
    """Return `1 step`, `2 steps`."""
    return f"{number} {thing}{'' if number == 1 else 's'}"


def parse_count(name: str, text: str) -> int:
    """Read a number of steps or requests.

    Raises:
        UsageError: it is none; the text begins with `name`.
    """
    digits = text.strip()
    if not (digits.isascii() and digits.isdigit()) or len(digits) > 16 or int(digits) > _LARGEST_COUNT:
        raise UsageError("number_invalid", f"{name} {text[:40]!r} is no number from 0 on", "write one like 5")
    return int(digits)


def parse_seconds(name: str, text: str, *, least: str = "from 0 on") -> float:
    """Read a number of seconds.

    Raises:
        UsageError: it is none, or none that can be waited for.
    """
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= _LARGEST_S or (value == 0 and least != "from 0 on"):
        found = f"{name} {text[:40]!r} is no number of seconds {least}"
        raise UsageError("seconds_invalid", found, "write one like 2.5")
    return value


def _above(name: str, text: str) -> float:
    return parse_seconds(name, text, least="above 0")


_FROM_START = "start+"
"""What stands before a delay that is counted from the start of the process."""

_READ: Mapping[str, tuple[str, str, Callable[[str, str], Any]]] = {
    "warmup_steps": (environment.WARMUP_STEPS, "--warmup-steps", parse_count),
    "delay_s": (environment.DELAY, "--delay", parse_seconds),
    "requests": (environment.AFTER_REQUEST, "--after-request", parse_count),
    "idle_s": (environment.IDLE, "--idle", _above),
    "duration_s": (environment.DURATION, "--duration", _above),
}
"""For each condition its variable, its option, and what reads either."""


def parse_conditions(texts: Mapping[str, str | None], *, by_option: bool = True) -> Conditions:
    """Return what is asked.

    Args:
        texts: by the names of `Conditions`; None or nothing for what is not asked.
        by_option: whether errors name the option, and not the variable.

    Raises:
        UsageError: one of them is malformed.
    """
    given = {}
    for name, (variable, option, parse) in _READ.items():
        text = texts.get(name)
        if text and name == "delay_s":
            given["delay_from_start"] = text.startswith(_FROM_START)
            text = text.removeprefix(_FROM_START) or text
        if text:
            given[name] = parse(option if by_option else variable, text)
    if not given.get("delay_s"):
        given["delay_from_start"] = False
    return Conditions(**given)


OPTIONS = tuple(_READ)
"""The names of those conditions that have an option and a variable."""


def merge_conditions(found: Conditions, more: Conditions, names: Iterable[str]) -> Conditions:
    """Return `found` with the conditions of these names as in `more`."""
    taken = {name: getattr(more, name) for name in names}
    if "delay_s" in taken:
        taken["delay_from_start"] = more.delay_from_start
    return found._replace(**taken)


def read_environment() -> dict[str, str]:
    """Return what the environment asks, unread, by the names of `Conditions`."""
    return {name: os.environ[variable] for name, (variable, _, _) in _READ.items() if os.environ.get(variable)}


def load_conditions() -> Conditions:
    """Return what the launcher asks of this process. A malformed value is said once and asks for nothing."""
    found = Conditions()
    for name, text in read_environment().items():
        try:
            found = merge_conditions(found, parse_conditions({name: text}, by_option=False), (name,))
        except UsageError as error:  # noqa: PERF203 - five at most
            variable = _READ[name][0]
            environment.warn_once("variable_invalid", f"{variable} is ignored: {error.message}", key=variable)
    return found


NO_CONDITIONS = Conditions()
"""Nothing was asked."""
