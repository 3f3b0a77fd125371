"""Whether the steps that were asked for are in the recording, window by window, and why not where they are not.

Three witnesses: what was asked, what the process said it opened and closed, and what the trace holds. Windows are
matched by their ids, which stand in a range of each, and never by the order of files. numpy is imported by what needs
it: the launcher, which hands the first two witnesses over, must not pay for it before the program starts.

The one window of a run that was asked for no steps, for some time or until the program's end, begins when its
conditions are met, with a step where the program takes any. What it is to hold is what there was: so it is whole where
every step from its beginning to its end is in the report, and its end came as it was asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from traceable.errors import Message

TYPE_CHECKING = False
if TYPE_CHECKING:
    from traceable.trace.model import Trace

ON_REQUEST = "on request"
"""What was asked of a run whose windows are asked for while it runs, before any is."""

WHOLE_RUN = "everything"
"""What was asked of a run with conditions or a duration and without steps: one window, from when they are met."""

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

NO_STEP_BEGAN = Message(
    "no_step_began", "no step began: wrap the program's loop in traceable.steps(...), or call traceable.step()"
)
"""Why a window of steps was never reached by a program that takes none."""


@dataclass(frozen=True)
class Window:
    """One window as the process told of it; None for what did not happen.

    Attributes:
        id: stands in the name of a range of the window.
        opened_step, closed_step: the step that was about to begin.
        open_stall_ns, close_stall_ns: how long that took the thread that did it.
        reason: why it was closed: `complete`, `duration`, `stopped`, `exit`, `missed`, `failed` or `exception <class>`.
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
class ProcessStatus:
    """What one process said of its steps.

    Attributes:
        begun_steps, ended_steps: how many steps; they differ by one where it ended within a step.
        nested_steps: steps that began inside of another.
        end: how Python ended; None where it had no say (a signal, os._exit).
        label: what the process is called: `decode_0`, `worker-2`; empty where it has no name of its own.
        rank: which rank it is, or of which rank; None for none.
        counted_from: its step that counts as step 0 of those that were asked for; None while conditions hold them back.
        unmet_conditions: what these conditions lacked, a clause each.
        first_range_wall_ns: when its first range began, recorded or not; None for none, or where nobody looked.
    """

    pid: int
    begun_steps: int
    ended_steps: int
    nested_steps: int
    end: str | None
    windows: tuple[Window, ...]
    label: str = ""
    rank: int | None = None
    counted_from: int | None = 0
    unmet_conditions: tuple[Message, ...] = ()
    first_range_wall_ns: int | None = None


@dataclass(frozen=True)
class CaptureRequest:
    """What a run was asked to record.

    Attributes:
        text: as it was asked: `10:30,50:52`.
        windows: start and stop of each; None for an endless row.
        processes: those that began a step.
        pid: of the program itself.
        end: how it ended, as `SIGTERM` or `the end of the program (exit code 0)`; None where that is not known.
        conditions: what the windows wait for, as `after 5 warm-up steps`; empty for nothing.
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


@dataclass(frozen=True)
class CapturedWindow:
    """One window as a file holds it.

    Attributes:
        steps: the indices of the steps that are whole in it, in order.
        clipped_steps: how many more steps are in it, cut by its end.
        file: the name of the file.
        file_window_ids: the ids of this process's windows in that file, where each should have one of its own.
    """

    id: str
    steps: tuple[int, ...]
    clipped_steps: int
    file: str
    file_window_ids: tuple[str, ...]


@dataclass(frozen=True)
class WindowOutcome:
    """What became of one window.

    Attributes:
        outcome: CAPTURED, or what went wrong.
        steps, captured_steps: how many it has, and how many of them are whole in a file.
        reason: why it was not captured; None where it was.
        window: what the process said of it; None where no process got to it.
        file: the file that holds it; None where none does.
        label, rank: of the process.
        counted_from: the step of the process from which on steps are counted; its own numbers are in `start_step`.
    """

    start_step: int
    stop_step: int
    outcome: str
    captured_steps: int
    reason: Message | None = None
    pid: int | None = None
    window: Window | None = None
    file: str | None = None
    label: str = ""
    rank: int | None = None
    counted_from: int = 0

    @property
    def steps(self) -> int:
        """How many steps it has."""
        return self.stop_step - self.start_step


@dataclass(frozen=True)
class CaptureResult:
    """What became of all that was asked.

    Attributes:
        requested: as it was asked.
        outcomes: one a window and process; empty where an endless row has not begun.
        problems: what is not about one window.
        non_participating: processes that took steps and no part in what was asked, a message each.
        conditions, duration_s: as of `CaptureRequest`.
    """

    requested: str
    outcomes: tuple[WindowOutcome, ...]
    problems: tuple[Message, ...] = field(default=())
    non_participating: tuple[Message, ...] = field(default=())
    conditions: str = ""
    duration_s: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether every step that was asked for was recorded, whole."""
        return not self.problems and all(one.outcome == CAPTURED for one in self.outcomes)


