"""The recorder as it was built, a C program that calls NVTX, and one way to run and read a recording."""

from __future__ import annotations

import os
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.c_programs import compile_program
from tests.skips import skip_unless_ci

from traceable._native import find_recorder_library
from traceable.collectors.base import CollectorResult
from traceable.collectors.recorder.collector import RecorderCollector

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Session:
    """A run directory in which programs are recorded, and what was recorded there."""

    run_dir: Path

    def environment(self, **variables: str) -> dict[str, str]:
        plan = RecorderCollector().plan(("program",), self.run_dir, "app")
        return {**os.environ, **plan.environment, **variables}

    def run(self, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, env=self.environment(**variables), capture_output=True, text=True, timeout=60)

    def finalise(self) -> CollectorResult:
        return RecorderCollector().finalize(self.run_dir, "app")

    def rows(self, query: str) -> list[tuple[object, ...]]:
        """Finalise and query. `named` is NVTX_EVENTS with `name`, the message or registered string."""
        recorded = self.finalise()
        assert recorded.database is not None, recorded.notes
        with closing(sqlite3.connect(recorded.database)) as database:
            database.execute(
                "CREATE TEMP VIEW named AS SELECT e.*, coalesce(e.text, s.value) AS name,"
                " (e.globalTid >> 24) & 0xFFFFFF AS pid, e.globalTid & 0xFFFFFF AS tid"
                " FROM NVTX_EVENTS e LEFT JOIN StringIds s ON s.id = e.textId"
            )
            return database.execute(query).fetchall()


@pytest.fixture
def new_session() -> Callable[[Path], Session]:
    """Make a session in a folder of one's choice."""
    if find_recorder_library() is None:
        skip_unless_ci("the embedded recorder is missing")

    def make(run_dir: Path) -> Session:
        run_dir.mkdir(exist_ok=True)
        return Session(run_dir)

    return make


@pytest.fixture
def session(new_session: Callable[[Path], Session], tmp_path: Path) -> Session:
    return new_session(tmp_path / "run")


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", place], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        skip_unless_ci("the right to mount a small tmpfs is missing")
    yield place
    subprocess.run(["umount", "-l", place], check=True)


@pytest.fixture(scope="session")
def emitter(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The C program, compiled."""
    return compile_program(HERE / "emitter.c", tmp_path_factory.mktemp("emitter"))


EmitterRun = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def emit(session: Session, emitter: str) -> EmitterRun:
    """Run one scene of the emitter under the recorder; it must end well."""

    def run(*words: object, **variables: str) -> subprocess.CompletedProcess[str]:
        done = session.run(emitter, *map(str, words), **variables)
        assert done.returncode == 0, done
        return done

    return run
