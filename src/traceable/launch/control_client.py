"""The other end of a run's control sockets: find its processes, ask them all, and hear from them together.

The end in the process is `capture/control_server.py`. What is written while they are asked is seen by comparing the run
directory before and after. Nothing is printed here; what happens is told event by event.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import selectors
import socket
import stat
import struct
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from traceable.collectors.recorder import collector as recorder
from traceable.errors import Message, TraceableError, UsageError
from traceable.launch import flight, run_dir
from traceable.protocol import environment, untrusted

REPLY_SECONDS = 30.0
"""How long a process has for its first answer. Under nsys opening and closing take it up to about a second."""

_LINE_BYTES = 65536
_SOCKET = re.compile(r"control\.(\d+)\.sock")
_START = "start it with `traceable run --control`"

_NOT_RECORDED = re.compile(
    r"(status|control|process|program|expect|annotate)\..*|nsys\.log|run\.json|report\.json|\..*"
)

Event = dict[str, Any]
EventHandler = Callable[[Event], None]

_Files = dict[str, tuple[int, int]]
"""Size in bytes and time of change in ns of each file, by its path relative to the run directory."""


class ControlError(TraceableError):
    """A process can't be reached, or does not do what it is asked."""


@dataclass(frozen=True)
class ControlTarget:
    """Whom to ask.

    Attributes:
        directory: the run directory.
        pids: its processes that have a socket.
    """

    directory: Path
    pids: tuple[int, ...]


@dataclass
class WindowResult:
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


@dataclass
class DumpResult:
    """A dump: its directory, what each process said of it, by pid, and a sentence for each that did not write."""

    directory: Path
    processes: dict[int, Event] = field(default_factory=dict)
    problems: list[Message] = field(default_factory=list)


# ---- finding the processes


def find_by_run(directory: Path) -> ControlTarget:
    """Return the processes of the run in `directory` that can be asked.

    Raises:
        TraceableError: there is no such run, it is over, it was started without control, or nobody listens yet.
    """
    directory = directory.absolute()
    if not directory.is_dir():
        raise UsageError("no_such_run", f"there is no run directory {directory}", "name one that `traceable run` named")
    manifest = run_dir.load_manifest(directory)
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
    return ControlTarget(directory, pids)


def _listens(manifest: dict[str, Any]) -> bool:
    """Whether the processes of a run make a socket."""
    window = manifest.get("window")
    on_request = isinstance(window, dict) and bool(window.get("on_request"))
    return on_request or isinstance(manifest.get(flight.FLIGHT_RECORDER_KEY), dict)


def find_by_pid(pid: int) -> ControlTarget:
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
        if not _listens(run_dir.load_manifest(directory)):
            raise UsageError("control_not_enabled", f"process {pid} was started without --control", _START)
        raise ControlError(
            "process_not_listening", f"process {pid} does not listen", "try again once it has imported traceable"
        )
    return ControlTarget(directory, (pid,))


def find_only_run(parent: Path = run_dir.PARENT) -> ControlTarget:
    """Return the processes of the one run under `parent` that can be asked.

    Raises:
        TraceableError: there is none, or several.
    """
    found = []
    with contextlib.suppress(OSError):
        for directory in sorted(parent.absolute().iterdir()):
            with contextlib.suppress(TraceableError, OSError):
                found.append(find_by_run(directory))
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


def remove_stale_sockets(directory: Path) -> None:
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


def query_status(place: ControlTarget) -> list[Event]:
    """Return where each process stands; one that goes away meanwhile is left out.

    Raises:
        ControlError: none answers.
    """
    found: list[Event] = []
    problems = _converse(place, {"command": "status"}, found.append, None, first_only=True)
    if not found:
        remedy = "look whether the program still runs"
        if problems:
            raise ControlError(problems[0].code, "; ".join(problems), remedy)
        raise ControlError("no_process_answers", "no process answers", remedy)
    return found


