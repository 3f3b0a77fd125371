"""The windows that are known before they begin: those the launcher asks for, or those the program does.

What is asked for while the program runs is a `Request`. Opening them is `control`'s; whether the conditions that hold
them back are met is told by `conditions`.
"""

from __future__ import annotations

import os
import sys

from traceable import environment
from traceable.annotation import engine
from traceable.capture import conditions
from traceable.capture.spec import UNTIL_STOPPED, Spec, Window, parse
from traceable.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    Planned = tuple[Window, bool]
    """A window, and whether the GPU is waited for at its edges."""

NEVER = sys.maxsize
"""A step that does not come."""


class Plan:
    """The windows of this process, in the order of their steps.

    Attributes:
        conditions: what the launcher has them wait for, and how long they last at most.
        whole: whether the launcher asks for everything from the time on at which these are met: one window.
        pending: the next window; None where there is no more. While conditions hold it back, its steps are those that
            were asked for, and not yet the program's.
        opens_at: the step from which on it is to be looked whether it opens.
    """

    __slots__ = (
        "_asked",
        "_coming",
        "_counted_from",
        "_planned",
        "_waiting",
        "conditions",
        "opens_at",
        "pending",
        "whole",
    )

    def __init__(self) -> None:
        self.conditions = conditions.NONE if engine.disabled else conditions.from_environment()
        self._asked = _asked()
        self.whole = self._asked is None and any(self.conditions) and not _controlled(self.conditions)
        self._planned: list[Planned] = []
        self.restart()

    def restart(self) -> None:
        """Begin with the first window again: in a forked child, whose steps are other ones."""
        hold = self.conditions.hold and self.asks is not None
        self._waiting = conditions.Waiting(self.conditions) if hold else None
        self._counted_from: int | None = None if hold else 0
        self._coming = self._to_come(0)
        self.advance()
        if self._waiting is not None:
            self.opens_at = self._waiting.first_step

    @property
    def asks(self) -> str | None:
        """What the launcher asks for, which nothing in the program changes; None where it asks for nothing."""
        if self._asked is not None:
            return f"{environment.STEPS}={self._asked}"
        return f"the launcher ({_words(self.conditions)})" if self.whole else None

    def held(self, index: int) -> bool:
        """Whether conditions keep all windows shut as step `index` begins. If no longer, it is counted as step 0."""
        if self._waiting is None:
            return False
        if not self._waiting.met(index):
            return True
        self._waiting = None
        self._counted_from = index
        self._coming = self._to_come(index)
        self.advance()
        return False

    def advance(self) -> None:
        """Go on to the next window."""
        self.pending: Planned | None = next(self._coming, None)
        self.opens_at = self.pending[0].start if self.pending else NEVER

    def add(self, window: Window, synchronise: bool) -> None:
        """Add a window.

        Raises:
            UsageError: it overlaps another.
        """
        Spec([window, *(planned for planned, _ in self._planned)])
        left = [window for window, _ in self._planned if self.pending and window >= self.pending[0]]
        self._planned = sorted([*self._planned, (window, synchronise)])
        self._coming = iter([one for one in self._planned if one[0] == window or one[0] in left])
        self.advance()

    def _to_come(self, first: int) -> Iterator[Planned]:
        if self.asks is None:
            return iter(self._planned)
        synchronise = environment.flag(environment.WINDOW_SYNC)
        asked = self._asked or [Window(0, UNTIL_STOPPED)]
        return ((Window(window.start + first, window.stop + first), synchronise) for window in asked)

    def told(self) -> dict[str, Any]:
        """Return what the status file says of it."""
        waiting = self._waiting
        return {
            "asked": str(self._asked) if self._asked else ",".join(str(window) for window, _ in self._planned) or None,
            "counted_from": self._counted_from,
            "delay_waited_s": _rounded(conditions.waited_s(self.conditions)) if self.conditions.delay_s else None,
            "first_range_wall_ns": conditions.first.wall_ns or None,
            "longest_pause_s": round(waiting.longest_pause_s, 3) if waiting and self.conditions.idle_s else None,
        }


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)


def _asked() -> Spec | None:
    """Return what steps the launcher asks for. A malformed value is said once and asks for nothing."""
    text = os.environ.get(environment.STEPS, "")
    if not text or engine.disabled:
        return None
    try:
        return parse(text)
    except UsageError as error:
        message = f"{environment.STEPS} is ignored: {error.message}"
        environment.warn_once("variable_invalid", message, key=environment.STEPS)
        return None


def _words(asked: conditions.Conditions) -> str:
    return str(asked) or f"for {asked.duration_s:g} s"


def _controlled(asked: conditions.Conditions) -> bool:
    """Whether windows are asked for while the program runs, and conditions have none to hold."""
    if not environment.flag(environment.CONTROL):
        return False
    what = _words(asked)
    environment.warn_once(
        "conditions_ignored", f"{what!r} is ignored: it is for windows of {environment.STEPS}, and none is asked"
    )
    return True