def find_captured_windows(trace: Trace, file: str) -> tuple[CapturedWindow, ...]:
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
        found.append(CapturedWindow(identity, tuple(whole.tolist()), cut, file, tuple(together)))
    return tuple(found)


def evaluate_capture(asked: CaptureRequest, found: Iterable[CapturedWindow]) -> CaptureResult:
    """Return what became of the windows that were asked for.

    Args:
        asked: what was asked and what the processes said.
        found: the windows in the files of the run.

    A process that opened no window counts only where no other of its rank opened one: the parent of the workers that do
    the steps, or a worker with few of them, took no part (docs/ranks.md).
    """
    by_id = {one.id: one for one in found}
    if asked.text == ON_REQUEST:
        became = CaptureResult(asked.text, ())
    elif asked.text == WHOLE_RUN:
        became = _of_whole_run(asked, by_id)
    else:
        became = _of_steps(asked, by_id)
    return replace(became, conditions=asked.conditions, duration_s=asked.duration_s)


def _of_steps(asked: CaptureRequest, by_id: dict[str, CapturedWindow]) -> CaptureResult:
    stepping = [process for process in asked.processes if process.begun_steps]
    if not stepping:
        if asked.windows is None:
            return CaptureResult(asked.text, (), (_never_reached(asked.text, NO_STEP_BEGAN),))
        return CaptureResult(
            asked.text, tuple(WindowOutcome(*window, NEVER_REACHED, 0, NO_STEP_BEGAN) for window in asked.windows)
        )
    taking_part = [process for process in stepping if process.windows]
    by_others = {process.rank for process in taking_part}
    idle = [process for process in stepping if not process.windows and process.rank in by_others]
    verdicts = [
        replace(verdict, label=process.label, rank=process.rank, counted_from=process.counted_from or 0)
        for process in stepping
        if process not in idle
        for verdict in _of_process(asked, process, by_id)
    ]
    aside = tuple(
        Message(
            "process_without_asked_steps",
            f"{f'{process.label} ({process.pid})' if process.label else f'process {process.pid}'} took "
            f"{_count(process.ended_steps)}, none of those that were asked for",
        )
        for process in idle
    )
    if not verdicts:
        last = max(stepping, key=lambda process: process.ended_steps)
        return CaptureResult(asked.text, (), (_never_reached(asked.text, _ended_after(asked, last)),))
    return CaptureResult(asked.text, tuple(verdicts), non_participating=aside)


def merge_capture_results(parts: Sequence[CaptureResult]) -> CaptureResult:
    """Return what became of the windows of several runs that are the ranks of one."""
    return CaptureResult(
        ",".join(dict.fromkeys(part.requested for part in parts)),
        tuple(verdict for part in parts for verdict in part.outcomes),
        tuple(problem for part in parts for problem in part.problems),
        tuple(sentence for part in parts for sentence in part.non_participating),
        parts[0].conditions if parts else "",
        parts[0].duration_s if parts else 0.0,
    )


