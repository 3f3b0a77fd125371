"""What `checks/diagnosis.py` judges by: everything that is known of one run or report, gathered once.

Nothing is judged here. A fact that can't be had is None or empty: somebody else's report has no manifest, and a run
whose collector was killed has no trace.
"""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from traceable.analysis.completeness import Completeness
from traceable.analysis.windows import CaptureResult, ProcessStatus
from traceable.checks import machine_facts
from traceable.collectors.base import NSYS_LOG
from traceable.collectors.nsys import install as nsys_install
from traceable.errors import Message, TraceableError
from traceable.launch import process_watcher, processes, range_counts, reports, run_dir, windows
from traceable.protocol import untrusted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from traceable.recording import Recording

NSYS, RECORDER, TORCH, NONE = "nsys", "recorder", "torch", "none"

_PRODUCTS = (("NVIDIA Nsight", NSYS), ("traceable", RECORDER), ("torch", TORCH))
_OF_NSYS = re.compile(
    r"CUPTI|CUDA (driver|profiling|events|injection|trace)|NVTX (binary|injection|events|function)"
    r"|No .* events collected|Not all .* events|perf event|CPU (IP|kernel)|privilege|ERR_NVGPUCTRPERM|dropped"
)
"""What of the strings of an old report (2022, 2023) is a message of nsys's: those have no table of their own there."""

_OF_WSL = re.compile(r"init-systemd\(|wsl-pro-service|Relay\(\d+\)")
"""Processes that only Linux on Windows has."""


@dataclass(frozen=True)
class ProcessRecord:
    """One program image of a process that imported traceable, as `capture/process_record.py` tells of it.

    Attributes:
        number: place among those of its process, from 0; more than one is an exec.
        disabled: its annotations were off.
        level: annotations of a higher level were off.
        has_listener: it was told of an NVTX listener or of torch's profiler.
        end: how Python ended; None where it had no say (a signal, os._exit, exec).
        names: of the ranges that it made, at most 100; distinct: how many there were.
        nvtx: version of the nvtx package that it imported; None for not.
        torch_profiler: it had a torch.profiler of its own.
        forked: it was forked, and had executed no program since, when it imported traceable.
    """

    pid: int
    number: int
    disabled: bool
    level: int
    has_listener: bool
    end: str | None = None
    names: tuple[str, ...] = ()
    distinct_names: int = 0
    nvtx: str | None = None
    torch_profiler: bool = False
    forked: bool = False


