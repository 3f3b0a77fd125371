"""Programs on another machine: `run --via` through a real sshd, and through stand-ins for kubectl and docker."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.launch.sshd import serve_ssh

STAND_INS = {
    "kubectl": 'while [ "$1" != -- ]; do shift; done\nshift\nexec "$@"\n',
    "docker": 'shift 3\nexec "$@"\n',
}
PREFIXES = {"kubectl": "kubectl exec -i pod --", "docker": "docker exec -i container"}

PROGRAM = """
import os, sys, traceable
for number in range(3):
    with traceable.annotate("outer"), traceable.annotate("inner"):
        print("line", number, flush=True)
        print("error", number, file=sys.stderr, flush=True)
print(sys.stdin.read())
sys.exit(7)
"""


@pytest.fixture(scope="session")
def ssh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The prefix command of a server on this machine."""
    with serve_ssh(tmp_path_factory.mktemp("sshd")) as prefix:
        yield prefix


@pytest.fixture
def there(tmp_path: Path, environ: dict[str, str]) -> Path:
    """The working directory there, with a program; the temporary directory there is `there / "tmp"`."""
    directory = tmp_path / "there"
    (directory / "tmp").mkdir(parents=True)
    (directory / "app.py").write_text(PROGRAM)
    (tmp_path / "bin").mkdir()
    for name, lines in STAND_INS.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{lines}")
        (tmp_path / "bin" / name).chmod(0o755)
    environ["PATH"] = os.pathsep.join((str(tmp_path / "bin"), environ["PATH"]))
    return directory


@pytest.fixture
def prefix(request: pytest.FixtureRequest, there: Path) -> str:
    """A prefix command: `docker`, or what the parameter names."""
    name = getattr(request, "param", "docker")
    command = request.getfixturevalue("ssh") if name == "ssh" else PREFIXES[name]
    return f"{command} env -C {there} TMPDIR={there / 'tmp'}"


@pytest.fixture
def words(prefix: str, tmp_path: Path) -> Callable[..., list[str]]:
    """The command line of `traceable run --via`, with its run directory at `tmp_path / "out"`."""

    def build(*program: str, python: str = sys.executable, via: str = prefix) -> list[str]:
        options = ["--via", via, "--via-python", python, "-o", str(tmp_path / "out"), "--collector", "recorder"]
        return [sys.executable, "-m", "traceable", "run", *options, *program]

    return build


@pytest.fixture
def run_via(
    words: Callable[..., list[str]], environ: dict[str, str], tmp_path: Path
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run a program there and return the result."""

    def run(*program: str, stdin: str = "", **options: str) -> subprocess.CompletedProcess[str]:
        command = words(*program, **options)
        return subprocess.run(
            command, cwd=tmp_path, env=environ, input=stdin, capture_output=True, text=True, check=False
        )

    return run


def load(path: Path) -> dict:
    return json.loads(path.read_text())


def list_ranges(directory: Path) -> list[tuple[str, int]]:
    return sorted((row["name"], row["count"]) for row in load(directory / "report.json")["names"])


def list_processes_of(there: Path) -> list[int]:
    """The processes whose environment or command line names the other machine's directory."""
    result = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if str(there).encode() in (entry / "environ").read_bytes() + (entry / "cmdline").read_bytes():
                    result.append(int(entry.name))
            except OSError:
                continue
    return result


@pytest.mark.parametrize("prefix", ["ssh", "kubectl", "docker"], indirect=True)
def test_a_program_there_is_reported_as_a_program_here(run_via, run, there, tmp_path):
    done = run_via("app.py", stdin="what it reads")
    assert done.returncode == 7, done.stderr
    assert done.stdout == "line 0\nline 1\nline 2\nwhat it reads\n"
    assert [line for line in done.stderr.splitlines() if line.startswith("error")] == ["error 0", "error 1", "error 2"]
    assert list_ranges(tmp_path / "out") == [("inner", 3), ("outer", 3)]
    manifest = load(tmp_path / "out" / "run.json")
    assert manifest["run_dir"] == str(tmp_path / "out")
    assert manifest["end"]["exit_code"] == 7 and manifest["host"]["name"] == os.uname().nodename
    assert manifest["via"]["host"] == {"name": os.uname().nodename} and not manifest["via"]["carried"]
    assert shlex.split(manifest["target"]["program"]) == ["app.py"]
    assert not any((there / "tmp").iterdir()) and not list_processes_of(there)


def test_the_profile_is_that_of_a_run_here(run_via, run, there, tmp_path):
    (tmp_path / "app.py").write_text(PROGRAM)
    assert run("recorder", "").returncode == 7
    local = list_ranges(tmp_path / "out")
    (tmp_path / "out").rename(tmp_path / "local")
    assert run_via("app.py").returncode == 7
    assert list_ranges(tmp_path / "out") == local
