"""Whatever the user names, the nsys SQLite file in it: a `.sqlite`, a `.nsys-rep`, a `.qdstrm` or a run directory.

A run whose launcher was killed is finalised here. Nothing beside a report is ever taken for its export.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from traceable import collect
from traceable.collect import nsys_install
from traceable.errors import CollectorError, TraceError
from traceable.launch import run_dir, supervisor

SQLITE_MAGIC = b"SQLite format 3\0"
REPORT_SUFFIXES = (".nsys-rep", ".qdrep", ".qdstrm")
WRITING_SECONDS = 120.0
"""How long to wait for an nsys that outlived its launcher to finish the report."""


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Path]:
    """Yield the nsys SQLite file to read for `path`. It lives as long as the `with` block.

    Args:
        path: a `.sqlite` file (any name, told by its content), a report of nsys's, or a run directory.

    Raises:
        TraceError: there is no such file, or it is none of these, or the run is not over or recorded nothing.
        CollectorError: nsys is missing or can't read the report.
    """
    if path.is_dir():
        yield finalised(path)
    elif not path.exists():
        raise TraceError(f"there is no {path}", "give a run directory, a .nsys-rep or a .sqlite file")
    elif path.suffix in REPORT_SUFFIXES:
        _refuse_empty(path)
        with tempfile.TemporaryDirectory(prefix="traceable-") as folder:
            database = Path(folder) / "report.sqlite"
            nsys_install.export(path.absolute(), database)
            yield database
    else:
        _check_sqlite(path)
        yield path


def finalised(directory: Path) -> Path:
    """Return the SQLite file of a run directory, making it where the run was cut short.

    Raises:
        TraceError: not a run directory, a run that is not over, or one that recorded nothing.
        CollectorError: what was recorded can't be read.
    """
    directory = directory.absolute()
    manifest = run_dir.read(directory)
    try:
        name, stem = str(manifest["collector"]["name"]), str(manifest["stem"])
    except (KeyError, TypeError):
        raise TraceError(f"the run in {directory} ended before it started its program", "run it again") from None
    if not run_dir.is_over(manifest, directory):
        raise TraceError(f"the program of {directory} is still running", "wait for it to end, or stop it")
    _wait_for_collector(directory)
    recorded = collect.named(name).finalise(directory, stem)
    if recorded.database is None:
        raise TraceError(f"{directory} holds no recording (collector {name})", "run it again with another --collector")
    return recorded.database


def manifest_of(path: Path) -> dict[str, Any] | None:
    """Return the manifest of `path` where it is a run directory, or None."""
    return run_dir.read(path) if path.is_dir() else None


def _wait_for_collector(directory: Path) -> None:
    """Without its launcher nsys goes on, and its report must not be read before it is whole."""
    deadline = time.monotonic() + WRITING_SECONDS
    while supervisor.collector_processes(directory):
        if time.monotonic() > deadline:
            raise CollectorError(f"nsys is still writing the report in {directory}", "try again later")
        time.sleep(supervisor.TURN_SECONDS)


def _check_sqlite(path: Path) -> None:
    _refuse_empty(path)
    try:
        with path.open("rb") as file:
            start = file.read(len(SQLITE_MAGIC))
    except OSError as error:
        raise TraceError(f"{path} can't be read: {error.strerror}", "check its permissions") from None
    if start != SQLITE_MAGIC:
        raise TraceError(
            f"{path} is not an SQLite file", "give a run directory, a .nsys-rep or the .sqlite that nsys exported"
        )


def _refuse_empty(path: Path) -> None:
    if path.is_file() and path.stat().st_size == 0:
        raise TraceError(f"{path} is empty", "record again: the recording was cut off before anything was written")
