"""Nsight Systems as a collector: the command line it is given, and the report it leaves.

The program is started by `exec_shim.py`, which stands between nsys and the program; see there for why. How nsys is
found, asked and has its reports exported is in `nsys_install.py`, what it is asked to record in `user_options.py`, and
what it must not see in `privacy.py`.

nsys loses the tail of a process that ends without Python's own end. One that dies of a signal, as the workers of
`multiprocessing.Pool` do, or leaves by `os._exit` takes with it what it had not handed over. A range whose end is lost
so is given the end of the whole recording by nsys: 0.5 ms become 300 ms. It is cut at the last event that was recorded
of its process, the least that is known of it, and marked.
"""

from __future__ import annotations

import json
import re
import sqlite3
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import cached_property, partial
from pathlib import Path

from traceable.collectors.base import NSYS_LOG, Availability, CollectorResult, Gating, Plan
from traceable.collectors.nsys import install as nsys_install
from traceable.collectors.nsys import privacy, user_options
from traceable.collectors.nsys.tables import CLIPPED
from traceable.errors import CollectorError, Message, UsageError
from traceable.protocol import environment, untrusted

EXEC_SHIM = Path(__file__).parents[1] / "exec_shim.py"

_TIMED = Message(
    "nsys_counts_delay",
    "the program is not Python: nsys counts --delay, from the start of the program and not from the first range",
)

_SECRETS = "traceable help secrets"

REPORT_SUFFIXES = (".nsys-rep", ".qdrep")
"""What nsys calls its reports, and what it called them before 2021.4."""

_RANGE_TYPES = (59, 60, 70, 71)
"""NVTX_EVENTS.eventType of ranges."""

_THREAD_TABLES = ("CUPTI_ACTIVITY_KIND_RUNTIME", "OSRT_API")
"""Other tables with events of threads: what a process did last need not be a range."""

_PID = "(globalTid >> 24) & 0xFFFFFF"


