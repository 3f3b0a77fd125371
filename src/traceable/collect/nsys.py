"""Nsight Systems as a collector: the command line it is given, and the report it leaves.

The program is started by `bystander.py`, which stands between nsys and the program; see there for why. How nsys is
found and asked is in `nsys_install.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from traceable.collect import nsys_install
from traceable.collect.base import Availability, Plan, Recorded
from traceable.errors import CollectorError

BYSTANDER = Path(__file__).with_name("bystander.py")

DEFAULTS = (
    # By default nsys ends a program that outlives the collection; nothing of ours may do that.
    ("--kill", "none"),
    # `all` also waits for daemons that the program left behind (16 s instead of 1 s in a measured case).
    ("--wait", "primary"),
    # Both need perf_event_paranoid <= 2, which containers seldom have, and neither feeds a number of ours.
    ("--sample", "none"),
    ("--cpuctxsw", "none"),
    # The default `graph` leaves the kernels of a CUDA graph out of the report.
    ("--cuda-graph-trace", "node"),
)
"""Options that nsys is given where its --help names them, in this order."""


class NsysCollector:
    """Satisfies `base.Collector` with the nsys that `nsys_install.find` finds."""

    name = "nsys"

    @cached_property
    def install(self) -> nsys_install.Install:
        """The nsys in use.

        Raises:
            CollectorError: there is none that answers.
        """
        return nsys_install.find()

    def availability(self) -> Availability:
        """Whether an nsys was found that says its version. Whether it can record is seen when it starts."""
        try:
            return Availability(True, f"nsys {self.install.short_version} at {self.install.executable}")
        except CollectorError as error:
            return Availability(False, error.found)

    def plan(self, command: Sequence[str], run_dir: Path, stem: str) -> Plan:
        """Start `command` under `nsys profile`, its report being `<stem>.nsys-rep` in `run_dir`.

        Raises:
            CollectorError: no nsys answers.
        """
        words = [str(self.install.executable), "profile", "--trace", "cuda,nvtx"]
        words += [f"{option}={value}" for option, value in DEFAULTS if self.install.supports(option)]
        # `%` starts nsys's own substitutions in the name of the report.
        words += ["--force-overwrite=true", "--output", str(run_dir / stem).replace("%", "%%")]
        shell = [sys.executable, "-I", "-S", str(BYSTANDER)]
        return Plan(
            argv=(*words, *shell, *command),
            # Without it nsys's NVTX capture range hears registered strings only.
            environment={"NSYS_NVTX_PROFILER_REGISTER_ONLY": "0"},
            detached=True,
        )

    def finalise(self, run_dir: Path, stem: str) -> Recorded:
        """Export the report to `<stem>.sqlite`, importing it first where nsys could not.

        Raises:
            CollectorError: nsys left nothing, or something that it can't read itself.
        """
        report, notes = run_dir / f"{stem}.nsys-rep", []
        stream = run_dir / f"{stem}.qdstrm"
        if not report.is_file() and stream.is_file():
            nsys_install.import_stream(stream, report, self.install)
            notes.append(f"nsys left {stream.name}; it was imported")
        if not report.is_file() or not report.stat().st_size:
            raise CollectorError(
                f"nsys left no report in {run_dir}{last_words(run_dir)}",
                "run it again, or with --collector recorder",
            )
        database = run_dir / f"{stem}.sqlite"
        if not _made_from(database, report):
            nsys_install.export(report, database)
        return Recorded(database, tuple(file for file in (report, database, stream) if file.is_file()), tuple(notes))


def last_words(run_dir: Path) -> str:
    """What nsys said last, as a clause that ends a sentence; empty where it said nothing."""
    try:
        said = (run_dir / "nsys.log").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return f" (its last words: {lines[-1][:300]!r})" if lines else ""


def _made_from(database: Path, report: Path) -> bool:
    """Whether `database` is not older than `report`: someone may have recorded anew over an exported report."""
    return (
        database.is_file() and database.stat().st_size > 0 and database.stat().st_mtime_ns >= report.stat().st_mtime_ns
    )
