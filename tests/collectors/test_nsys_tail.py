"""Ranges whose ends nsys lost: they end with the last event of their process, and not with the recording."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from traceable.collectors.nsys import collector as nsys
from traceable.protocol.process_record import SCHEMA

EPOCH_NS, CLOSED_NS = 1_000_000, 5_000
ALIVE, KILLED, OVER, UNKNOWN = 101, 102, 103, 104


def thread(pid: int, tid: int | None = None) -> int:
    return 1 << 48 | pid << 24 | (tid or pid)


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "report.sqlite"
    rows = [(10, CLOSED_NS, 59, "open", thread(pid)) for pid in (ALIVE, KILLED, OVER, UNKNOWN)]
    rows += [(20, 30, 59, "whole", thread(pid)) for pid in (ALIVE, KILLED, OVER, UNKNOWN)]
    rows += [(40, CLOSED_NS, 60, "inner", thread(KILLED, 7)), (45, None, 34, "mark", thread(KILLED))]
    with closing(sqlite3.connect(path)) as file, file:
        file.execute("CREATE TABLE ANALYSIS_DETAILS (duration INTEGER)")
        file.execute("INSERT INTO ANALYSIS_DETAILS VALUES (?)", (CLOSED_NS,))
        file.execute("CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER)")
        file.execute("INSERT INTO TARGET_INFO_SESSION_START_TIME VALUES (?)", (EPOCH_NS,))
        file.execute("CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, eventType INTEGER, text TEXT, globalTid)")
        file.executemany("INSERT INTO NVTX_EVENTS VALUES (?, ?, ?, ?, ?)", rows)
        file.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER, end INTEGER, globalTid INTEGER)")
        file.execute("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (60, 70, ?)", (thread(OVER, 9),))
    return path


def test_only_what_was_over_is_cut_at_the_last_event_of_its_process(database: Path) -> None:
    nsys.clip_lost_ends(database, {ALIVE: EPOCH_NS + CLOSED_NS, KILLED: None, OVER: EPOCH_NS + 100})
    with closing(sqlite3.connect(database)) as file:
        result = file.execute("SELECT (globalTid >> 24) & 0xFFFFFF, text, end, traceableClipped FROM NVTX_EVENTS")
        rows = {(pid, text): (end, clipped) for pid, text, end, clipped in result}
    whole = {(pid, "whole"): (30, None) for pid in (ALIVE, KILLED, OVER, UNKNOWN)}
    assert rows == whole | {
        (ALIVE, "open"): (CLOSED_NS, None),
        (UNKNOWN, "open"): (CLOSED_NS, None),
        (KILLED, "open"): (45, 1),
        (KILLED, "inner"): (45, 1),
        (KILLED, "mark"): (None, None),
        (OVER, "open"): (70, 1),
    }


def test_an_export_with_nothing_to_cut_stays_as_it_is(database: Path) -> None:
    before = database.read_bytes()
    nsys.clip_lost_ends(database, {ALIVE: EPOCH_NS + CLOSED_NS})
    nsys.clip_lost_ends(database, {})
    assert database.read_bytes() == before


def test_the_exit_times_of_processes(tmp_path: Path) -> None:
    start = {"wall_ns": 1, "disabled": False, "level": 1, "listener": True}
    end = {"wall_ns": 5, "reason": "exit", "names": [], "distinct": 0, "nvtx": None, "torch_profiler": False}
    for name, sections in {
        "1": {"start": start, "end": end},
        "2": {"start": start},
        # It became another program, which was killed.
        "3": {"start": start, "end": end},
        "3.2": {"start": start},
        # A forked child.
        "6": {"end": end},
    }.items():
        content = {"schema": SCHEMA, "pid": int(name[0]), **sections}
        (tmp_path / f"process.{name}.json").write_text(json.dumps(content))
    (tmp_path / "process.4.json").write_text("")
    (tmp_path / "process.5.json").write_text('{"schema": "tr')
    assert nsys.read_python_exit_times(tmp_path) == {1: 5, 2: None, 3: None}
