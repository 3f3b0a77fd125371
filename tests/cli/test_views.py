"""`traceable report PATH --view ...`, as a user runs it, on a small export that has something for every view."""

from __future__ import annotations

import csv
import io
import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.report.made import STEPS, export

from traceable.recording import load
from traceable.report.views import ALL, RANGES, VIEWS

OTHERS = [name for name in VIEWS if name != RANGES.name]
UNLIKE_THE_REST = {"findings"}
"""Views whose answer may have no row."""


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export(tmp_path_factory.mktemp("export") / "made.sqlite")


def report(*words: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "traceable", "report", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def said(*words: str | Path) -> str:
    done = report(*words)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def document(*words: str | Path) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(said(*words, "--json"))
    return read


def refused(*words: str | Path) -> str:
    """The one line on stderr."""
    done = report(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("traceable: ")
    assert done.stderr.count("\n") == 1
    return done.stderr


@pytest.mark.parametrize("view", OTHERS)
def test_a_view_says_what_was_read_and_then_answers(database: Path, view: str) -> None:
    lines = said(database, "--view", view).splitlines()
    assert lines[0] == f"{view} of {database}"
    assert "maker" in lines[1]
    assert lines[2].startswith("GPU: ")
    assert lines[3] == ""
    assert len(lines) > 4


@pytest.mark.parametrize("view", OTHERS)
def test_json_has_the_head_and_the_answer_under_the_name_of_the_view(database: Path, view: str) -> None:
    read = document(database, "--view", view)
    head = {
        "schema",
        "source",
        "window",
        "folded_names",
        "coverage",
        "selection",
        "capture",
        "overhead",
        "completeness",
        "flight_recorder",
    }
    assert set(read) == {*head, view}
    assert read["schema"] == "traceable.report/1"
    assert set(read[view]) == {"rows", "others", "notes"}
    assert read[view]["rows"] or view in UNLIKE_THE_REST


@pytest.mark.parametrize("view", OTHERS)
def test_csv_is_the_table_of_the_json(database: Path, view: str) -> None:
    answer = document(database, "--view", view)[view]
    for words, rows in [
        ((), answer["rows"]),
        *(((("--table", name), other)) for name, other in answer["others"].items()),
    ]:
        read = list(csv.reader(io.StringIO(said(database, "--view", view, "--csv", *words))))
        assert len(read) == 1 + len(rows)
        if rows:
            assert read[0] == list(rows[0])
            assert read[1] == [cell(value) for value in rows[0].values()]


def cell(value: Any) -> str:
    if isinstance(value, list | bool):
        return json.dumps(value)
    return "" if value is None else str(value)


@pytest.mark.parametrize(("view", "by"), [(view.name, by) for view in VIEWS.values() for by in view.by])
def test_every_by_that_the_help_offers_is_answered(database: Path, view: str, by: str) -> None:
    assert said(database, "--view", view, "--by", by).count("\n") > 4


def test_all_is_every_view_and_says_of_the_rest_why_not(database: Path, tmp_path: Path) -> None:
    read = document(database, "--view", ALL)
    assert set(VIEWS) <= set(read)
    text = said(database, "--view", ALL)
    assert all(f"\n{view}: {VIEWS[view].help}\n" in text for view in OTHERS)
    cpu_only = tmp_path / "cpu.sqlite"
    cpu_only.write_bytes(b"")
    without_gpu(cpu_only)
    lines = said(cpu_only, "--view", ALL).splitlines()
    assert sum(line.startswith("not answered: ") for line in lines) >= 4
    assert "unanswerable" in document(cpu_only, "--view", ALL)["kernels"]


def without_gpu(path: Path) -> None:
    export(path.with_name("whole.sqlite")).replace(path)
    connection = sqlite3.connect(path)
    tables = connection.execute("SELECT name FROM sqlite_master WHERE name LIKE 'CUPTI%'").fetchall()
    for (table,) in tables:
        connection.execute(f"DROP TABLE {table}")
    connection.commit()
    connection.close()


def test_one_view_that_cannot_be_answered_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    path = tmp_path / "cpu.sqlite"
    without_gpu(path)
    assert "on a machine with a GPU" in refused(path, "--view", "kernels")
    assert refused(path, "--view", "gaps", "--json")


def test_range_narrows_and_a_range_that_is_not_there_names_those_that_may_be_meant(database: Path) -> None:
    whole = document(database, "--view", "memory")["memory"]["rows"]
    assert sum(row["count"] for row in whole) == 2 * STEPS
    error = refused(database, "--view", "memory", "--range", "Forwad")
    assert "no range 'Forwad'" in error
    assert "did you mean 'forward'?" in error
    kernels = document(database, "--view", "kernels", "--range", "forward")["kernels"]["rows"]
    assert [row["count"] for row in kernels] == [2 * STEPS, 2 * STEPS]


def test_process_device_and_time_narrow_what_is_read(database: Path) -> None:
    def kernels(*words: str) -> int:
        return sum(row["count"] for row in document(database, "--view", "kernels", *words)["kernels"]["rows"])

    assert kernels() == 4 * STEPS
    assert kernels("--device", "0") == kernels("--process", "70") == kernels("--process", "worker1") == 2 * STEPS
    assert kernels("--device", "0", "--device", "1") == 4 * STEPS
    assert kernels("--time", "0:2ms") == 4 * 2
    assert kernels("--time", "4ms:", "--device", "1") == 2 * (STEPS - 4)
    narrowed = document(database, "--time", "1ms:2ms", "--process", "70")
    assert narrowed["selection"] == {
        "processes": ["70"],
        "devices": None,
        "start_ns": 1_000_000,
        "end_ns": 2_000_000,
        "steady": None,
    }
    assert {row["name"]: row["count"] for row in narrowed["names"]} == {"step": 1, "forward": 1}


def test_ranges_by_name_are_the_names_of_the_report(database: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(said(database, "--by", "name", "--csv"))))
    assert [row["name"] for row in rows] == ["step", "forward"]
    lines = said(database, "--by", "name").splitlines()
    assert [line.split()[0] for line in lines[5:7]] == ["step", "forward"]


def test_sort_and_top_and_match_work_on_every_table_that_can(database: Path) -> None:
    def names(*words: str) -> list[str]:
        rows = csv.DictReader(io.StringIO(said(database, "--view", "kernels", "--names", "base", "--csv", *words)))
        return [row["name"] for row in rows]

    ranges = csv.DictReader(io.StringIO(said(database, "--sort", "p99", "--range", "forward", "--csv")))
    assert [row["name"] for row in ranges] == ["forward"]
    assert names() == ["gemm_kernel", "softmax_kernel"]
    assert names("--sort", "name") == ["gemm_kernel", "softmax_kernel"]
    assert names("--sort", "kernel_max", "--top", "1") == ["gemm_kernel"]
    assert names("--match", "soft*") == ["softmax_kernel"]
    assert "has no column 'beauty'; it has name" in refused(database, "--view", "kernels", "--sort", "beauty")


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (("--view", "beauty"), "--view"),
        (("--view", "gaps", "--by", "name"), "--view gaps takes no --by"),
        (("--view", "kernels", "--by", "colour"), "--view kernels has no --by colour; use kernel or"),
        (("--view", "steps", "--range", "step"), "--view steps takes no --range; leave it out; "),
        (("--range", "stop"), "no range 'stop' in the trace; did you mean 'step'?"),
        (("--view", "gaps", "--match", "a*"), "takes no --match"),
        (("--view", "gaps", "--step-range", "step"), "--view gaps takes no --step-range; add --steady"),
        (("--view", "gaps", "--top", "-1"), "'-1' is not a whole number"),
        (("--slowest", "2", "--view", "sync"), "--view sync takes no --slowest"),
        (("--slowest", "2", "--by", "name"), "--slowest prints instances, not --by name"),
        (("--slowest", "2", "--top", "5"), "--slowest prints whole trees, and --top chooses rows"),
        (("--by", "field:"), "--view ranges has no --by field:; use path or"),
        (("--by", "field:layer"), "no range has a field 'layer'; no range has fields"),
        (("--view", "kernels", "--by", "field:layer"), "--view kernels has no --by field:layer"),
        (("--raw-names", "--expand", "step"), "--expand has no effect on --raw-names"),
        (("--expand", "step *"), "no folded range name matches --expand 'step *'; no names are folded"),
        (("--name-rules", "/nowhere.toml"), "/nowhere.toml"),
        (("--view", "gaps", "--device", "x"), "'x' is not a whole number"),
        (("--view", "gaps", "--device", "7"), "no GPU 7"),
        (("--view", "gaps", "--process", "nobody"), "no process 'nobody'"),
        (("--time", "now"), "no span of time"),
        (("--time", "1s:x"), "'x' is no time"),
        (("--time", "2s:1s"), "ends before it begins"),
        (("--view", "all", "--csv"), "--json"),
        (("--view", "all", "--sort", "count"), "takes no --sort; ask one view at a time"),
        (("--view", "gaps", "--table", "largest"), "add --csv"),
        (("--view", "gaps", "--csv", "--table", "x"), "has no table 'x'; it has "),
        (("--view", "kernels", "--names", "long"), "--names"),
        (("--csv", "--table", "names"), "--view ranges takes no --table"),
        (("--sort", "beauty"), "has no column 'beauty'"),
        (("--view", "gaps", "--threshold", "launch_bound.gap=1"), "--view gaps takes no --threshold"),
        (("--by", "thread", "--threshold", "launch_bound.gap=1"), "--view ranges takes no --threshold"),
        (("--csv", "--threshold", "launch_bound.gap=1"), "--threshold; add --view findings"),
        (("--threshold", "launch_bound.gapp=1"), "did you mean launch_bound.gap? there are small_h2d_copies.bytes, "),
        (("--view", "findings", "--threshold", "launch_bound.gap"), "'launch_bound.gap' is not RULE.NAME=VALUE"),
        (("--view", "all", "--threshold", "launch_bound.gap=x"), "'launch_bound.gap=x' is not RULE.NAME=VALUE"),
        (("--threshold", "launch_bound.gap=-1"), "-1.0 is no value for launch_bound.gap; give a number from 0 on"),
        (("--threshold", "launch_bound.gap=nan"), "nan is no value"),
        (("--view", "findings", "--range", "step"), "--view findings takes no --range"),
        (("--view", "kernels", "--families", "/nowhere.toml"), "/nowhere.toml"),
        (("--view", "steps", "--step-range", "a", "--step-kernel", "b"), "--step-kernel"),
    ],
    ids=" ".join,
)
def test_what_makes_no_sense_is_refused_in_one_line(database: Path, words: tuple[str, ...], found: str) -> None:
    assert found in refused(database, *words)