def open_window(
    place: ControlTarget, steps: int | None, tell: EventHandler, timeout_s: float | None = None
) -> WindowResult:
    """Have every process open a window when its next step begins, and return when all of them are closed.

    Args:
        place: whom to ask.
        steps: how many steps; None for as many as come until `close_window`: then it returns when all are open.
        tell: hears each event.
        timeout_s: how long to wait; None for as long as it takes.

    Raises:
        ControlError: a window is open or asked for already, by whom is said; nobody is asked then.
    """
    before = _files(place.directory)
    with _alone(place.directory):
        for one in query_status(place):
            if one["window"] is not None or one["requested_by"]:
                raise _busy(one)
        by = f"traceable control of process {os.getpid()}"
        talk = ControlClient(place.directory, place.pids, {"command": "window", "steps": steps, "by": by})
        talk.send_request()
    answered = WindowResult()

    def hear(event: Event) -> None:
        _note(answered, event)
        tell(event)

    last = "opened" if steps is None else "closed"
    answered.problems += talk.receive_events(hear, timeout_s, until=last)
    for pid in place.pids:
        # One that ended at once may not have told that it opened a window.
        if pid not in answered.windows and (window := _window_in_status(place, pid, "requested_by", by)):
            answered.windows[pid] = window
    _complete(place, answered, last, before)
    return answered


def close_window(place: ControlTarget, tell: EventHandler, timeout_s: float | None = None) -> WindowResult:
    """Have every process close its window, and withdraw what is asked for; return when all are closed."""
    before = _files(place.directory)
    answered = WindowResult()

    def hear(event: Event) -> None:
        _note(answered, event)
        tell(event)

    answered.problems += _converse(place, {"command": "stop"}, hear, timeout_s)
    _complete(place, answered, "closed", before)
    return answered


def dump_flight_recorder(place: ControlTarget, tell: EventHandler, timeout_s: float | None = None) -> DumpResult:
    """Have every process dump its flight recorder into one directory, and return when all have.

    Raises:
        UsageError: the run has no flight recorder, or there is no room for a directory.
    """
    if not isinstance(run_dir.load_manifest(place.directory).get(flight.FLIGHT_RECORDER_KEY), dict):
        raise UsageError(
            "no_flight_recorder",
            f"the run in {place.directory} has no flight recorder",
            "start it with `traceable run --flight-recorder 5s`",
        )
    number = flight.create_dump_dir(place.directory)
    dumped = DumpResult(place.directory / f"dump-{number}")

    def hear(event: Event) -> None:
        if event["event"] == "dumped":
            dumped.processes[event["pid"]] = event
        elif event["event"] == "rejected":
            dumped.problems.append(_refused(event, "dumped nothing"))
        tell(event)

    talk = ControlClient(
        place.directory,
        place.pids,
        {"command": "dump", "number": number, "by": f"traceable control of process {os.getpid()}"},
    )
    talk.send_request()
    dumped.problems += talk.receive_events(hear, timeout_s, until="dumped")
    if not dumped.processes:
        with contextlib.suppress(OSError):
            dumped.directory.rmdir()
    return dumped


def _busy(one: Event) -> ControlError:
    window, pid = one["window"], one["pid"]
    if window is None:
        by = one["requested_by"][0]
        return ControlError(
            "window_requested",
            f"process {pid} is asked for a window already, by {by}",
            "wait, or withdraw it: traceable control stop",
        )
    since = f"since step {window['start_step']}" + (
        f", by {window['requested_by']}" if window.get("requested_by") else ""
    )
    return ControlError(
        "window_open",
        f"a window is open in process {pid} {since}",
        "wait until it is closed, or close it: traceable control stop",
    )


def _note(answered: WindowResult, event: Event) -> None:
    if event["event"] in ("opened", "closed") or (event["event"] == "stopping" and event["window"]):
        answered.windows[event["pid"]] = event["window"]
    elif event["event"] == "rejected":
        answered.problems.append(_refused(event, "rejected"))


