"""The request of a run: the windows to record, and what its processes recorded of their steps and windows.

`launch/windows.py` reads it from the run directory; `analysis/windows.py` compares it with the trace.
"""

from __future__ import annotations

from dataclasses import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from traceable.errors import Message
    from traceable.protocol.windows import WindowRecord

ON_REQUEST = "on request"
"""The request of a run whose windows are requested while it runs, before any is."""

WHOLE_RUN = "everything"
"""The request of a run with conditions or a duration and without steps: one window, from when they are met."""


@dataclass(frozen=True)
class ProcessStatus:
    """The steps and windows that one process recorded.

    Attributes:
        begun_steps, ended_steps: number of steps; they differ by one where the process ended within a step.
        nested_steps: steps that began inside of another.
        end: how Python ended; None where it could not record that (a signal, os._exit).
        label: the name of the process: `decode_0`, `worker-2`; empty for none.
        rank: which rank it is, or of which rank; None for none.
        counted_from: its step that is step 0 of the request; None while its conditions are not met.
        unmet_conditions: the conditions that are not met, a clause each.
        first_range_wall_ns: when its first range began, recorded or not; None for none, or if not measured.
    """

    pid: int
    begun_steps: int
    ended_steps: int
    nested_steps: int
    end: str | None
    windows: tuple[WindowRecord, ...]
    label: str = ""
    rank: int | None = None
    counted_from: int | None = 0
    unmet_conditions: tuple[Message, ...] = ()
    first_range_wall_ns: int | None = None


@dataclass(frozen=True)
class CaptureRequest:
    """The request of a run: the windows to record.

    Attributes:
        text: as the user wrote it: `10:30,50:52`.
        windows: start and stop of each; None for an endless row.
        processes: those that began a step.
        pid: of the program itself.
        end: how it ended, as `SIGTERM` or `the end of the program (exit code 0)`; None if unknown.
        conditions: the conditions of the windows, as `after 5 warm-up steps`; empty for nothing.
        duration_s: how long a window lasts at most; 0 for no limit.
        need_steps: whether only a program that takes steps can meet the conditions.
    """

    text: str
    windows: tuple[tuple[int, int], ...] | None
    processes: tuple[ProcessStatus, ...]
    pid: int | None
    end: str | None
    conditions: str = ""
    duration_s: float = 0.0
    need_steps: bool = False

    @property
    def is_on_request(self) -> bool:
        """Whether windows are requested while the run goes on, and none was."""
        return self.text == ON_REQUEST

    @property
    def is_whole_run(self) -> bool:
        """Whether there is one window, from when the conditions are met."""
        return self.text == WHOLE_RUN
