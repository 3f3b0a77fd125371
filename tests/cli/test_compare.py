"""`traceable report A B ...`: one real program under each collector, its numbers side by side."""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.conftest import REPOSITORY
from tests.printed_messages import message
from tests.skips import skip_unless_ci

from traceable._native import find_recorder_library

Report = Callable[..., "subprocess.CompletedProcess[str]"]

PROGRAM = """
import os, torch, traceable
for n in traceable.steps(range(12)):
    with traceable.annotate("forward"):
        torch.relu(torch.ones(50))
    if os.environ["TRACEABLE_COLLECTOR"] == "nsys":
        with traceable.annotate("only here", domain="lib"):
            pass
"""
LISTENERS = ("recorder", "torch", "nsys")


def command(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    variables = {name: value for name, value in os.environ.items() if not name.startswith("TRACEABLE_")}
    line = [sys.executable, "-m", "traceable", *words]
    return subprocess.run(line, capture_output=True, text=True, cwd=cwd, env=variables, stdin=subprocess.DEVNULL)


@pytest.fixture(scope="module")
def runs(nsys: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a run of the same program under each of LISTENERS, and one without steps."""
    if importlib.util.find_spec("torch") is None:
        skip_unless_ci("torch is missing")
    if find_recorder_library() is None:
        pytest.skip("the embedded recorder was not built")
    folder = tmp_path_factory.mktemp("runs")
    for collector in LISTENERS:
        ended = command("run", "--steps", "2:8", "--collector", collector, "-o", collector, "-c", PROGRAM, cwd=folder)
        assert ended.returncode == 0, ended.stderr
    code = "import traceable\nwith traceable.annotate('forward'): pass\n"
    assert command("run", "--collector", "recorder", "-o", "stepless", "-c", code, cwd=folder).returncode == 0
    return folder


@pytest.fixture
def report(runs: Path) -> Report:
    """Run `traceable report` beside the runs."""
    return lambda *words: command("report", *words, cwd=runs)


def test_the_numbers_of_each_are_those_of_its_own_report(report):
    ended = report(*LISTENERS, "--json")
    assert ended.returncode == 0, ended.stderr
    document = json.loads(ended.stdout)
    assert (document["schema"], document["by"]) == ("traceable.compare/1", "path")
    alone = [json.loads(report(one, "--json").stdout) for one in LISTENERS]
    for letter, mine, own in zip("abc", document["recordings"], alone, strict=True):
        assert mine == {"recording": letter.upper(), **{name: own[name] for name in mine if name != "recording"}}
        rows = {tuple(row["path"]): row for row in own["ranges"]}
        for row in document["rows"]:
            its = rows.get(tuple(row["path"]), {})
            for name in ("count", "cpu_mean_ns", "cpu_p50_ns", "gpu_busy_mean_ns"):
                assert row[f"{letter}_{name}"] == its.get(name)
    assert [row["path"] for row in document["rows"]] == [
        ["step"],
        ["step", "forward"],
        ["step", "only here"],
        ["step.wait"],
    ]
    for row in document["rows"][:2]:
        assert (row["a_count"], row["b_count"], row["c_count"]) == (6, 6, 6)
        assert row["c_cpu_p50_ratio"] == row["c_cpu_p50_ns"] / row["a_cpu_p50_ns"]


def test_what_one_lacks_is_absent_and_never_0(report):
    (row,) = (row for row in json.loads(report(*LISTENERS, "--json").stdout)["rows"] if row["name"] == "only here")
    assert (row["domain"], row["c_count"]) == ("lib", 6)
    assert {row[f"{letter}_{name}"] for letter in "ab" for name in ("count", "cpu_mean_ns", "cpu_p50_ns")} == {None}
    assert row["c_cpu_p50_ratio"] is None


def test_people_see_what_is_what_and_a_tree(report):
    ended = report("recorder", "nsys")
    lines = ended.stdout.splitlines()
    assert lines[:3] == ["2 recordings compared", "A  recorder", "   requested steps 2 to 7, captured 6 of 6"]
    assert "B  nsys" in lines
    heading = next(line for line in lines if line.startswith("range "))
    assert " ".join(heading.split()) == "range A count A mean A p50 B count B mean B p50 mean B/A p50 B/A"
    tree = lines[lines.index(heading) + 1 :]
    assert [line.split("  ")[0] for line in tree[:1]] == ["step"]
    assert tree[1].startswith("  forward ")
    assert tree[2].split()[:4] == ["only", "here", "-", "-"]
    assert "steady steps:" in lines


def test_steps_stand_side_by_side(report):
    rows = json.loads(report(*LISTENERS, "--json").stdout)["others"]["steps"]
    assert [(row["recording"], row["steps"]) for row in rows] == [("A", 6), ("B", 6), ("C", 6)]
    assert rows[0]["wall_p50_ratio"] == 1
    assert rows[2]["wall_p50_ratio"] == rows[2]["wall_p50_ns"] / rows[0]["wall_p50_ns"]
    printed = csv.DictReader(io.StringIO(report(*LISTENERS, "--csv", "--table", "steps").stdout))
    assert [float(row["wall_p50_ns"]) for row in printed] == [row["wall_p50_ns"] for row in rows]


def test_a_recording_without_steps_says_so_and_has_its_ranges(report):
    document = json.loads(report("recorder", "stepless", "--json").stdout)
    assert [row["recording"] for row in document["others"]["steps"]] == ["A"]
    (note,) = document["notes"]
    assert (note["code"], note["text"][:2]) == ("steps_not_shown", "B ")
    # Not inside of a step, so it is another path.
    assert [row["path"] for row in document["rows"]] == [["step"], ["step", "forward"], ["step.wait"], ["forward"]]
    by_name = json.loads(report("recorder", "stepless", "--json", "--by", "name").stdout)["rows"]
    assert {row["name"]: (row["a_count"], row["b_count"]) for row in by_name} == {
        "step": (6, None),
        "forward": (6, 1),
        "step.wait": (5, None),
    }


def test_rows_are_chosen_as_in_any_report(report):
    ended = report("recorder", "nsys", "--csv", "--by", "name", "--sort", "b_cpu_p50_ns", "--top", "1")
    (row,) = csv.DictReader(io.StringIO(ended.stdout))
    assert (row["name"], row["a_count"], row["b_count"]) == ("step", "6", "6")
    for words in (("--match", "only*"), ("--domain", "lib"), ("--range", "only here")):
        (row,) = csv.DictReader(io.StringIO(report("recorder", "nsys", "--csv", *words).stdout))
        assert (row["name"], row["a_count"]) == ("only here", "")
    output = [line for line in ended.stderr.splitlines() if "captured" in line]
    assert output == [f"traceable: {one}: requested steps 2 to 7, captured 6 of 6" for one in ("recorder", "nsys")]


BAD = {
    "a view of one": (("--view", "kernels"), "view_of_one_recording", "--view kernels"),
    "rows of one": (("--by", "instance"), "no_such_grouping", "--by instance"),
    "an expectation": (("--expect", "forward"), "option_of_one_recording", "--expect"),
    "strict": (("--strict",), "option_of_one_recording", "--strict"),
    "a threshold": (("--threshold", "low_utilization.utilization=0.5"), "option_of_one_recording", "--threshold"),
    "no such column": (("--sort", "wall"), "no_such_column", "'wall'; it has path, name"),
    "no such table": (("--csv", "--table", "rules"), "no_such_table", "'rules'; it has steps"),
    "a table for nobody": (("--table", "steps"), "table_needs_csv", "--table"),
    "no such file": (("absent",), "no_such_file", "absent"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_one_line_and_code_2(what, report):
    words, code, names = BAD[what]
    ended = report("recorder", "nsys", *words)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.count("\n") == 1
    assert names in message(ended.stderr, code)


def test_every_column_is_explained(report):
    section = (REPOSITORY / "docs" / "report.md").read_text().partition("\n## side by side\n")[2]
    explained = set(re.findall(r"`(\w+)`", section))
    document = json.loads(report("recorder", "nsys", "--json").stdout)
    columns = {name for name in document["rows"][0] if name[:2] != "b_" or name.endswith("_ratio")}
    assert {*columns, *document["others"]["steps"][0], *document} - explained == set()
