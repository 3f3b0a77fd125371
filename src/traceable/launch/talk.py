"""One question to the control sockets of a run's processes, and what they answer.

The end in the process is `capture/server.py`; what is asked, and what is made of the answers, is `control.py`.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import selectors
import socket
import stat
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from traceable.errors import Message

ANSWER_SECONDS = 30.0
"""How long a process has for its first answer. Under nsys opening and closing take it up to about a second."""

_LINE_BYTES = 65536

Event = dict[str, Any]
Tell = Callable[[Event], None]


class Talk:
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

    def begin(self) -> None:
        """Ask."""
        directory = os.open(self._directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for pid in self._pids:
                connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                connection.settimeout(ANSWER_SECONDS)
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

    def listen(self, tell: Tell, timeout_s: float | None, *, until: str) -> list[Message]:
        """Hear the answers until each process has told the event `until`, or ended; return what went wrong."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        first_by = time.monotonic() + ANSWER_SECONDS
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
                            _late(pid, timeout_s if late else ANSWER_SECONDS, pid in silent) for pid in left
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
                    if {until, "refused", "withdrawn"} & set(names) or _nothing(events) or not more:
                        selector.unregister(connection)
                    if not more and not {until, "refused", "withdrawn"} & set(names):
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
