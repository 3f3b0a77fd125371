"""Windows that are not captured as they were asked for, under real nsys and the recorder: the finding says why."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from tests.checks.diagnosing import STEPS, diagnosed, first

pytestmark = pytest.mark.slow

_TEXT = "coalesce(text, (SELECT value FROM other.StringIds WHERE id = textId))"


@pytest.mark.parametrize(
    ("window_request", "cause"),
    [("10:20", "window_never_reached"), ("2:20", "window_stopped_early")],
    ids=["never", "early"],
)
def test_windows_that_the_program_does_not_fill(run, tmp_path, window_request, cause):
    done = run("recorder", STEPS, "--steps", window_request)
    # Said once, with the windows.
    assert "fix:" not in done.stderr
    assert first(tmp_path / "out").code == cause


def test_a_window_that_opens_late(run, tmp_path):
    run("recorder", "import traceable\nfor _ in range(5): traceable.step_boundary()\n", "--steps", "0:3")
    assert first(tmp_path / "out").code == "window_opened_late"


@pytest.fixture(scope="module")
def windowed(nsys, tmp_path_factory) -> Path:
    """The directory of a run under nsys with two windows, each in a report of its own."""
    out = tmp_path_factory.mktemp("windowed") / "out"
    words = ["--collector", "nsys", "--steps", "0:2,3:5", "-o", str(out), "-c", STEPS]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("TRACEABLE_R")}
    subprocess.run([sys.executable, "-m", "traceable", "run", *words], env=environ, capture_output=True, check=True)
    assert diagnosed(out).problems == ()
    return out


@pytest.fixture
def reports(windowed, tmp_path) -> tuple[Path, Path]:
    """The databases of both windows, in a copy of that directory."""
    shutil.copytree(windowed, tmp_path / "out")
    one, two = sorted((tmp_path / "out").glob("*.sqlite"))
    return one, two


def test_a_window_whose_report_is_not_there(reports):
    for path in reports[1].parent.glob("*.2.*"):
        path.unlink()
    result = first(reports[0].parent)
    assert (result.code, result.severity) == ("window_missing_report", "warning")


def test_windows_that_nsys_has_merged(reports):
    with contextlib.closing(sqlite3.connect(reports[0])) as file:
        file.execute("ATTACH ? AS other", (str(reports[1]),))
        columns = [row[1] for row in file.execute("PRAGMA table_info(NVTX_EVENTS)")]
        later = {"start": "start + 9000000000", "end": "end + 9000000000", "textId": "NULL", "text": _TEXT}
        values = ", ".join(later.get(name, name) for name in columns)
        file.execute(f"INSERT INTO main.NVTX_EVENTS SELECT {values} FROM other.NVTX_EVENTS WHERE end IS NOT NULL")
        file.commit()
    for path in reports[1].parent.glob("*.2.*"):
        path.unlink()
    assert first(reports[0].parent).code == "window_merged"


def test_a_window_whose_steps_are_not_in_its_report(reports):
    with contextlib.closing(sqlite3.connect(reports[0])) as file:
        file.execute("DELETE FROM NVTX_EVENTS WHERE int64Value = 1 OR uint64Value = 1")
        file.commit()
    assert first(reports[0].parent).code == "window_missing_steps"


def test_a_window_that_could_not_be_opened(run, tmp_path):
    pytest.importorskip("torch")
    run("torch", STEPS, "--steps", "2:4")
    assert first(tmp_path / "out").code == "window_never_opened"
