"""The back ends that annotation has, and small programs that run on each: in a process of its own, under the recorder
or nsys, and the rows that it left.

A test for which the back end matters takes a fixture that has it as a parameter (`backend`, `api`, `listen`, ...), and
so runs once with each; the others run once.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest
from tests.conftest import run_nsys_profile

import traceable
from traceable.collectors.recorder.collector import RecorderCollector
from traceable.protocol import environment

SOURCE = str(Path(traceable.__file__).parents[1])
BACKENDS: dict[str, dict[str, str]] = {"native": {}, "nvtx": {environment.PURE: "1"}}
"""What emits the ranges, and the environment variables that choose it."""

API_BACKENDS = {
    "native": {},
    "nvtx": {environment.PURE: "1", environment.NVTX_INJECTION: "/nowhere.so"},
    "null": {environment.PURE: "1"},
}
"""The same for this process: the nvtx package is imported only for a profiler, be it one that can't be loaded."""

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
class NvtxLog:
    """The output of a program, and its NVTX events in the order of starts."""

    stdout: str
    events: list[Event]

    def find(self, name: str) -> list[Event]:
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


def make_environment(backend: str) -> dict[str, str]:
    """Return this process's environment for a program on a back end, without a profiler and variables of ours."""
    removed = {"NVTX_DISABLE", "NVTX_INJECTION64_PATH"}
    remaining = {
        name: value for name, value in os.environ.items() if name not in removed and not name.startswith("TRACEABLE_")
    }
    paths = [SOURCE, remaining["PYTHONPATH"]] if remaining.get("PYTHONPATH") else [SOURCE]
    remaining["PYTHONPATH"] = os.pathsep.join(paths)
    return {**remaining, **BACKENDS[backend]}


def require_backend(backend: str) -> None:
    """Skip the test where the native core is needed and not built."""
    if backend == "native" and importlib.util.find_spec("traceable._native._core") is None:
        pytest.skip("the native core is not built")


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    """The name of each back end."""
    require_backend(request.param)
    return str(request.param)


@pytest.fixture(params=API_BACKENDS)
def api(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The module `traceable`, imported anew into this process with each back end: one is chosen at import."""
    require_backend(request.param)
    for name in (environment.PURE, environment.NVTX_INJECTION):
        monkeypatch.delenv(name, raising=False)
    for name, value in API_BACKENDS[request.param].items():
        monkeypatch.setenv(name, value)
    for name in _list_own_modules():
        monkeypatch.delitem(sys.modules, name)
    module = importlib.import_module("traceable")
    used = sys.modules["traceable.annotation.engine"].Range
    classes = {"native": "_core.Range", "nvtx": "nvtx_backend.Range", "null": "nvtx_backend.NullRange"}
    assert f"{used.__module__}.{used.__name__}".endswith(f".{classes[request.param]}")
    yield module
    for name in _list_own_modules():
        del sys.modules[name]


def _list_own_modules() -> list[str]:
    """The modules of ours that are imported, but for the extensions, which a process can only have once."""
    ours = (name for name in sys.modules if name.partition(".")[0] == "traceable")
    return [name for name in ours if not name.startswith("traceable._native")]


Listen = Callable[..., NvtxLog]


def run_recorded(folder: Path, backend: str, code: str, *arguments: str, **variables: str | None) -> NvtxLog:
    collector = RecorderCollector()
    available = collector.check_availability()
    if not available.available:
        pytest.skip(available.reason)
    command = [sys.executable, "-W", "error", "-c", code, *arguments]
    plan = collector.plan(command, folder, "program")
    set_here = {name: value for name, value in variables.items() if value is not None}
    result = subprocess.run(
        plan.argv,
        env={**make_environment(backend), **plan.environment, **set_here},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    database = collector.finalize(folder, "program").database
    return NvtxLog(result.stdout, [] if database is None else read_events(database))


@pytest.fixture
def listen(tmp_path: Path, backend: str) -> Listen:
    """Run a program under the recorder, on each back end; it must end well and print nothing on stderr."""
    return lambda code, *arguments, **variables: run_recorded(tmp_path, backend, code, *arguments, **variables)


@pytest.fixture
def listen_nsys(tmp_path: Path, backend: str, nsys: str) -> Listen:
    """Run a program under real nsys, on each back end."""

    def nvtx_log(code: str) -> NvtxLog:
        report = tmp_path / "program"
        profile = [nsys, "profile", "-t", "nvtx", "-s", "none", "--cpuctxsw=none", "-f", "true", "-o", str(report)]
        command = [*profile, sys.executable, "-c", code]
        run_nsys_profile(command, env=make_environment(backend))
        database = tmp_path / "program.sqlite"
        export = [nsys, "export", "-t", "sqlite", "-f", "true", "-o", str(database), f"{report}.nsys-rep"]
        subprocess.run(export, check=True, capture_output=True, timeout=300)
        return NvtxLog("", read_events(database))

    return nvtx_log
