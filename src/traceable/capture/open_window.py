"""One window from its opening to its end: the gate, the range that bears its id, and what the status file says of it.

When that is, `control` decides. Whatever fails here is said once and noted in the entry; nothing is raised.
"""

from __future__ import annotations

import os
import time

from traceable import environment
from traceable.annotation import engine
from traceable.annotation.ranges import annotate
from traceable.capture.request import UNTIL_STOPPED
from traceable.errors import code_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from traceable.capture.gates import Gate
    from traceable.capture.spec import Window

COMPLETE, EXIT, MISSED, FAILED, STOPPED, DURATION = "complete", "exit", "missed", "failed", "stopped", "duration"
"""How a window ended: after its last step; with the process; never, its steps being over; its gate failed; when asked
to; its time being over."""


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
        by: str | None = self.entry.get("by")
        return by

    def open(self, step: int) -> bool:
        """Open it before step `step`; whether that could be done."""
        begun = time.perf_counter_ns()
        try:
            if self._synchronise:
                _synchronise()
            self._gate.open()
            if engine.counts is not None:
                engine.counts.recording(True)
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
            if engine.counts is not None:
                engine.counts.recording(False)
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

    cuda.find().synchronise()
