"""Counts the steps of this process, and opens and closes windows at their boundaries.

One step is open at a time in a process: a nested loop over steps, or one on a second thread, is not counted, and is
reported once. A forked child counts from 0 again and has all windows ahead of it. A process that has taken no step,
such as a data loader worker, follows the windows of its parent process, if the gate supports that. A failure here is
reported once on stderr; the program runs on.

`schedule` lists the windows that are known before they begin; `gates` starts and stops the profiler. The gate is
selected here by `TRACEABLE_GATE`, which the launcher sets for its collector; without a launcher it is the NVTX capture
range, which has no effect unless a profiler is configured for it.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import time
from _thread import RLock, get_ident
from collections import deque

from traceable.annotation import engine, resumable
from traceable.annotation.ranges import annotate
from traceable.capture import flight, gates, step_times
from traceable.capture.schedule import NEVER, Schedule, age_s, elapsed_delay_s, first_range
from traceable.capture.status import StatusWriter
from traceable.errors import Message, UsageError, code_of
from traceable.protocol import environment
from traceable.protocol.window_spec import UNTIL_STOPPED, Window

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from traceable.capture.gates import Gate
    from traceable.capture.timer import Timer
    from traceable.capture.triggers import TriggerSet

STEP = "step"
"""The name of the range that every step is; its payload is the step's index."""

WAIT = "step.wait"
"""The name of the range in which `steps` waits for the next item."""

can_emit = engine.can_emit()
"""NVTX looks for a profiler once, so whether steps can be recorded is known from the start."""

_wait = annotate(WAIT)

COMPLETE, EXIT, MISSED, FAILED, STOPPED, DURATION = "complete", "exit", "missed", "failed", "stopped", "duration"
"""How a window ended: after its last step; with the process; never opened, since its steps had passed; its gate failed;
on request; after its duration."""


class Step:
    """One open step."""

    __slots__ = ("as_block", "bare", "begun_ns", "index", "range", "thread")

    def __init__(self, index: int, as_block: bool, bare: bool) -> None:
        self.index = index
        self.begun_ns = 0
        self.as_block = as_block
        self.bare = bare
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


class WindowRequest:
    """A window that is requested while the program runs, to open when the next step begins.

    Attributes:
        steps: how many steps to record; None until it is stopped.
        by: the requester, for "by ..." in messages.
        entry: its entry in the status file; None until it is opened.
        withdrawn: whether it was withdrawn before that.
    """

    __slots__ = ("by", "entry", "steps", "withdrawn")

    def __init__(self, steps: int | None, by: str) -> None:
        self.steps = steps
        self.by = by
        self.entry: dict[str, Any] | None = None
        self.withdrawn = False

    def window(self, index: int) -> Window:
        """Return the window that begins with step `index`."""
        return Window(index, index + self.steps if self.steps else UNTIL_STOPPED)


def new_entry(number: int, window: Window) -> dict[str, Any]:
    """Return the status file entry of the `number`th window of this process, from 1, before it is opened."""
    return {
        "id": f"{os.getpid()}-{number}",
        "start_step": window.start,
        "stop_step": window.stop if window.stop < UNTIL_STOPPED else None,
        "opened": None,
        "closed": None,
    }


def moment(step: int, reason: str | None = None, **more: Any) -> dict[str, Any]:
    """Return the part of an entry for its opening, or for its end with the reason: now, before step `step`."""
    return {"wall_ns": time.time_ns(), "step": step, **({"reason": reason} if reason else {}), **more}