@dataclass(frozen=True)
class Case:
    """What is known.

    Attributes:
        path: what is diagnosed, as the user named it.
        directory: the run directory; None for a file.
        manifest: of the run; None for a report without one.
        collector: `nsys`, `recorder`, `torch`, `none`, or empty for not known.
        recording: what could be read; None where nothing could.
        error: why not.
        windows: what became of the steps that were asked for; None where none were.
        files: what lies in the run directory, or the one file, by name.
        log: what nsys printed, line by line.
        messages: what the collector wrote of itself into the report: nsys its texts, the recorder messages with codes.
        options: how it was recorded, as the report says (META_DATA_CAPTURE, from 2023 on).
        system: what the report says of where it was recorded: `kernel`, and `wsl`, a process that only WSL has.
        process_records: of the processes that imported traceable within the run and were to be recorded.
        without_environment: pid and name of each process that the launcher saw load traceable without the run's environment.
        process_files: what processes said of being recorded or not (`process.<pid>.json`).
        step_statuses: what processes said of their steps.
        profilers: names of the processes that held GPU counters, or could, when the run began.
        machine: this system, where the run was of it; else None.
        missing_bytes: how many bytes an SQLite file lacks of what its header says.
        has_importer: an importer of nsys's is there.
        completeness: what became of the ranges that processes counted.
    """

    path: Path
    directory: Path | None = None
    manifest: Mapping[str, Any] | None = None
    collector: str = ""
    recording: Recording | None = None
    error: TraceableError | None = None
    windows: CaptureResult | None = None
    files: tuple[str, ...] = ()
    log: tuple[str, ...] = ()
    messages: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    system: Mapping[str, str] = field(default_factory=dict)
    process_records: tuple[ProcessRecord, ...] = ()
    without_environment: tuple[tuple[int, str], ...] = ()
    process_files: tuple[Mapping[str, Any], ...] = ()
    step_statuses: tuple[ProcessStatus, ...] = ()
    profilers: tuple[str, ...] = ()
    machine: machine_facts.Machine | None = None
    missing_bytes: int = 0
    has_importer: bool = True
    completeness: Completeness = field(default_factory=Completeness)

    @property
    def notes(self) -> tuple[Message, ...]:
        """What the run noted of itself."""
        noted = (self.manifest or {}).get("notes") or ()
        return tuple(Message.parse(one) if isinstance(one, str) else Message(one["code"], one["text"]) for one in noted)

    @property
    def range_count(self) -> int | None:
        """How many ranges were recorded; None where nothing could be read."""
        return None if self.recording is None else len(self.recording.trace.ranges)

    @property
    def operation_count(self) -> int | None:
        """How many GPU operations were recorded; None where nothing could be read."""
        if self.recording is None:
            return None
        trace = self.recording.trace
        return sum(map(len, (trace.kernels, trace.copies, trace.memsets, trace.graph_launches)))

    @property
    def argv(self) -> tuple[str, ...]:
        """The command line of the collector, as it was started."""
        return tuple(map(str, ((self.manifest or {}).get("plan") or {}).get("argv") or ()))

    @property
    def environment_names(self) -> frozenset[str]:
        """The names in the environment of the launcher."""
        return frozenset((self.manifest or {}).get("environment_names") or ())

    @property
    def is_full_recording(self) -> bool:
        """Whether everything was to be recorded, and not windows or the last seconds."""
        manifest = self.manifest or {}
        keys = (windows.WINDOW_KEY, windows.TIMED_WINDOW_KEY, "flight_recorder")
        return all(manifest.get(key) is None for key in keys)

    @cached_property
    def ranges_by_pid(self) -> dict[int, int]:
        """How many ranges were recorded of each process."""
        if self.recording is None:
            return {}
        trace, found = self.recording.trace, dict[int, int]()
        threads, counts = np.unique(trace.ranges.thread, return_counts=True)
        for thread, count in zip(threads.tolist(), counts.tolist(), strict=True):
            pid = trace.processes[trace.threads[thread].process].pid
            found[pid] = found.get(pid, 0) + count
        return found

    def find_notes(self, *codes: str) -> list[Message]:
        """Return what of the recorder's messages and the run's notes has one of these codes, each once."""
        ours = [one for one in (*self.messages, *self.notes) if isinstance(one, Message) and one.code in codes]
        return list(dict.fromkeys(ours))

    def find_messages(self, pattern: str) -> list[str]:
        """Return what of nsys's messages and output matches a pattern, each once."""
        wanted = re.compile(pattern)
        return [line for line in dict.fromkeys((*self.messages, *self.log)) if wanted.search(line)]


def build_run_case(directory: Path, recording: Recording | None, error: TraceableError | None = None) -> Case:
    """Return the case of a run that is over.

    Args:
        directory: its run directory.
        recording: what was read of it already; None for nothing.
        error: why nothing could be read.
    """
    directory = directory.absolute()
    manifest = run_dir.load_manifest(directory)
    collector = str((manifest.get("collector") or {}).get("name") or "")
    database = _database_of(directory, manifest)
    about = _of_database(database)
    told = tuple(processes.load_process_records(directory))
    # What `run --ranks` or `--processes` left out is not missing.
    left_out = {one["pid"] for one in told if one.get("chosen") is False}
    lives = tuple(one for one in _lives(directory) if one.pid not in left_out)
    # One that set the variables itself, before it imported traceable, tells of itself.
    known = {*left_out, *(one.pid for one in lives), *(one["pid"] for one in told)}
    return Case(
        path=directory,
        directory=directory,
        manifest=manifest,
        collector=collector,
        recording=recording,
        error=error,
        windows=recording.windows if recording is not None else _unrecorded(directory, manifest),
        files=tuple(sorted(entry.name for entry in directory.iterdir())),
        log=_lines(directory / NSYS_LOG),
        messages=_coded(about.messages, collector),
        options=about.options,
        system=about.system,
        process_records=lives,
        without_environment=tuple(
            one for one in process_watcher.read_processes_without_environment(directory) if one[0] not in known
        ),
        process_files=told,
        step_statuses=tuple(one for one in windows.load_statuses(directory) if one.pid not in left_out),
        profilers=tuple(map(str, manifest.get("profilers") or ())),
        machine=_machine(manifest),
        has_importer=_importer(),
        completeness=range_counts.evaluate_completeness(directory, manifest, None)
        if recording is None
        else recording.completeness,
    )


