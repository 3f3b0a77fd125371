"""Real launchers around real programs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from traceable import collectors

Command = Callable[..., list[str]]


@pytest.fixture(params=["none", "recorder", "nsys"])
def collector(request: pytest.FixtureRequest) -> str:
    """Each collector that works here, by name."""
    name: str = request.param
    if name == "nsys":
        request.getfixturevalue("nsys")
    elif not (result := collectors.create_collector(name).check_availability()).available:
        pytest.skip(f"collector {name}: {result.reason}")
    return name


@pytest.fixture
def command(tmp_path: Path) -> Command:
    """The command line of `traceable run` with its run directory at `tmp_path / "out"`."""

    def build(collector: str, *words: str, flags: tuple[str, ...] = ()) -> list[str]:
        options = ["--collector", collector, "-o", str(tmp_path / "out")]
        return [sys.executable, *flags, "-m", "traceable", "run", *options, *words]

    return build


@pytest.fixture
def environ() -> dict[str, str]:
    """The environment of this process without what a launcher around the tests may have put there."""
    return {name: value for name, value in os.environ.items() if not name.startswith("TRACEABLE_")}


@pytest.fixture
def run(command: Command, environ: dict[str, str], tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run some code, or app.py, by the launcher and return the result; its run directory is `tmp_path / "out"`."""

    def launch(collector: str, code: str, *options: str, **variables: str) -> subprocess.CompletedProcess[str]:
        words = command(collector, *options, *(("-c", code) if code else ("app.py",)))
        env = {**environ, **variables}
        return subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)

    return launch


@pytest.fixture
def start(environ: dict[str, str], tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Start a process in `tmp_path`; whatever still runs of it at the end of the test is killed."""
    started: list[subprocess.Popen[bytes]] = []

    def begin(words: list[str], **more: object) -> subprocess.Popen[bytes]:
        options = {"cwd": tmp_path, "env": environ, "stdin": subprocess.DEVNULL, **more}
        process: subprocess.Popen[bytes] = subprocess.Popen(words, **options)  # type: ignore[call-overload]
        started.append(process)
        return process

    yield begin
    for process in started:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            process.wait()
