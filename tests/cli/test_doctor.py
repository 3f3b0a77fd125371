"""`traceable doctor` as it is typed: on this machine, without nsys, with nsys broken, and stopped half-way."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from traceable._native import find_recorder_library
from traceable.checks import machine_facts
from traceable.checks.machine_findings import STATES
from traceable.collectors.nsys import install as nsys_install

pytestmark = pytest.mark.slow

Doctor = Callable[..., subprocess.CompletedProcess[str]]

HIDE = """
from traceable.collectors.nsys import install as nsys_install
nsys_install.INSTALL_FOLDERS = nsys_install.IMPORTER_FOLDERS = ()
"""
"""A `sitecustomize` after which nsys and its importer are found on PATH and beside each other only, as on a machine
where they are in no install folder."""


@pytest.fixture
def temporary(tmp_path: Path) -> Path:
    """The user's folder for temporary files, which is empty again in the end."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    return folder


@pytest.fixture
def environ(tmp_path: Path, temporary: Path) -> dict[str, str]:
    """An environment without anything of ours in it, and with temporary files in a folder of the test's."""
    kept = {name: value for name, value in os.environ.items() if name == "TRACEABLE_NSYS" or name[:10] != "TRACEABLE_"}
    return {**kept, "TMPDIR": str(temporary)}


@pytest.fixture
def core() -> None:
    """Without the native core nsys 2022 and 2023 hear nothing: `doctor` then rightly says so."""
    if "_core" in machine_facts.inspect_extensions().missing:
        pytest.skip("the native core was not built")