class OpenWindow:
    """A window that is open.

    Attributes:
        window: its steps.
        entry: its entry in the status file.
    """

    __slots__ = ("_gate", "_marker", "_number", "_synchronize", "entry", "window")

    def __init__(self, window: Window, entry: dict[str, Any], gate: Gate, synchronize: bool) -> None:
        self.window = window
        self.entry = entry
        self._gate = gate
        self._synchronize = synchronize
        self._marker = annotate(f"window {entry['id']}", None, environment.WINDOW_DOMAIN)
        self._number = 0

    @property
    def by(self) -> str | None:
        """Who requested it while the program ran; None for a planned one."""
        by: str | None = self.entry.get("requested_by")
        return by

    def open(self, step: int) -> bool:
        """Open it before step `step`; return whether that succeeded."""
        begun = time.perf_counter_ns()
        try:
            if self._synchronize:
                _synchronize()
            self._gate.open()
            if engine.range_counts is not None:
                engine.range_counts.set_recording(True)
            self._number = self._marker._start()
        except Exception as error:  # noqa: BLE001 - whatever CUDA or a library raises, the program goes on
            code = code_of(error, "window_not_opened")
            self.entry["closed"] = moment(step, FAILED, error=str(error), code=code)
            environment.warn_once(code, f"the window {self.window} was not opened: {error}", key="open")
            return False
        self.entry["opened"] = moment(step, stall_ns=time.perf_counter_ns() - begun)
        return True

    def close(self, step: int, reason: str) -> None:
        """Close it before step `step`. Its marker range ends within the capture, so that it is in the report."""
        begun = time.perf_counter_ns()
        problem = {}
        try:
            if self._synchronize:
                _synchronize()
            self._marker._end(self._number)
            if engine.range_counts is not None:
                engine.range_counts.set_recording(False)
            self._gate.close()
        except Exception as error:  # noqa: BLE001 - as above
            problem = {"error": str(error), "code": code_of(error, "window_not_closed")}
            message = f"the window {self.window} was not closed properly: {error}"
            environment.warn_once(problem["code"], message, key="close")
        if reason == COMPLETE and self.by is not None:
            # A window requested while the program runs is as long as it has been open.
            self.entry["stop_step"] = step
        self.entry["closed"] = moment(step, reason, stall_ns=time.perf_counter_ns() - begun, **problem)


def _synchronize() -> None:
    from traceable.capture import cuda

    cuda.find_runtime().synchronize()


def _torch_gate() -> Gate:
    from traceable.capture.torch_gate import TorchGate

    return TorchGate()


def _gpu_gate() -> Gate:
    from traceable.capture.gpu_gate import GpuGate

    return GpuGate()


_GATES: dict[str, Callable[[], Gate]] = {
    **{gate.name: gate for gate in (gates.NvtxGate, gates.CudaGate, gates.RecorderGate, gates.NoGate)},
    "torch": _torch_gate,
    "gpu": _gpu_gate,
}
"""By the values of `TRACEABLE_GATE`."""


def gate_from_environment() -> Gate:
    """Return the gate of `TRACEABLE_GATE`, or the harmless default.

    Raises:
        GateError: it can't work in this process.
    """
    name = os.environ.get(environment.GATE) or gates.NvtxGate.name
    if name not in _GATES:
        message = f"{environment.GATE}={name!r} is ignored; write one of {', '.join(_GATES)}"
        environment.warn_once("variable_invalid", message, key=environment.GATE)
        name = gates.NvtxGate.name
    return _GATES[name]()


