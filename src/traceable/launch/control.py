"""The other end of a run's control sockets: find its processes, ask them all, and hear from them together.

What goes over a socket is `talk.py`. Nothing is printed here; what happens is told event by event.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from traceable import environment, untrusted
from traceable.errors import Message, TraceableError, UsageError
from traceable.launch import flight, run_dir, written
from traceable.launch.talk import Event, Talk, Tell

_SOCKET = re.compile(r"control\.(\d+)\.sock")
_START = "start it with `traceable run --control`"


class ControlError(TraceableError):
    """A process can't be reached, or does not do what it is asked."""


@dataclass(frozen=True)
class Place:
    """Whom to ask.

    Attributes:
        directory: the run directory.
        pids: its processes that have a socket.
    """

    directory: Path
    pids: tuple[int, ...]


@dataclass
class Answered:
    """What became of it.

    Attributes:
        windows: what each process said last of its window, by pid.
        problems: a sentence for each process that went away or refused.
        files: what was written meanwhile, as paths relative to the run directory.
        note: what is still to come, or why nothing is; None where all is there.
    """

    windows: dict[int, Event] = field(default_factory=dict)
    problems: list[Message] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    note: Message | None = None


# ---- finding the processes


def of_run(directory: Path) -> Place:
    """Return the processes of the run in `directory` that can be asked.

    Raises:
        TraceableError: there is no such run, it is over, it was started without control, or nobody listens yet.
    """
    directory = directory.absolute()
    if not directory.is_dir():
        raise UsageError("no_such_run", f"there is no run directory {directory}", "name one that `traceable run` named")
    manifest = run_dir.read(directory)
    if run_dir.is_over(manifest, directory):
        raise UsageError("run_over", f"the run in {directory} is over", "start another with `traceable run --control`")
    if not _listens(manifest):
        raise UsageError("control_not_enabled", f"the run in {directory} was started without --control", _START)
    pids = _listening(directory)
    if not pids:
        raise ControlError(
            "no_process_listens",
            f"no process of the run in {directory} listens",
            "try again once the program has imported traceable",
        )
    return Place(directory, pids)


def _listens(manifest: dict[str, Any]) -> bool:
    """Whether the processes of a run make a socket."""
    window = manifest.get("window")
    on_request = isinstance(window, dict) and bool(window.get("on_request"))
    return on_request or isinstance(manifest.get(flight.MANIFEST_KEY), dict)


def of_process(pid: int) -> Place:
    """Return the one process `pid`.

    Raises:
        TraceableError: there is none, it is another user's, or no run with control.
    """
    try:
        words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except PermissionError:
        raise UsageError(
            "process_of_another_user", f"process {pid} belongs to another user", "ask as the user who started the run"
        ) from None
    except OSError:
        raise UsageError(
            "no_such_process", f"there is no process {pid}", "name one that `traceable control status` names"
        ) from None
    name = os.fsencode(environment.RUN_DIR) + b"="
    directory = next((Path(os.fsdecode(word.removeprefix(name))) for word in words if word.startswith(name)), None)
    if directory is None:
        raise UsageError("process_without_run", f"process {pid} is of no run of traceable's", _START)
    if pid not in _listening(directory):
        if not _listens(run_dir.read(directory)):
            raise UsageError("control_not_enabled", f"process {pid} was started without --control", _START)
        raise ControlError(
            "process_not_listening", f"process {pid} does not listen", "try again once it has imported traceable"
        )
    return Place(directory, (pid,))


def only_run(parent: Path = run_dir.PARENT) -> Place:
    """Return the processes of the one run under `parent` that can be asked.

    Raises:
        TraceableError: there is none, or several.
    """
    found = []
    with contextlib.suppress(OSError):
        for directory in sorted(parent.absolute().iterdir()):
            with contextlib.suppress(TraceableError, OSError):
                found.append(of_run(directory))
    if not found:
        raise UsageError(
            "no_controllable_run",
            f"no run under {parent} can be controlled",
            f"name one with --run DIR or --pid N, or {_START}",
        )
    if len(found) > 1:
        names = ", ".join(place.directory.name for place in found[:5])
        raise UsageError(
            "several_controllable_runs",
            f"{len(found)} runs under {parent} can be controlled: {names}",
            "name one with --run DIR",
        )
    return found[0]


def sweep(directory: Path) -> None:
    """Remove the sockets that processes left which were killed."""
    with contextlib.suppress(OSError):
        for pid in _named(directory):
            socket = directory / f"control.{pid}.sock"
            if not Path(f"/proc/{pid}").exists() and socket.is_socket() and not socket.is_symlink():
                socket.unlink(missing_ok=True)


def _named(directory: Path) -> list[int]:
    with contextlib.suppress(OSError):
        return sorted(int(match[1]) for entry in directory.iterdir() if (match := _SOCKET.fullmatch(entry.name)))
    return []


def _listening(directory: Path) -> tuple[int, ...]:
    """Return the processes that have a socket and live. The socket of one that was killed stays."""
    return tuple(pid for pid in _named(directory) if pid != os.getpid() and Path(f"/proc/{pid}").exists())


# ---- asking


def status(place: Place) -> list[Event]:
    """Return where each process stands; one that goes away meanwhile is left out.

    Raises:
        ControlError: none answers.
    """
    found: list[Event] = []
    problems = _converse(place, {"ask": "status"}, found.append, None, first_only=True)
    if not found:
        remedy = "look whether the program still runs"
        if problems:
            raise ControlError(problems[0].code, "; ".join(problems), remedy)
        raise ControlError("no_process_answers", "no process answers", remedy)
    return found