@contextlib.contextmanager
def open_case(path: Path) -> Iterator[Case]:
    """Yield the case of whatever the user names: a run directory, or anything that `traceable report` reads.

    Raises:
        TraceError: there is nothing of that name, or a directory of no run.
    """
    from traceable.recording import load

    if not path.exists():
        with reports.open_report(path):  # says so
            raise AssertionError
    if path.is_dir() and (path / run_dir.MANIFEST).exists():
        try:
            yield build_run_case(path, load(path))
        except TraceableError as error:
            yield build_run_case(path, None, error)
        return
    try:
        with _readable(path) as found:
            recording = load(found)
            about = _of_database(found)
            product = recording.trace.source.product
            collector = next((name for start, name in _PRODUCTS if product.startswith(start)), "")
            yield Case(
                path,
                collector=collector,
                recording=recording,
                files=(path.name,),
                messages=_coded(about.messages, collector),
                options=about.options,
                system=about.system,
                completeness=recording.completeness,
            )
    except TraceableError as error:
        if path.is_dir():  # of no run: there is nothing to find out
            raise
        yield Case(path, error=error, files=(path.name,), missing_bytes=_cut(path), has_importer=_importer())


def find_traced_apis(case: Case) -> set[str] | None:
    """Return what nsys was asked to trace; None where that is not known."""
    for word, after in pairwise((*case.argv, "")):
        name, equals, value = word.partition("=")
        if name.endswith("exec_shim.py"):
            break  # what follows is the program's
        if name in ("--trace", "-t"):
            return set((value if equals else after).split(","))
        if word.startswith("-t") and case.collector == NSYS:
            return set(word[2:].split(","))
    if "CAPTURE_EVENT_TYPE" in case.options and case.collector == NSYS:
        kinds = {"NvtxEvents": "nvtx", "Cuda": "cuda", "OSRuntime": "osrt", "Graphics": "opengl"}
        return {kinds.get(kind, kind) for kind in case.options["CAPTURE_EVENT_TYPE"].split(",")}
    return None


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[Path]:
    """Yield what can be read in place of a report: its export, which is looked into twice."""
    if path.is_file() and path.suffix in reports.REPORT_SUFFIXES and path.stat().st_size:
        with tempfile.TemporaryDirectory(prefix="traceable-") as folder:
            database = Path(folder) / f"{path.stem}.sqlite"
            nsys_install.export_sqlite(path.absolute(), database)
            yield database
    else:
        yield path


def _unrecorded(directory: Path, manifest: dict[str, Any]) -> CaptureResult | None:
    from traceable.analysis.windows import evaluate_capture

    wanted = windows.load_capture_request(directory, manifest)
    return None if wanted is None else evaluate_capture(wanted, ())


def _database_of(directory: Path, manifest: Mapping[str, Any]) -> Path | None:
    stem = manifest.get("stem")
    found = [directory / f"{stem}.sqlite", directory / f"{stem}.1.sqlite"]
    return next((path for path in found if untrusted.is_regular(path)), None)


@dataclass(frozen=True)
class _About:
    """What a database says of itself and of its collector, as `Case` has it."""

    messages: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    system: Mapping[str, str] = field(default_factory=dict)