def _of_process(
    asked: CaptureRequest, process: ProcessStatus, by_id: dict[str, CapturedWindow]
) -> Iterable[WindowOutcome]:
    said = {(window.start_step, window.stop_step): window for window in process.windows}
    first = process.counted_from or 0
    for start, stop in dict.fromkeys((*((start + first, stop + first) for start, stop in asked.windows or ()), *said)):
        window = said.get((start, stop))
        if window is None:
            yield WindowOutcome(start, stop, NEVER_REACHED, 0, _ended_after(asked, process), process.pid)
        else:
            yield _verdict(asked, process, window, by_id.get(window.id))


def _verdict(
    asked: CaptureRequest, process: ProcessStatus, window: Window, file: CapturedWindow | None
) -> WindowOutcome:
    ended_by_time = window.reason == "duration"
    steps = range(window.start_step, (window.closed_step or 0) if ended_by_time else window.stop_step)
    own = [step for step in dict.fromkeys(file.steps) if step in steps] if file else []
    missing = lacking(steps, own)

    def say(outcome: str, why: Message | None = None) -> WindowOutcome:
        name = file.file if file else None
        return WindowOutcome(steps.start, steps.stop, outcome, len(own), why, process.pid, window, name)

    if window.opened_step is None:
        if window.reason == "missed":
            over = f"its steps were over before it could be opened, at step {window.closed_step}"
            return say(NEVER_OPENED, Message("window_steps_over", over))
        return say(NEVER_OPENED, Message("window_never_opened", window.error or "it was not opened"))
    if window.reason != "complete" and not ended_by_time:
        lost = min(process.ended_steps, window.stop_step) - window.opened_step - len(own)
        loss = f"; {_count(lost)} before that {'is' if lost == 1 else 'are'} not in the report" if lost > 0 else ""
        cause = cause_of(asked, process, window)
        stopped = f"stopped early at step {_last(process, window)} by {cause}{loss}"
        return say(STOPPED_EARLY, Message("window_stopped_early", stopped))
    if file is None:
        return say(MISSING_REPORT, Message("window_missing_report", f"no report holds the window {window.id}"))
    if len(file.file_window_ids) > 1:
        return say(
            MERGED, Message("window_merged", f"one report holds the windows {' and '.join(file.file_window_ids)}")
        )
    if window.opened_step > window.start_step:
        return say(OPENED_LATE, Message("window_opened_late", f"opened late, at step {window.opened_step}"))
    if missing:
        return say(MISSING_STEPS, steps_not_whole(missing))
    foreign = len(file.steps) - len(own)
    if foreign:
        others = Message("window_holds_other_steps", f"the report holds {_count(foreign)} of other windows")
        return say(MISSING_STEPS, others)
    return say(CAPTURED)


def steps_not_whole(missing: Sequence[range]) -> Message:
    """Return which steps of a window are missing from its report."""
    return Message("window_missing_steps", f"steps {_listed(missing)} are not whole in the report")


def _never_reached(text: str, why: Message) -> Message:
    return Message(why.code, f"{text} was never reached: {why}")


def conditions_not_met(process: ProcessStatus) -> Message:
    """Return what the conditions of a process's windows lacked, with the code of the first."""
    return Message(process.unmet_conditions[0].code, ", ".join(process.unmet_conditions))


def _ended_after(asked: CaptureRequest, process: ProcessStatus) -> Message:
    if process.unmet_conditions:
        return conditions_not_met(process)
    killed = process.end is None and process.pid == asked.pid and asked.end and asked.end.startswith("SIG")
    ended = f"the program ended after {_count(process.ended_steps)}" + (f", by {asked.end}" if killed else "")
    return Message("window_never_reached", ended)


def _count(steps: int) -> str:
    return f"{steps} step{'' if steps == 1 else 's'}"


def _last(process: ProcessStatus, window: Window) -> int:
    if window.closed_step is not None:
        return window.closed_step
    return process.begun_steps - 1 if process.begun_steps > process.ended_steps else process.begun_steps


def cause_of(asked: CaptureRequest, process: ProcessStatus, window: Window) -> str:
    """Return who closed a window before its end, as the end of `stopped early by ...`."""
    if window.error:
        return f"an error: {window.error}"
    if window.reason == "stopped":
        return "a request to stop"
    if window.reason and window.reason.startswith("exception "):
        return window.reason.removeprefix("exception ")
    if process.pid == asked.pid and asked.end is not None:
        return asked.end
    return "the end of the program" if window.reason else "the end of the process without Python's own end"


