"""Which other profilers run on this machine, as far as this user can see them."""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass

from traceable.collectors.process_list import UNREADABLE, list_processes

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


def find_running_profilers() -> RunningProfilers:
    """Return which processes profile, except this one and its parent."""
    names = {}
    for process in list_processes():
        if process.pid not in (os.getpid(), os.getppid()):
            with contextlib.suppress(*UNREADABLE):
                names[process.pid] = process.name()
    profilers = sorted((pid, name) for pid, name in names.items() if PROFILERS.fullmatch(name))
    return RunningProfilers(tuple(profilers), any(name.startswith(MPS) for name in names.values()))
