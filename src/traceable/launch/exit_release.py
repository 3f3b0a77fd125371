"""A program that nsys's library holds at its exit for ever, and how it is let go.

A program that closes descriptors which it has not opened (`os.closerange(3, ...)`, as daemons do) closes those of
nsys's library too (2022.4.2). The threads of the library wait at them on; at the exit of the program its destructor
tells them to end, which they don't hear, and waits for that without end. Stopped and continued, they are interrupted in
their wait, see that there is nothing to wait for, and the program ends with the exit code that it had; or the library
dies of a fault there, which is said.

A program that annotates leaves by itself before that (`_native/core.c`) and makes a file. For others, this looks
for a process whose main thread sleeps in nsys's library, below the dynamic loader's calls of destructors, and which has
used no time since the last look. None of its own code is to come then that could notice that it was stopped.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import struct
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeAlias

from traceable.errors import Message

STOP_SECONDS = 1.0
"""How long all threads of a process may take to stop."""

HELD_SECONDS = 2.0
SURELY_HELD_SECONDS = 10.0
"""How long a process must have been held: where a descriptor that nsys's library waits at is closed, and where not."""

_PROC = Path("/proc")
_NOTE = (
    "process {pid} hung at its exit in nsys's library, as it does where a program closes all descriptors "
    "(os.closerange), and was released; ranges of it may be missing: --collector recorder records them all"
)
_NOTE_LEFT = (
    "process {pid} has closed the descriptors of nsys's library (os.closerange), which would have held it at its exit "
    "for ever and was left out; ranges of it may be missing: --collector recorder records them all"
)
_NOTE_DIED = (
    "process {pid} had come to its exit, and died of signal {number} in nsys's library when it was released: its own "
    "exit code is not known; use --collector recorder"
)
_LEFT = re.compile(r"status\.(\d+)\.closed")
_LIBRARY = re.compile(r"libToolsInjection[^/]*\.so[^/]*$")
_LOADER = re.compile(r"/ld[-0-9.a-z_]*\.so[^/]*$|/ld-[^/]*$")
_STACK_BYTES = 1 << 14
_DESCRIPTORS = 1 << 20
"""An argument of a system call from here on is an address."""

_Code: TypeAlias = "tuple[list[tuple[int, int]], list[tuple[int, int]]]"
_known: dict[tuple[int, str], _Code] = {}

_NEAR_WORDS = 256
"""How far from the top of the stack the innermost function of nsys's library has its return address at most."""


