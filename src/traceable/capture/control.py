"""The steps and windows of this process: the one instance of each part, from the import to the exit and across forks.

`counter` counts the steps and reaches their boundaries, `schedule` knows which windows begin when, `windows` opens and
closes them, `publisher` shows the result to the launcher and to control clients.
"""

from __future__ import annotations

import atexit
import os

from traceable.capture.counter import StepCounter
from traceable.capture.process import describe_python_end
from traceable.capture.schedule import Schedule
from traceable.capture.status import Publisher
from traceable.capture.windows import TimedWindow, Windows

TYPE_CHECKING = False
if TYPE_CHECKING:
    from traceable.capture.timer import Timer


def _make_timer() -> Timer | None:
    conditions = schedule.conditions
    if not (conditions.duration_s or (schedule.whole and conditions.delay_s)):
        return None
    from traceable.capture.timer import Timer

    return Timer()


def _end() -> None:
    windows.end(describe_python_end())
    publisher.end()


def _restart() -> None:
    """Start again in a forked child."""
    schedule.restart()
    publisher.restart()
    windows.restart()
    counter.restart()
    timed_window.restart()


schedule = Schedule()
_timer = _make_timer()
publisher = Publisher(schedule)
windows = Windows(schedule, publisher, _timer)
counter = StepCounter(windows, publisher)
timed_window = TimedWindow(schedule, windows, publisher, _timer)
atexit.register(_end)
os.register_at_fork(after_in_child=_restart)
