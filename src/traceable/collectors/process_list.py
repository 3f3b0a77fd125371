"""The processes of this machine, and the profilers among them, read by psutil.

Another user's may be hidden, and any may end meanwhile.

psutil takes longer to import than the launcher may take for a short program: what every run needs imports this late.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import psutil

UNREADABLE = (psutil.Error, OSError, ValueError, IndexError)
"""What psutil raises for a process that has ended, is ending or belongs to another user."""

PROFILERS = re.compile(
    r"nsys(-launcher|-ui)?|ncu(-ui)?|nv-nsight-cu(-cli)?|nv-hostengine|dcgm-exporter|dcgmproftester\d*|dynolog"
    r"|nvprof|cuda-gdb|compute-sanitiz(er)?"
)
"""Names of processes that profile GPUs, or use what profilers need. Linux may show 15 characters of them alone."""

MPS = "nvidia-cuda-mps"


@dataclass(frozen=True)
class RunningProfilers:
    """Processes that may interfere, including those of other users where /proc shows them.

    Attributes:
        profilers: pid and name of each whose name is one of `PROFILERS`.
        mps: whether CUDA's multi-process service runs.
    """

    profilers: tuple[tuple[int, str], ...]
    mps: bool


def list_processes() -> list[psutil.Process]:
    """Return the processes that this user can see, by pid; none where /proc is not mounted."""
    with contextlib.suppress(*UNREADABLE):
        return list(psutil.process_iter())
    return []


def list_descendants(pid: int) -> list[psutil.Process]:
    """Return the children of a process, theirs, and so on.

    `psutil.Process.children` reads the parent of every process of the machine, of which one with many GPUs has
    thousands, and fails if one of them is hidden (`hidepid=1`). The kernel lists the children of each thread.
    """
    descendants: list[psutil.Process] = []
    parents = [pid]
    for parent in parents:  # which grows
        with contextlib.suppress(OSError):
            for thread in Path(f"/proc/{parent}/task").iterdir():
                with contextlib.suppress(*UNREADABLE):
                    for child in map(int, (thread / "children").read_text(encoding="ascii").split()):
                        descendants.append(psutil.Process(child))
                        parents.append(child)
    return descendants


def list_open_files(pids: Iterable[int]) -> list[Path]:
    """Return the regular files that these processes have open, without deleted ones."""
    paths = set()
    for pid in pids:
        with contextlib.suppress(*UNREADABLE):
            paths |= {Path(file.path) for file in psutil.Process(pid).open_files()}
    return sorted(paths)


def find_running_profilers() -> RunningProfilers:
    """Return which processes profile, except this one and its parent."""
    names = {}
    for process in list_processes():
        if process.pid not in (os.getpid(), os.getppid()):
            with contextlib.suppress(*UNREADABLE):
                names[process.pid] = process.name()
    profilers = sorted((pid, name) for pid, name in names.items() if PROFILERS.fullmatch(name))
    return RunningProfilers(tuple(profilers), any(name.startswith(MPS) for name in names.values()))
