"""`run --steps`: the report contains those steps, or the reason why it does not. Real nsys, real processes."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import traceable
from traceable import collectors
from traceable.protocol import run_dir
from traceable.trace import load

PROGRAM = """
import sys, traceable
with traceable.annotate("setup"): pass
for number in traceable.steps(range(int(sys.argv[1]))):
    with traceable.annotate("work"): pass
"""
FIFO = """
import os, sys, traceable
for number in traceable.steps(range(50)):
    with traceable.annotate("work"): pass
    if number == 17:
        open("ready", "w").close()
        open("go").read()
"""


@dataclass(frozen=True)
class Ran:
    """A run that has ended."""

    done: subprocess.CompletedProcess[str]
    directory: Path

    @property
    def messages(self) -> list[str]:
        return [line.removeprefix("traceable: ") for line in self.done.stderr.splitlines()]

    @property
    def report(self) -> dict[str, Any]:
        content: dict[str, Any] = json.loads((self.directory / "report.json").read_text())
        return content

    @property
    def captured(self) -> dict[str, Any]:
        """The result of the capture in the manifest."""
        captured: dict[str, Any] = run_dir.load_manifest(self.directory)["window"]["captured"]
        return captured

    @property
    def step_counts(self) -> tuple[int, int]:
        """How many steps were captured, and how many the windows have."""
        return self.captured["captured_steps"], sum(window["steps"] for window in self.captured["windows"])

    def steps(self, database: str) -> list[int]:
        """The indices of the steps in one database, whole and cut."""
        trace = load(self.directory / database)
        name = trace.names.index("step") if "step" in trace.names else -2
        return list(trace.ranges.payload[trace.ranges.name == name].tolist())

    @property
    def databases(self) -> list[str]:
        return sorted(path.name for path in self.directory.glob("*.sqlite"))


@pytest.fixture(params=["recorder", "nsys"])
def recording(request: pytest.FixtureRequest) -> str:
    """Each collector that records, by name."""
    name: str = request.param
    if name == "nsys":
        request.getfixturevalue("nsys")
    elif not (result := collectors.create_collector(name).check_availability()).available:
        pytest.skip(result.reason)
    return name


@pytest.fixture
def ran(tmp_path: Path, environ: dict[str, str]) -> Callable[..., Ran]:
    """Run code under a collector with these options, in an empty directory."""

    def call(collector: str, *options: str, code: str = PROGRAM, words: tuple[str, ...] = ("50",), **more: str) -> Ran:
        command = [sys.executable, "-m", "traceable", "run", "--collector", collector, "-o", "out", "--name", "app"]
        done = subprocess.run(
            [*command, *options, "-c", code, *words],
            cwd=tmp_path,
            env={**environ, **more},
            capture_output=True,
            text=True,
            timeout=180,
        )
        return Ran(done, tmp_path / "out")

    return call


def test_the_report_holds_the_steps_and_is_verified(recording, ran):
    run = ran(recording, "--steps", "10:30", "--strict")
    assert run.done.returncode == 0, run.done.stderr
    assert run.step_counts == (20, 20)
    assert run.databases == ["app.sqlite"]
    assert run.steps("app.sqlite") == list(range(10, 30))
    # Between the steps of a window lie their waits.
    assert {(row["name"], row["count"], row["clipped"]) for row in run.report["names"]} == {
        ("step", 20, 0),
        ("step.wait", 19, 0),
        ("work", 20, 0),
    }
    assert run.report["capture"] == run.captured
    (window,) = run.captured["windows"]
    assert (window["outcome"], window["opened_step"], window["closed_step"]) == ("captured", 10, 30)
    assert run_dir.load_manifest(run.directory)["window"]["requested"] == "10:30"


def test_several_windows_are_matched_by_their_ids(recording, ran):
    run = ran(recording, "--steps", "20:22,5:7", "--strict")
    assert run.done.returncode == 0, run.done.stderr
    assert run.step_counts == (4, 4)
    assert [window["outcome"] for window in run.captured["windows"]] == ["captured"] * 2
    recorded = [run.steps(name) for name in run.databases]
    assert recorded == ([[5, 6], [20, 21]] if recording == "nsys" else [[5, 6, 20, 21]])
    files = [window["file"] for window in run.captured["windows"]]
    assert files == (["app.1.nsys-rep", "app.2.nsys-rep"] if recording == "nsys" else ["app.sqlite"] * 2)
    together = traceable.load(run.directory)
    counts = {row["name"]: row["count"] for row in together.profile.names.rows()}
    assert counts == {"step": 4, "step.wait": 2, "work": 4}
    assert together.windows is not None and together.windows.ok


def test_an_endless_row_of_windows(recording, ran):
    run = ran(recording, "--steps", "every:20:2", "--strict")
    assert run.done.returncode == 0, run.done.stderr
    assert run.step_counts == (4, 4)
    assert [window["outcome"] for window in run.captured["windows"]] == ["captured"] * 2
    assert sorted(step for name in run.databases for step in run.steps(name)) == [20, 21, 40, 41]


def test_the_variable_asks_as_the_option_does(recording, ran):
    run = ran(recording, TRACEABLE_STEPS="3:5")
    assert run.step_counts == (2, 2)
    assert [(window["start_step"], window["stop_step"]) for window in run.captured["windows"]] == [(3, 5)]


def stopped_early(lines: list[str], steps: str, *facts: str) -> bool:
    """Whether one line reports that the window of these steps was stopped early, with these facts."""
    (message,) = (line for line in lines if line.endswith("[window_stopped_early]"))
    return steps in message and all(fact in message for fact in facts)


def test_steps_that_are_never_reached_are_reported_and_make_strict_3(recording, ran):
    run = ran(recording, "--steps", "90:95", "--strict")
    assert run.done.returncode == 3
    assert run.step_counts == (0, 5)
    (message,) = (line for line in run.messages if line.endswith("[window_never_reached]"))
    assert "90 to 94" in message and " 50 steps" in message
    assert run_dir.load_manifest(run.directory)["end"]["exit_code"] == 0
    assert [window["outcome"] for window in run.captured["windows"]] == ["never_reached"]


def test_one_window_of_two_that_is_never_reached_leaves_the_other(recording, ran):
    run = ran(recording, "--steps", "10:12,90:95", "--strict")
    assert run.done.returncode == 3
    assert run.step_counts == (2, 7)
    assert [window["outcome"] for window in run.captured["windows"]] == ["captured", "never_reached"]
    assert run.steps("app.sqlite") == [10, 11]


def test_a_program_that_never_steps_is_told_how(recording, ran):
    run = ran(recording, "--steps", "1:2", "--strict", code="import traceable\nwith traceable.annotate('x'): pass")
    assert run.done.returncode == 3
    assert any(line.endswith("[no_step_began]") and "traceable.steps(...)" in line for line in run.messages)


def test_a_program_that_ends_within_the_window_stops_it_early(recording, ran):
    run = ran(recording, "--steps", "40:60", "--strict")
    assert run.done.returncode == 3
    assert run.step_counts == (10, 20)
    assert stopped_early(run.messages, "40 to 59", "step 50", "exit code 0")


def test_the_programs_own_exit_code_comes_before_that_of_strict(recording, ran):
    code = "import sys, traceable\nfor n in traceable.steps(range(50)):\n    if n == 5: sys.exit(7)\n"
    run = ran(recording, "--steps", "3:9", "--strict", code=code)
    assert run.done.returncode == 7
    assert stopped_early(run.messages, "3 to 8", "step 6", "exit code 7")


def test_a_signal_in_the_middle_of_a_window_is_named_with_its_step(recording, command, start, tmp_path):
    for name in ("ready", "go"):
        os.mkfifo(tmp_path / name)
    process = start(command(recording, "--steps", "10:30", "-c", FIFO), stderr=subprocess.PIPE)
    (tmp_path / "ready").read_bytes()
    process.send_signal(signal.SIGTERM)
    _, stderr = process.communicate(timeout=120)
    assert process.returncode == -signal.SIGTERM
    assert stopped_early(stderr.decode().splitlines(), "10 to 29", "step 17", "SIGTERM")
    if recording == "recorder":
        captured = run_dir.load_manifest(tmp_path / "out")["window"]["captured"]
        assert (captured["captured_steps"], captured["windows"][0]["steps"]) == (7, 20)
        assert "before that" not in stderr.decode()


def test_a_launcher_that_was_killed_is_judged_later(recording, command, start, tmp_path, environ):
    for name in ("ready", "go"):
        os.mkfifo(tmp_path / name)
    process = start(command(recording, "--steps", "10:30", "-c", FIFO))
    (tmp_path / "ready").read_bytes()
    pid = run_dir.load_manifest(tmp_path / "out")["pid"]
    gone = os.pidfd_open(pid)
    process.send_signal(signal.SIGKILL)
    process.wait()
    (tmp_path / "go").write_text("")
    assert select.select([gone], [], [], 120)[0]
    words = [sys.executable, "-m", "traceable", "report", "out", "--strict"]
    report = subprocess.run(words, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=180)
    assert report.returncode == 0, report.stderr
    assert " 20 of 20" in report.stdout


def test_without_a_recording_the_windows_are_opened_and_nothing_is_judged(ran):
    run = ran("none", "--steps", "10:30")
    assert run.done.returncode == 0
    (status,) = [json.loads(path.read_text())["steps"] for path in run.directory.glob("process.*.json")]
    assert [(window["start_step"], window["reason"]) for window in status["windows"]] == [(10, "complete")]
    assert not any("captured" in line for line in run.messages)


@pytest.mark.parametrize("spec", ["30:10", "a:b", "-1:5", "1:5,3:8", "", "every:5:6"])
def test_what_can_not_be_recorded_is_one_line_before_anything_starts(ran, spec):
    run = ran("recorder", f"--steps={spec}")
    assert run.done.returncode == 2
    assert len(run.done.stderr.splitlines()) == 1
    assert "; " in run.done.stderr
    assert not run.directory.exists()


def test_dry_run_shows_how_nsys_is_gated(nsys, ran):
    for spec, end in (("10:30", "stop"), ("1:2,5:7", "repeat:2"), ("every:9:1", "repeat")):
        shown = ran("nsys", "--dry-run", "--steps", spec).done.stdout
        assert f"--capture-range=nvtx --nvtx-capture=capture@traceable.window --capture-range-end={end} " in shown
        assert f"TRACEABLE_STEPS={spec}" in shown
        assert "TRACEABLE_GATE=nvtx" in shown
        assert "--kill=none" in shown
