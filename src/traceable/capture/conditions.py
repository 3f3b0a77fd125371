"""When the windows may begin, and how long one lasts: the one place where these conditions are written and read.

All that are given must be met. From the step at which they are, the steps of `--steps` are counted; without `--steps`
everything is recorded from there on, as one window. Whether they are met is looked at when a step begins (`Waiting`),
by `plan`; what becomes of them is told to the launcher in the status file.
"""

from __future__ import annotations

import os
import sys
import time
from typing import NamedTuple

from traceable import environment
from traceable.annotation import engine
from traceable.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

_LARGEST_COUNT = 10**15
_LARGEST_S = 10**9
_LOADED = time.monotonic()


class Conditions(NamedTuple):
    """What was asked; 0 is what was not.

    Attributes:
        warmup_steps: so many steps are over.
        delay_s: the process is so old.
        requests: so many requests are over (`annotation/requests.py`).
        idle_s: no step began for so long before the one with which windows may begin.
        duration_s: how long a window lasts at most. It is over at the end of the step that is open by then.
    """

    warmup_steps: int = 0
    delay_s: float = 0.0
    requests: int = 0
    idle_s: float = 0.0
    duration_s: float = 0.0

    @property
    def hold(self) -> bool:
        """Whether windows have anything to wait for."""
        return bool(self.warmup_steps or self.delay_s or self.requests or self.idle_s)

    @property
    def need_steps(self) -> bool:
        """Whether only a program that takes steps can meet them."""
        return bool(self.warmup_steps or self.idle_s)

    def variables(self) -> dict[str, str]:
        """Return them as the environment says them to a process."""
        return {
            variable: f"{value:.15g}" if isinstance(value, float) else str(value)
            for (variable, _, _), value in zip(_READ.values(), self, strict=True)
            if value
        }

    def __str__(self) -> str:
        """Return what is waited for as the end of a sentence: `after 5 warm-up steps and 3 s`; empty for nothing."""
        words = [
            counted(self.warmup_steps, "warm-up step") if self.warmup_steps else "",
            f"{self.delay_s:g} s" if self.delay_s else "",
            counted(self.requests, "request") if self.requests else "",
            f"{self.idle_s:g} s without a step" if self.idle_s else "",
        ]
        given = [word for word in words if word]
        return f"after {' and '.join(given)}" if given else ""


def counted(number: int, thing: str) -> str:
    """Return `1 step`, `2 steps`."""
    return f"{number} {thing}{'' if number == 1 else 's'}"


def number(name: str, text: str) -> int:
    """Read a number of steps or requests.

    Raises:
        UsageError: it is none; the text begins with `name`.
    """
    digits = text.strip()
    if not (digits.isascii() and digits.isdigit()) or len(digits) > 16 or int(digits) > _LARGEST_COUNT:
        raise UsageError(f"{name} {text[:40]!r} is no number from 0 on", "write one like 5")
    return int(digits)


def seconds(name: str, text: str, *, least: str = "from 0 on") -> float:
    """Read a number of seconds.

    Raises:
        UsageError: it is none, or none that can be waited for.
    """
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= _LARGEST_S or (value == 0 and least != "from 0 on"):
        raise UsageError(f"{name} {text[:40]!r} is no number of seconds {least}", "write one like 2.5")
    return value


def _above(name: str, text: str) -> float:
    return seconds(name, text, least="above 0")


_READ: Mapping[str, tuple[str, str, Callable[[str, str], Any]]] = {
    "warmup_steps": (environment.WARMUP_STEPS, "--warmup-steps", number),
    "delay_s": (environment.DELAY, "--delay", seconds),
    "requests": (environment.AFTER_REQUEST, "--after-request", number),
    "idle_s": (environment.IDLE, "--idle", _above),
    "duration_s": (environment.DURATION, "--duration", _above),
}
"""For each condition its variable, its option, and what reads either."""


def read(texts: Mapping[str, str | None], *, by_option: bool = True) -> Conditions:
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
        if text:
            given[name] = parse(option if by_option else variable, text)
    return Conditions(**given)


def texts_of_environment() -> dict[str, str]:
    """Return what the environment asks, unread, by the names of `Conditions`."""
    return {name: os.environ[variable] for name, (variable, _, _) in _READ.items() if os.environ.get(variable)}


def from_environment() -> Conditions:
    """Return what the launcher asks of this process. A malformed value is said once and asks for nothing."""
    found = Conditions()
    for name, text in texts_of_environment().items():
        try:
            found = found._replace(**{name: getattr(read({name: text}, by_option=False), name)})
        except UsageError as error:  # noqa: PERF203 - five at most
            environment.warn_once(_READ[name][0], f"{_READ[name][0]} is ignored: {error}")
    return found


NONE = Conditions()
"""Nothing was asked."""


def is_our_command() -> bool:
    """Whether this process is `traceable` itself, started by a program of the run."""
    words: list[str] = getattr(sys, "argv", None) or [""]
    if words[0] == "-m":  # until Python has found the module
        return ("-m", "traceable") in zip(sys.orig_argv, sys.orig_argv[1:], strict=False)
    return os.path.basename(words[0]) == "traceable"  # noqa: PTH119


def begin_from_environment() -> None:
    """Have a program recorded from when the launcher's conditions are met, though it may take no steps."""
    from traceable.capture import process

    if engine.disabled or is_our_command():
        return
    if not process.chosen():
        process.when_chosen(begin_from_environment)
        return
    from traceable.capture.control import session

    session.begin_by_time()


class Waiting:
    """How far this process has come with the conditions that hold its windows.

    Attributes:
        longest_pause_s: of those between the beginnings of two steps.
        first_step: the first at which it is worth looking.
    """

    def __init__(self, conditions: Conditions) -> None:
        self._conditions = conditions
        self._begun_ns = 0
        self.longest_pause_s = 0.0
        self.first_step = 0 if conditions.idle_s else conditions.warmup_steps
        # To ask how old the process is takes 20 us, which no step is to wait for.
        self._old_enough = time.monotonic() + conditions.delay_s - age_s() if conditions.delay_s else 0.0

    def met(self, index: int) -> bool:
        """Whether all are met now that step `index` begins. Called for each step from `first_step` on."""
        asked = self._conditions
        if asked.idle_s and not self._paused(asked.idle_s):
            return False
        if index < asked.warmup_steps:
            return False
        if asked.requests and engine.requests.count.over < asked.requests:
            return False
        return not asked.delay_s or time.monotonic() >= self._old_enough

    def _paused(self, least_s: float) -> bool:
        now = time.monotonic_ns()
        pause_s = (now - self._begun_ns) / 1e9 if self._begun_ns else 0.0
        self._begun_ns = now
        self.longest_pause_s = max(self.longest_pause_s, pause_s)
        return pause_s >= least_s


def age_s() -> float:
    """Return how long ago this process began: as Linux says it, to 10 ms; else since traceable was loaded."""
    try:
        with open("/proc/self/stat", "rb") as file:  # noqa: PTH123 - pathlib takes 10 ms to import
            # The name, the second field, may hold spaces and brackets. The start is the 22nd, in ticks since boot.
            began = int(file.read().rpartition(b")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
        return time.clock_gettime(time.CLOCK_BOOTTIME) - began
    except (OSError, ValueError, IndexError, AttributeError):
        return time.monotonic() - _LOADED
