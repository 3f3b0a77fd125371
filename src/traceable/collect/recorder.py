"""The embedded recorder as a collector: the environment that attaches it, and its recording turned into nsys's SQLite.

The recording itself happens inside the program (`_native/recorder.c`). What reads it is imported when it is needed:
starting a program must not cost numpy.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path

from traceable import environment
from traceable._native import recorder_library
from traceable.collect.base import Availability, Gating, Plan, Recorded
from traceable.errors import CollectorError

DIRECTORY = "recording"
"""Name of the recording within the run directory."""

_NOTHING = "no range or mark was recorded"


class RecorderCollector:
    """Records NVTX calls with the library that ships with traceable. Needs neither nsys nor a GPU; sees no GPU work."""

    name = "recorder"

    def availability(self) -> Availability:
        """Say whether the recorder was built when traceable was installed."""
        if recorder_library():
            return Availability(True, "embedded recorder")
        return Availability(False, "the embedded recorder was not built; reinstall where there is a C compiler")

    def plan(
        self,
        command: Sequence[str],
        run_dir: Path,
        stem: str,  # noqa: ARG002 - of the interface
        gating: Gating | None = None,
    ) -> Plan:
        """Return `command` unchanged with the environment that makes NVTX load the recorder, in children too.

        Raises:
            CollectorError: the recorder was not built.
        """
        library = recorder_library()
        if library is None:
            raise CollectorError(
                "the embedded recorder was not built", "reinstall traceable where there is a C compiler"
            )
        variables = {
            environment.NVTX_INJECTION: str(library),
            environment.RECORDING_DIR: str((run_dir / DIRECTORY).absolute()),
        }
        if gating:
            variables |= {environment.GATE: "recorder", environment.RECORDING_GATED: "1"}
        return Plan(tuple(command), variables)

    def finalise(self, run_dir: Path, stem: str) -> Recorded:
        """Write `<stem>.sqlite` from the recording, unless one stands there that is newer than a finished recording.

        Raises:
            CollectorError: the recording can't be read, or the file can't be written.
        """
        source = run_dir / DIRECTORY
        database = run_dir / f"{stem}.sqlite"
        notes = _standing_notes(database, source)
        if notes is None:
            from traceable.collect.nsys_schema import write_database
            from traceable.collect.recording import read_recording

            recording = read_recording(source)
            written = write_database(recording, database, not _alive(process.pid for process in recording.processes))
            notes = written.notes
            if not written.events:
                database.unlink(missing_ok=True)
                files = (source,) if source.is_dir() else ()
                return Recorded(None, files, (_NOTHING, *notes))
        return Recorded(database, (database, source), notes)


def _standing_notes(database: Path, source: Path) -> tuple[str, ...] | None:
    """Return the notes in a database that says all the recording says; None where it has to be written (again)."""
    from traceable.collect.nsys_schema import COMPLETE

    try:
        written = database.stat().st_mtime_ns
        if any(path.stat().st_mtime_ns >= written for path in (source, *source.rglob("*"))):
            return None
        with closing(sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro", uri=True)) as connection:
            complete = connection.execute("SELECT value FROM META_DATA_EXPORT WHERE name = ?", (COMPLETE,)).fetchone()
            if complete != ("true",):
                return None
            return tuple(text for (text,) in connection.execute("SELECT text FROM DIAGNOSTIC_EVENT ORDER BY rowid"))
    except (OSError, sqlite3.Error):
        return None


def _alive(pids: Iterable[int]) -> bool:
    """Whether any of the processes may still be recording. Stores through a memory map do not always touch mtime."""
    for pid in pids:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            continue
        except PermissionError:
            return True
        return True
    return False
