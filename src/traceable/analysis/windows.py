"""Whether the steps that were asked for are in the recording, window by window, and why not where they are not.

Three witnesses: what was asked, what the process said it opened and closed, and what the trace holds. Windows are
matched by their ids, which stand in a range of each, and never by the order of files. numpy is imported by what needs
it: the launcher, which hands the first two witnesses over, must not pay for it before the program starts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

TYPE_CHECKING = False
if TYPE_CHECKING:
    from traceable.trace.model import Trace

ON_REQUEST = "on request"
"""What was asked of a run whose windows are asked for while it runs, before any is."""

STEP = "step"
"""The name of the range of every step; its payload is the step's index."""

_ONE_FOR_ALL = ("traceable", "torch.profiler")
"""How the product names begin of what is read as one trace for all windows: the embedded recorder's, and torch's."""

CAPTURED = "captured"
NEVER_REACHED = "never_reached"
NEVER_OPENED = "never_opened"
OPENED_LATE = "opened_late"
STOPPED_EARLY = "stopped_early"
MISSING_REPORT = "missing_report"
MERGED = "merged"
MISSING_STEPS = "missing_steps"
"""What became of a window."""


@dataclass(frozen=True)
class Window:
    """One window as the process told of it; None for what did not happen.

    Attributes:
        id: stands in the name of a range of the window.
        opened_step, closed_step: the step that was about to begin.
        open_stall_ns, close_stall_ns: how long that took the thread that did it.
        reason: why it was closed: `complete`, `exit`, `missed`, `failed` or `exception <class>`.
        error: what failed.
    """

    id: str
    start_step: int
    stop_step: int
    opened_step: int | None = None
    opened_wall_ns: int | None = None
    open_stall_ns: int | None = None
    closed_step: int | None = None
    closed_wall_ns: int | None = None
    close_stall_ns: int | None = None
    reason: str | None = None
    error: str | None = None


@dataclass(frozen=True)
class Said:
    """What one process said of its steps.

    Attributes:
        begun, ended: how many steps; they differ by one where it ended within a step.
        refused: steps that began inside of another.
        end: how Python ended; None where it had no say (a signal, os._exit).
    """

    pid: int
    begun: int
    ended: int
    refused: int
    end: str | None
    windows: tuple[Window, ...]


@dataclass(frozen=True)
class Asked:
    """What a run was asked to record.

    Attributes:
        text: as it was asked: `10:30,50:52`.
        windows: start and stop of each; None for an endless row.
        processes: those that began a step.
        pid: of the program itself.
        end: how it ended, as `SIGTERM` or `the end of the program (exit code 0)`; None where that is not known.
    """

    text: str
    windows: tuple[tuple[int, int], ...] | None
    processes: tuple[Said, ...]
    pid: int | None
    end: str | None


@dataclass(frozen=True)
class Captured:
    """One window as a file holds it.

    Attributes:
        steps: the indices of the steps that are whole in it, in order.
        cut: how many more steps are in it, cut by its end.
        file: the name of the file.
        together: the ids of this process's windows in that file, where each should have one of its own.
    """

    id: str
    steps: tuple[int, ...]
    cut: int
    file: str
    together: tuple[str, ...]


@dataclass(frozen=True)
class Verdict:
    """What became of one window.

    Attributes:
        outcome: CAPTURED, or what went wrong.
        steps, captured: how many it has, and how many of them are whole in a file.
        why: a sentence, empty where it was captured.
        window: what the process said of it; None where no process got to it.
        file: the file that holds it; None where none does.
    """

    start_step: int
    stop_step: int
    outcome: str
    captured: int
    why: str = ""
    pid: int | None = None
    window: Window | None = None
    file: str | None = None

    @property
    def steps(self) -> int:
        """How many steps it has."""
        return self.stop_step - self.start_step


@dataclass(frozen=True)
class Windows:
    """What became of all that was asked.

    Attributes:
        asked: as it was asked.
        verdicts: one a window and process; empty where an endless row has not begun.
        problems: what is not about one window.
    """

    asked: str
    verdicts: tuple[Verdict, ...]
    problems: tuple[str, ...] = field(default=())

    @property
    def met(self) -> bool:
        """Whether every step that was asked for was recorded, whole."""
        return not self.problems and all(one.outcome == CAPTURED for one in self.verdicts)


def captured(trace: Trace, file: str) -> tuple[Captured, ...]:
    """Return the windows that a trace holds, and which steps are whole in each.

    Args:
        trace: what was recorded.
        file: the name of its file.
    """
    import numpy as np

    ranges, windows = trace.ranges, trace.windows
    if not len(windows):
        return ()
    process = np.array([thread.process for thread in trace.threads], np.int64)
    name = trace.names.index(STEP) if STEP in trace.names else -2
    steps = np.flatnonzero((ranges.name == name) & (ranges.domain == -1) & ranges.has_payload)
    start, payload, clipped = ranges.start_ns[steps], ranges.payload[steps], ranges.clipped[steps]
    of_process = process[ranges.thread[steps]]
    ids = [trace.names[index] for index in windows.name.tolist()]
    found = []
    # nsys writes one file for each window, unless it merges them.
    merged = not trace.source.product.startswith(_ONE_FOR_ALL)
    for at, identity in enumerate(ids):
        inside = (start >= windows.start_ns[at]) & (start <= windows.end_ns[at])
        inside &= of_process == process[windows.thread[at]]
        whole = np.sort(payload[inside & ~clipped])
        together = [one for one in ids if merged and one.partition("-")[0] == identity.partition("-")[0]] or [identity]
        cut = int((inside & clipped).sum())
        found.append(Captured(identity, tuple(whole.tolist()), cut, file, tuple(together)))
    return tuple(found)