class Session:
    """The steps and windows of this process."""

    def __init__(self) -> None:
        self._lock = RLock()
        self._schedule = Schedule()
        self._gate: Gate | None = None
        self.trigger_set: TriggerSet | None = None
        self.on_update: Callable[[], None] | None = None
        self._timer = self._make_timer()
        self._is_timed = self._watching = False
        self._lacks_torch = os.environ.get(environment.GATE) == "torch"
        self._start()
        atexit.register(self._at_exit)
        os.register_at_fork(after_in_child=self._in_child)

    def _start(self) -> None:
        """Begin at step 0, as a new process does and a forked child."""
        self._status: StatusWriter | None = None
        self._times = step_times.open_step_times()
        self._next = 0
        self._nested_steps = 0
        self._current: Step | None = None
        self._waiting: Wait | None = None
        self._windows: list[dict[str, Any]] = []
        self._open: OpenWindow | None = None
        self._requests: deque[WindowRequest] = deque()
        self._stopping: str | None = None
        self._closes_at = NEVER
        # Each process opens timed windows itself, and all windows from its first step on.
        self._leads = self._schedule.whole
        self._follows = False
        if self._schedule.pending:
            self._arm()

    # ---- steps

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

    def begin(self, *, as_block: bool = False, bare: bool = False, payload: Any = None) -> Step | None:
        """Begin a step; None if one is open already. Only the conditions of `capture_when` see the payload."""
        if engine.disabled:
            return None
        try:
            return self._begin(as_block, bare, payload)
        except Exception as error:  # noqa: BLE001 - no memory, no descriptor: the program goes on, the step is not counted
            self._report_failure(error)
            return None

    def _begin(self, as_block: bool, bare: bool, payload: Any) -> Step | None:
        with self._lock:
            waiting = self._waiting
            if waiting is not None and not waiting.as_block and waiting.thread == get_ident():
                # The iterable takes steps itself: the end of the wait must not close the range of an open step.
                self.end_wait(waiting)
            if self._current is not None:
                self._nested_steps += 1
                environment.warn_once(
                    "nested_step",
                    "a step began inside another one and is not counted (traceable help windows, Nested steps)",
                )
                return None
            index = self._next
            if not self._leads:
                self._lead()
            if self.trigger_set is not None and self._open is None:
                self.trigger_set.on_step_begin(index, payload)
            if index >= self._schedule.opens_at or self._requests:
                self._open_window(index)
            step = self._current = Step(index, as_block, bare)
            (self._status or self._open_status()).count(index + 1, index)
        if self.trigger_set is not None or self._times is not None:
            step.begun_ns = time.perf_counter_ns()
        step.open()
        return step

    def end(self, step: Step | None) -> None:
        """End what `begin` returned."""
        if step is None or step is not self._current:
            return
        try:
            self._end(step)
        except Exception as error:  # noqa: BLE001 - as above
            self._report_failure(error)

    def _end(self, step: Step) -> None:
        step.close()
        if self._times is not None:
            self._times.add(step.index, step.begun_ns, time.perf_counter_ns())
        with self._lock:
            # A step that a profiler slows down is not compared with steps without it.
            if self.trigger_set is not None and step.begun_ns and self._open is None:
                self.trigger_set.on_step_end(time.perf_counter_ns() - step.begun_ns)
            self._current = None
            self._record_ended_steps(step.index + 1)

    def _report_failure(self, error: Exception) -> None:
        self._current = None
        environment.warn_once("step_not_counted", f"a step is not counted: {type(error).__name__}: {error}")

    def next_step(self, payload: Any = None) -> None:
        """End the current step and begin the next: a bare `step()` at the end of an iteration."""
        if engine.disabled:
            return
        try:
            with self._lock:
                if self._current is not None and self._current.bare:
                    self.end(self._current)
                elif self._current is None:
                    # The begin of the iteration that ends here was not recorded.
                    self._record_ended_steps(self._next + 1)
                self.begin(bare=True, payload=payload)
        except Exception as error:  # noqa: BLE001 - as above
            self._report_failure(error)

    def _record_ended_steps(self, count: int) -> None:
        """Record that `count` steps have ended."""
        self._next = count
        (self._status or self._open_status()).count(count, count)
        if count >= self._closes_at:
            self._close_window(COMPLETE)
        elif self._stopping is not None:
            self._close_window(self._stopping)

    # ---- windows

    def plan(self, window: Window, synchronize: bool) -> None:
        """Add a window.

        Raises:
            ValueError: it overlaps another.
        """
        with self._lock:
            if self._schedule.launcher_request is not None:
                message = f"traceable.window() has no effect: {self._schedule.launcher_request} has precedence"
                environment.warn_once("launcher_decides", message, key="window")
                return
            if self.ungated:
                message = f"traceable.window() has no effect: {gates.NSYS_NOT_GATED}"
                environment.warn_once(gates.NSYS_NOT_GATED.code, message, key="window")
                return
            if flight.is_active():
                message = f"traceable.window() has no effect: {flight.NO_WINDOWS}"
                environment.warn_once(flight.NO_WINDOWS.code, message, key="window")
                return
            try:
                self._schedule.add(window, synchronize)
            except UsageError as error:
                raise ValueError(error.message) from None
            self._arm()

    @property
    def ungated(self) -> bool:
        """Whether nsys records everything, whichever windows are opened here: then none is marked."""
        return os.environ.get(environment.COLLECTOR) == "nsys" and not os.environ.get(environment.GATE)

    @property
    def launcher_request(self) -> str | None:
        """The launcher's request; None if it requests nothing."""
        return self._schedule.launcher_request

    def _arm(self) -> None:
        if self._gate is not None:
            return
        if engine.range_counts is not None:
            engine.range_counts.set_gated()
        try:
            self._gate = gate_from_environment()
            self._follows = self._gate.arm(not self._leads)
        except Exception as error:  # noqa: BLE001 - no recorder, or no free descriptor to load it
            environment.warn_once(code_of(error, "windows_impossible"), f"no window can be opened: {error}")
            self._gate = gates.NoGate()

    def _lead(self) -> None:
        """Stop following the parent process, at the first step."""
        self._leads = True
        if self._follows and self._gate is not None:
            self._follows = self._gate.arm(False)

    def _open_window(self, index: int) -> None:
        """Open the window that contains step `index`, if there is one; record those that have passed as missed."""
        schedule = self._schedule
        is_held_back = schedule.is_held_back(index)
        while not is_held_back and schedule.pending is not None and schedule.pending[0].stop <= index:
            self._add_entry(schedule.pending[0])["closed"] = moment(index, MISSED)
            schedule.advance()
        if self._open is not None:
            return
        if not is_held_back and schedule.pending is not None and index >= schedule.pending[0].start:
            window, synchronize = schedule.pending
            entry = self._add_entry(window)
            schedule.advance()
        elif self._requests:
            # Removed once the window is open, so that at any time either the request or the window can be seen.
            request = self._requests[0]
            window, synchronize = request.window(index), environment.read_flag(environment.WINDOW_SYNC)
            entry = self._add_entry(window)
            entry |= {"requested_by": request.by, "stop_step": window.stop if request.steps else None}
            request.entry = entry
            self._arm()
        else:
            return
        assert self._gate is not None
        opening = OpenWindow(window, entry, self._gate, synchronize)
        first_range.ignored_thread = get_ident()
        if opening.open(index):
            self._open = opening
            self._closes_at = window.stop
        first_range.ignored_thread = 0
        if "requested_by" in entry:
            self._requests.popleft()
        elif self._timer is not None and schedule.conditions.duration_s and self._open is not None:
            self._timer.call_later(schedule.conditions.duration_s, lambda: self._time_is_up(opening))
        self._write()

    def _close_window(self, reason: str) -> None:
        """Close the window that is open."""
        if self._open is None:
            return
        closing = self._open
        self._open = None
        self._stopping = None
        self._closes_at = NEVER
        closing.close(self._next, reason)
        self._write()

    def _add_entry(self, window: Window) -> dict[str, Any]:
        entry = new_entry(len(self._windows) + 1, window)
        self._windows.append(entry)
        return entry

    # ---- windows on request, from any thread

    def request_window(self, request: WindowRequest) -> Message | None:
        """Request a window that opens when the next step begins. Takes no lock, so a signal handler may call it too.

        Returns:
            None, or the reason of the rejection: a window is open or requested already.
        """
        if engine.disabled:
            return Message("annotations_off", "annotations are off (TRACEABLE_DISABLE)")
        if (open_ := self._open) is not None:
            return Message(
                "window_open", f"a window is open since step {open_.window.start}{_format_requester(open_.by)}"
            )
        if self._requests:
            return Message(
                "window_requested", f"a window is already requested{_format_requester(self._requests[0].by)}"
            )
        self._requests.append(request)
        return None

    def stop(self) -> dict[str, Any] | None:
        """Close the open window: at the end of the open step, or now if there is none. Withdraw the requests.

        Between two steps this takes as long as the profiler takes to stop.

        Returns:
            The entry of the window, which may not be closed yet; None if none was open.
        """
        with self._lock:
            while self._requests:
                self._requests.popleft().withdrawn = True
            if self._open is None:
                self._notify()
                return None
            entry = self._open.entry
            self._close_at_boundary(COMPLETE if "requested_by" in entry else STOPPED)
            return entry

    def _close_at_boundary(self, reason: str) -> None:
        """Close the open window at the end of the open step, or now if there is none."""
        if self._current is None:
            self._close_window(reason)
        else:
            self._stopping = reason

    # ---- timed windows

    def _make_timer(self) -> Timer | None:
        conditions = self._schedule.conditions
        if not (conditions.duration_s or (self._schedule.whole and conditions.delay_s)):
            return None
        from traceable.capture.timer import Timer

        return Timer()

    def start_timed_window(self) -> None:
        """Record a program that takes no steps from the time that the launcher requests, if it does."""
        conditions = self._schedule.conditions
        self._watching = True
        if not self._schedule.whole or conditions.need_steps:
            first_range.watch()
            return
        self._is_timed = True
        with self._lock:
            self._open_status()
        if conditions.requests:
            engine.requests.count.when(conditions.requests, self._open_timed_window)
        if conditions.delay_s and not conditions.delay_from_start:
            first_range.watch(lambda: self._open_timed_window_after(conditions.delay_s))
            return
        first_range.watch()
        self._open_timed_window_after(conditions.delay_s - age_s() if conditions.delay_s else 0.0)

    def _open_timed_window_after(self, seconds: float) -> None:
        if self._timer is not None and seconds > 0:
            self._timer.call_later(seconds, self._open_timed_window)
        else:
            self._open_timed_window()

    def on_torch_import(self) -> None:
        """Record that the program has imported torch, without which torch's profiler can't start."""
        self._lacks_torch = False
        if self._is_timed:
            self._open_timed_window()

    def _open_timed_window(self) -> None:
        """Open the timed window, if it is due and no step has begun; else the next step opens it."""
        if self._lacks_torch or elapsed_delay_s(self._schedule.conditions) is None:
            return
        with self._lock:
            if not self._next and self._current is None and self._open is None and self._schedule.pending is not None:
                self._open_window(0)

    def _time_is_up(self, window: OpenWindow) -> None:
        with self._lock:
            if self._open is window:
                self._close_at_boundary(DURATION)

    def arm(self) -> None:
        """Record only windows from now on, as far as this process controls it."""
        if self._gate is None:
            # The imports that a gate needs are loaded before taking the lock, for which a step may wait.
            with contextlib.suppress(Exception):
                gate_from_environment()
        with self._lock:
            self._arm()

    @property
    def state(self) -> dict[str, Any]:
        """The state of this process, for control requests."""
        open_ = self._open
        return {
            "pid": os.getpid(),
            "steps": {"begun": self._next + (self._current is not None), "ended": self._next},
            "gate": self._gate.name if self._gate else None,
            "requested_by": [request.by for request in list(self._requests)],
            "window": dict(open_.entry) if open_ else None,
            "closed_windows": sum(window["closed"] is not None for window in list(self._windows)),
        }

    def _notify(self) -> None:
        if self.on_update is not None:
            self.on_update()

    # ---- status for the launcher

    def _open_status(self) -> StatusWriter:
        if self._status is None:
            self._status = StatusWriter(os.environ.get(environment.RUN_DIR, ""))
            if engine.requests is not None:
                self._status.keep_requests(engine.requests.count)
            self._write()
        return self._status

    def _write(self, end: str | None = None) -> None:
        if self._status is None:
            self._open_status()
            return
        self._status.write(
            {
                "pid": os.getpid(),
                "parent_pid": os.getppid(),
                "wall_ns": time.time_ns(),
                **self._schedule.to_status(),
                "gate": self._gate.name if self._gate else None,
                "steps": {"begun": self._next + (self._current is not None), "ended": self._next},
                "nested_steps": self._nested_steps,
                "windows": self._windows,
                "end": end,
            }
        )
        self._notify()

    def _at_exit(self) -> None:
        error = getattr(sys, "last_type", None)
        reason = f"exception {error.__name__}" if isinstance(error, type) else EXIT
        if self._timer is not None:
            self._timer.cancel()
        with self._lock:
            self._close_window(reason)
            if self._status is not None:
                self._write(reason)

    def _in_child(self) -> None:
        self._lock = RLock()
        armed = self._gate is not None
        self._gate = None
        self._schedule.restart()
        self._start()
        if armed:
            self._arm()
        if self.trigger_set is not None:
            self.trigger_set.restart()
        if self._watching:
            self.start_timed_window()


def _format_requester(requester: str | None) -> str:
    return f", by {requester}" if requester else ""


session = Session()
"""The one instance in this process."""