def _of_database(path: Path | None) -> _About:
    """Return the messages of the collector, how it was asked to record and where, as far as a file holds them."""
    if path is None:
        return _About()
    try:
        with contextlib.closing(untrusted.open_database(path)) as file:
            file.text_factory = lambda text: text.decode("utf-8", "replace")
            there = {name for (name,) in file.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            messages = tuple(" ".join(message.split()) for message in _messages(file, there))
            return _About(messages, _options(file, there), _system(file, there))
    except (OSError, *untrusted.SQLITE_ERRORS):
        return _About()


def _messages(file: sqlite3.Connection, there: set[str]) -> list[str]:
    if "DIAGNOSTIC_EVENT" in there:
        return _texts(file.execute("SELECT DISTINCT text FROM DIAGNOSTIC_EVENT"))
    if "StringIds" not in there:
        return []
    found = file.execute("SELECT value FROM StringIds WHERE length(value) BETWEEN 12 AND 400")
    # Whole environments of processes stand among them, with a null between two variables.
    return [text for text in _texts(found) if "\0" not in text and _OF_NSYS.search(text)]


def _coded(messages: tuple[str, ...], collector: str) -> tuple[str, ...]:
    """Return messages as they were before they were stored: those of nsys's have no code, whatever they end with."""
    return tuple(map(Message.parse, messages)) if collector == RECORDER else messages


def _texts(rows: Iterable[tuple[object]]) -> list[str]:
    """Return what is text, and not empty: a column may hold anything."""
    return [text for (text,) in rows if isinstance(text, str) and text]


def _options(file: sqlite3.Connection, there: set[str]) -> dict[str, str]:
    if "META_DATA_CAPTURE" not in there:
        return {}
    # Not the program's environment, which old versions keep there.
    rows = file.execute(
        "SELECT name, group_concat(value, ',') FROM META_DATA_CAPTURE WHERE name NOT LIKE '%ENVIRONMENT%' GROUP BY name"
    )
    return {name: value for name, value in rows if isinstance(name, str) and isinstance(value, str)}


def _system(file: sqlite3.Connection, there: set[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    if "TARGET_INFO_SYSTEM_ENV" in there:
        rows = file.execute("SELECT value FROM TARGET_INFO_SYSTEM_ENV WHERE name = 'SoftwareReleaseVersion'")
        found["kernel"] = next(iter(_texts(rows)), "")
    if "PROCESSES" in there:
        names = _texts(file.execute("SELECT DISTINCT name FROM PROCESSES"))
        found["wsl"] = next((name for name in names if _OF_WSL.match(name)), "")
    return found


def _lives(directory: Path) -> Iterator[ProcessRecord]:
    for path in sorted(directory.glob("status.*.lives")):
        lives: list[ProcessRecord] = []
        for content in untrusted.read_json_lines(path, {}):
            if untrusted.has_shape(content, untrusted.PROCESS_START):
                lives.append(_begun(content, len(lives)))
            elif lives and untrusted.has_shape(content, untrusted.PROCESS_END):
                lives[-1] = _ended(lives[-1], content)
        yield from lives


def _begun(content: Mapping[str, Any], number: int) -> ProcessRecord:
    return ProcessRecord(
        pid=content["pid"],
        number=number,
        disabled=content["disabled"],
        level=content["level"],
        has_listener=content["listener"],
        forked=bool(content.get("forked")),
    )


def _ended(life: ProcessRecord, content: Mapping[str, Any]) -> ProcessRecord:
    return replace(
        life,
        end=content["end"],
        names=tuple(content["names"]),
        distinct_names=content["distinct"],
        nvtx=content["nvtx"],
        torch_profiler=content["torch_profiler"],
    )


def _lines(path: Path) -> tuple[str, ...]:
    try:
        text = untrusted.read_file(path).decode("utf-8", "replace")
    except OSError:
        return ()
    return tuple(line.strip() for line in text.splitlines() if line.strip())


def _machine(manifest: Mapping[str, Any]) -> machine_facts.Machine | None:
    here = (manifest.get("host") or {}).get("name") == os.uname().nodename
    return machine_facts.inspect_machine() if here else None


def _importer() -> bool:
    with contextlib.suppress(TraceableError):
        return nsys_install.find_importer(nsys_install.find_nsys()) is not None
    return nsys_install.find_importer() is not None


def _cut(path: Path) -> int:
    """Return how many bytes an SQLite file lacks of the pages that its header counts."""
    try:
        with path.open("rb") as file:
            header = file.read(100)
        if len(header) < 100 or not header.startswith(reports.SQLITE_MAGIC):
            return 0
        page, pages = int.from_bytes(header[16:18], "big"), int.from_bytes(header[28:32], "big")
        return max(0, (65536 if page == 1 else page) * pages - path.stat().st_size)
    except OSError:
        return 0