class NsysCollector:
    """Satisfies `base.Collector` with the nsys that `nsys_install.find` finds.

    Args:
        asked: what the user asks of nsys.
    """

    name = "nsys"

    def __init__(self, asked: user_options.NsysRequest | None = None) -> None:
        self._asked = asked or user_options.NsysRequest()

    @cached_property
    def install(self) -> nsys_install.Install:
        """The nsys in use.

        Raises:
            CollectorError: there is none that answers.
        """
        return nsys_install.find_nsys()

    def availability(self) -> Availability:
        """Whether an nsys was found that says its version. Whether it can record is seen when it starts."""
        try:
            return Availability(True, f"nsys {self.install.short_version} at {self.install.executable}")
        except CollectorError as error:
            return Availability(False, error.problem, error.remedy, error.code)

    def plan(self, command: Sequence[str], run_dir: Path, stem: str, gating: Gating | None = None) -> Plan:
        """Start `command` under `nsys profile`, its report being `<stem>.nsys-rep` in `run_dir`.

        Raises:
            CollectorError: no nsys answers, or it can't be gated as asked.
            UsageError: the user's own options for nsys can't be had.
        """
        given = self._given
        timed = self._timed(gating) if gating and gating.timed else None
        if gating and not timed:
            user_options.check_window_options(given)
        # `%` starts nsys's own substitutions in the name of the report.
        ours = [*self._preset.options, *(timed or (self._gated(gating) if gating else ()))]
        ours += [*privacy.list_privacy_options(self.install.options)]
        ours += [("--force-overwrite", "true"), ("--output", str(run_dir / stem).replace("%", "%%"))]
        shell = [sys.executable, "-I", "-S", str(EXEC_SHIM)]
        own_environment, own_notes = privacy.prepare_environment(run_dir, self.install.options)
        return Plan(
            argv=(str(self.install.executable), "profile", *user_options.merge_options(ours, given), *shell, *command),
            # Without it nsys's NVTX capture range hears registered strings only.
            environment={
                "NSYS_NVTX_PROFILER_REGISTER_ONLY": "0",
                **({environment.GATE: "nvtx"} if gating and not timed else {}),
            },
            collector_environment=own_environment,
            detached=True,
            log=NSYS_LOG,
            notes=(
                *self._left_out(),
                *own_notes,
                *([_TIMED] if timed and gating and gating.delay_s and not gating.from_start else []),
                *privacy.check_command_line((*self._asked.words, *command)),
                *user_options.list_option_notes(given, self.install.sampling_hang_reason),
            ),
        )

    @cached_property
    def _preset(self) -> user_options.ResolvedPreset:
        return user_options.resolve_preset(self._asked.effective_preset, self.install.options, self.install)

    @cached_property
    def _given(self) -> tuple[user_options.UserOption, ...]:
        """The user's own options, which this nsys takes."""
        given = user_options.parse_user_options(self._asked.words, self.install.options)
        user_options.check_user_options(given)
        if given:
            self.install.validate_user_options(given)
        return given

    def _left_out(self) -> list[Message]:
        """Return a note on what the preset wishes for and this nsys has not, and on all that is not permitted."""
        named = f"preset {self._asked.preset or user_options.DEFAULT_PRESET}: "
        missing, refused = self._preset.missing, self._preset.not_permitted
        notes = []
        if missing:
            said = f"{named}nsys {self.install.short_version} has no {', '.join(missing)}: left out"
            notes.append(Message("nsys_option_missing", said))
        return notes + [Message(one.code, f"{named}without {one}") for one in refused]

    @staticmethod
    def _timed(gating: Gating) -> list[tuple[str, str]]:
        """Return the options that make nsys record one window of time, which it opens and closes itself.

        Raises:
            UsageError: it is not of whole seconds, which is all that nsys takes.
        """
        asked = {"--delay": gating.delay_s, "--duration": gating.duration_s}
        for name, value in asked.items():
            if value != int(value):
                raise UsageError(
                    "time_not_whole_seconds",
                    f"{name} {value:g}: of a program that is not Python nsys counts the time, in whole seconds",
                    f"write {name} {max(1, round(value))}, or use --collector recorder",
                )
        return [(name, str(int(value))) for name, value in asked.items() if value]

    def _gated(self, gating: Gating) -> list[tuple[str, str]]:
        """Return the options that make nsys record the windows only, each into a report of its own.

        The NVTX capture range and not cudaProfilerApi: that leaves no report where the program never calls CUDA
        (2022.4, 2023.4). `stop` and `repeat` let the program run on, which the default `stop-shutdown` ends.
        """
        option, known = "--capture-range-end", self.install.options
        end = "stop" if gating.windows == 1 else "repeat" if gating.windows is None else f"repeat:{gating.windows}"
        ending = known.get(option)
        if ending is None or "--nvtx-capture" not in known or not ending.offers(end.partition(":")[0]):
            raise CollectorError(
                "nsys_without_windows",
                f"nsys {self.install.short_version} can't record windows ({option}={end})",
                "upgrade it, or run with --collector recorder",
            )
        if end != "stop" and ending.mentions("sync"):
            # Newer ones (2026.4) put the reports off unless told so; a window that follows must find this one written.
            end += ":sync"
        capture = f"{environment.CAPTURE_RANGE}@{environment.WINDOW_DOMAIN}"
        return [("--capture-range", "nvtx"), ("--nvtx-capture", capture), (option, end)]

    def finalize(self, run_dir: Path, stem: str, into: Path | None = None) -> CollectorResult:
        """Export each report to a `.sqlite` of its name, importing it first where nsys could not.

        nsys names the report of one window `<stem>.nsys-rep`, and those of several `<stem>.1.nsys-rep` and so on. Which
        window is in which is not told by the number: captures that follow fast upon each other are merged.

        Raises:
            CollectorError: nsys left nothing, or something that it can't read itself.
        """
        notes: list[Message] = []
        lost = []
        for stream in _of_stem(run_dir, stem, ".qdstrm"):
            report = (into or run_dir) / stream.with_suffix(REPORT_SUFFIXES[0]).name
            if any(untrusted.is_regular(stream.with_suffix(suffix)) for suffix in REPORT_SUFFIXES):
                continue
            try:
                nsys_install.import_stream(stream, report, self.install)
                notes.append(Message("nsys_report_imported", f"nsys left {stream.name}; it was imported"))
            except CollectorError as error:  # the windows before it have reports
                lost.append(error)
                notes.append(error.cause)
        reports = [
            report
            for folder in dict.fromkeys((run_dir, into or run_dir))
            for suffix in REPORT_SUFFIXES
            for report in _of_stem(folder, stem, suffix)
            if report.stat().st_size
        ]
        if not reports and lost:
            raise lost[0]
        if not reports and _generated_nothing(run_dir):
            never = Message("capture_range_never_came", "nsys left no report: what it was to begin with never came")
            return CollectorResult(None, notes=(never,))
        if not reports:
            raise CollectorError(
                "no_report",
                f"nsys left no report in {run_dir}{describe_last_log_line(run_dir)}",
                "run it again, or with --collector recorder",
            )
        databases = [report.with_suffix(".sqlite") for report in reports]
        if not all(map(_made_from, databases, reports)):
            databases = [(into or run_dir) / database.name for database in databases]
        ended = read_python_exit_times(run_dir)
        for report, database in zip(reports, databases, strict=True):
            if not _made_from(database, report):
                stored: list[privacy.StoredEnvironment] = []
                nsys_install.export_sqlite(report, database, partial(_prepare_export, stored, notes, ended))
                notes += privacy.check_report_for_secrets(report, database, stored)
        files = (*reports, *databases, *_of_stem(run_dir, stem, ".qdstrm"))
        return CollectorResult(databases[0], files, tuple(notes), more_databases=tuple(databases[1:]))


