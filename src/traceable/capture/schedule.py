"""The windows that are known before they begin, asked for by the launcher or the program, and what holds them back.

What is asked for while the program runs is a `Request`. Opening them is `control`'s; how the conditions that hold them
back are written is told by `conditions`, whether they are met here.
"""

from __future__ import annotations

import os
import sys
import time
from _thread import get_ident

from traceable.annotation import engine
from traceable.errors import UsageError
from traceable.protocol import environment, start_conditions
from traceable.protocol.start_conditions import Conditions
from traceable.protocol.window_spec import UNTIL_STOPPED, Spec, Window, parse_windows

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    Planned = tuple[Window, bool]
    """A window, and whether the GPU is waited for at its edges."""

NEVER = sys.maxsize
"""A step that does not come."""

_LOADED = time.monotonic()


class FirstRange:
    """When this process made its first range, or began its first step, which is a range too.

    Attributes:
        at_s: by the monotonic clock; None for not yet.
        wall_ns: in ns since 1970; 0 for not yet.
        ignored_thread: the thread that opens a window at this moment, whose ranges are none of the program's; 0 for none.
    """

    def __init__(self) -> None:
        self.at_s: float | None = None
        self.wall_ns = 0
        self.ignored_thread = 0
        self._heard: Callable[[], None] | None = None

    def watch(self, heard: Callable[[], None] | None = None) -> None:
        """Note the next range or step as the first, and call `heard` then."""
        self.at_s, self.wall_ns, self._heard = None, 0, heard
        engine.call_before_next_event(self._annotated)

    def _annotated(self) -> None:
        if self.ignored_thread == get_ident():
            engine.call_before_next_event(self._annotated)
        else:
            self.note()

    def note(self) -> None:
        """Note a range or a step, if none was before."""
        if self.at_s is None:
            self.at_s, self.wall_ns = time.monotonic(), time.time_ns()
            heard, self._heard = self._heard, None
            if heard is not None:
                heard()


first_range = FirstRange()
"""That of this process. Watched for where there are windows of time."""


class ConditionProgress:
    """How far this process has come with the conditions that hold its windows.

    Attributes:
        longest_pause_s: of those between the beginnings of two steps.
        first_step: the first at which it is worth looking.
    """

    def __init__(self, conditions: Conditions) -> None:
        self._conditions = conditions
        self._begun_ns = 0
        self.longest_pause_s = 0.0
        from_first = bool(conditions.delay_s) and not conditions.delay_from_start
        self.first_step = 0 if conditions.idle_s or from_first else conditions.warmup_steps
        # To ask how old the process is takes 20 us, which no step is to wait for.
        self._began_s = time.monotonic() - age_s() if conditions.delay_from_start else None

    def met(self, index: int) -> bool:
        """Whether all are met now that step `index` begins. Called for each step from `first_step` on."""
        asked = self._conditions
        if asked.delay_s and self._began_s is None:
            first_range.note()
            self._began_s = first_range.at_s
        if asked.idle_s and not self._paused(asked.idle_s):
            return False
        if index < asked.warmup_steps:
            return False
        if asked.requests and engine.requests.count.over < asked.requests:
            return False
        return self._began_s is None or time.monotonic() >= self._began_s + asked.delay_s

    def _paused(self, least_s: float) -> bool:
        now = time.monotonic_ns()
        pause_s = (now - self._begun_ns) / 1e9 if self._begun_ns else 0.0
        self._begun_ns = now
        self.longest_pause_s = max(self.longest_pause_s, pause_s)
        return pause_s >= least_s


class Schedule:
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
        self.conditions = start_conditions.NO_CONDITIONS if engine.disabled else start_conditions.load_conditions()
        self._asked = _asked()
        self.whole = self._asked is None and any(self.conditions) and not _controlled(self.conditions)
        self._planned: list[Planned] = []
        self.restart()

    def restart(self) -> None:
        """Begin with the first window again: in a forked child, whose steps are other ones."""
        hold = self.conditions.has_start_condition and self.launcher_request is not None
        self._waiting = ConditionProgress(self.conditions) if hold else None
        self._counted_from: int | None = None if hold else 0
        self._coming = self._to_come(0)
        self.advance()
        if self._waiting is not None:
            self.opens_at = self._waiting.first_step

    @property
    def launcher_request(self) -> str | None:
        """What the launcher asks for, which nothing in the program changes; None where it asks for nothing."""
        if self._asked is not None:
            return f"{environment.STEPS}={self._asked}"
        return f"the launcher ({_words(self.conditions)})" if self.whole else None

    def is_held_back(self, index: int) -> bool:
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

    def _to_come(self, step: int) -> Iterator[Planned]:
        if self.launcher_request is None:
            return iter(self._planned)
        synchronise = environment.read_flag(environment.WINDOW_SYNC)
        asked = self._asked or [Window(0, UNTIL_STOPPED)]
        return ((Window(window.start + step, window.stop + step), synchronise) for window in asked)

    def to_status(self) -> dict[str, Any]:
        """Return what the status file says of it."""
        waiting = self._waiting
        return {
            "requested": str(self._asked)
            if self._asked
            else ",".join(str(window) for window, _ in self._planned) or None,
            "counted_from": self._counted_from,
            "delay_waited_s": _rounded(elapsed_delay_s(self.conditions)) if self.conditions.delay_s else None,
            "first_range_wall_ns": first_range.wall_ns or None,
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
        return parse_windows(text)
    except UsageError as error:
        message = f"{environment.STEPS} is ignored: {error.message}"
        environment.warn_once("variable_invalid", message, key=environment.STEPS)
        return None


def _words(asked: Conditions) -> str:
    return str(asked) or f"for {asked.duration_s:g} s"


def _controlled(asked: Conditions) -> bool:
    """Whether windows are asked for while the program runs, and conditions have none to hold."""
    if not environment.read_flag(environment.CONTROL):
        return False
    what = _words(asked)
    environment.warn_once(
        "conditions_ignored", f"{what!r} is ignored: it is for windows of {environment.STEPS}, and none is asked"
    )
    return True


def elapsed_delay_s(conditions: Conditions) -> float | None:
    """Return how much of the delay is over; None where it has not begun."""
    if conditions.delay_from_start or not conditions.delay_s:
        return age_s()
    return None if first_range.at_s is None else time.monotonic() - first_range.at_s


def age_s() -> float:
    """Return how long ago this process began: as Linux says it, to 10 ms; else since traceable was loaded."""
    try:
        with open("/proc/self/stat", "rb") as file:  # noqa: PTH123 - pathlib takes 10 ms to import
            # The name, the second field, may hold spaces and brackets. The start is the 22nd, in ticks since boot.
            began = int(file.read().rpartition(b")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
        return time.clock_gettime(time.CLOCK_BOOTTIME) - began
    except (OSError, ValueError, IndexError, AttributeError):
        return time.monotonic() - _LOADED
