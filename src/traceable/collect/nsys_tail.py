"""The tail that nsys loses of a process which ends without Python's own end, and the ranges that seem endless by it.

A process that dies of a signal, as the workers of `multiprocessing.Pool` do, or leaves by `os._exit` takes with it what
it had not handed over. A range whose end is lost so is given the end of the whole recording by nsys: 0.5 ms become
300 ms. Here it is cut at the last event that was recorded of its process, the least that is known of it, and marked.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from traceable import untrusted
from traceable.collect.nsys_tables import CLIPPED

_RANGES = (59, 60, 70, 71)
"""NVTX_EVENTS.eventType of ranges."""

_OTHERS = ("CUPTI_ACTIVITY_KIND_RUNTIME", "OSRT_API")
"""Other tables with events of threads: what a process did last need not be a range."""

_PID = "(globalTid >> 24) & 0xFFFFFF"


def ends(run_dir: Path) -> dict[int, int | None]:
    """Return when Python ended in each process that imported traceable, in ns since 1970 (`capture/witness.py`).

    None is for one that did not say so. One that did may still be ended by a signal before all of it is handed over.
    """
    return dict(filter(None, map(_end, sorted(run_dir.glob("status.*.lives")))))


def _end(path: Path) -> tuple[int, int | None] | None:
    begun = list(untrusted.lines(path, untrusted.BEGUN))
    if not begun:  # a disk that was full
        return None
    last = list(untrusted.lines(path, {}))[-1]
    return begun[0]["pid"], last["ended_wall_ns"] if untrusted.fits(last, untrusted.ENDED) else None


def cut(database: Path, ended: Mapping[int, int | None]) -> None:
    """Cut the ranges, in an export of nsys's, that have the end of the recording though their process was over by then.

    Args:
        database: the export.
        ended: as `ends` returns it.

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
        of_ranges = f"eventType IN {_RANGES} AND end >= :closed"
        of_processes = f"{_PID} IN (SELECT value FROM json_each(:pids))"
        given = {"closed": closed_ns, "pids": json.dumps(over)}
        open_ = f"SELECT DISTINCT {_PID} FROM NVTX_EVENTS WHERE {of_ranges} AND {of_processes}"
        cut_off = {pid: 0 for (pid,) in connection.execute(open_, given)}
        if not cut_off:
            return
        given["pids"] = json.dumps(list(cut_off))
        for table in ("NVTX_EVENTS", *(name for name in _OTHERS if name in tables)):
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
