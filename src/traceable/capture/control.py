"""Counts the steps of this process, and opens and closes windows at their boundaries.

One step is open at a time in a process: an epoch's loop inside a training loop, or a second thread that steps too, is
not counted, and said once. A forked child counts from 0 again and has all windows before it. A process that has taken
no step, such as a worker that loads data, follows the windows of the one that started it, where the gate can. Whatever
fails here is said once on stderr; the program runs on.

Which windows are known before they begin is `plan`'s to say, what lets a profiler record is `gates`'. The gate is
chosen here by `TRACEABLE_GATE`, which the launcher sets to what its collector needs; without a launcher it is the NVTX
capture range, which nobody notices who does not ask for it.
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
from traceable.capture import flight, gates, process, step_times
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
"""NVTX asks for its listener once, so whether anyone hears a step is known from the start."""

_wait = annotate(WAIT)

COMPLETE, EXIT, MISSED, FAILED, STOPPED, DURATION = "complete", "exit", "missed", "failed", "stopped", "duration"
"""How a window ended: after its last step; with the process; never, its steps being over; its gate failed; when asked
to; its time being over."""


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
        """Close its range: a push/pop range on its own thread only, where another's pop would close another range."""
        if self.range is None:
            return
        if self.as_block:
            resumable.close_block(self.range)
        elif self.thread == get_ident():
            self.range._pop()
        else:
            environment.warn_once(
                "step_thread_changed",
                "a step ended on another thread than it began on: its range stays open (traceable help windows)",
            )


