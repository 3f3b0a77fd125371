"""Which other profilers run on this machine, as far as /proc shows them."""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

PROFILERS = re.compile(
    r"nsys(-launcher|-ui)?|ncu(-ui)?|nv-nsight-cu(-cli)?|nv-hostengine|dcgm-exporter|dcgmproftester\d*|dynolog"
    r"|nvprof|cuda-gdb|compute-sanitiz"
)
"""Names of processes that profile GPUs, or use what profilers need, in the 15 characters that Linux stores."""

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


def find_running_profilers(root: Path = Path("/")) -> RunningProfilers:
    """Return which processes below `root` profile, except this one and its parent."""
    names = {}
    for entry in root.glob("proc/[0-9]*"):
        if int(entry.name) not in (os.getpid(), os.getppid()):
            with contextlib.suppress(OSError):
                names[int(entry.name)] = (entry / "comm").read_text(encoding="utf-8", errors="replace").strip()
    profilers = sorted((pid, name) for pid, name in names.items() if PROFILERS.fullmatch(name))
    return RunningProfilers(tuple(profilers), MPS in names.values())