def judged(asked: Asked, found: Iterable[Captured]) -> Windows:
    """Return what became of the windows that were asked for.

    Args:
        asked: what was asked and what the processes said.
        found: the windows in the files of the run.
    """
    by_id = {one.id: one for one in found}
    if asked.text == ON_REQUEST:
        return Windows(asked.text, ())
    stepping = [process for process in asked.processes if process.begun]
    if not stepping:
        why = "no step began: wrap the program's loop in traceable.steps(...), or call traceable.step()"
        if asked.windows is None:
            return Windows(asked.text, (), (f"{asked.text} was never reached: {why}",))
        return Windows(asked.text, tuple(Verdict(*window, NEVER_REACHED, 0, why) for window in asked.windows))
    verdicts = [verdict for process in stepping for verdict in _of_process(asked, process, by_id)]
    if not verdicts:
        seen = max(process.ended for process in stepping)
        return Windows(asked.text, (), (f"{asked.text} was never reached: the program ended after {_count(seen)}",))
    return Windows(asked.text, tuple(verdicts))


def _of_process(asked: Asked, process: Said, by_id: dict[str, Captured]) -> Iterable[Verdict]:
    said = {(window.start_step, window.stop_step): window for window in process.windows}
    for start, stop in dict.fromkeys((*(asked.windows or ()), *said)):
        window = said.get((start, stop))
        if window is None:
            yield Verdict(start, stop, NEVER_REACHED, 0, _ended_after(asked, process), process.pid)
        else:
            yield _verdict(asked, process, window, by_id.get(window.id))


def _verdict(asked: Asked, process: Said, window: Window, file: Captured | None) -> Verdict:
    steps = range(window.start_step, window.stop_step)
    own = [step for step in dict.fromkeys(file.steps) if step in steps] if file else []
    missing = [step for step in steps if step not in set(own)] if len(own) < len(steps) else []

    def say(outcome: str, why: str = "") -> Verdict:
        name = file.file if file else None
        return Verdict(steps.start, steps.stop, outcome, len(own), why, process.pid, window, name)

    if window.opened_step is None:
        if window.reason == "missed":
            return say(NEVER_OPENED, f"its steps were over before it could be opened, at step {window.closed_step}")
        return say(NEVER_OPENED, window.error or "it was not opened")
    if window.reason != "complete":
        lost = min(process.ended, window.stop_step) - window.opened_step - len(own)
        loss = f"; {_count(lost)} before that {'is' if lost == 1 else 'are'} not in the report" if lost > 0 else ""
        cause = _cause(asked, process, window)
        return say(STOPPED_EARLY, f"stopped early at step {_last(process, window)} by {cause}{loss}")
    if file is None:
        return say(MISSING_REPORT, f"no report holds the window {window.id}")
    if len(file.together) > 1:
        return say(MERGED, f"one report holds the windows {' and '.join(file.together)}")
    if window.opened_step > window.start_step:
        return say(OPENED_LATE, f"opened late, at step {window.opened_step}")
    if missing:
        return say(MISSING_STEPS, f"steps {_numbers(missing)} are not whole in the report")
    foreign = len(file.steps) - len(own)
    return say(MISSING_STEPS, f"the report holds {_count(foreign)} of other windows") if foreign else say(CAPTURED)


def _ended_after(asked: Asked, process: Said) -> str:
    killed = process.end is None and process.pid == asked.pid and asked.end and asked.end.startswith("SIG")
    return f"the program ended after {_count(process.ended)}" + (f", by {asked.end}" if killed else "")


def _count(steps: int) -> str:
    return f"{steps} step{'' if steps == 1 else 's'}"


def _last(process: Said, window: Window) -> int:
    if window.closed_step is not None:
        return window.closed_step
    return process.begun - 1 if process.begun > process.ended else process.begun


def _cause(asked: Asked, process: Said, window: Window) -> str:
    if window.error:
        return f"an error: {window.error}"
    if window.reason == "stopped":
        return "a request to stop"
    if window.reason and window.reason.startswith("exception "):
        return window.reason.removeprefix("exception ")
    if process.pid == asked.pid and asked.end is not None:
        return asked.end
    return "the end of the program" if window.reason else "the end of the process without Python's own end"


def _numbers(steps: Sequence[int]) -> str:
    """Return numbers as people write them: `3, 5-9`."""
    parts: list[list[int]] = []
    for step in steps:
        if parts and step == parts[-1][1] + 1:
            parts[-1][1] = step
        else:
            parts.append([step, step])
    said = [str(first) if first == last else f"{first}-{last}" for first, last in parts[:5]]
    return ", ".join(said) + (" and more" if len(parts) > 5 else "")
