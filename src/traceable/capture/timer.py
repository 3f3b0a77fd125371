"""Calls a function when some time is over, on one daemon thread that is there only while something asks for it.

All signals are blocked in it, so that they interrupt the program's own threads. Before a fork the thread is ended, and
begun again in the parent, where Python 3.12 and later would warn of a fork beside it (`should_stop_for_fork`); a forked child
has nothing to wait for until it asks itself.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

from traceable.protocol import environment

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_PAUSE_SECONDS = 2.0


def should_stop_for_fork(idle: bool) -> bool:
    """Whether a thread of traceable's is to end before this process forks, because Python would warn of it alone.

    Beside threads of the program Python warns in any case, and to end a thread and begin it anew takes several turns at
    the interpreter: among busy threads a tenth of a second for each fork.

    Args:
        idle: whether that thread is only waiting. What it holds while it works would be held for ever in the child.
    """
    known = threading.enumerate()
    return not idle or len(known) <= 1 + sum(one.name.startswith("traceable ") for one in known)


class Timer:
    """One deadline at a time."""

    def __init__(self) -> None:
        self._restart()
        os.register_at_fork(
            before=self._before_fork, after_in_parent=self._after_in_parent, after_in_child=self._restart
        )

    def _restart(self) -> None:
        self._changed = threading.Condition()
        self._deadline: tuple[float, Callable[[], None]] | None = None
        self._thread: threading.Thread | None = None
        self._leaving = self._idle = False

    def call_later(self, seconds: float, call: Callable[[], None]) -> None:
        """Call `call` in so many seconds. What was waited for before is not called any more."""
        with self._changed:
            self._deadline = (time.monotonic() + seconds, call)
            self._changed.notify()
            if self._thread is None:
                self._begin()

    def cancel(self) -> None:
        """Wait for nothing."""
        with self._changed:
            self._deadline = None
            self._changed.notify()

    def _begin(self) -> None:
        if sys.is_finalizing():  # a thread that is begun now never runs, and to start it would wait for that
            self._deadline = None
            return
        self._leaving = False
        before = signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())
        try:
            self._thread = threading.Thread(target=self._wait, name="traceable timer", daemon=True)
            self._thread.start()
        except RuntimeError as error:  # no more threads, or the interpreter ends
            self._thread = self._deadline = None
            environment.warn_once("timer_not_started", f"no window is opened or closed by time: {error}")
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _wait(self) -> None:
        while (call := self._next()) is not None:
            try:
                call()
            except Exception as error:  # noqa: BLE001, PERF203 - a fault of ours; the program goes on
                environment.warn_once("timer_failed", f"a window was not opened or closed by time: {error}")

    def _next(self) -> Callable[[], None] | None:
        """Return what to call when it is to be called; None when there is nothing more to wait for."""
        with self._changed:
            while self._deadline is not None and not self._leaving:
                at, call = self._deadline
                left = at - time.monotonic()
                if left <= 0:
                    self._deadline = None
                    return call
                self._idle = True
                self._changed.wait(left)
                self._idle = False
            self._thread = None
            return None

    def _before_fork(self) -> None:
        thread = self._thread
        if thread is not None and thread is not threading.current_thread() and should_stop_for_fork(self._idle):
            with self._changed:
                self._leaving = True
                self._changed.notify()
            thread.join(_PAUSE_SECONDS)

    def _after_in_parent(self) -> None:
        with self._changed:
            self._leaving = False
            if self._thread is None and self._deadline is not None:
                self._begin()
