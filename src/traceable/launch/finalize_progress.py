"""How long the launcher waits after the program's end, and what the user is told meanwhile.

First for the collector, which writes its report (`ReportProgress`), then for what we make of that (`FinalizeSignals`). Neither ends
anything: what is not waited for goes on, or is made later by `traceable report`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from traceable.analysis.units import format_bytes
from traceable.errors import Message
from traceable.protocol import environment

HEARTBEAT_SECONDS = 10.0
TERMINATION_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
"""Signals that ask a program to end."""

_FOR_THE_PROGRAM = (signal.SIGUSR1, signal.SIGUSR2)

COUNTED_SECONDS = 2.0
"""What of the time between two looks at a deadline is counted at most: twice the longest between two turns."""

_WRITTEN_TO = (".qdstrm", ".nsys-rep", ".ncu-rep")


class NotAwaited(BaseException):
    """The user does not wait for what we make of the recording."""


class Deadline:
    """The end of a time in which this process could run, to be looked at every second.

    A launcher that is stopped or frozen (SIGSTOP, `docker pause`, suspend) must not hold that time against a collector
    that could not run either.

    Args:
        seconds: how long it is.
    """

    def __init__(self, seconds: float) -> None:
        self._left_s = seconds
        self._looked_s = time.monotonic()

    def has_passed(self) -> bool:
        """Return whether that time is over."""
        now = time.monotonic()
        self._left_s -= min(now - self._looked_s, COUNTED_SECONDS)
        self._looked_s = now
        return self._left_s <= 0


class ReportProgress:
    """A collector that writes its report.

    Args:
        program: what it is called.
        processes: returns the pids of its processes.
        directory: the run directory.
        say: prints one line to the user.
    """

    def __init__(
        self, program: str, processes: Callable[[Path], list[int]], directory: Path, say: Callable[[str], None]
    ) -> None:
        self._program = program
        self._processes = processes
        self._directory = directory
        self._say = say
        self._limit_s = read_seconds(environment.FINISH_SECONDS, 600.0)
        self._began_s: float | None = None
        self._told_s = 0.0
        self._idle = Deadline(self._limit_s)
        self._written_bytes = -1

    def check_progress(self) -> bool:
        """Say from time to time how far it is. False: it has not written anything for too long.

        To be called again and again from the program's end on.
        """
        now = time.monotonic()
        if self._began_s is None:
            self._began_s = self._told_s = now
            self._idle = Deadline(self._limit_s)
        over = self._idle.has_passed()
        # A limit below the time between two lines is kept, too.
        if now - self._told_s < min(HEARTBEAT_SECONDS, self._limit_s):
            return True
        self._told_s = now
        processes = self._processes(self._directory)
        written = _written_bytes(processes, self._directory)
        if written != self._written_bytes:
            self._written_bytes, over = written, False
            self._idle = Deadline(self._limit_s)
        if not over:
            self._say(
                f"{self._program} is writing the report, {format_bytes(written)}, for {now - self._began_s:.0f} s now"
            )
            return True
        pids = f" (pid {', '.join(map(str, processes))})" if processes else ""
        words = f"{self._program} has written nothing for {self._limit_s:g} s and is left alone{pids}"
        self._say(Message("report_stalled", words))
        return False


def _written_bytes(pids: list[int], directory: Path) -> int:
    """How much there is of the report, where it is made and where it goes to: a measure of its progress."""
    found: dict[tuple[int, int], int] = {}
    places: list[Path] = []
    with contextlib.suppress(OSError):  # the program may have deleted it
        places += (entry for entry in directory.iterdir() if entry.suffix in _WRITTEN_TO)
    for pid in pids:
        with contextlib.suppress(OSError):
            for entry in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    if str(entry.readlink()).removesuffix(" (deleted)").endswith(_WRITTEN_TO):
                        places.append(entry)
    for place in places:
        with contextlib.suppress(OSError):
            facts = place.stat()
            found[facts.st_dev, facts.st_ino] = facts.st_size
    return sum(found.values())


class FinalizeSignals:
    """What a signal to the launcher does from the program's end until its recording is read back.

    The first is answered with a line, the next raises `NotAwaited` where that loses nothing. One that the program alone
    could have understood does nothing. As long as the program has not been started, a signal does what it did before.

    Args:
        say: prints one line to the user.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._started = False
        self._told = False
        self._stage: str | None = None
        self._since_s = 0.0
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> FinalizeSignals:
        # What is ignored stays so, in the program too.
        found = {
            number: signal.getsignal(number) for number in (*TERMINATION_SIGNALS, *_FOR_THE_PROGRAM, signal.SIGALRM)
        }
        self._before = {n: done for n, done in found.items() if done not in (signal.SIG_IGN, None)}
        for number in self._before:
            signal.signal(number, self._tick if number == signal.SIGALRM else self._heard)
        return self

    def __exit__(self, *_: object) -> None:
        for number, done in self._before.items():
            signal.signal(number, done)

    def set_started(self) -> None:
        """Tell it that the program has been started: from now on a signal is for that, or is about its recording."""
        self._started = True

    @contextlib.contextmanager
    def stage(self, doing: str) -> Iterator[None]:
        """Within this block a second signal raises `NotAwaited`, and the user is told every 10 s what is being done."""
        self._stage, self._since_s = doing, time.monotonic()
        signal.setitimer(signal.ITIMER_REAL, HEARTBEAT_SECONDS, HEARTBEAT_SECONDS)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            self._stage = None

    def _tick(self, _number: int, _frame: FrameType | None) -> None:
        if self._stage is not None:
            self._say(f"{self._stage}, for {time.monotonic() - self._since_s:.0f} s now")

    def _heard(self, number: int, _frame: FrameType | None) -> None:
        if not self._started:
            signal.signal(number, self._before[signal.Signals(number)])
            os.kill(os.getpid(), number)
        elif number in _FOR_THE_PROGRAM:
            return  # which is over
        elif not self._told:
            self._told = True
            doing = self._stage or "the recording is being read back"
            self._say(Message("recording_being_read", f"{doing}; once more, and that is left for later"))
        elif self._stage is not None:
            raise NotAwaited


def read_seconds(variable: str, default_s: float) -> float:
    """Return the time that a variable of the environment names, or the default."""
    value = os.environ.get(variable, "")
    if not value:
        return default_s
    try:
        seconds = float(value)
    except ValueError:
        seconds = -1.0
    if seconds <= 0:
        environment.warn_once("variable_invalid", f"{variable}={value!r} is no time; ignored", key=variable)
        return default_s
    return seconds