def lacking(steps: range, held: Iterable[int]) -> list[range]:
    """Return the stretches of `steps` that are not in `held`. However many steps there are, it takes as long as `held`:
    what a process says of itself may be any number.
    """
    found, begin = [], steps.start
    for step in sorted({step for step in held if step in steps}):
        found += [range(begin, step)] if begin < step else []
        begin = step + 1
    return found + ([range(begin, steps.stop)] if begin < steps.stop else [])


def _listed(parts: Sequence[range]) -> str:
    """Return stretches of numbers as people write them: `3, 5-9`."""
    said = [str(part.start) if len(part) == 1 else f"{part.start}-{part.stop - 1}" for part in parts[:5]]
    return ", ".join(said) + (" and more" if len(parts) > 5 else "")


def _of_whole_run(asked: CaptureRequest, by_id: Mapping[str, CapturedWindow]) -> CaptureResult:
    """Return what became of it, a verdict for each process that opened it."""
    found = [
        replace(verdict, label=process.label, rank=process.rank, counted_from=process.counted_from or 0)
        for process in asked.processes
        for window in process.windows[:1]
        if (verdict := _verdict_of_whole_run(asked, process, window, by_id.get(window.id))) is not None
    ]
    return CaptureResult(asked.text, tuple(found), () if found else (_whole_run_never_reached(asked),))


def _verdict_of_whole_run(
    asked: CaptureRequest, process: ProcessStatus, window: Window, file: CapturedWindow | None
) -> WindowOutcome | None:
    begin = window.opened_step if window.opened_step is not None else window.start_step
    steps = range(begin, max(begin, process.ended_steps if window.closed_step is None else window.closed_step))
    held = set(file.steps) if file else set()
    missing = lacking(steps, held)

    def say(outcome: str, why: Message | None = None) -> WindowOutcome:
        captured, name = len(steps) - sum(map(len, missing)), file.file if file else None
        return WindowOutcome(steps.start, steps.stop, outcome, captured, why, process.pid, window, name)

    if window.opened_step is None:
        return say(NEVER_OPENED, Message("window_never_opened", window.error or "it was not opened"))
    if file is None:
        # nsys records all processes while one has its window open, so those of helpers may come to nothing.
        if not steps and process.pid != asked.pid:
            return None
        ended = f": {cause_of(asked, process, window)} came before it was closed" if window.reason is None else ""
        return say(MISSING_REPORT, Message("window_missing_report", f"no report holds the window {window.id}{ended}"))
    if window.reason == "stopped" or (asked.duration_s and window.reason != "duration"):
        stopped = f"stopped early, {_after(asked, window)} by {cause_of(asked, process, window)}"
        return say(STOPPED_EARLY, Message("window_stopped_early", stopped))
    if missing:
        return say(MISSING_STEPS, steps_not_whole(missing))
    return say(CAPTURED)


def _after(asked: CaptureRequest, window: Window) -> str:
    limit = f" of {asked.duration_s:g} s" if asked.duration_s else ""
    if window.opened_wall_ns is None or window.closed_wall_ns is None:
        return f"before its end{limit},"
    lasted_ns = window.closed_wall_ns - (window.close_stall_ns or 0) - window.opened_wall_ns
    return f"after {lasted_ns / 1e9:.3g} s{limit},"


def _whole_run_never_reached(asked: CaptureRequest) -> Message:
    why = _why_never(asked)
    return Message(why.code, f"never reached: {why}")


def _why_never(asked: CaptureRequest) -> Message:
    told = sorted(asked.processes, key=lambda process: process.pid != asked.pid)
    for process in told:
        if process.unmet_conditions:
            return conditions_not_met(process)
    if asked.need_steps:
        return NO_STEP_BEGAN
    return Message(
        "traceable_not_loaded",
        "no Python of the run loaded traceable (-I, -E or -S keep it out), or it was killed before",
    )