def _refused(event: Event, what: str) -> Message:
    """Return that a process did not do what it was asked, with the code of its reason."""
    return Message(str(event["code"]), f"process {event['pid']} {what}: {event['reason']}")


def _complete(place: ControlTarget, answered: WindowResult, last: str, before: _Files) -> None:
    """Look up what became of windows whose process ended, and what was written.

    A process's status file is whole before its socket closes.
    """
    for pid, window in answered.windows.items():
        if window[last] is not None:
            continue
        answered.windows[pid] = _window_in_status(place, pid, "id", window["id"]) or window
    if any(window["closed"] and window["opened"] for window in answered.windows.values()):
        answered.files = _written(place.directory, before, answered.windows)
        answered.note = _to_come(place.directory, answered.files)


def _window_in_status(place: ControlTarget, pid: int, key: str, value: Any) -> dict[str, Any] | None:
    """Return the window with this value that a process wrote into its status file; None where it wrote none."""
    try:
        said = untrusted.read_json_object(place.directory / f"status.{pid}.json", untrusted.STATUS)["windows"]
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
    place: ControlTarget,
    asked: dict[str, Any],
    tell: EventHandler,
    timeout_s: float | None,
    *,
    first_only: bool = False,
) -> list[Message]:
    talk = ControlClient(place.directory, place.pids, asked)
    talk.send_request()
    return talk.receive_events(tell, timeout_s, until="status" if first_only else "closed")


# ---- one question, and the answers to it