def _prepare_export(
    stored: list[privacy.StoredEnvironment], notes: list[Message], ended: Mapping[int, int | None], database: Path
) -> None:
    """Cut the ranges whose ends nsys lost, and move the environments that it stored all the same out of an export.

    One that can't be read stays as it is.
    """
    try:
        clip_lost_ends(database, ended)
    except sqlite3.Error as error:
        found = f"ranges of processes that were ended may look longer than they were ({error})"
        notes.append(Message("nsys_ranges_not_cut", found))
    try:
        stored += privacy.scrub_environments(database)
    except (OSError, sqlite3.Error) as error:
        found = f"the export can't be looked through for environments ({error}): it may hold some ({_SECRETS})"
        notes.append(Message("environments_not_removed", found))
        return
    if all(one.is_from_launcher for one in stored):
        return
    try:
        privacy.rewrite_database(database)
    except (OSError, sqlite3.Error) as error:
        found = (
            f"the export can't be written anew without the environments that were taken out of it ({error}): it may "
            f"hold some ({_SECRETS})"
        )
        notes.append(Message("export_not_rewritten", found))


def _of_stem(run_dir: Path, stem: str, suffix: str) -> list[Path]:
    """Return `<stem><suffix>` and `<stem>.<number><suffix>`, as far as they are there, by number."""
    named = re.compile(rf"{re.escape(stem)}(?:\.(\d+))?{re.escape(suffix)}")
    found = [(int(match[1] or 0), entry) for entry in run_dir.iterdir() if (match := named.fullmatch(entry.name))]
    return [entry for _, entry in sorted(found) if untrusted.is_regular(entry)]


def _generated_nothing(run_dir: Path) -> bool:
    """Whether nsys ended in order without a report: what it waited for to begin never came."""
    lines = _said(run_dir)
    return bool(lines) and lines[-1] == "Generated:"


def describe_last_log_line(run_dir: Path) -> str:
    """What nsys said last, as a clause that ends a sentence; empty where it said nothing."""
    # 2023.4.4 ends with where in its documentation to look.
    lines = [line for line in _said(run_dir) if not line.startswith(("http", "Please refer to"))]
    return f" (its last words: {lines[-1][:300]!r})" if lines else ""


