"""Counts the steps of this process, and opens and closes the window at their boundaries.

One step is open at a time in a process: an epoch's loop inside a training loop, or a second thread that steps too, is
not counted, and said once. A forked child counts from 0 again and has all windows before it. Whatever fails here is
said once on stderr; the program runs on.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import time
from _thread import RLock, get_ident
from collections import deque

from traceable import environment
from traceable.annotation import engine
from traceable.annotation.ranges import annotate
from traceable.capture import gates
from traceable.capture.request import Request
from traceable.capture.spec import Spec, Window, parse
from traceable.capture.status import Status
from traceable.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from traceable.capture.triggers import Watch

STEP = "step"
"""The name of the range that every step is; its payload is the step's index."""

COMPLETE, EXIT, MISSED, FAILED, STOPPED = "complete", "exit", "missed", "failed", "stopped"
"""How a window ended: after its last step; with the process; never, its steps being over; its gate failed; when asked
to."""

_NEVER = sys.maxsize
_heard = engine.emits()
"""NVTX asks for its listener once, so whether anyone hears a step is known from the start."""

if TYPE_CHECKING:
    Planned = tuple[Window, bool]
    """A window, and whether the GPU is waited for at its edges."""


class Step:
    """One open step."""

    __slots__ = ("as_block", "bare", "begun_ns", "index", "range", "thread")

    def __init__(self, index: int, as_block: bool, bare: bool) -> None:
        self.index = index
        self.begun_ns = 0
        self.as_block = as_block
        self.bare = bare
        self.thread = get_ident()
        self.range = annotate(STEP, None, None, None, index) if _heard else None

    def open(self) -> None:
        """Open its range."""
        if self.range is None:
            return
        if self.as_block:
            from traceable.annotation.resumable import open_block

            open_block(self.range)
        else:
            self.range._push()

    def close(self) -> None:
        """Close its range: a push/pop range on its own thread only, where another's pop would close another range."""
        if self.range is None:
            return
        if self.as_block:
            from traceable.annotation.resumable import close_block

            close_block(self.range)
        elif self.thread == get_ident():
            self.range._pop()
        else:
            environment.warn_once(
                "step thread", "a step ended on another thread than it began on: its range stays open (docs/windows.md)"
            )


