"""Nsight Systems as a collector: the command line it is given, and the report it leaves.

The program is started by `bystander.py`, which stands between nsys and the program; see there for why. How nsys is
found and asked is in `nsys_install.py`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from traceable import environment
from traceable.collect import nsys_install
from traceable.collect.base import Availability, Gating, Plan, Recorded
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

    def plan(self, command: Sequence[str], run_dir: Path, stem: str, gating: Gating | None = None) -> Plan:
        """Start `command` under `nsys profile`, its report being `<stem>.nsys-rep` in `run_dir`.

        Raises:
            CollectorError: no nsys answers, or it can't be gated as asked.
        """
        words = [str(self.install.executable), "profile", "--trace", "cuda,nvtx"]
        words += [f"{option}={value}" for option, value in DEFAULTS if self.install.supports(option)]
        words += self._gated(gating) if gating else []
        # `%` starts nsys's own substitutions in the name of the report.
        words += ["--force-overwrite=true", "--output", str(run_dir / stem).replace("%", "%%")]
        shell = [sys.executable, "-I", "-S", str(BYSTANDER)]
        return Plan(
            argv=(*words, *shell, *command),
            # Without it nsys's NVTX capture range hears registered strings only.
            environment={"NSYS_NVTX_PROFILER_REGISTER_ONLY": "0", **({environment.GATE: "nvtx"} if gating else {})},
            detached=True,
        )

    def _gated(self, gating: Gating) -> list[str]:
        """Return the options that make nsys record the windows only, each into a report of its own.

        The NVTX capture range and not cudaProfilerApi: that leaves no report where the program never calls CUDA
        (2022.4, 2023.4). `stop` and `repeat` let the program run on, which the default `stop-shutdown` ends.
        """
        option = "--capture-range-end"
        known = self.install.help_of(option)
        end = "stop" if gating.windows == 1 else "repeat" if gating.windows is None else f"repeat:{gating.windows}"
        if not (self.install.supports("--nvtx-capture") and end.partition(":")[0] in known):
            raise CollectorError(
                f"nsys {self.install.short_version} can't record windows ({option}={end})",
                "upgrade it, or run with --collector recorder",
            )
        if end != "stop" and "sync" in known:
            # Newer ones (2026.4) put the reports off unless told so; a window that follows must find this one written.
            end += ":sync"
        capture = f"{environment.CAPTURE_RANGE}@{environment.WINDOW_DOMAIN}"
        return ["--capture-range=nvtx", f"--nvtx-capture={capture}", f"{option}={end}"]

    def finalise(self, run_dir: Path, stem: str) -> Recorded:
        """Export each report to a `.sqlite` of its name, importing it first where nsys could not.

        nsys names the report of one window `<stem>.nsys-rep`, and those of several `<stem>.1.nsys-rep` and so on. Which
        window is in which is not told by the number: captures that follow fast upon each other are merged.

        Raises:
            CollectorError: nsys left nothing, or something that it can't read itself.
        """
        notes = []
        for stream in _of_stem(run_dir, stem, ".qdstrm"):
            report = stream.with_suffix(".nsys-rep")
            if not report.is_file():
                nsys_install.import_stream(stream, report, self.install)
                notes.append(f"nsys left {stream.name}; it was imported")
        reports = [report for report in _of_stem(run_dir, stem, ".nsys-rep") if report.stat().st_size]
        if not reports and _generated_nothing(run_dir):
            return Recorded(None, notes=("nsys left no report: what it was to begin with never came",))
        if not reports:
            raise CollectorError(
                f"nsys left no report in {run_dir}{last_words(run_dir)}",
                "run it again, or with --collector recorder",
            )
        databases = [report.with_suffix(".sqlite") for report in reports]
        for report, database in zip(reports, databases, strict=True):
            if not _made_from(database, report):
                nsys_install.export(report, database)
        files = (*reports, *databases, *_of_stem(run_dir, stem, ".qdstrm"))
        return Recorded(databases[0], files, tuple(notes), more=tuple(databases[1:]))


def _of_stem(run_dir: Path, stem: str, suffix: str) -> list[Path]:
    """Return `<stem><suffix>` and `<stem>.<number><suffix>`, as far as they are there, by number."""
    named = re.compile(rf"{re.escape(stem)}(?:\.(\d+))?{re.escape(suffix)}")
    found = [(int(match[1] or 0), entry) for entry in run_dir.iterdir() if (match := named.fullmatch(entry.name))]
    return [entry for _, entry in sorted(found) if entry.is_file()]


def _generated_nothing(run_dir: Path) -> bool:
    """Whether nsys ended in order without a report: what it waited for to begin never came."""
    lines = _said(run_dir)
    return bool(lines) and lines[-1] == "Generated:"


def last_words(run_dir: Path) -> str:
    """What nsys said last, as a clause that ends a sentence; empty where it said nothing."""
    lines = _said(run_dir)
    return f" (its last words: {lines[-1][:300]!r})" if lines else ""


def _said(run_dir: Path) -> list[str]:
    try:
        said = (run_dir / "nsys.log").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return [line.strip() for line in said.splitlines() if line.strip()]


def _made_from(database: Path, report: Path) -> bool:
    """Whether `database` is not older than `report`: someone may have recorded anew over an exported report."""
    return (
        database.is_file() and database.stat().st_size > 0 and database.stat().st_mtime_ns >= report.stat().st_mtime_ns
    )
