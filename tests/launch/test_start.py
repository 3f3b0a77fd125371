"""An nsys that fails at its start: tried once more where it may well not fail again, and said."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.launch.conftest import Command

from traceable.trace import load

STAND_IN = """#!/bin/sh
# An nsys that fails at the start of a recording as the test wants it, and is the real one otherwise.
if [ "$1" = profile ] && [ "$2" != --help ]; then
{fails}
fi
exec {nsys} "$@"
"""

Make = Callable[[str], None]


@pytest.fixture
def stand_in(nsys: str, tmp_path: Path, environ: dict[str, str]) -> Make:
    """Make TRACEABLE_NSYS an nsys that does some lines of shell first."""

    def make(fails: str) -> None:
        path = tmp_path / "bin" / "nsys"
        path.parent.mkdir()
        path.write_text(STAND_IN.format(fails=fails, nsys=nsys))
        path.chmod(0o755)
        environ["TRACEABLE_NSYS"] = str(path)

    return make


def run(command: Command, environ: dict[str, str], folder: Path) -> subprocess.CompletedProcess[str]:
    words = command("nsys", "app.py")
    return subprocess.run(words, capture_output=True, text=True, env=environ, cwd=folder, stdin=subprocess.DEVNULL)


def test_a_passing_failure_is_tried_once_more(
    stand_in: Make, command: Command, environ: dict[str, str], tmp_path: Path
) -> None:
    stand_in('if [ ! -e failed ]; then touch failed; echo "Connection reset by peer"; exit 1; fi')
    code = "import traceable\nwith traceable.annotate('pack'): open('ran', 'a').write('x')\n"
    (tmp_path / "app.py").write_text(code)
    ended = run(command, environ, tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert "nsys ended with 1 before it started the program (Connection reset by peer): trying once more" in (
        ended.stderr
    )
    assert (tmp_path / "ran").read_text() == "x"
    trace = load(tmp_path / "out" / "app.sqlite")
    assert [trace.names[index] for index in trace.ranges.name.tolist()] == ["pack"]


@pytest.mark.parametrize(
    ("says", "times"), [("End of file", 2), ("Illegal --trace argument 'x'.", 1)], ids=["passing", "refused"]
)
def test_it_is_not_tried_a_third_time_and_a_refusal_not_a_second(
    stand_in: Make, command: Command, environ: dict[str, str], tmp_path: Path, says: str, times: int
) -> None:
    stand_in(f'echo x >> tried; echo "{says}"; exit 1')
    (tmp_path / "app.py").write_text("open('ran', 'w')\n")
    ended = run(command, environ, tmp_path)
    assert ended.returncode == 2
    assert (tmp_path / "tried").read_text() == "x\n" * times
    assert f"({says})" in ended.stderr
    assert not (tmp_path / "ran").exists()
