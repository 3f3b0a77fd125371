"""--ranks and --processes: bad input, and what is said where nothing was chosen."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.printed_messages import message

from traceable._native import find_recorder_library

Command = Callable[..., subprocess.CompletedProcess[str]]

PROGRAM = "import traceable\nfor n in traceable.steps(range(20)): pass\n"


@pytest.fixture
def run(tmp_path: Path) -> Command:
    """Run `traceable run -o out OPTIONS app.py` under the recorder in an empty directory."""
    if find_recorder_library() is None:
        pytest.skip("the embedded recorder was not built")
    (tmp_path / "app.py").write_text(PROGRAM)
    clean = {name: value for name, value in os.environ.items() if not name.startswith("TRACEABLE_")}

    def call(*options: str, flags: tuple[str, ...] = (), **variables: str) -> subprocess.CompletedProcess[str]:
        words = [sys.executable, *flags, "-m", "traceable", "run", "--collector", "recorder", "-o", "out", *options]
        return subprocess.run(
            [*words, "app.py"], capture_output=True, text=True, cwd=tmp_path, env={**clean, **variables}
        )

    return call


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (("--ranks", "a"), "ranks_invalid"),
        (("--ranks", "3-1"), "ranks_invalid"),
        (("--processes", "worker*,"), "processes_invalid"),
    ],
)
def test_what_can_not_be_chosen_is_one_line(run: Command, tmp_path: Path, options: tuple[str, ...], code: str) -> None:
    done = run(*options)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert f"{options[0]} '{options[1]}'" in line and line.endswith(f"[{code}]")
    assert not (tmp_path / "out").exists()


def test_an_interpreter_that_can_not_be_reached_is_refused(run: Command) -> None:
    done = run("--processes", "app", flags=("-E",))
    assert done.returncode == 2
    assert "-E" in message(done.stderr, "python_isolated")


def test_ranks_without_a_rank_record_nothing_and_say_so(run: Command) -> None:
    done = run("--ranks", "0")
    assert done.returncode == 0
    line = done.stderr.splitlines()[-1]
    assert line.startswith("traceable: --ranks 0: ") and line.endswith("[no_process_has_rank]")
    assert "(RANK, OMPI_COMM_WORLD_RANK, PMI_RANK, SLURM_PROCID)" in line


def test_a_rank_that_there_is_not_beside_one_that_there_is_is_named(run: Command) -> None:
    done = run("--ranks", "0,7-8", RANK="0", WORLD_SIZE="2")
    assert done.returncode == 0, done.stderr
    line = done.stderr.splitlines()[0]
    assert line.startswith("traceable: --ranks 0,7-8: ") and line.endswith(" 7, 8 [ranks_absent]")


def test_names_that_there_are_not_are_answered_with_those_that_there_are(run: Command) -> None:
    done = run("--processes", "worker*", "--steps", "5:9", "--strict")
    assert done.returncode == 3
    line = done.stderr.splitlines()[-1]
    assert line.startswith("traceable: --processes 'worker*' ") and line.endswith(": app [no_process_name_matches]")


def test_a_program_is_chosen_by_its_own_name(run: Command) -> None:
    done = run("--processes", "app", "--steps", "5:9", "--strict")
    assert done.returncode == 0, done.stderr
    assert "requested steps 5-9, captured 4 of 4" in done.stderr.splitlines()


def test_a_rank_that_is_not_asked_for_shows_its_command_line_in_a_dry_run(run: Command) -> None:
    done = run("--ranks", "0", "--dry-run", RANK="1", WORLD_SIZE="2")
    assert done.stdout == f"{sys.executable} app.py\n"


def test_a_directory_that_holds_a_run_takes_no_ranks(run: Command) -> None:
    assert run().returncode == 0
    done = run("--ranks", "0", RANK="0", WORLD_SIZE="2")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("traceable: out ") and line.endswith("[not_a_dir_of_ranks]")