class Wait:
    """A wait for the next item, whose range is open; it is closed once. Made only where it can be heard."""

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
    """One window that is asked for while the program runs, to open when the next step begins.

    Attributes:
        steps: how many steps it is to hold; None until it is stopped.
        by: who asks, as the end of "by ...".
        entry: what the status file says of the window; None until it is opened.
        withdrawn: whether it was taken back before that.
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
    """Return what the status file says of the `number`th window of this process, from 1 on, before it is opened."""
    return {
        "id": f"{os.getpid()}-{number}",
        "start_step": window.start,
        "stop_step": window.stop if window.stop < UNTIL_STOPPED else None,
        "opened": None,
        "closed": None,
    }


def moment(step: int, reason: str | None = None, **more: Any) -> dict[str, Any]:
    """Return what an entry says of its opening, or of its end and the reason: now, before step `step`."""
    return {"wall_ns": time.time_ns(), "step": step, **({"reason": reason} if reason else {}), **more}


class OpenWindow:
    """A window that is open.

    Attributes:
        window: its steps.
        entry: what the status file says of it.
    """

    __slots__ = ("_gate", "_marker", "_number", "_synchronise", "entry", "window")

    def __init__(self, window: Window, entry: dict[str, Any], gate: Gate, synchronise: bool) -> None:
        self.window = window
        self.entry = entry
        self._gate = gate
        self._synchronise = synchronise
        self._marker = annotate(f"window {entry['id']}", None, environment.WINDOW_DOMAIN)
        self._number = 0

    @property
    def by(self) -> str | None:
        """Who asked for it while the program ran; None for one that was planned."""
        by: str | None = self.entry.get("requested_by")
        return by

    def open(self, step: int) -> bool:
        """Open it before step `step`; whether that could be done."""
        begun = time.perf_counter_ns()
        try:
            if self._synchronise:
                _synchronise()
            self._gate.open()
            if engine.range_counts is not None:
                engine.range_counts.recording(True)
            self._number = self._marker._start()
        except Exception as error:  # noqa: BLE001 - whatever CUDA or a library says, the program goes on
            code = code_of(error, "window_not_opened")
            self.entry["closed"] = moment(step, FAILED, error=str(error), code=code)
            environment.warn_once(code, f"the window {self.window} was not opened: {error}", key="open")
            return False
        self.entry["opened"] = moment(step, stall_ns=time.perf_counter_ns() - begun)
        return True

    def close(self, step: int, reason: str) -> None:
        """Close it before step `step`. Its id range ends within the capture, so that it is in the report."""
        begun = time.perf_counter_ns()
        problem = {}
        try:
            if self._synchronise:
                _synchronise()
            self._marker._end(self._number)
            if engine.range_counts is not None:
                engine.range_counts.recording(False)
            self._gate.close()
        except Exception as error:  # noqa: BLE001 - as above
            problem = {"error": str(error), "code": code_of(error, "window_not_closed")}
            message = f"the window {self.window} was not closed as it should be: {error}"
            environment.warn_once(problem["code"], message, key="close")
        if reason == COMPLETE and self.by is not None:
            # One that was asked for while the program runs is as long as it was let run.
            self.entry["stop_step"] = step
        self.entry["closed"] = moment(step, reason, stall_ns=time.perf_counter_ns() - begun, **problem)


def _synchronise() -> None:
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
"""By what `TRACEABLE_GATE` may be."""


def gate_from_environment() -> Gate:
    """Return the gate that `TRACEABLE_GATE` names, or the one that does no harm; none where nothing is recorded.

    Raises:
        GateError: it can't work in this process.
    """
    if not process.is_selected():
        return gates.NoGate()
    name = os.environ.get(environment.GATE) or gates.NvtxGate.name
    if name not in _GATES:
        message = f"{environment.GATE}={name!r} is none of {', '.join(_GATES)}; ignored"
        environment.warn_once("variable_invalid", message, key=environment.GATE)
        name = gates.NvtxGate.name
    return _GATES[name]()


class Session:
    """The steps and windows of this process."""

    def __init__(self) -> None:
        self._lock = RLock()
        self._plan = Schedule()
        self._gate: Gate | None = None
        self.trigger_set: TriggerSet | None = None
        self.on_update: Callable[[], None] | None = None
        self._timer = self._make_timer()
        self._by_time = self._watching = False
        self._lacks_torch = os.environ.get(environment.GATE) == "torch"
        self._start()
        atexit.register(self._at_exit)
        os.register_at_fork(after_in_child=self._in_child)
        process.on_change(self._in_child)

    def _start(self) -> None:
        """Begin at step 0, as a new process does and a forked child."""
        self._status: StatusWriter | None = None
        self._times = step_times.open_step_times()
        self._next = 0
        self._refused = 0
        self._current: Step | None = None
        self._waiting: Wait | None = None
        self._windows: list[dict[str, Any]] = []
        self._open: OpenWindow | None = None
        self._requests: deque[WindowRequest] = deque()
        self._stopping: str | None = None
        self._closes_at = NEVER
        # Windows of time are each process's own, and so are all from its first step on.
        self._leads = self._plan.whole
        self._follows = False
        if self._plan.pending:
            self._arm()

    # ---- steps

    def begin_wait(self, *, as_block: bool = False) -> Wait | None:
        """Begin to wait for the next item; None in a step, where someone waits already, and where nobody listens."""
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
        """Begin a step; None where one is open already. The payload is for the conditions of `capture_when` alone."""
        if engine.disabled:
            return None
        try:
            return self._begin(as_block, bare, payload)
        except Exception as error:  # noqa: BLE001 - no memory, no descriptor: the program's step goes on, not counted
            self._failed(error)
            return None

    def _begin(self, as_block: bool, bare: bool, payload: Any) -> Step | None:
        with self._lock:
            waiting = self._waiting
            if waiting is not None and not waiting.as_block and waiting.thread == get_ident():
                # The iterable takes steps itself: a step that outlasts the wait must not be closed in its place.
                self.end_wait(waiting)
            if self._current is not None:
                self._refused += 1
                environment.warn_once(
                    "nested_step",
                    "a step began inside of another: it is not counted (traceable help windows, Nested steps)",
                )
                return None
            index = self._next
            if not self._leads:
                self._lead()
            if self.trigger_set is not None and self._open is None:
                self.trigger_set.on_step_begin(index, payload)
            if index >= self._plan.opens_at or self._requests:
                self._open_window(index)
            step = self._current = Step(index, as_block, bare)
            (self._status or self._told()).count(index + 1, index)
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
            self._failed(error)

    def _end(self, step: Step) -> None:
        step.close()
        if self._times is not None:
            self._times.add(step.index, step.begun_ns, time.perf_counter_ns())
        with self._lock:
            # What a profiler slows down is no measure of what is slow without it.
            if self.trigger_set is not None and step.begun_ns and self._open is None:
                self.trigger_set.on_step_end(time.perf_counter_ns() - step.begun_ns)
            self._current = None
            self._pass(step.index + 1)

    def _failed(self, error: Exception) -> None:
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
                    # The iteration that ends here began before anyone could know.
                    self._pass(self._next + 1)
                self.begin(bare=True, payload=payload)
        except Exception as error:  # noqa: BLE001 - as above
            self._failed(error)

    def _pass(self, count: int) -> None:
        """Note that `count` steps are over."""
        self._next = count
        (self._status or self._told()).count(count, count)
        if count >= self._closes_at:
            self._close_window(COMPLETE)
        elif self._stopping is not None:
            self._close_window(self._stopping)

    # ---- windows

    def plan(self, window: Window, synchronise: bool) -> None:
        """Add a window.

        Raises:
            ValueError: it overlaps another.
        """
        with self._lock:
            if self._plan.launcher_request is not None:
                message = f"traceable.window() has no effect: {self._plan.launcher_request} says what is recorded"
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
                self._plan.add(window, synchronise)
            except UsageError as error:
                raise ValueError(error.message) from None
            self._arm()

    @property
    def ungated(self) -> bool:
        """Whether nsys records everything, whatever is opened here: then a window would be marked that is none."""
        return os.environ.get(environment.COLLECTOR) == "nsys" and not os.environ.get(environment.GATE)

    @property
    def launcher_request(self) -> str | None:
        """What the launcher asks for; None where it asks for nothing."""
        return self._plan.launcher_request

    def _arm(self) -> None:
        if self._gate is not None:
            return
        if engine.range_counts is not None:
            engine.range_counts.gate()
        try:
            self._gate = gate_from_environment()
            self._follows = self._gate.arm(not self._leads)
        except Exception as error:  # noqa: BLE001 - no recorder, or no descriptor to load what opens it
            environment.warn_once(code_of(error, "windows_impossible"), f"no window can be opened: {error}")
            self._gate = gates.NoGate()

    def _lead(self) -> None:
        """Follow no other process from the first step on."""
        self._leads = True
        if self._follows and self._gate is not None:
            self._follows = self._gate.arm(False)

    def _open_window(self, index: int) -> None:
        """Open the window that step `index` lies in, if it does; those that are over by now are noted as missed."""
        plan = self._plan
        held = plan.is_held_back(index)
        while not held and plan.pending is not None and plan.pending[0].stop <= index:
            self._note(plan.pending[0])["closed"] = moment(index, MISSED)
            plan.advance()
        if self._open is not None:
            return
        if not held and plan.pending is not None and index >= plan.pending[0].start:
            window, synchronise = plan.pending
            entry = self._note(window)
            plan.advance()
        elif self._requests:
            # Taken out once the window is open, so that nobody finds neither in the time that this takes.
            request = self._requests[0]
            window, synchronise = request.window(index), environment.read_flag(environment.WINDOW_SYNC)
            entry = self._note(window)
            entry |= {"requested_by": request.by, "stop_step": window.stop if request.steps else None}
            request.entry = entry
            self._arm()
        else:
            return
        assert self._gate is not None
        opening = OpenWindow(window, entry, self._gate, synchronise)
        first_range.ignored_thread = get_ident()
        if opening.open(index):
            self._open = opening
            self._closes_at = window.stop
        first_range.ignored_thread = 0
        if "requested_by" in entry:
            self._requests.popleft()
        elif self._timer is not None and plan.conditions.duration_s and self._open is not None:
            self._timer.call_later(plan.conditions.duration_s, lambda: self._time_is_up(opening))
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

    def _note(self, window: Window) -> dict[str, Any]:
        entry = new_entry(len(self._windows) + 1, window)
        self._windows.append(entry)
        return entry

    # ---- windows on request, from any thread

    def request_window(self, request: WindowRequest) -> Message | None:
        """Have a window opened when the next step begins. Takes no lock, so a signal handler may call it too.

        Returns:
            None, or why not: a window is open, or asked for.
        """
        if engine.disabled:
            return Message("annotations_off", "annotations are off (TRACEABLE_DISABLE)")
        if (open_ := self._open) is not None:
            return Message("window_open", f"a window is open since step {open_.window.start}{_of(open_.by)}")
        if self._requests:
            return Message("window_requested", f"a window is asked for already{_of(self._requests[0].by)}")
        self._requests.append(request)
        return None

    def stop(self) -> dict[str, Any] | None:
        """Close the open window: at the end of the step that is open, or now where none is. Withdraw what is asked for.

        Where a profiler takes its time to stop, so does this, between two steps.

        Returns:
            What is said of the window, which need not be closed yet; None where none was open.
        """
        with self._lock:
            while self._requests:
                self._requests.popleft().withdrawn = True
            if self._open is None:
                self._tell()
                return None
            entry = self._open.entry
            self._close_at_boundary(COMPLETE if "requested_by" in entry else STOPPED)
            return entry

    def _close_at_boundary(self, reason: str) -> None:
        """Close the open window at the end of the step that is open, or now where none is."""
        if self._current is None:
            self._close_window(reason)
        else:
            self._stopping = reason

    # ---- windows of time

    def _make_timer(self) -> Timer | None:
        asked = self._plan.conditions
        if not (asked.duration_s or (self._plan.whole and asked.delay_s)):
            return None
        from traceable.capture.timer import Timer

        return Timer()

    def start_timed_window(self) -> None:
        """Have a program that takes no steps recorded from the time on that the launcher asks for, if it does."""
        asked = self._plan.conditions
        self._watching = True
        if not self._plan.whole or asked.need_steps:
            first_range.watch()
            return
        self._by_time = True
        with self._lock:
            self._told()
        if asked.requests:
            engine.requests.count.when(asked.requests, self._look)
        if asked.delay_s and not asked.delay_from_start:
            first_range.watch(lambda: self._look_after(asked.delay_s))
            return
        first_range.watch()
        self._look_after(asked.delay_s - age_s() if asked.delay_s else 0.0)

    def _look_after(self, seconds: float) -> None:
        if self._timer is not None and seconds > 0:
            self._timer.call_later(seconds, self._look)
        else:
            self._look()

    def on_torch_import(self) -> None:
        """Note that the program has imported torch, without which torch's profiler can't be started."""
        self._lacks_torch = False
        if self._by_time:
            self._look()

    def _look(self) -> None:
        """Open the window of time, where its time has come and no step has begun: else the next one opens it."""
        if self._lacks_torch or elapsed_delay_s(self._plan.conditions) is None:
            return
        with self._lock:
            if not self._next and self._current is None and self._open is None and self._plan.pending is not None:
                self._open_window(0)

    def _time_is_up(self, window: OpenWindow) -> None:
        with self._lock:
            if self._open is window:
                self._close_at_boundary(DURATION)

    def arm(self) -> None:
        """Record nothing from here on but windows, as far as this process decides it."""
        if self._gate is None:
            # What it takes to make a gate (an import) is loaded before the lock, which a step may wait for.
            with contextlib.suppress(Exception):
                gate_from_environment()
        with self._lock:
            self._arm()

    @property
    def state(self) -> dict[str, Any]:
        """Where this process stands, for whoever asks."""
        open_ = self._open
        return {
            "pid": os.getpid(),
            "steps": {"begun": self._next + (self._current is not None), "ended": self._next},
            "gate": self._gate.name if self._gate else None,
            "requested_by": [request.by for request in list(self._requests)],
            "window": dict(open_.entry) if open_ else None,
            "closed_windows": sum(window["closed"] is not None for window in list(self._windows)),
        }

    def _tell(self) -> None:
        if self.on_update is not None:
            self.on_update()

    # ---- what the launcher is told

    def _told(self) -> StatusWriter:
        if self._status is None:
            self._status = StatusWriter(os.environ.get(environment.RUN_DIR, "") if process.is_selected() else "")
            if engine.requests is not None:
                self._status.keep_requests(engine.requests.count)
            self._write()
        return self._status

    def _write(self, end: str | None = None) -> None:
        if self._status is None:
            self._told()
            return
        self._status.write(
            {
                "pid": os.getpid(),
                "parent_pid": os.getppid(),
                "wall_ns": time.time_ns(),
                **self._plan.to_status(),
                "gate": self._gate.name if self._gate else None,
                "steps": {"begun": self._next + (self._current is not None), "ended": self._next},
                "nested_steps": self._refused,
                "windows": self._windows,
                "end": end,
            }
        )
        self._tell()

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
        self._plan.restart()
        self._start()
        if armed:
            self._arm()
        if self.trigger_set is not None:
            self.trigger_set.restart()
        if self._watching:
            self.start_timed_window()


def _of(who: str | None) -> str:
    return f", by {who}" if who else ""


session = Session()
"""The one of this process."""
