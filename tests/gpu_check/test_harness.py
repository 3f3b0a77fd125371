"""How checks are run: what each way to end becomes in the table, the results file and the exit code."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from gpu_check import harness

SCRIPTS = Path(harness.__file__).parents[1]

PROGRAM = """
import os, signal, subprocess, sys, time
sys.path.insert(0, {scripts!r})
from gpu_check import harness
from gpu_check.harness import Check, Failed, Machine, NotPossible

def passes(bench):
    (bench.captures / "left.txt").write_text("a capture")
    bench.kept.append({{"file": "left.txt", "what": "a capture", "bytes": 9}})
    return "3 of 3"

def rehearses(bench):
    bench.require_gpu()
    return "done"

def fails(bench):
    print("printed before, by the user of secret")
    raise Failed("1 kernel where 2 were expected")

def cannot(bench):
    raise NotPossible("the tool does not work here")

def has_a_bug(bench):
    return {{}}["absent"]

def crashes(bench):
    os.kill(os.getpid(), signal.SIGSEGV)

def exits(bench):
    print("the last line")
    sys.stdout.flush()
    os._exit(7)

def hangs(bench):
    # In a session of its own, as nsys starts programs, and without a parent.
    child = subprocess.Popen(["sh", "-c", "sleep 1000 & echo $! > " + {pids!r}], start_new_session=True)
    child.wait()
    time.sleep(1000)

def leaves_a_child(bench):
    subprocess.Popen(["sh", "-c", "echo $$ > " + {pids!r} + "; exec sleep 1000"], start_new_session=True)
    while not os.path.exists({pids!r}) or not open({pids!r}).read().endswith(chr(10)):
        pass
    return "left one"

def stops_all(bench):
    os.kill(os.getppid(), signal.SIGTERM)
    time.sleep(1000)

