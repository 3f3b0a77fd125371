"""The state of this process, its steps and windows: in its record, and for control clients.

The section `steps` of the record is written when a window opens or closes and when Python ends. The numbers of steps
are also in the file of counts (`protocol/process_counts.py`), which is correct however the process ends. Nothing here
raises into the program.
"""

from __future__ import annotations

import os
import time

from traceable.protocol.process_counts import counts
from traceable.protocol.process_record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from traceable.capture.schedule import Schedule
    from traceable.capture.windows import ActiveWindow
    from traceable.protocol.windows import WindowRecord


class Publisher:
    """What other processes can see of this one. `counter` and `windows` set the attributes.

    Args:
        schedule: which windows are requested.

    Attributes:
        begun, ended: how many steps have.
        nested_steps: how many steps began inside of another, and are not counted.
        gate: the name of the gate; None while nothing is gated.
        windows: all windows by id, in the order in which they were due.
        active: the window that is opening, open or closing; None for none.
        on_update: called when a window has opened or closed; None for no function.
    """

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self.on_update: Callable[[], None] | None = None
        self.restart()

    def restart(self) -> None:
        """Begin at step 0 with no window, as a new process does and a forked child."""
        self.begun = self.ended = self.nested_steps = 0
        self.gate: str | None = None
        self.windows: dict[str, WindowRecord] = {}
        self.active: ActiveWindow | None = None
        self._is_open = False
        self._counts: memoryview | None = None

    def count(self, begun: int, ended: int) -> None:
        """Record how many steps have begun and ended."""
        self.begun, self.ended = begun, ended
        if not self._is_open:
            self.open()
        if self._counts is not None:
            self._counts[0] = begun
            self._counts[1] = ended

    def open(self) -> None:
        """Begin to record: with the first step, or before a window that needs none."""
        if not self._is_open:
            self._is_open = True
            self._counts = counts.open_steps()
            self.write()

    def write(self) -> None:
        """Write the record, and report the change to control clients."""
        if not self._is_open:
            self.open()
            return
        record.update(steps=self._describe_steps)
        self.notify()

    def _describe_steps(self) -> dict[str, Any]:
        return {
            "wall_ns": time.time_ns(),
            **self._schedule.to_status(),
            "gate": self.gate,
            "begun": self.begun,
            "ended": self.ended,
            "nested_steps": self.nested_steps,
            "windows": [window.to_dict() for window in list(self.windows.values())],
        }

    def end(self) -> None:
        """Record the state at the end of Python, if anything was recorded before."""
        if self._is_open:
            self.write()

    def notify(self) -> None:
        """Report a change to control clients."""
        if self.on_update is not None:
            self.on_update()

    @property
    def state(self) -> dict[str, Any]:
        """The state of this process, for control requests. Waits for nothing."""
        # Requests first: one that is being opened is seen as a request, as a window, or as both.
        requested_by = [request.by for request in list(self._schedule.requests)]
        active = self.active
        window = active.record.to_dict() if active is not None and active.state != "closing" else None
        return {
            "pid": os.getpid(),
            "steps": {"begun": self.begun, "ended": self.ended},
            "gate": self.gate,
            "requested_by": requested_by,
            "state": active.state if active is not None else "requested" if requested_by else "idle",
            "window": window,
            "closed_windows": sum(one.closed_step is not None for one in list(self.windows.values())),
        }
