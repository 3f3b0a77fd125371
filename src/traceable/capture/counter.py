"""Counts the steps of this process, and emits a range for each.

One step is open at a time in a process: a nested loop over steps, or one on a second thread, is not counted, and is
reported once. A forked child counts from 0 again. Windows open and close at the boundaries between steps (`windows`). A
failure here is reported once on stderr; the program runs on.
"""

from __future__ import annotations

import time
from _thread import get_ident

from traceable.annotation import engine, resumable
from traceable.annotation.ranges import annotate
from traceable.capture import step_times
from traceable.protocol import environment

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from traceable.capture.status import Publisher
    from traceable.capture.triggers import TriggerSet
    from traceable.capture.windows import Windows

STEP = "step"
"""The name of the range that every step is; its payload is the step's index."""

WAIT = "step.wait"
"""The name of the range in which `steps` waits for the next item."""

can_emit = engine.can_emit()
"""NVTX looks for a profiler once, so whether steps can be recorded is known from the start."""

_wait = annotate(WAIT)


class Step:
    """One open step."""

    __slots__ = ("as_block", "at_boundary", "begun_ns", "index", "range", "thread")

    def __init__(self, index: int, as_block: bool, at_boundary: bool) -> None:
        self.index = index
        self.begun_ns = 0
        self.as_block = as_block
        self.at_boundary = at_boundary
        self.thread = get_ident()
        self.range = annotate(STEP, None, None, None, index) if can_emit else None

    def open(self) -> None:
        """Open its range."""
        if self.range is None:
            return
        if self.as_block:
            resumable.open_block(self.range)
        else:
            self.range._push()

    def close(self) -> None:
        """Close its range: a push/pop range only on its own thread; elsewhere the pop would close another range."""
        if self.range is None:
            return
        if self.as_block:
            resumable.close_block(self.range)
        elif self.thread == get_ident():
            self.range._pop()
        else:
            environment.warn_once(
                "step_thread_changed",
                "a step ended on another thread than it began on; its range stays open (traceable help windows)",
            )


class Wait:
    """A wait for the next item, with an open range that is closed once. Created only if a profiler can record it."""

    __slots__ = ("_open", "as_block", "thread")

    def __init__(self, as_block: bool) -> None:
        self.as_block = as_block
        self.thread = get_ident()
        self._open = True
        if as_block:
            resumable.open_block(_wait)
        else:
            _wait._push()

    def close(self) -> None:
        """Close its range, on the thread that opened it."""
        if not self._open:
            return
        self._open = False
        if self.as_block:
            resumable.close_block(_wait)
        elif self.thread == get_ident():
            _wait._pop()


class StepCounter:
    """The steps of this process.

    Args:
        windows: opens and closes windows at the boundaries between steps.
        publisher: the numbers of steps go there.

    Attributes:
        trigger_set: the conditions of `capture_when`; None for none.
    """

    def __init__(self, windows: Windows, publisher: Publisher) -> None:
        self._windows = windows
        self._publisher = publisher
        self.trigger_set: TriggerSet | None = None
        self.restart()

    def restart(self) -> None:
        """Begin at step 0, as a new process does and a forked child."""
        self._lock = self._windows.lock
        self._times = step_times.open_step_times()
        self._next = 0
        self._current: Step | None = None
        self._waiting: Wait | None = None
        if self.trigger_set is not None:
            self.trigger_set.restart()

    def begin_wait(self, *, as_block: bool = False) -> Wait | None:
        """Begin to wait for the next item; None in a step, during another wait, and without a profiler."""
        if engine.disabled or not can_emit:
            return None
        with self._lock:
            if self._current is not None or self._waiting is not None:
                return None
            self._waiting = Wait(as_block)
            return self._waiting

    def end_wait(self, wait: Wait | None) -> None:
        """End what `begin_wait` returned."""
        if wait is None:
            return
        with self._lock:
            wait.close()
            if self._waiting is wait:
                self._waiting = None

    def begin(self, *, as_block: bool = False, at_boundary: bool = False, payload: Any = None) -> Step | None:
        """Begin a step; None if one is open already. Only the conditions of `capture_when` see the payload."""
        if engine.disabled:
            return None
        try:
            return self._begin(as_block, at_boundary, payload)
        except Exception as error:  # noqa: BLE001 - no memory, no descriptor: the program goes on, the step is not counted
            _report_failure(error)
            return None

    def _begin(self, as_block: bool, at_boundary: bool, payload: Any) -> Step | None:
        with self._lock:
            waiting = self._waiting
            if waiting is not None and not waiting.as_block and waiting.thread == get_ident():
                # The iterable takes steps itself: the end of the wait must not close the range of an open step.
                self.end_wait(waiting)
            if self._current is not None:
                self._publisher.nested_steps += 1
                environment.warn_once(
                    "nested_step",
                    "a step began inside another one and is not counted (traceable help windows, Nested steps)",
                )
                return None
            # From here on a step of another thread is a nested one, also while a window opens.
            step = self._current = Step(self._next, as_block, at_boundary)
            self._windows.in_step = True
        try:
            if self.trigger_set is not None and self._publisher.active is None:
                self.trigger_set.on_step_begin(step.index, payload)
            self._windows.begin_step(step.index)
            self._publisher.count(step.index + 1, step.index)
            if self.trigger_set is not None or self._times is not None:
                step.begun_ns = time.perf_counter_ns()
            step.open()
        except BaseException:  # Ctrl+C too, while a window opens
            self._current = None
            self._windows.in_step = False
            raise
        return step

    def end(self, step: Step | None) -> None:
        """End what `begin` returned."""
        if step is None or step is not self._current:
            return
        try:
            step.close()
            if self._times is not None:
                self._times.add(step.index, step.begun_ns, time.perf_counter_ns())
            # A step that a profiler slows down is not compared with steps without it.
            if self.trigger_set is not None and step.begun_ns and self._publisher.active is None:
                self.trigger_set.on_step_end(time.perf_counter_ns() - step.begun_ns)
            self._end(step.index + 1)
        except Exception as error:  # noqa: BLE001 - as above
            self._current = None
            self._windows.in_step = False
            _report_failure(error)

    def _end(self, count: int) -> None:
        """Record that `count` steps have ended."""
        with self._lock:
            self._current = None
            self._next = count
            self._publisher.count(count, count)
            closing = self._windows.end_step(count)
        if closing is not None:
            self._windows.close(closing)

    def pass_boundary(self, payload: Any = None) -> None:
        """End the current step and begin the next (`step_boundary`)."""
        if engine.disabled:
            return
        try:
            current = self._current
            if current is None:
                # The begin of the iteration that ends here was not recorded.
                self._end(self._next + 1)
            elif current.at_boundary:
                self.end(current)
            self.begin(at_boundary=True, payload=payload)
        except Exception as error:  # noqa: BLE001 - as above
            _report_failure(error)


def _report_failure(error: Exception) -> None:
    environment.warn_once("step_not_counted", f"a step is not counted: {type(error).__name__}: {error}")
