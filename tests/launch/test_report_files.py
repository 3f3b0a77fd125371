"""Whatever names a report, the SQLite file in it is found, and never a stale one."""

from __future__ import annotations

import re
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from traceable import report_files
from traceable.errors import CollectorError, TraceError
from traceable.protocol import environment


@pytest.fixture
def recorded(nsys, tmp_path) -> Path:
    code = "import traceable\nwith traceable.annotate('pack'): pass"
    words = ["run", "--collector", "nsys", "-o", str(tmp_path / "out"), "--name", "app", "-c", code]
    subprocess.run([sys.executable, "-m", "traceable", *words], check=True, capture_output=True, cwd=tmp_path)
    return tmp_path / "out"


def ranges(database: Path) -> list[str]:
    rows = sqlite3.connect(database).execute(
        "SELECT COALESCE(text, value) FROM NVTX_EVENTS LEFT JOIN StringIds ON textId = id WHERE eventType = 59"
    )
    return [name for (name,) in rows]


def test_a_run_directory(recorded):
    with report_files.open_report(recorded) as database:
        assert database == recorded / "app.sqlite"
        assert ranges(database) == ["pack"]


def test_a_report_is_exported_elsewhere_and_what_lies_beside_it_not_trusted(recorded, tmp_path):
    report = tmp_path / "moved.nsys-rep"
    shutil.copy(recorded / "app.nsys-rep", report)
    stale = tmp_path / "moved.sqlite"
    stale.write_bytes(b"of another run")
    with report_files.open_report(report) as database:
        assert ranges(database) == ["pack"]
        assert database.parent != tmp_path
    assert not database.exists()
    assert stale.read_bytes() == b"of another run"


def test_a_database_by_any_name(recorded, tmp_path):
    shutil.copy(recorded / "app.sqlite", tmp_path / "trace.db")
    with report_files.open_report(tmp_path / "trace.db") as database:
        assert database == tmp_path / "trace.db"


def test_a_report_without_nsys_names_the_remedy(recorded, monkeypatch, tmp_path):
    monkeypatch.setenv(environment.NSYS, str(tmp_path / "absent"))
    with (
        pytest.raises(CollectorError, match="TRACEABLE_NSYS") as error,
        report_files.open_report(recorded / "app.nsys-rep"),
    ):
        pass
    assert error.value.code == "tool_not_executable"
    with report_files.open_report(recorded / "app.sqlite") as database:
        assert ranges(database) == ["pack"]


def test_a_report_that_is_cut_short(recorded):
    report = recorded / "app.nsys-rep"
    report.write_bytes(report.read_bytes()[:2000])
    with pytest.raises(CollectorError) as error, report_files.open_report(report):
        pass
    assert error.value.code == "nsys_export_failed"
    assert report.stat().st_size == 2000


def test_a_stream_that_was_cut_off_does_not_hide_the_report_beside_it(recorded):
    """As of a run of several windows that was killed in the last one."""
    (recorded / "app.sqlite").unlink()
    (recorded / "app.2.qdstrm").write_bytes(b"cut off")
    with report_files.open_report(recorded) as database:
        assert ranges(database) == ["pack"]


def test_a_stream_that_was_cut_off_is_named_with_what_the_program_wrote_itself(recorded):
    (recorded / "app.nsys-rep").unlink()
    (recorded / "app.qdstrm").write_bytes(b"cut off")
    with pytest.raises(CollectorError) as error, report_files.open_report(recorded):
        pass
    text = str(error.value)
    assert error.value.code == "nsys_import_failed"
    assert str(recorded / "app.qdstrm") in text
    assert re.search(r"process \d+ .* pack \(process\.", text)
    assert "\n" not in text


@pytest.mark.parametrize(
    ("name", "content", "code"),
    [
        ("absent.sqlite", None, "no_such_file"),
        ("empty.sqlite", b"", "file_empty"),
        ("empty.nsys-rep", b"", "file_empty"),
        ("text.sqlite", b"not a database at all", "not_a_report"),
        ("report.json", b"{}", "not_a_report"),
    ],
)
def test_what_is_no_report(name, content, code, tmp_path):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(TraceError) as error, report_files.open_report(tmp_path / name):
        pass
    assert error.value.code == code
    assert name in str(error.value)
    assert "\n" not in str(error.value)


def test_a_directory_that_is_no_run(tmp_path):
    with pytest.raises(TraceError) as error, report_files.open_report(tmp_path):
        pass
    assert error.value.code == "not_a_run_dir"


def test_a_run_that_recorded_nothing(tmp_path, environ):
    words = ["run", "--collector", "none", "-o", "out", "-c", "pass"]
    subprocess.run(
        [sys.executable, "-m", "traceable", *words], check=True, capture_output=True, cwd=tmp_path, env=environ
    )
    with pytest.raises(TraceError) as error, report_files.open_report(tmp_path / "out"):
        pass
    assert error.value.code == "no_recording"
