"""`traceable run --again RUN_DIR` runs what that run ran, and says what is not as it was."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.printed_messages import message

PROGRAM = """
import os, sys, traceable
for step in traceable.steps(range(6)):
    with traceable.annotate("pack"): pass
print(os.getcwd(), sys.argv[1:])
"""


@pytest.fixture
def run(tmp_path):
    def begin(*words: str, cwd: Path = tmp_path, flags: tuple[str, ...] = (), **variables: str):
        environ = {name: value for name, value in os.environ.items() if not name.startswith("TRACEABLE_")}
        return subprocess.run(
            [sys.executable, *flags, "-m", "traceable", "run", *words],
            capture_output=True,
            text=True,
            env={**environ, **variables},
            cwd=cwd,
        )

    (tmp_path / "app.py").write_text(PROGRAM)
    (tmp_path / "elsewhere").mkdir()
    return begin


def manifest(directory: Path) -> dict:
    return json.loads((directory / "run.json").read_text())


def test_program_options_and_directory_are_those_of_the_run(run, tmp_path):
    first = run("--collector", "recorder", "--steps", "2:4", "-o", "one", "--force", "app.py", "-o", "--steps", "a b")
    assert first.returncode == 0, first.stderr
    again = run("--again", "../one", "-o", "two", cwd=tmp_path / "elsewhere")
    assert again.returncode == 0, again.stderr
    assert again.stdout == first.stdout == f"{tmp_path} ['-o', '--steps', 'a b']\n"
    one, two = manifest(tmp_path / "one"), manifest(tmp_path / "elsewhere" / "two")
    for key in ("target", "cwd", "stem"):
        assert two[key] == one[key]
    assert two["window"]["windows"] == one["window"]["windows"] == [[2, 4]]
    assert two["collector"]["name"] == "recorder"
    own = "".join(line for line in again.stderr.splitlines() if line.startswith("traceable: "))
    assert "variables" not in own and "was" not in own
    assert f"traceable: in {tmp_path}, as that run" in again.stderr


def test_a_directory_with_ranks_stands_for_the_first(run, tmp_path):
    ranked = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "TORCHELASTIC_RUN_ID": "t"}
    first = run("--collector", "none", "-o", "all", "app.py", "mine", **ranked)
    assert first.returncode == 0, first.stderr
    assert not (tmp_path / "all" / "run.json").exists()
    again = run("--again", "all", "-o", "anew", **ranked)
    assert again.stdout == first.stdout, again.stderr
    assert [one.name for one in (tmp_path / "anew").iterdir()] == [one.name for one in (tmp_path / "all").iterdir()]


def test_what_stands_beside_it_overrides(run, tmp_path):
    run("--collector", "recorder", "--steps", "2:4", "--expect", "gone", "-o", "one", "app.py", "mine")
    again = run("--again", "one", "--steps=1:3", "--expect", "pack", "-o", "two", "app.py", "other")
    assert again.stdout == f"{tmp_path} ['other']\n"
    assert manifest(tmp_path / "two")["window"]["windows"] == [[1, 3]]
    assert "gone" not in again.stderr
    third = run("--again=two", "-o", "three")
    assert third.stdout == again.stdout, third.stderr
    assert manifest(tmp_path / "three")["window"]["windows"] == [[1, 3]]


def test_a_collector_and_steps_that_no_option_named(run, tmp_path):
    run("-o", "one", "app.py", TRACEABLE_STEPS="2:4", TRACEABLE_NSYS="/nowhere/nsys")
    assert manifest(tmp_path / "one")["collector"]["name"] == "recorder"
    again = run("--again", "one", "-o", "two")
    assert again.returncode == 0, again.stderr
    assert manifest(tmp_path / "two")["collector"]["requested"] == "recorder"
    assert manifest(tmp_path / "two")["window"]["windows"] == [[2, 4]]
    assert message(again.stderr, "variables_missing").endswith(" TRACEABLE_NSYS, TRACEABLE_STEPS")


def test_variables_and_flags_that_differ_are_said(run, tmp_path):
    run("--collector", "none", "-o", "one", "app.py", flags=("-X", "dev"), HAD="1")
    again = run("--again", "one", "-o", "two", HAS="1")
    assert again.returncode == 0, again.stderr
    assert message(again.stderr, "variables_missing").endswith(" HAD")
    assert message(again.stderr, "variables_added").endswith(" HAS")
    assert "-X dev" in message(again.stderr, "python_options_changed")


def git_commit(folder: Path, name: str) -> str:
    command = ["git", "rev-parse", name]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


def test_another_commit_and_changes_are_said(run, tmp_path):
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main"]
    quiet = {"cwd": tmp_path, "check": True, "capture_output": True}
    for words in (["init"], ["add", "app.py"], ["commit", "-m", "first"]):
        subprocess.run([*git, *words], **quiet)
    run("--collector", "none", "-o", "one", "app.py")
    (tmp_path / "app.py").write_text(PROGRAM + "# changed\n")
    assert "[changes_not_committed]" in run("--again", "one", "-o", "two").stderr
    subprocess.run([*git, "commit", "-am", "second"], **quiet)
    said = run("--again", "two", "-o", "three").stderr
    commits = [git_commit(tmp_path, name) for name in ("HEAD~1", "HEAD")]
    assert all(commit[:12] in message(said, "commit_changed") for commit in commits)
    assert "[changes_not_recorded]" in said


def test_a_value_that_was_not_written_must_be_given(run, tmp_path):
    run("--collector", "none", "-o", "one", "app.py", "--api-key", "k", "--level=3")
    again = run("--again", "one", "-o", "two")
    assert again.returncode == 2
    refused = message(again.stderr, "secret_not_recorded")
    assert "--api-key" in refused and " one " in refused
    assert not (tmp_path / "two").exists()
    assert run("--again", "one", "-o", "two", "app.py", "--api-key", "k").stdout.endswith("['--api-key', 'k']\n")


def test_what_can_not_be_run_again(run, tmp_path):
    for words, said in (
        (["--again", "nowhere"], "[not_a_run_dir]"),
        (["--again"], "[value_missing]"),
        ([], "[no_program]"),
    ):
        ended = run(*words)
        assert ended.returncode == 2
        assert said in ended.stderr and len(ended.stderr.splitlines()) == 1
    run("--collector", "none", "-o", "one", "app.py", cwd=tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "app.py").write_text(PROGRAM)
    run("--collector", "none", "-o", "one", "app.py", cwd=tmp_path / "elsewhere")
    (tmp_path / "elsewhere").rename(tmp_path / "moved")
    ended = run("--again", "moved/one")
    assert ended.returncode == 2
    assert str(tmp_path / "elsewhere") in message(ended.stderr, "working_directory_missing")
