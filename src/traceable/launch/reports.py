"""Whatever the user names, what a reader can read in it: a `.sqlite`, a `.nsys-rep`, a `.qdstrm`, a run directory, a
trace of torch.profiler, or a directory of such traces.

A run whose launcher was killed is finalised here. Nothing beside a report is ever taken for its export. What only a run
needs is imported for a run: a file is read in less time than that takes.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from traceable.errors import CollectorError, TraceError
from traceable.launch import flight, run_dir
from traceable.protocol import untrusted

SQLITE_MAGIC = b"SQLite format 3\0"
REPORT_SUFFIXES = (".nsys-rep", ".qdrep", ".qdstrm")
_READABLE = "a run directory, a .nsys-rep, the .sqlite that nsys exported or the .json that torch.profiler exported"
_NOTES_SAID = 3
WRITING_SECONDS = 120.0
"""How long to wait for an nsys that outlived its launcher to finish the report."""


@contextlib.contextmanager
def open_report(path: Path) -> Iterator[Path]:
    """Yield what `trace.load` is to read for `path`. It lives as long as the `with` block.

    Args:
        path: an nsys SQLite file or a trace of torch.profiler (any name, told by its content), a report of nsys's, a
            run directory, a dump in one, or a directory with the traces that torch.profiler made of several ranks.

    Raises:
        TraceError: there is no such file, or it is none of these, or the run is not over or recorded nothing.
        CollectorError: nsys is missing or can't read the report.
    """
    if path.is_dir():
        if _holds_torch_traces(path):
            yield path
        elif run_dir.is_private(path):
            yield finalize_run(path)
        else:
            # Another user's: it is only read.
            with tempfile.TemporaryDirectory(prefix="traceable-") as folder:
                yield finalize_run(path, Path(folder))
    elif not path.exists():
        raise TraceError("no_such_file", f"there is no {path}", f"give {_READABLE}")
    elif not path.is_file():
        raise TraceError("not_a_regular_file", f"{path} is not a regular file", f"give {_READABLE}")
    elif path.suffix in REPORT_SUFFIXES:
        from traceable.collectors.nsys import install as nsys_install

        _refuse_empty(path)
        with tempfile.TemporaryDirectory(prefix="traceable-") as folder:
            database = Path(folder) / "report.sqlite"
            nsys_install.export_sqlite(path.absolute(), database)
            yield database
    else:
        _check_file(path)
        yield path


def finalize_run(directory: Path, into: Path | None = None) -> Path:
    """Return the SQLite file of a run directory, making it where the run was cut short.

    Args:
        directory: the run directory.
        into: where to make it; None for there.

    Raises:
        TraceError: not a run directory, a run that is not over, or one that recorded nothing.
        CollectorError: what was recorded can't be read.
    """
    from traceable import collectors
    from traceable.launch import lost_run, range_counts

    directory = directory.absolute()
    if flight.find_run_of_dump(directory):
        return flight.finalize_dump(directory, into)
    manifest = run_dir.load_manifest(directory)
    name, stem = (manifest.get("collector") or {}).get("name"), manifest.get("stem")
    if name is None or stem is None:
        found = f"the run in {directory} ended before it started its program"
        raise TraceError("program_never_started", found, "run it again")
    if not run_dir.is_over(manifest, directory):
        remedy = "wait for it to end, or stop it"
        if isinstance(manifest.get(flight.FLIGHT_RECORDER_KEY), dict):
            remedy = f"dump it: traceable control dump --run {directory}"
        raise TraceError("still_running", f"the program of {directory} is still running", remedy)
    if not (manifest.get("end") or {}).get("collector_ended"):
        _wait_for_collector(directory)
    try:
        recorded = collectors.create_collector(name).finalize(directory, stem, into)
    except CollectorError as error:
        raise lost_run.add_remaining_data(error, directory, manifest) from None
    if recorded.database is None:
        found = "; ".join((f"{directory} holds no recording (collector {name})", *recorded.notes[:_NOTES_SAID]))
        raise TraceError("no_recording", found, "run it again with another --collector")
    range_counts.store_range_counts(directory, manifest, recorded)
    return recorded.database


def find_manifest(path: Path) -> dict[str, Any] | None:
    """Return the manifest of `path` where it is a run directory, or None for a file or a directory of traces.

    Of a directory that holds the ranks of a run it is that of the first one; of a flight recorder's dump its run's.
    """
    if run := flight.find_run_of_dump(path):
        return run_dir.load_manifest(run)
    if not path.is_dir() or _holds_torch_traces(path):
        return None
    from traceable.launch import processes

    of_ranks = () if (path / run_dir.MANIFEST).exists() else processes.list_parts(path)
    return run_dir.load_manifest(of_ranks[0] if of_ranks else path)


def _holds_torch_traces(directory: Path) -> bool:
    """Return whether it is no run directory, but one with traces that torch.profiler made."""
    from traceable.trace import kineto

    return not (directory / run_dir.MANIFEST).exists() and bool(kineto.list_trace_files(directory))


def _wait_for_collector(directory: Path) -> None:
    """Without its launcher nsys goes on, and its report must not be read before it is whole."""
    from traceable.launch import supervisor

    deadline = time.monotonic() + WRITING_SECONDS
    while supervisor.find_collector_processes(directory):
        if time.monotonic() > deadline:
            found = f"nsys is still writing the report in {directory}"
            raise CollectorError("nsys_still_writing", found, "try again later")
        time.sleep(supervisor.POLL_SECONDS)


def _check_file(path: Path) -> None:
    """Refuse a file that no reader reads.

    Raises:
        TraceError: it is empty, neither an nsys SQLite file nor a trace of torch.profiler, or can't be read.
    """
    _refuse_empty(path)
    try:
        with untrusted.open_regular(path, follow=True) as file:
            start = file.read(len(SQLITE_MAGIC))
    except OSError as error:
        found = f"{path} can't be read: {error.strerror}"
        raise TraceError("file_unreadable", found, "check its permissions") from None
    if start == SQLITE_MAGIC:
        return
    # It imports numpy, which this module's other callers do without.
    from traceable.trace import kineto

    if not kineto.is_trace(path):
        found = f"{path} is not an SQLite file, and no trace of torch.profiler either"
        raise TraceError("not_a_report", found, f"give {_READABLE}")


def _refuse_empty(path: Path) -> None:
    if path.is_file() and path.stat().st_size == 0:
        fix = "record again: the recording was cut off before anything was written"
        raise TraceError("file_empty", f"{path} is empty", fix)