@pytest.fixture
def hidden(tmp_path: Path, environ: dict[str, str]) -> dict[str, str]:
    """The same where nothing lies in an install folder."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(HIDE)
    environ.pop("TRACEABLE_NSYS", None)
    path = os.pathsep.join(filter(None, (str(tmp_path / "site"), environ.get("PYTHONPATH"))))
    return {**environ, "PYTHONPATH": path}


@pytest.fixture
def doctor(tmp_path: Path) -> Doctor:
    """Run `traceable doctor` in an empty folder."""
    (tmp_path / "here").mkdir()

    def call(environ: dict[str, str], *words: str, before: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
        command = [*before, sys.executable, "-m", "traceable", "doctor", *words]
        return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path / "here", env=environ)

    return call


def checks(done: subprocess.CompletedProcess[str]) -> dict[str, dict[str, object]]:
    """The lines of `--json` by their names; of several of one name the last."""
    assert done.stderr == ""
    document = json.loads(done.stdout)
    assert document["schema"] == "traceable.doctor/1"
    assert all(set(one) == {"name", "state", "code", "message", "fix", "evidence"} for one in document["checks"])
    assert all((one["fix"] is None) == (one["state"] == "ok") for one in document["checks"])
    assert document["state"] == max((one["state"] for one in document["checks"]), key=list(STATES).index)
    assert done.returncode == STATES[document["state"]]
    return {one["name"]: one for one in document["checks"]}


def nothing_is_left(tmp_path: Path, temporary: Path) -> bool:
    return not [*temporary.iterdir(), *(tmp_path / "here").iterdir()]


def test_on_this_machine(doctor, environ, nsys, core, tmp_path, temporary):
    said = checks(doctor(environ, "--json"))
    assert said["nsys"]["evidence"]["executable"] == nsys
    assert nsys in said["nsys"]["message"]
    assert said["nsys importer"]["code"] == "importer_usable"
    assert said["nsys importer"]["message"].endswith("/QdstrmImporter")
    names = ["nsys capture"] if find_recorder_library() is None else ["nsys capture", "recorder"]
    for name in names:
        assert (said[name]["state"], said[name]["code"]) == ("ok", "capture_complete")
        assert "20 of 20" in said[name]["message"]
        assert said[name]["evidence"]["recorded"] == said[name]["evidence"]["emitted"] == 20
    assert sys.executable in said["python"]["message"]
    assert said["temporary"]["evidence"]["path"] == str(temporary)
    assert said["output"]["evidence"]["path"] == str(tmp_path / "here" / "traceable-runs")
    assert nothing_is_left(tmp_path, temporary)


def test_without_nsys_the_recorder_is_tried_and_what_is_lost_is_said(doctor, hidden, tmp_path, temporary):
    if find_recorder_library() is None:
        pytest.skip("the embedded recorder was not built")
    done = doctor({**hidden, "PATH": str(tmp_path), "TRACEABLE_DISABLE": "1", "TRACEABLE_STEPS": "5:6"})
    assert done.returncode == 1, done.stdout
    lines = [line.split(maxsplit=1) for line in done.stdout.splitlines()]
    place = next(number for number, line in enumerate(lines) if line[1:] and line[1].startswith("nsys "))
    assert lines[place][0] == "note"
    assert lines[place][1].endswith("[nsys_not_installed]")
    assert lines[place + 1][0] == "fix:"
    assert "scripts/install-nsys.sh" in lines[place + 1][1]
    assert not [line for line in lines if line[1:] and line[1].startswith(("nsys importer", "nsys capture"))]
    # What the user's own variables do to a run is a line of its own, and no fault of the recorder's. Of what is well
    # no code is printed.
    assert re.search(r"^ok       recorder         20 of 20 [^\[]*$", done.stdout, re.MULTILINE)
    line = r"^warning  environment      TRACEABLE_DISABLE .* \[annotations_disabled\]$"
    assert re.search(line, done.stdout, re.MULTILINE)
    assert lines[-1][0].isdigit()
    assert "1 warning" in done.stdout.splitlines()[-1]
    assert nothing_is_left(tmp_path, temporary)


@pytest.fixture
def without_importer(nsys: str, tmp_path: Path) -> Path:
    """A copy of real nsys without its importer."""
    target = Path(nsys).resolve().parent
    home = tmp_path / "install" / target.name
    home.mkdir(parents=True)
    for entry in target.iterdir():
        # nsys looks for its importer beside where its own file really is.
        shutil.copy2(entry, home / entry.name) if entry.name.startswith("nsys") else (home / entry.name).symlink_to(
            entry
        )
    return home / "nsys"


def test_without_the_importer_a_run_would_be_lost(doctor, hidden, without_importer, tmp_path, temporary):
    said = checks(doctor({**hidden, "PATH": str(without_importer.parent)}, "--json"))
    assert said["nsys"]["state"] == "ok"
    assert (said["nsys importer"]["state"], said["nsys importer"]["code"]) == ("problem", "importer_missing")
    assert "QdstrmImporter" in said["nsys importer"]["message"]
    assert "scripts/install-nsys.sh" in said["nsys importer"]["fix"]
    assert (said["nsys capture"]["state"], said["nsys capture"]["code"]) == ("problem", "capture_failed")
    assert ".qdstrm" in said["nsys capture"]["message"]
    assert said["nsys capture"]["fix"] == "see `nsys importer`"
    assert nothing_is_left(tmp_path, temporary)


def test_an_importer_that_nsys_itself_does_not_find_is_used_and_said(doctor, environ, core, without_importer):
    importer = nsys_install.find_importer(nsys_install.find_nsys())
    assert importer is not None
    variables = {"TRACEABLE_NSYS": str(without_importer), "PATH": f"{importer.parent}:{environ['PATH']}"}
    said = checks(doctor({**environ, **variables}, "--json"))
    assert said["nsys importer"]["state"] == "ok"
    assert (said["nsys capture"]["state"], said["nsys capture"]["code"]) == ("warning", "importer_not_linked")
    assert "20 of 20" in said["nsys capture"]["message"]
    assert str(importer) in said["nsys capture"]["message"]


def test_an_importer_that_lacks_a_library(doctor, hidden, without_importer, tmp_path):
    importer = without_importer.parents[1] / "host-linux-x64" / "QdstrmImporter"
    importer.parent.mkdir()
    # It finds its libraries beside itself, and there are none beside the copy.
    shutil.copy2(nsys_install.find_importer(nsys_install.find_nsys()), importer)
    said = checks(doctor({**hidden, "PATH": str(without_importer.parent)}, "--json"))
    assert (said["nsys importer"]["state"], said["nsys importer"]["code"]) == ("problem", "importer_fails")
    assert str(importer) in said["nsys importer"]["message"]
    assert "error while loading shared libraries" in said["nsys importer"]["message"]
    assert f"`ldd {importer}`" in said["nsys importer"]["fix"]
    assert said["nsys capture"]["fix"] == "see `nsys importer`"


def test_a_full_folder_for_temporary_files(doctor, environ, nsys, temporary):
    mount = f'mount -t tmpfs -o size=1m none {temporary} && exec "$@"'
    inside = ("unshare", "-m", "sh", "-c", mount, "sh")
    if not shutil.which("unshare") or subprocess.run([*inside, "true"], capture_output=True).returncode:
        pytest.skip("this user may not mount anything")
    said = checks(doctor(environ, "--json", before=inside))
    assert (said["temporary"]["state"], said["temporary"]["code"]) == ("warning", "no_space")
    assert said["temporary"]["message"].endswith(" /tmp")
    assert "set TMPDIR" in said["temporary"]["fix"]


def test_a_folder_for_temporary_files_that_is_not_there(doctor, environ, nsys, tmp_path):
    absent = tmp_path / "absent"
    said = checks(doctor({**environ, "TMPDIR": str(absent)}, "--json"))
    assert (said["temporary"]["state"], said["temporary"]["code"]) == ("warning", "folder_missing")
    assert said["temporary"]["message"].startswith(f"{absent} (TMPDIR) ")
    assert said["temporary"]["message"].endswith(" /tmp")
    assert (said["nsys capture"]["state"], said["nsys capture"]["code"]) == ("warning", "temporary_not_writable")
    assert f"{absent}: No such file or directory" in said["nsys capture"]["message"]
    assert said["nsys"]["state"] == "ok"
    assert not absent.exists()


@pytest.fixture
def stuck(tmp_path: Path) -> Path:
    """An nsys that says its version, and then writes its process id into the FIFO `started` and hangs."""
    script = tmp_path / "stuck" / "nsys"
    script.parent.mkdir()
    os.mkfifo(script.parent / "started")
    script.write_text(
        '#!/bin/sh\ncase "$1$2" in\n--version) echo "NVIDIA Nsight Systems version 2022.4.2.1-x"; exit;;\n'
        f"profile--help|status*) exit;;\nesac\necho $$ >{script.parent}/started\nexec sleep 1000\n"
    )
    script.chmod(0o755)
    return script


def test_a_ctrl_c_leaves_nothing_behind(environ, stuck, tmp_path, temporary):
    words = [sys.executable, "-m", "traceable", "doctor"]
    environ = {**environ, "TRACEABLE_NSYS": str(stuck)}
    process = subprocess.Popen(words, env=environ, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    pid = int((stuck.parent / "started").read_text())
    process.send_signal(signal.SIGINT)
    assert process.communicate() == (b"", b"")
    assert process.returncode == 130
    assert not list(temporary.iterdir())
    assert not Path(f"/proc/{pid}").exists() or "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text()