class ExitReleaser:
    """Lets processes go that nsys's library holds.

    Args:
        say: prints one line to the user.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._held: dict[int, tuple[tuple[int, int], float]] = {}
        self._released: set[int] = set()
        self.notes: list[Message] = []

    def check_exit(self, run_dir: Path, pid: int | None, code: int) -> bool:
        """Say which processes left by themselves, and whether the program died of being let go.

        Args:
            run_dir: the run directory.
            pid: the program's.
            code: its exit code, or the signal that it died of as a negative number.

        Returns:
            Whether `code` is the program's own.
        """
        with contextlib.suppress(OSError):
            for match in filter(None, map(_LEFT.fullmatch, sorted(entry.name for entry in run_dir.iterdir()))):
                self._note(Message("exit_hang_avoided", _NOTE_LEFT.format(pid=match[1])))
        if code >= 0 or pid not in self._released:
            return True
        self._note(Message("released_process_died", _NOTE_DIED.format(pid=pid, number=-code)))
        return False

    def _note(self, note: Message) -> None:
        if note not in self.notes:
            self.notes.append(note)
            self._say(note)

    def poll(self, pids: Iterable[int]) -> None:
        """Let those of `pids` go that have been held at one point for too long. To be called every second or so."""
        now, before = time.monotonic(), self._held
        self._held = {}
        for pid in pids:
            point = find_exit_hang(pid)
            if point is None:
                continue
            since_s = before[pid][1] if pid in before and before[pid][0] == point else now
            if now - since_s < (HELD_SECONDS if _closed(pid) else SURELY_HELD_SECONDS):
                self._held[pid] = point, since_s
            elif _interrupt(pid):
                self._released.add(pid)
                self._note(Message("process_hung_at_exit", _NOTE.format(pid=pid)))


def find_exit_hang(pid: int) -> tuple[int, int] | None:
    """Return at which point a process waits in nsys's library at its exit: the top of its stack, and the time that it
    has used, in clock ticks; None where it does not, or where this user may not know.
    """
    try:
        words = (_PROC / str(pid) / "syscall").read_text(encoding="ascii").split()
        if len(words) < 3:  # it runs
            return None
        top = int(words[-2], 16)
        # The library waits for threads; most servers sleep at a descriptor.
        if int(words[1], 16) < _DESCRIPTORS:
            return None
        stat = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        library, loader = _code(pid, stat[25])
        if not library:
            return None
        stack = _read(pid, top)
    except (OSError, ValueError, IndexError):
        return None
    inner = next((place for place, word in enumerate(stack[:_NEAR_WORDS]) if _within(word, library)), None)
    if inner is None or not any(_within(word, loader) for word in stack[inner:]):
        return None
    return top, int(stat[11]) + int(stat[12])


def _closed(pid: int) -> bool:
    """Whether a thread of nsys's library waits at a descriptor that is closed."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        for task in (_PROC / str(pid) / "task").iterdir():
            if (task / "comm").read_bytes().startswith(b"[NSys"):
                first = int((task / "syscall").read_text(encoding="ascii").split()[1], 16)
                if first < _DESCRIPTORS and not os.path.lexists(_PROC / str(pid) / "fd" / str(first)):
                    return True
    return False


def _code(pid: int, stack: str) -> _Code:
    """Return where a process has the code of nsys's library, and that of the dynamic loader.

    What was found is kept: `stack`, where its stack begins, is another one after an exec.
    """
    if (pid, stack) in _known:
        return _known[pid, stack]
    library: list[tuple[int, int]] = []
    loader: list[tuple[int, int]] = []
    for line in (_PROC / str(pid) / "maps").read_text(encoding="utf-8", errors="replace").splitlines():
        fields = line.split(maxsplit=5)
        if len(fields) < 6 or "x" not in fields[1]:
            continue
        places = library if _LIBRARY.search(fields[5]) else loader if _LOADER.search(fields[5]) else None
        if places is not None:
            begin, _, end = fields[0].partition("-")
            places.append((int(begin, 16), int(end, 16)))
    if library:
        _known[pid, stack] = library, loader
    return library, loader


def _read(pid: int, top: int) -> tuple[int, ...]:
    with (_PROC / str(pid) / "mem").open("rb", buffering=0) as memory:
        memory.seek(top)
        found = memory.read(_STACK_BYTES)
    return struct.unpack(f"={len(found) // 8}Q", found[: len(found) // 8 * 8])


def _within(word: int, places: list[tuple[int, int]]) -> bool:
    return any(begin <= word < end for begin, end in places)


def _interrupt(pid: int) -> bool:
    """Stop and continue a process, so that its threads are interrupted where they wait."""
    try:
        os.kill(pid, signal.SIGSTOP)
    except OSError:
        return False
    # Continued before all have stopped, those that have not go on waiting.
    deadline = time.monotonic() + STOP_SECONDS
    while not _stopped(pid) and time.monotonic() < deadline:
        time.sleep(0.001)
    with contextlib.suppress(OSError):
        os.kill(pid, signal.SIGCONT)
    return True


def _stopped(pid: int) -> bool:
    try:
        tasks = list((_PROC / str(pid) / "task").iterdir())
        states = [(task / "stat").read_text(errors="replace").rpartition(")")[2].split()[0] for task in tasks]
    except (OSError, IndexError):
        return True
    return all(state in "TtZX" for state in states)