def test_numbers_in_the_names_of_several_recordings_are_folded_together(tmp_path: Path) -> None:
    files = []
    for number, name in enumerate(("a.sqlite", "b.sqlite")):
        files.append(export(tmp_path / name))
        connection = sqlite3.connect(files[-1])
        connection.execute(
            f"UPDATE NVTX_EVENTS SET text = 'layers.' || (rowid + {100 * number}) WHERE text = 'forward'"
        )
        connection.commit()
        connection.close()
    assert len(document(files[0])["names"]) == 1 + 2 * STEPS

    def counted(*words: str) -> dict[str, tuple[str, str]]:
        rows = csv.DictReader(io.StringIO(said(*files, "--by", "name", "--csv", *words)))
        return {row["name"]: (row["a_count"], row["b_count"]) for row in rows}

    assert counted() == {"step": ("12", "12"), "layers.*": ("12", "12")}
    assert counted("--range", "layers.2") == {"layers.2": ("1", "")}
    assert len(counted("--raw-names")) == 1 + 4 * STEPS


def test_fields_of_names_are_what_rows_are_by(tmp_path: Path) -> None:
    file = export(tmp_path / "a.sqlite")
    connection = sqlite3.connect(file)
    connection.execute("UPDATE NVTX_EVENTS SET text = 'forward, seq = ' || (rowid % 3) WHERE text = 'forward'")
    connection.commit()
    connection.close()
    rows = document(file, "--by", "field:seq")["ranges_by_field:seq"]["rows"]
    assert [(row["value"], row["name"], row["count"]) for row in rows] == [
        *((value, "forward", 4) for value in range(3)),
        (None, "step", 12),
    ]
    printed = list(csv.DictReader(io.StringIO(said(file, "--by", "field:seq", "--csv"))))
    assert [(row["value"], row["name"], row["count"]) for row in printed] == [
        *((str(value), "forward", "4") for value in range(3)),
        ("", "step", "12"),
    ]
    assert said(file, "--by", "field:seq").splitlines()[4].split()[:3] == ["range", "value", "count"]
    assert {repr(row["fields"]) for row in load(file).ranges(by="instance", range="forward").rows()} == {
        *("{'seq': 0}", "{'seq': 1}", "{'seq': 2}")
    }