def _said(run_dir: Path) -> list[str]:
    try:
        said = untrusted.read_file(run_dir / NSYS_LOG).decode("utf-8", "replace")
    except OSError:
        return []
    return [line.strip() for line in said.splitlines() if line.strip()]


def _made_from(database: Path, report: Path) -> bool:
    """Whether `database` is not older than `report`: someone may have recorded anew over an exported report."""
    return (
        untrusted.is_regular(database)
        and database.stat().st_size > 0
        and database.stat().st_mtime_ns >= report.stat().st_mtime_ns
    )


def read_python_exit_times(run_dir: Path) -> dict[int, int | None]:
    """Return when Python ended in each process that imported traceable, in ns since 1970 (`capture/process_record.py`).

    None is for one that did not say so. One that did may still be ended by a signal before all of it is handed over.
    """
    return dict(filter(None, map(_python_end, sorted(run_dir.glob("status.*.lives")))))


def _python_end(path: Path) -> tuple[int, int | None] | None:
    begun = list(untrusted.read_json_lines(path, untrusted.PROCESS_START))
    if not begun:  # a disk that was full
        return None
    last = list(untrusted.read_json_lines(path, {}))[-1]
    return begun[0]["pid"], last["end_wall_ns"] if untrusted.has_shape(last, untrusted.PROCESS_END) else None


def clip_lost_ends(database: Path, ended: Mapping[int, int | None]) -> None:
    """Cut the ranges, in an export of nsys's, that have the end of the recording though their process was over by then.

    Args:
        database: the export.
        ended: as `read_python_exit_times` returns it.

    Raises:
        sqlite3.Error: it can't be read or written.
    """
    with closing(sqlite3.connect(database)) as connection, connection:
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if not {"NVTX_EVENTS", "ANALYSIS_DETAILS", "TARGET_INFO_SESSION_START_TIME"} <= tables:
            return
        (closed_ns,) = connection.execute("SELECT max(duration) FROM ANALYSIS_DETAILS").fetchone()
        (epoch_ns,) = connection.execute("SELECT max(utcEpochNs) FROM TARGET_INFO_SESSION_START_TIME").fetchone()
        if closed_ns is None or epoch_ns is None:
            return
        over = [pid for pid, end_ns in ended.items() if end_ns is None or end_ns - epoch_ns < closed_ns]
        of_ranges = f"eventType IN {_RANGE_TYPES} AND end >= :closed"
        of_processes = f"{_PID} IN (SELECT value FROM json_each(:pids))"
        given = {"closed": closed_ns, "pids": json.dumps(over)}
        open_ = f"SELECT DISTINCT {_PID} FROM NVTX_EVENTS WHERE {of_ranges} AND {of_processes}"
        cut_off = {pid: 0 for (pid,) in connection.execute(open_, given)}
        if not cut_off:
            return
        given["pids"] = json.dumps(list(cut_off))
        for table in ("NVTX_EVENTS", *(name for name in _THREAD_TABLES if name in tables)):
            last = "max(start), max(CASE WHEN end < :closed THEN end ELSE start END)"
            query = f"SELECT {_PID} AS pid, {last} FROM {table} WHERE {of_processes} GROUP BY pid"
            for pid, *ends in connection.execute(query, given):
                cut_off[pid] = max(cut_off[pid], *(end or 0 for end in ends))
        columns = {row[1] for row in connection.execute("PRAGMA table_info(NVTX_EVENTS)")}
        if CLIPPED not in columns:
            connection.execute(f"ALTER TABLE NVTX_EVENTS ADD COLUMN {CLIPPED} INTEGER")
        for pid, last_ns in cut_off.items():
            connection.execute(
                f"UPDATE NVTX_EVENTS SET end = max(start, :last), {CLIPPED} = 1 WHERE {of_ranges} AND {_PID} = :pid",
                {"closed": closed_ns, "last": last_ns, "pid": pid},
            )
