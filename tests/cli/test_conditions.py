"""The options that say when windows begin: what is asked of the program, and what is refused before it starts."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

CONTROLLED = "--control alone has no windows for it; name some with --steps, or leave out --control"
Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(tmp_path: Path) -> Command:
    """`traceable run` of a program that says that it ran, in an empty directory."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TRACEABLE_")}

    def call(*options: str, **variables: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "traceable", "run", "--collector", "none", *options, "-c", "print('ran')"]
        return subprocess.run(command, cwd=tmp_path, env={**kept, **variables}, capture_output=True, text=True)

    return call


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--delay", "-1"], "--delay '-1' is no number of seconds from 0 on; write one like 2.5"),
        (["--delay", "nan"], "--delay 'nan' is no number of seconds from 0 on; write one like 2.5"),
        (["--duration", "0"], "--duration '0' is no number of seconds above 0; write one like 2.5"),
        (["--idle", "soon"], "--idle 'soon' is no number of seconds above 0; write one like 2.5"),
        (["--warmup-steps", "1.5"], "--warmup-steps '1.5' is no number from 0 on; write one like 5"),
        (["--after-request", "-3"], "--after-request '-3' is no number from 0 on; write one like 5"),
        (["--delay", ""], "a condition has no value; write one as in --delay 10"),
        (
            ["--warmup-steps", "5", "--control"],
            f"after 5 warm-up steps: {CONTROLLED}",
        ),
        (
            ["--duration", "5", "--sigusr2"],
            f"a duration of 5 s: {CONTROLLED}",
        ),
        (
            ["--step-function", "engine:step=decode"],
            "step function 'engine:step=decode': a step is a range of the name 'step'; leave out '=decode'; "
            "name a function as in engine:Engine.step",
        ),
        (
            ["--step-function", "engine.step"],
            "annotate pattern 'engine.step': no ':' between module and name; write it as engine:step; "
            "name a function as in engine:Engine.step",
        ),
    ],
    ids=lambda given: " ".join(given) if isinstance(given, list) else "",
)
def test_bad_input_is_one_line_and_starts_nothing(run, options, said):
    done = run(*options)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"traceable: {said}\n")


def test_what_the_environment_asks_is_checked_too(run):
    done = run(TRACEABLE_DELAY="x")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "TRACEABLE_DELAY 'x' is no number of seconds" in done.stderr


def test_the_program_is_told(run):
    said = run(
        "--dry-run", "--warmup-steps", "5", "--idle", "1e-3", "--steps", "1:2", TRACEABLE_DELAY="2"
    ).stdout.split()
    assert {"TRACEABLE_WARMUP_STEPS=5", "TRACEABLE_IDLE=0.001", "TRACEABLE_DELAY=2", "TRACEABLE_GATE=none"} <= set(said)
    assert not any(word.startswith("PYTHONPATH=") for word in said)


def test_a_window_of_time_is_for_programs_too_that_never_import_traceable(run):
    said = run("--dry-run", "--duration", "5").stdout
    assert "TRACEABLE_DURATION=5" in said
    assert "annotation/bootstrap" in said


def test_an_option_counts_instead_of_its_variable(run):
    assert "TRACEABLE_DELAY=3" in run("--dry-run", "--delay", "3", TRACEABLE_DELAY="2").stdout.split()


def test_without_a_collector_the_program_runs_as_ever(run):
    done = run("--duration", "5", "--after-request", "3", "--strict", "--collector", "recorder")
    assert done.stdout == "ran\n"
    assert done.returncode == 3
    assert "traceable: never reached: 0 of 3 requests were over" in done.stderr.splitlines()
    assert run("--duration", "5", "--step-function", "engine:step").stdout == "ran\n"
