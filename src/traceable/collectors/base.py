"""The small interface behind which every collector stands.

A collector knows how to start a program so that its ranges are recorded, and how to turn what was left on disk into
an nsys SQLite file. It starts nothing itself: `launch` runs the plan. Adding a collector is one module that satisfies
`Collector` and one line in `collect/__init__.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from traceable.errors import Message

NSYS_LOG = "nsys.log"
"""What nsys itself said, in the run directory."""

GPU_DIRECTORY = "gpu"
"""Name of the directory with what Kineto recorded beside the embedded recorder (`run --gpu`)."""

NOTHING_RECORDED = Message("nothing_recorded", "no range or mark was recorded")
"""What is said of a recording without any."""


@dataclass(frozen=True)
class Availability:
    """Whether a collector works here.

    Attributes:
        available: whether it does.
        reason: why, as a clause for the launcher's one line.
        remedy, code: what to do where it does not, as an imperative clause, and the reason's code.
    """

    available: bool
    reason: str
    remedy: str = ""
    code: str = ""


@dataclass(frozen=True)
class Gating:
    """Record only the windows that the program opens.

    Attributes:
        windows: how many there are; None for as many as come.
        timed: the program is no Python, and the collector itself opens and closes its one window.
        delay_s: how long after the start, or the first range, it opens then.
        duration_s: how long it lasts then; 0 for until the program ends.
        from_start: whether the delay is counted from the start of the program.
    """

    windows: int | None
    timed: bool = False
    delay_s: float = 0.0
    duration_s: float = 0.0
    from_start: bool = False


@dataclass(frozen=True)
class Plan:
    """How to start the program under a collector.

    Attributes:
        argv: the whole command line, the collector's own words first.
        environment: variables to set on top of the caller's.
        collector_environment: variables for the collector itself, which the program is not to have; `LD_PRELOAD` in it stands
            before the caller's.
        detached: the program runs in a session of its own (nsys), so signals must be sent to it and not to
            the process that was started.
        log: name of the file in the run directory that takes what a detached collector prints, whatever its executable
            is called.
        notes: one for each thing the user should know before it starts (what is left out of a preset).
    """

    argv: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    collector_environment: Mapping[str, str] = field(default_factory=dict)
    detached: bool = False
    log: str = "collector.log"
    notes: tuple[Message, ...] = ()


@dataclass(frozen=True)
class CollectorResult:
    """What a collector left after the program ended.

    Attributes:
        database: the nsys SQLite file to read, or None where nothing was recorded.
        more_databases: further databases, where windows were recorded into files of their own.
        files: every file that belongs to the recording, to be kept and named in the manifest.
        notes: one for each thing the user should know (events dropped, report imported by hand).
    """

    database: Path | None
    files: tuple[Path, ...] = ()
    notes: tuple[Message, ...] = ()
    more_databases: tuple[Path, ...] = ()


class Collector(Protocol):
    """One way to record a program."""

    name: str

    def availability(self) -> Availability:
        """Say whether this collector works on this machine. Cheap: no program is recorded for it."""
        ...

    def plan(self, command: Sequence[str], run_dir: Path, stem: str, gating: Gating | None = None) -> Plan:
        """Return how to start `command` so that its recording lands in `run_dir` under the name `stem`.

        Args:
            command: the program's own command line.
            run_dir: absolute path.
            stem: how the files are named.
            gating: which windows to record; None for everything.
        """
        ...

    def finalize(self, run_dir: Path, stem: str, into: Path | None = None) -> CollectorResult:
        """Turn what the program left in `run_dir` into `<stem>.sqlite`. Idempotent; deletes no recording, and puts
        nothing in the place of a file that is no export of one.

        Args:
            run_dir: absolute path.
            stem: how the files are named.
            into: where to write; None for `run_dir`. Of another user's run nothing is written there.

        Raises:
            CollectorError: something was recorded and can't be read; the message names the file.
        """
        ...