def test_expectations_are_judged_on_the_whole_recording(database: Path) -> None:
    done = report(database, "--view", "gaps", "--time", "0:1us", "--expect", "forward", "--strict")
    assert done.returncode == 2
    done = report(database, "--view", "gaps", "--device", "1", "--expect", "forward,backward", "--strict")
    assert done.returncode == 3
    assert f"expected forward: seen {2 * STEPS} times" in done.stderr


@pytest.mark.parametrize("output", ["--json", "--csv"])
def test_what_machines_read_costs_no_library_for_terminals_and_no_other_question(database: Path, output: str) -> None:
    code = "import sys; from traceable.cli.main import main; main(sys.argv[1:]); print(*sys.modules, file=sys.stderr)"
    command = [sys.executable, "-c", code, "report", str(database), "--view", "gaps", output]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True).stderr.split()
    assert "traceable.analysis.gaps" in loaded
    assert not {"rich", "pandas", "pyarrow", "traceable.analysis.kernels", "traceable.analysis.steps"} & set(loaded)


def test_a_report_of_a_file_loads_nothing_that_only_runs_need_and_no_other_reader(database: Path) -> None:
    code = "import sys; from traceable.cli.main import main; main(sys.argv[1:]); print(*sys.modules, file=sys.stderr)"
    command = [sys.executable, "-c", code, "report", str(database), "--json"]
    loaded = set(subprocess.run(command, capture_output=True, text=True, check=True).stderr.split())
    assert {"traceable.trace.nsys", "traceable.launch.reports"} <= loaded
    of_runs = {f"traceable.launch.{name}" for name in ("launcher", "supervisor", "processes", "windows", "overhead")}
    of_collectors = {f"traceable.collect.{name}" for name in ("nsys_install", "nsys_schema", "recording")}
    assert not (of_runs | of_collectors | {"traceable.trace.kineto", "traceable.cli.ranks"}) & loaded


def test_a_report_starts_no_threads_for_linear_algebra(database: Path) -> None:
    code = (
        "import os, sys; from traceable.cli.main import main; main(sys.argv[1:])\n"
        "print(os.environ['OPENBLAS_NUM_THREADS'], len(os.listdir('/proc/self/task')), file=sys.stderr)"
    )
    command = [sys.executable, "-c", code, "report", str(database), "--json"]
    for given, expected in ((None, "1"), ("3", "3")):
        environment = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
        environment |= {} if given is None else {"OPENBLAS_NUM_THREADS": given}
        said = subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stderr.split()
        assert said[0] == expected
        if given is None:
            assert said[1] == "1"
