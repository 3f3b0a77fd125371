"""The small interface that every collector implements.

A collector knows how to start a program so that its ranges are recorded, and how to turn the files it leaves into an
nsys SQLite file. It starts nothing itself: `launch` runs the plan. Adding a collector is one module that satisfies
`Collector` and one line in `collectors/__init__.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from traceable.errors import Message

NOTHING_RECORDED = Message("nothing_recorded", "no range or mark was recorded")
"""The note on an empty recording."""


@dataclass(frozen=True)
class Availability:
    """Whether a collector works here.

    Attributes:
        available: whether it does.
        reason: the reason, as a clause for the launcher's one line.
        remedy, code: the fix where it does not, as an imperative clause, and the reason's code.
    """

    available: bool
    reason: str
    remedy: str = ""
    code: str = ""


@dataclass(frozen=True)
class Gating:
    """Record only the windows that the program opens.

    Attributes:
        windows: their number; None for no limit.
        timed: the program is not Python, and the collector itself opens and closes its one window.
        delay_s: the time from the start, or from the first range, until it opens.
        duration_s: how long it stays open; 0 for until the program ends.
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
        argv: the whole command line, the collector's own arguments first.
        environment: variables to set on top of the caller's.
        collector_environment: variables for the collector alone, removed again for the program; its `LD_PRELOAD` goes
            before the caller's.
        detached: the program runs in a session of its own (nsys), so signals must be sent to it and not to
            the process that was started.
        log: name of the file in the run directory with the output of a detached collector, whatever its executable is
            called.
        notes: for the user, before the program starts (such as options missing from a preset).
    """

    argv: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    collector_environment: Mapping[str, str] = field(default_factory=dict)
    detached: bool = False
    log: str = "collector.log"
    notes: tuple[Message, ...] = ()


@dataclass(frozen=True)
class CollectorResult:
    """The files of a collector after the program ended.

    Attributes:
        database: the nsys SQLite file to read, or None where nothing was recorded.
        more_databases: further databases, where windows were recorded into files of their own.
        files: every file that belongs to the recording, to be kept and listed in the manifest.
        notes: for the user (events dropped, report imported separately).
    """

    database: Path | None
    files: tuple[Path, ...] = ()
    notes: tuple[Message, ...] = ()
    more_databases: tuple[Path, ...] = ()


class Collector(Protocol):
    """One way to record a program."""

    name: str

    def availability(self) -> Availability:
        """Return whether this collector works on this machine. Cheap: no program is recorded for it."""
        ...

    def plan(self, command: Sequence[str], run_dir: Path, stem: str, gating: Gating | None = None) -> Plan:
        """Return how to start `command` so that its recording lands in `run_dir` under the name `stem`.

        Args:
            command: the program's own command line.
            run_dir: absolute path.
            stem: the start of the files' names.
            gating: which windows to record; None for everything.
        """
        ...

    def finalize(self, run_dir: Path, stem: str, into: Path | None = None) -> CollectorResult:
        """Turn the recording in `run_dir` into `<stem>.sqlite`. Idempotent; deletes no recording, and replaces no file
        that is not an export of one.

        Args:
            run_dir: absolute path.
            stem: the start of the files' names.
            into: where to write; None for `run_dir`. Another user's run directory is never written to.

        Raises:
            CollectorError: something was recorded and can't be read; the message names the file.
        """
        ...
