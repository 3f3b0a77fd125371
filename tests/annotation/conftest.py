"""How these tests hear: a small program in a process of its own, under the recorder or nsys, and the rows it left."""

from __future__ import annotations

import importlib.util
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.conftest import run_nsys_profile

import traceable
from traceable.collectors.recorder.collector import RecorderCollector

SOURCE = str(Path(traceable.__file__).parents[1])
FORMS = ("native", "pure")
_KINDS = {34: "mark", 59: "push", 60: "start"}


@dataclass(frozen=True)
class Event:
    """One row of NVTX_EVENTS: a mark, a push/pop range (`push`) or a start/end range (`start`)."""

    kind: str
    name: str | None
    domain: str | None
    start_ns: int
    end_ns: int | None
    payload: float | None
    color: int | None
    category: int | None
    thread: int

    def holds(self, other: Event) -> bool:
        assert self.end_ns is not None
        return self.start_ns <= other.start_ns and (other.end_ns or other.start_ns) <= self.end_ns


@dataclass(frozen=True)
class Heard:
    """What a program printed, and what was heard of it, in the order of starts."""

    stdout: str
    events: list[Event]

    def named(self, name: str) -> list[Event]:
        return [event for event in self.events if event.name == name]

    def names(self) -> list[str | None]:
        return [event.name for event in self.events]


def read_events(database: Path) -> list[Event]:
    query = """
        SELECT e.eventType, COALESCE(e.text, s.value), d.text, e.start, e.end,
               COALESCE(e.int64Value, e.uint64Value, e.doubleValue, e.int32Value, e.uint32Value, e.floatValue),
               e.color, e.category, e.globalTid
        FROM NVTX_EVENTS e LEFT JOIN StringIds s ON s.id = e.textId
        LEFT JOIN (SELECT domainId, globalTid >> 24 AS process, text FROM NVTX_EVENTS WHERE eventType = 75) d
               ON d.domainId = e.domainId AND d.process = e.globalTid >> 24
        WHERE e.eventType IN (34, 59, 60) ORDER BY e.start, e.end DESC
    """
    connection = sqlite3.connect(database)
    try:
        rows = connection.execute(query).fetchall()
    finally:
        connection.close()
    return [Event(_KINDS[kind], *rest) for kind, *rest in rows]


def environment_of(form: str) -> dict[str, str]:
    removed = {"NVTX_DISABLE", "NVTX_INJECTION64_PATH"}
    kept = {
        name: value for name, value in os.environ.items() if name not in removed and not name.startswith("TRACEABLE_")
    }
    paths = [SOURCE, kept["PYTHONPATH"]] if kept.get("PYTHONPATH") else [SOURCE]
    kept["PYTHONPATH"] = os.pathsep.join(paths)
    if form == "pure":
        kept["TRACEABLE_PURE"] = "1"
    return kept


def need_form(form: str) -> None:
    if form == "native" and importlib.util.find_spec("traceable._native._core") is None:
        pytest.skip("the native core is not built")


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest) -> str:
    need_form(request.param)
    return str(request.param)


Listen = Callable[..., Heard]


def run_recorded(folder: Path, form: str, code: str, *arguments: str, **variables: str | None) -> Heard:
    collector = RecorderCollector()
    available = collector.availability()
    if not available.available:
        pytest.skip(available.reason)
    command = [sys.executable, "-W", "error", "-c", code, *arguments]
    plan = collector.plan(command, folder, "program")
    set_here = {name: value for name, value in variables.items() if value is not None}
    environment = {**environment_of(form), **plan.environment, **set_here}
    result = subprocess.run(plan.argv, env=environment, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    database = collector.finalize(folder, "program").database
    return Heard(result.stdout, [] if database is None else read_events(database))


@pytest.fixture
def listen(tmp_path: Path, form: str) -> Listen:
    """Run a program under the recorder, in the native and in the pure form; it must end well and say nothing."""
    return lambda code, *arguments, **variables: run_recorded(tmp_path, form, code, *arguments, **variables)


@pytest.fixture
def listen_nsys(tmp_path: Path, form: str, nsys: str) -> Listen:
    """Run a program under real nsys, in the native and in the pure form."""

    def heard(code: str) -> Heard:
        report = tmp_path / "program"
        profile = [nsys, "profile", "-t", "nvtx", "-s", "none", "--cpuctxsw=none", "-f", "true", "-o", str(report)]
        command = [*profile, sys.executable, "-c", code]
        run_nsys_profile(command, env=environment_of(form))
        database = tmp_path / "program.sqlite"
        export = [nsys, "export", "-t", "sqlite", "-f", "true", "-o", str(database), f"{report}.nsys-rep"]
        subprocess.run(export, check=True, capture_output=True, timeout=300)
        return Heard("", read_events(database))

    return heard
