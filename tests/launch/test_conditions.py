"""Conditions and step functions under the collectors themselves: the report holds what was asked, and says so."""

from __future__ import annotations

import re

import pytest
from tests.launch.test_windows import PROGRAM, ran, recording  # noqa: F401 - fixtures

from traceable.launch import run_dir

SERVER = """
import sys, traceable
for number in range(int(sys.argv[1])):
    with traceable.annotate("request"): pass
    if number == 29: print(open("/proc/self/stat").read() and "served")
"""


def test_warm_up_steps_move_the_window(recording, ran):  # noqa: F811
    run = ran(recording, "--steps", "10:30", "--warmup-steps", "5", "--strict")
    assert run.done.returncode == 0, run.done.stderr
    assert "asked steps 10-30 after 5 warm-up steps: the program's 15-35, captured 20 of 20" in run.said
    assert run.steps("app.sqlite") == list(range(15, 35))
    (row,) = run.captured["windows"]
    assert (row["start_step"], row["stop_step"], row["counted_from_step"]) == (15, 35, 5)
    assert run.captured["conditions"] == "after 5 warm-up steps"


def test_a_window_of_time_of_a_program_that_knows_nothing_of_us(recording, ran):  # noqa: F811
    code = (
        "import time, sys\nend = time.monotonic() + 3\nwhile time.monotonic() < end: time.sleep(0.01)\nprint('ended')"
    )
    run = ran(recording, "--delay", "start+1", "--duration", "0.5", "--strict", code=code)
    assert (run.done.returncode, run.done.stdout) == (0, "ended\n"), run.done.stderr
    (said,) = [line for line in run.said if line.startswith("asked")]
    assert said.startswith("asked 0.5 s after 1 s from the start of the process, captured ")
    (row,) = run.captured["windows"]
    assert row["closed_wall_ns"] - row["close_stall_ns"] - row["opened_wall_ns"] >= 500_000_000
    assert (row["steps"], row["outcome"]) == (0, "captured")


SLOW_IMPORT = """
import time, traceable
from traceable.capture.conditions import age_s
from traceable.capture.control import session
while age_s() < 1.5: time.sleep(0.01)  # what a module does that takes long to import
with traceable.annotate("first"): pass
while not session.state["closed"]:
    with traceable.annotate("work"): time.sleep(0.001)
"""


@pytest.mark.parametrize("form", ["native", "pure"])
def test_a_delay_is_counted_from_the_first_range(form, ran, monkeypatch):  # noqa: F811
    monkeypatch.setenv("TRACEABLE_PURE", "1" if form == "pure" else "0")
    run = ran("recorder", "--delay", "0.2", "--duration", "0.3", "--strict", code=SLOW_IMPORT)
    assert run.done.returncode == 0, run.done.stderr
    assert any(line.startswith("asked 0.3 s after 0.2 s from the first range or step, captured ") for line in run.said)
    assert {row["name"] for row in run.report["names"]} == {"work"}


def test_a_window_that_closed_before_the_first_range_is_said(ran):  # noqa: F811
    run = ran("recorder", "--delay", "start+0.2", "--duration", "0.3", code=SLOW_IMPORT)
    (said,) = [line for line in run.said if "before the first range" in line]
    assert re.match(r"certain: the window closed \d+\.\d s before the first range \(process \d+ made its first", said)
    assert not any(line.startswith("likely: ") for line in run.said)


def test_a_delay_from_a_range_that_never_came_is_said(ran):  # noqa: F811
    run = ran("recorder", "--delay", "0.2", "--strict", code="import traceable")
    assert run.done.returncode == 3
    (said,) = [line for line in run.said if "never reached" in line]
    assert "no range and no step began, from which the delay is counted (--delay start+S" in said


def test_after_requests_everything_is_recorded_to_the_end(recording, ran):  # noqa: F811
    run = ran(recording, "--after-request", "10", "--strict", code=SERVER, words=("30",))
    assert (run.done.returncode, run.done.stdout) == (0, "served\n"), run.done.stderr
    assert any(line.startswith("asked everything after 10 requests, captured ") for line in run.said)
    assert [(row["name"], row["count"], row["clipped"]) for row in run.report["names"]] == [("request", 20, 0)]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--after-request", "100", "--steps", "1:2"], "steps 1-2: never reached: 0 of 100 requests were over"),
        (["--after-request", "100"], "never reached: 0 of 100 requests were over"),
        (["--warmup-steps", "60", "--steps", "1:2"], "steps 1-2: never reached: 50 of 60 warm-up steps were over"),
        (["--warmup-steps", "50"], "never reached: no step began after its conditions were met"),
        (["--warmup-steps", "45", "--steps", "10:12"], "steps 55-57: never reached: the program ended after 50 steps"),
        (["--idle", "1000"], "never reached: no step came after 1000 s without one (the longest was "),
    ],
    ids=lambda given: " ".join(given) if isinstance(given, list) else "",
)
def test_what_was_never_met_is_said_with_how_far_it_came(ran, options, said):  # noqa: F811
    run = ran("recorder", *options, "--strict")
    assert run.done.returncode == 3
    assert any(line.startswith(said) for line in run.said), run.done.stderr
    assert run_dir.read(run.directory)["end"]["exit_code"] == 0


def test_requests_are_counted_up_to_a_kill(ran):  # noqa: F811
    code = SERVER + "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n"
    run = ran("recorder", "--after-request", "100", code=code, words=("30",))
    assert "never reached: 30 of 100 requests were over" in run.said


def test_a_duration_longer_than_the_program_is_said(ran):  # noqa: F811
    run = ran("recorder", "--duration", "1000", "--strict")
    assert run.done.returncode == 3
    (said,) = [line for line in run.said if line.startswith("the window: ")]
    assert re.fullmatch(
        r"the window: stopped early, after \S+ s of 1000 s, by the end of the program \(exit code 0\)", said
    )


def test_each_process_has_its_own_window_of_time(ran):  # noqa: F811
    code = (
        "import os, traceable\nchild = os.fork()\n"
        "with traceable.annotate('child' if child == 0 else 'parent'): pass\n"
        "if child: os.waitpid(child, 0)\n"
    )
    run = ran("recorder", "--delay", "start+0.000001", code=code)
    assert sorted(row["name"] for row in run.report["names"]) == ["child", "parent"]
    assert len(run.captured["windows"]) == 2


def test_steps_of_a_function_of_a_program_that_knows_nothing_of_us(recording, ran, tmp_path):  # noqa: F811
    (tmp_path / "engine.py").write_text("class Engine:\n    def step(self, n): return n + 1\n")
    code = "from engine import Engine\nprint(sum(Engine().step(n) for n in range(50)))"
    run = ran(recording, "--step-function", "engine:Engine.step", "--steps", "10:30", "--strict", code=code)
    assert (run.done.returncode, run.done.stdout) == (0, "1275\n"), run.done.stderr
    assert "asked steps 10-30, captured 20 of 20" in run.said
    assert run.steps("app.sqlite") == list(range(10, 30))


def test_a_window_in_code_that_nsys_was_not_told_of_is_said_and_all_is_recorded(ran, nsys):  # noqa: F811
    run = ran("nsys", code="import traceable\ntraceable.window(10, 30)\n" + PROGRAM)
    said = "traceable.window() has no effect: nsys was started to record everything; "
    assert run.said.count(said + "name the steps with `run --steps`, or run with --control") == 1
    assert run.steps("app.sqlite") == list(range(50))
    assert run.report["capture"] is None