def open_window(place: Place, steps: int | None, tell: Tell, timeout_s: float | None = None) -> Answered:
    """Have every process open a window when its next step begins, and return when all of them are closed.

    Args:
        place: whom to ask.
        steps: how many steps; None for as many as come until `close_window`: then it returns when all are open.
        tell: hears each event.
        timeout_s: how long to wait; None for as long as it takes.

    Raises:
        ControlError: a window is open or asked for already, by whom is said; nobody is asked then.
    """
    before = written.files(place.directory)
    with _alone(place.directory):
        for one in status(place):
            if one["window"] is not None or one["asked"]:
                raise _busy(one)
        by = f"traceable control of process {os.getpid()}"
        talk = Talk(place.directory, place.pids, {"ask": "window", "steps": steps, "by": by})
        talk.begin()
    answered = Answered()

    def hear(event: Event) -> None:
        _note(answered, event)
        tell(event)

    last = "opened" if steps is None else "closed"
    answered.problems += talk.listen(hear, timeout_s, until=last)
    for pid in place.pids:
        # One that ended at once may not have told that it opened a window.
        if pid not in answered.windows and (window := _window_in_status(place, pid, "by", by)):
            answered.windows[pid] = window
    _complete(place, answered, last, before)
    return answered


def close_window(place: Place, tell: Tell, timeout_s: float | None = None) -> Answered:
    """Have every process close its window, and withdraw what is asked for; return when all are closed."""
    before = written.files(place.directory)
    answered = Answered()

    def hear(event: Event) -> None:
        _note(answered, event)
        tell(event)

    answered.problems += _converse(place, {"ask": "stop"}, hear, timeout_s)
    _complete(place, answered, "closed", before)
    return answered


@dataclass
class Dumped:
    """A dump: its directory, what each process said of it, by pid, and a sentence for each that did not write."""

    directory: Path
    processes: dict[int, Event] = field(default_factory=dict)
    problems: list[Message] = field(default_factory=list)


def dump(place: Place, tell: Tell, timeout_s: float | None = None) -> Dumped:
    """Have every process dump its flight recorder into one directory, and return when all have.

    Raises:
        UsageError: the run has no flight recorder, or there is no room for a directory.
    """
    if not isinstance(run_dir.read(place.directory).get(flight.MANIFEST_KEY), dict):
        raise UsageError(
            "no_flight_recorder",
            f"the run in {place.directory} has no flight recorder",
            "start it with `traceable run --flight-recorder 5s`",
        )
    number = flight.next_dump(place.directory)
    dumped = Dumped(place.directory / f"dump-{number}")

    def hear(event: Event) -> None:
        if event["event"] == "dumped":
            dumped.processes[event["pid"]] = event
        elif event["event"] == "refused":
            dumped.problems.append(_refused(event, "dumped nothing"))
        tell(event)

    talk = Talk(
        place.directory,
        place.pids,
        {"ask": "dump", "number": number, "by": f"traceable control of process {os.getpid()}"},
    )
    talk.begin()
    dumped.problems += talk.listen(hear, timeout_s, until="dumped")
    if not dumped.processes:
        with contextlib.suppress(OSError):
            dumped.directory.rmdir()
    return dumped


def _busy(one: Event) -> ControlError:
    window, pid = one["window"], one["pid"]
    if window is None:
        by = one["asked"][0]
        return ControlError(
            "window_requested",
            f"process {pid} is asked for a window already, by {by}",
            "wait, or withdraw it: traceable control stop",
        )
    since = f"since step {window['start_step']}" + (f", by {window['by']}" if window.get("by") else "")
    return ControlError(
        "window_open",
        f"a window is open in process {pid} {since}",
        "wait until it is closed, or close it: traceable control stop",
    )


def _note(answered: Answered, event: Event) -> None:
    if event["event"] in ("opened", "closed") or (event["event"] == "stopping" and event["window"]):
        answered.windows[event["pid"]] = event["window"]
    elif event["event"] == "refused":
        answered.problems.append(_refused(event, "refused"))


def _refused(event: Event, what: str) -> Message:
    """Return that a process did not do what it was asked, with the code of its reason."""
    return Message(str(event["code"]), f"process {event['pid']} {what}: {event['why']}")


def _complete(place: Place, answered: Answered, last: str, before: written.Files) -> None:
    """Look up what became of windows whose process ended, and what was written.

    A process's status file is whole before its socket closes.
    """
    for pid, window in answered.windows.items():
        if window[last] is not None:
            continue
        answered.windows[pid] = _window_in_status(place, pid, "id", window["id"]) or window
    if any(window["closed"] and window["opened"] for window in answered.windows.values()):
        answered.files = written.written(place.directory, before, answered.windows)
        answered.note = written.to_come(place.directory, answered.files)


def _window_in_status(place: Place, pid: int, key: str, value: Any) -> dict[str, Any] | None:
    """Return the window with this value that a process wrote into its status file; None where it wrote none."""
    try:
        said = untrusted.record(place.directory / f"status.{pid}.json", untrusted.STATUS)["windows"]
    except (OSError, ValueError):
        return None
    return next((one for one in said if one.get(key) == value), None)


@contextlib.contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """Keep other controllers of this run from asking at the same moment."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _converse(
    place: Place, asked: dict[str, Any], tell: Tell, timeout_s: float | None, *, first_only: bool = False
) -> list[Message]:
    talk = Talk(place.directory, place.pids, asked)
    talk.begin()
    return talk.listen(tell, timeout_s, until="status" if first_only else "closed")