class Session:
    """The steps and windows of this process."""

    def __init__(self) -> None:
        self._lock = RLock()
        self._asked = _asked()
        self._planned: list[Planned] = []
        self._gate: gates.Gate | None = None
        self.watch: Watch | None = None
        self.listener: Callable[[], None] | None = None
        self._start()
        atexit.register(self._at_exit)
        os.register_at_fork(after_in_child=self._in_child)

    def _start(self) -> None:
        """Begin at step 0, as a new process does and a forked child."""
        self._status: Status | None = None
        self._next = 0
        self._refused = 0
        self._current: Step | None = None
        self._windows: list[dict[str, Any]] = []
        self._open: tuple[Window, annotate, int, bool, dict[str, Any]] | None = None
        self._pending: Planned | None = None
        self._requests: deque[Request] = deque()
        self._stopping = False
        self._opens_at = _NEVER
        self._coming = self._to_come()
        self._advance()
        self._closes_at = _NEVER
        if self._pending:
            self._arm()

    # ---- steps

    def begin(self, *, as_block: bool = False, bare: bool = False, payload: Any = None) -> Step | None:
        """Begin a step; None where one is open already. The payload is for the conditions of `capture_when` alone."""
        if engine.disabled:
            return None
        with self._lock:
            if self._current is not None:
                self._refused += 1
                environment.warn_once(
                    "nested step", "a step began inside of another: it is not counted (docs/windows.md, Nested steps)"
                )
                return None
            index = self._next
            if self.watch is not None and self._open is None:
                self.watch.begins(index, payload)
            if index >= self._opens_at or self._requests:
                self._open_window(index)
            step = self._current = Step(index, as_block, bare)
            (self._status or self._told()).count(index + 1, index)
        step.open()
        if self.watch is not None:
            step.begun_ns = time.perf_counter_ns()
        return step

    def end(self, step: Step | None) -> None:
        """End what `begin` returned."""
        if step is None or step is not self._current:
            return
        step.close()
        with self._lock:
            # What a profiler slows down is no measure of what is slow without it.
            if self.watch is not None and step.begun_ns and self._open is None:
                self.watch.ended(time.perf_counter_ns() - step.begun_ns)
            self._current = None
            self._pass(step.index + 1)

    def boundary(self, payload: Any = None) -> None:
        """End the current step and begin the next: a bare `step()` at the end of an iteration."""
        with self._lock:
            if engine.disabled:
                return
            if self._current is not None and self._current.bare:
                self.end(self._current)
            elif self._current is None:
                # The iteration that ends here began before anyone could know.
                self._pass(self._next + 1)
            self.begin(bare=True, payload=payload)

    def _pass(self, count: int) -> None:
        """Note that `count` steps are over."""
        self._next = count
        (self._status or self._told()).count(count, count)
        if count >= self._closes_at or self._stopping:
            planned = self._stopping and self._open is not None and "by" not in self._open[4]
            self._close_window(STOPPED if planned and count < self._closes_at else COMPLETE)

    # ---- windows

    def plan(self, window: Window, synchronise: bool) -> None:
        """Add a window.

        Raises:
            ValueError: it overlaps another.
        """
        with self._lock:
            if self._asked is not None:
                says = f"{environment.STEPS}={self._asked} says what is recorded"
                environment.warn_once("window", f"traceable.window() has no effect: {says}")
                return
            try:
                Spec([window, *(planned for planned, _ in self._planned)])
            except UsageError as error:
                raise ValueError(str(error)) from None
            left = [window for window, _ in self._planned if self._pending and window >= self._pending[0]]
            self._planned = sorted([*self._planned, (window, synchronise)])
            self._coming = iter([one for one in self._planned if one[0] == window or one[0] in left])
            self._advance()
            self._arm()

    def _to_come(self) -> Iterator[Planned]:
        if self._asked is None:
            return iter(self._planned)
        synchronise = environment.flag(environment.WINDOW_SYNC)
        return ((window, synchronise) for window in self._asked)

    def _arm(self) -> None:
        if self._gate is not None:
            return
        try:
            self._gate = gates.from_environment()
            self._gate.arm()
        except gates.GateError as error:
            environment.warn_once("gate", f"no window can be opened: {error}")
            self._gate = gates.NoGate()

    def _open_window(self, index: int) -> None:
        """Open the window that step `index` lies in, if it does; those that are over by now are noted as missed."""
        while self._pending is not None and self._pending[0].stop <= index:
            self._note(self._pending[0])["closed"] = _moment(index, MISSED)
            self._advance()
        if self._open is not None:
            return
        if self._pending is not None and index >= self._pending[0].start:
            window, synchronise = self._pending
            entry = self._note(window)
            self._advance()
        elif self._requests:
            # Taken out once the window is open, so that nobody finds neither in the time that this takes.
            request = self._requests[0]
            window, synchronise = request.window(index), environment.flag(environment.WINDOW_SYNC)
            entry = self._note(window)
            entry |= {"by": request.by, "stop_step": window.stop if request.steps else None}
            request.entry = entry
            self._arm()
        else:
            return
        self._open_gate(window, synchronise, entry)
        if "by" in entry:
            self._requests.popleft()
        self._write()

    def _open_gate(self, window: Window, synchronise: bool, entry: dict[str, Any]) -> None:
        begun = time.perf_counter_ns()
        try:
            if synchronise:
                _synchronise()
            marker = annotate(f"window {entry['id']}", None, environment.WINDOW_DOMAIN)
            assert self._gate is not None
            self._gate.open()
            number = marker._start()
        except Exception as error:  # noqa: BLE001 - whatever CUDA or a library says, the program goes on
            entry["closed"] = _moment(self._next, FAILED, error=str(error))
            environment.warn_once("gate open", f"the window {window} was not opened: {error}")
        else:
            entry["opened"] = _moment(self._next, stall_ns=time.perf_counter_ns() - begun)
            self._open = window, marker, number, synchronise, entry
            self._closes_at = window.stop

    def _close_window(self, reason: str) -> None:
        """Close the window that is open. Its id range ends within the capture, so that it is in the report."""
        if self._open is None:
            return
        window, marker, number, synchronise, entry = self._open
        self._open = None
        self._stopping = False
        self._closes_at = _NEVER
        begun = time.perf_counter_ns()
        problem = {}
        try:
            if synchronise:
                _synchronise()
            marker._end(number)
            assert self._gate is not None
            self._gate.close()
        except Exception as error:  # noqa: BLE001 - as above
            problem = {"error": str(error)}
            environment.warn_once("gate close", f"the window {window} was not closed as it should be: {error}")
        if reason == COMPLETE and "by" in entry:
            # One that was asked for while the program runs is as long as it was let run.
            entry["stop_step"] = self._next
        entry["closed"] = _moment(self._next, reason, stall_ns=time.perf_counter_ns() - begun, **problem)
        self._write()

    def _advance(self) -> None:
        self._pending = next(self._coming, None)
        self._opens_at = self._pending[0].start if self._pending else _NEVER

    def _note(self, window: Window) -> dict[str, Any]:
        entry: dict[str, Any] = {
            "id": f"{os.getpid()}-{len(self._windows) + 1}",
            "start_step": window.start,
            "stop_step": window.stop,
            "opened": None,
            "closed": None,
        }
        self._windows.append(entry)
        return entry

    # ---- windows on request, from any thread

    def ask(self, request: Request) -> str | None:
        """Have a window opened when the next step begins. Takes no lock, so a signal handler may call it too.

        Returns:
            None, or why not: a window is open, or asked for.
        """
        if engine.disabled:
            return "annotations are off (TRACEABLE_DISABLE)"
        if (open_ := self._open) is not None:
            return f"a window is open since step {open_[0].start}{_of(open_[4].get('by'))}"
        if self._requests:
            return f"a window is asked for already{_of(self._requests[0].by)}"
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
            entry = self._open[4]
            if self._current is None:
                self._close_window(COMPLETE if "by" in entry else STOPPED)
            else:
                self._stopping = True
            return entry

    def arm(self) -> None:
        """Record nothing from here on but windows, as far as this process decides it."""
        if self._gate is None:
            # What it takes to make a gate (an import) is loaded before the lock, which a step may wait for.
            with contextlib.suppress(Exception):
                gates.from_environment()
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
            "asked": [request.by for request in list(self._requests)],
            "window": dict(open_[4]) if open_ else None,
            "closed": sum(window["closed"] is not None for window in list(self._windows)),
        }

    def _tell(self) -> None:
        if self.listener is not None:
            self.listener()

    # ---- what the launcher is told

    def _told(self) -> Status:
        if self._status is None:
            self._status = Status(os.environ.get(environment.RUN_DIR, ""))
            self._write()
        return self._status

    def _write(self, end: str | None = None) -> None:
        if self._status is None:
            self._told()
            return
        planned = str(self._asked) if self._asked else ",".join(str(window) for window, _ in self._planned)
        self._status.write(
            {
                "pid": os.getpid(),
                "parent_pid": os.getppid(),
                "wall_ns": time.time_ns(),
                "asked": planned or None,
                "gate": self._gate.name if self._gate else None,
                "steps": {"begun": self._next + (self._current is not None), "ended": self._next},
                "refused": self._refused,
                "windows": self._windows,
                "end": end,
            }
        )
        self._tell()

    def _at_exit(self) -> None:
        error = getattr(sys, "last_type", None)
        reason = f"exception {error.__name__}" if isinstance(error, type) else EXIT
        with self._lock:
            self._close_window(reason)
            if self._status is not None:
                self._write(reason)

    def _in_child(self) -> None:
        self._lock = RLock()
        self._gate = None
        self._start()
        if self.watch is not None:
            self.watch.restart()


def _of(who: str | None) -> str:
    return f", by {who}" if who else ""


def _asked() -> Spec | None:
    """Return what the launcher asks for. A malformed value is said once and asks for nothing."""
    text = os.environ.get(environment.STEPS, "")
    if not text or engine.disabled:
        return None
    try:
        return parse(text)
    except UsageError as error:
        environment.warn_once(environment.STEPS, f"{environment.STEPS} is ignored: {error}")
        return None


def _moment(step: int, reason: str | None = None, **more: Any) -> dict[str, Any]:
    return {"wall_ns": time.time_ns(), "step": step, **({"reason": reason} if reason else {}), **more}


def _synchronise() -> None:
    from traceable.capture import cuda

    cuda.find().synchronise()


session = Session()
"""The one of this process."""
