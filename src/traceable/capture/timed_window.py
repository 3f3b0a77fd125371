"""The window of a program that takes no steps: it opens by time, or when torch is imported."""

from __future__ import annotations

from traceable.capture.schedule import age_s, elapsed_delay_s, first_range
from traceable.protocol import environment

TYPE_CHECKING = False
if TYPE_CHECKING:
    from traceable.capture.schedule import Schedule
    from traceable.capture.status import Publisher
    from traceable.capture.timer import Timer
    from traceable.capture.windows import Windows


class TimedWindow:
    """The timed window of this process, if the launcher requests one.

    Args:
        schedule: its conditions.
        windows: opens it.
        publisher: its part of the record is opened before the window is.
        timer: waits for the delay; None without one.
    """

    def __init__(self, schedule: Schedule, windows: Windows, publisher: Publisher, timer: Timer | None) -> None:
        self._schedule = schedule
        self._windows = windows
        self._publisher = publisher
        self._timer = timer
        self._is_requested = False
        self._is_started = False
        self._lacks_torch = environment.is_torch_collector()

    def start(self) -> None:
        """Record a program that takes no steps from the time that the launcher requests, if it does."""
        conditions = self._schedule.conditions
        self._is_started = True
        if not self._schedule.whole or conditions.need_steps:
            first_range.watch()
            return
        self._is_requested = True
        self._publisher.open()
        if conditions.delay_s and not conditions.delay_from_start:
            first_range.watch(lambda: self._open_after(conditions.delay_s))
            return
        first_range.watch()
        self._open_after(conditions.delay_s - age_s() if conditions.delay_s else 0.0)

    def restart(self) -> None:
        """Start again in a forked child, if it was started."""
        if self._is_started:
            self.start()

    def on_torch_import(self) -> None:
        """Record that the program has imported torch, without which torch's profiler can't start."""
        self._lacks_torch = False
        if self._is_requested:
            self._open()

    def _open_after(self, seconds: float) -> None:
        if self._timer is not None and seconds > 0:
            self._timer.call_later(seconds, self._open)
        else:
            self._open()

    def _open(self) -> None:
        if not self._lacks_torch and elapsed_delay_s(self._schedule.conditions) is not None:
            self._windows.open_timed()