run = {checks}
needs = {{"needs_a_gpu": ("gpu", "ncu"), "needs_ncu": ("ncu",)}}
checks = [Check(one.__name__, "it " + one.__name__, one, seconds={seconds}) for one in run]
checks += [Check(name, name, passes, need) for name, need in needs.items()]
machine = Machine({{"gpu": "no GPU", "ncu": "ncu is not installed"}}, {{"python": "3"}})
sys.exit(harness.main(checks, [__file__], lambda device: machine, lambda text: text.replace("secret", "someone")))
"""


class Ran:
    def __init__(self, done: subprocess.CompletedProcess[str], out: Path) -> None:
        self.done = done
        self.out = out

    @property
    def results(self) -> dict[str, dict[str, Any]]:
        content = json.loads((self.out / harness.RESULTS).read_text())
        return {one["check"]: one for one in content["checks"]}

    def status(self, check: str) -> tuple[str, str]:
        return self.results[check]["status"], self.results[check]["reason"]


@pytest.fixture
def command(tmp_path: Path):
    """Run a command of these checks, as a process; `pids` is a file in which a check leaves the pid of a child."""

    def run(checks: str, *words: str, seconds: float = 60) -> Ran:
        path = tmp_path / "checks.py"
        values = {"scripts": str(SCRIPTS), "pids": str(tmp_path / "pids"), "checks": checks, "seconds": seconds}
        path.write_text(PROGRAM.format(**values))
        out = tmp_path / "out"
        done = subprocess.run(
            [sys.executable, str(path), "--out", str(out), *words], capture_output=True, text=True, timeout=120
        )
        return Ran(done, out)

    return run


def child(tmp_path: Path) -> bool:
    """Whether the child that a check started still runs."""
    return Path(f"/proc/{int((tmp_path / 'pids').read_text())}").exists()


def test_what_a_check_returns_is_its_evidence_and_what_it_leaves_is_listed(command):
    ran = command("[passes]")
    assert ran.done.returncode == 0, ran.done.stderr
    assert ran.status("passes") == (harness.PROVEN, "3 of 3")
    assert ran.results["passes"]["captures"] == [{"file": "left.txt", "what": "a capture", "bytes": 9}]
    assert (ran.out / "left.txt").read_text() == "a capture"


def test_what_is_missing_is_the_reason_of_all_that_need_it_and_no_failure(command):
    ran = command("[]")
    assert ran.done.returncode == 0
    assert ran.status("needs_a_gpu") == (harness.NOT_POSSIBLE, "no GPU")
    assert ran.status("needs_ncu") == (harness.NOT_POSSIBLE, "ncu is not installed")
    assert "2 not possible here" in ran.done.stdout
    assert ran.done.stderr == ""


@pytest.mark.parametrize(
    ("check", "status", "reason"),
    [
        ("fails", harness.FAILED, "1 kernel where 2 were expected"),
        ("cannot", harness.NOT_POSSIBLE, "the tool does not work here"),
        ("has_a_bug", harness.FAILED, "KeyError: 'absent' (checks.py:"),
        ("crashes", harness.FAILED, "its process was killed by SIGSEGV without a result"),
        ("exits", harness.FAILED, "its process ended with exit code 7 without a result: the last line"),
    ],
)
def test_each_way_to_end_has_its_status_and_the_next_check_runs(command, check, status, reason):
    ran = command(f"[{check}, passes]")
    result, why = ran.status(check)
    assert (result, why.startswith(reason)) == (status, True), why
    assert ran.status("passes")[0] == harness.PROVEN
    assert ran.done.returncode == (1 if status == harness.FAILED else 0)


def test_the_end_of_the_log_of_a_failure_is_printed_and_kept_without_private_data(command):
    ran = command("[fails]")
    assert "printed before, by the user of someone" in ran.done.stderr
    assert "printed before, by the user of someone" in (ran.out / harness.LOG).read_text()
    assert "secret" not in ran.done.stderr


def test_a_check_that_hangs_has_failed_and_nothing_of_it_goes_on(command, tmp_path):
    ran = command("[hangs, passes]", seconds=4)
    assert ran.status("hangs") == (harness.FAILED, "did not end within 4 s")
    assert ran.status("passes")[0] == harness.PROVEN
    assert not child(tmp_path)


def test_what_a_check_leaves_running_is_ended_with_it(command, tmp_path):
    ran = command("[leaves_a_child]")
    assert ran.status("leaves_a_child") == (harness.PROVEN, "left one")
    assert not child(tmp_path)


def test_at_the_deadline_what_runs_is_stopped_and_the_rest_not_run_and_neither_has_failed(command):
    ran = command("[hangs, passes]", "--deadline", "6")
    status, reason = ran.status("hangs")
    assert status == harness.NOT_POSSIBLE
    assert reason.startswith("stopped after")
    assert ran.status("passes") == (
        harness.NOT_POSSIBLE,
        "not run: out of time (--deadline)",
    )
    assert ran.done.returncode == 0


def test_stopped_from_outside_it_says_what_it_has(command):
    ran = command("[passes, stops_all, fails]")
    assert ran.done.returncode == 130
    assert ran.status("passes") == (harness.PROVEN, "3 of 3")
    assert ran.status("stops_all") == ran.status("fails") == (harness.NOT_POSSIBLE, "not run: interrupted")
    assert "1 proven, 4 not possible here" in ran.done.stdout


def test_a_rehearsal_proves_nothing(command):
    ran = command("[rehearses, passes]", "--rehearse", "--only", "rehearses", "passes")
    assert ran.status("rehearses") == (harness.REHEARSED, "ran on the CPU up to where a GPU is needed")
    assert ran.status("passes") == (harness.FAILED, "a rehearsal can't prove anything, but the check claims: 3 of 3")


def test_single_checks_run_by_name_and_unknown_ones_are_rejected(command):
    assert list(command("[passes, fails]", "--only", "passes").results) == ["passes"]
    refused = command("[passes]", "--only", "parses")
    assert refused.done.returncode == 2
    assert "no such check: parses;" in refused.done.stderr
    assert "passes" in command("[passes]", "--list").done.stdout


def test_the_table_has_a_row_a_check_and_wraps_long_reasons():
    long = " ".join(["word"] * 40)
    results = [harness.Result("a", "", harness.PROVEN, "3 of 3"), harness.Result("bcd", "", harness.FAILED, long)]
    lines = harness.table(results).splitlines()
    assert lines[0].split() == ["check", "status", "reason", "or", "evidence"]
    assert lines[1] == "a    proven             3 of 3"
    assert lines[2].startswith("bcd  failed             word")
    assert all(line.startswith(" " * 24 + "word") for line in lines[3:5])
    assert " ".join(lines[2].split()[2:] + lines[3].split() + lines[4].split()) == long
    assert lines[-1] == "1 proven, 1 failed"
    assert max(map(len, lines)) <= 120


def test_the_results_file_says_what_the_table_does(command):
    ran = command("[passes, fails]")
    content = json.loads((ran.out / harness.RESULTS).read_text())
    assert content["schema"] == harness.SCHEMA
    assert content["machine"] == {"python": "3"}
    rows = [line.split("  ") for line in ran.done.stdout.splitlines()[1:5]]
    assert [row[0].strip() for row in rows] == [one["check"] for one in content["checks"]]
    assert sorted(path.name for path in ran.out.iterdir()) == [harness.RESULTS, harness.LOG, "left.txt"]