class ControlClient:
    """One question to several processes of a run, and their answers as they come.

    Args:
        directory: the run directory.
        pids: whom to ask.
        asked: what, as JSON.
    """

    def __init__(self, directory: Path, pids: tuple[int, ...], asked: dict[str, Any]) -> None:
        self._directory = directory
        self._pids = pids
        self._line = json.dumps(asked).encode() + b"\n"
        self._open: dict[int, socket.socket] = {}
        self._problems: list[Message] = []

    def send_request(self) -> None:
        """Ask."""
        directory = os.open(self._directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for pid in self._pids:
                connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                connection.settimeout(REPLY_SECONDS)
                try:
                    self._connect(connection, directory, f"control.{pid}.sock")
                    owner = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1]
                    if owner != os.geteuid():
                        connection.close()
                        words = f"the socket of process {pid} is served by another user"
                        self._problems.append(Message("socket_of_another_user", words))
                        continue
                    connection.sendall(self._line)
                except OSError as error:
                    connection.close()
                    if isinstance(error, PermissionError):
                        problem = Message("process_of_another_user", f"process {pid} belongs to another user")
                    else:
                        problem = _gone(pid)
                    self._problems.append(problem)
                    continue
                self._open[pid] = connection
        finally:
            os.close(directory)

    @staticmethod
    def _connect(connection: socket.socket, directory: int, name: str) -> None:
        """Connect to the socket of that name itself: a link might lead to any other of this user's.

        By its descriptor, for the whole path may be longer than the 107 bytes that fit.

        Raises:
            OSError: it is no socket, or nobody serves it.
        """
        descriptor = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
        try:
            if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                raise FileNotFoundError(errno.ENOENT, "it is not a socket", name)
            connection.connect(f"/proc/self/fd/{descriptor}")
        finally:
            os.close(descriptor)

    def receive_events(self, tell: EventHandler, timeout_s: float | None, *, until: str) -> list[Message]:
        """Hear the answers until each process has told the event `until`, or ended; return what went wrong."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        first_by = time.monotonic() + REPLY_SECONDS
        silent = set(self._open)
        received = dict.fromkeys(self._open, b"")
        with selectors.DefaultSelector() as selector, contextlib.ExitStack() as stack:
            for pid, connection in self._open.items():
                stack.enter_context(connection)
                selector.register(connection, selectors.EVENT_READ, pid)
            while selector.get_map():
                limits = [limit for limit in (deadline, first_by if silent else None) if limit is not None]
                ready = selector.select(max(0.0, min(limits) - time.monotonic()) if limits else None)
                if not ready:
                    late = deadline is not None and time.monotonic() >= deadline
                    if late or (silent and time.monotonic() >= first_by):
                        left = sorted(key.data for key in selector.get_map().values())
                        self._problems += [
                            _late(pid, timeout_s if late else REPLY_SECONDS, pid in silent) for pid in left
                        ]
                        break
                for key, _ in ready:
                    pid, connection = key.data, self._open[key.data]
                    more = _received(connection)
                    received[pid] += more
                    *lines, received[pid] = received[pid].split(b"\n")
                    events = list(filter(None, map(_event, lines)))
                    silent -= {pid} if events else set()
                    for event in events:
                        tell(event)
                    names = [event["event"] for event in events]
                    if {until, "rejected", "withdrawn"} & set(names) or _nothing(events) or not more:
                        selector.unregister(connection)
                    if not more and not {until, "rejected", "withdrawn"} & set(names):
                        self._problems.append(_gone(pid))
        return self._problems


def _nothing(events: list[Event]) -> bool:
    return any(event["event"] == "stopping" and event["window"] is None for event in events)


def _gone(pid: int) -> Message:
    return Message("process_gone", f"process {pid} has gone")


def _late(pid: int, seconds: float | None, silent: bool) -> Message:
    if silent:
        return Message("process_does_not_answer", f"process {pid} does not answer within {seconds:g} s")
    words = f"process {pid} has not done it within {seconds:g} s, and still will: `traceable control stop` withdraws it"
    return Message("not_done_in_time", words)


def _received(connection: socket.socket) -> bytes:
    try:
        return connection.recv(_LINE_BYTES)
    except OSError:
        return b""


def _event(line: bytes) -> Event | None:
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) and "event" in event and "pid" in event else None


# ---- what is written meanwhile


def _files(directory: Path) -> _Files:
    """What lies in the run directory that is a recording, with its size and time, the recorder's own left out."""
    found = {}
    with contextlib.suppress(OSError):
        entries = [entry for entry in directory.iterdir() if not _NOT_RECORDED.fullmatch(entry.name)]
        folders = [entry for entry in entries if untrusted.is_directory(entry) and entry.name != recorder.DIRECTORY]
        for entry in (*entries, *(inner for folder in folders for inner in folder.iterdir() if inner.name[0] != ".")):
            if untrusted.is_regular(entry):
                facts = entry.lstat()
                found[str(entry.relative_to(directory))] = (facts.st_size, facts.st_mtime_ns)
    return found


def _written(directory: Path, before: _Files, pids: Iterable[int]) -> list[str]:
    """Return the files that are new or changed, and the recorder's directories of the processes that opened a window.

    The recorder writes through a memory map, whose stores change neither size nor time of its files.
    """
    found = [name for name, facts in sorted(_files(directory).items()) if before.get(name) != facts]
    recording, named = directory / recorder.DIRECTORY, {str(pid) for pid in pids}
    with contextlib.suppress(OSError):
        found += sorted(
            f"{recorder.DIRECTORY}/{entry.name}"
            for entry in recording.iterdir()
            if entry.name.partition("-")[0] in named
        )
    return found


def _to_come(directory: Path, found: list[str]) -> Message | None:
    """Return what is not written yet, or why nothing is: a sentence."""
    manifest = run_dir.load_manifest(directory)
    name = (manifest.get("collector") or {}).get("name")
    if name == "none":
        return Message("collector_none", "nothing is recorded: the run has --collector none")
    if name == "recorder":
        words = f"the recording becomes {manifest.get('stem')}.sqlite when the program ends"
        return Message("recording_at_end", words)
    if name == "nsys" and not found:
        # 2022.4 keeps each capture in its temporary directory until the program ends.
        words = "nsys has not written its report yet: it does when the program ends at the latest"
        return Message("report_at_end", words)
    return None
