"""Ranks and workers, started by what really starts them: which are recorded, under which name, which are not touched.

`mpirun` and `srun` are stood in for by a program that starts real processes with the variables that Open MPI sets.
"""

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
from typing import Any

import pytest
from tests.conftest import REPOSITORY
from tests.printed_messages import message
from tests.skips import skip_unless_ci

import traceable
from traceable._native import find_recorder_library
from traceable.launch.processes import list_parts, load_labels
from traceable.launch.run_dir import load_manifest

Launch = Callable[..., subprocess.CompletedProcess[str]]

MPIRUN = """
import os, subprocess, sys
count, command = int(sys.argv[1]), sys.argv[2:]
names = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK")
children = [
    subprocess.Popen(command, env={**os.environ, **dict.fromkeys(names, str(rank)), "OMPI_COMM_WORLD_SIZE": str(count)})
    for rank in range(count)
]
sys.exit(max(child.wait() for child in children))
"""

PROGRAM = """
import os, sys, traceable
for n in traceable.steps(range(20)):
    with traceable.annotate("work"): pass
rank = os.environ.get("OMPI_COMM_WORLD_RANK", "none")
ours = sorted(name for name in os.environ if name.startswith(("TRACEABLE_", "NVTX_")))
with open(f"seen.{rank}", "w") as file:
    file.write(" ".join([os.environ.get("PYTHONPATH", "-"), *ours]))
sys.exit(int(sys.argv[1]) if len(sys.argv) > 1 and rank == "1" else 0)
"""

WORKERS = """
import multiprocessing, sys, traceable
def work():
    for n in traceable.steps(range(20)):
        with traceable.annotate("work"): pass
if __name__ == "__main__":
    multiprocessing.set_start_method(sys.argv[1])
    with traceable.annotate("parent"):
        workers = [multiprocessing.Process(target=work, name=f"worker-{n}") for n in range(3)]
        for worker in workers: worker.start()
        for worker in workers: worker.join()
    sys.exit(max(worker.exitcode for worker in workers))
"""


@pytest.fixture
def launch(tmp_path: Path, environ: dict[str, str]) -> Launch:
    """Run words in `tmp_path`, where the programs lie; `python` is this interpreter."""
    if find_recorder_library() is None:
        pytest.skip("the embedded recorder was not built")
    for name, text in {"mpirun.py": MPIRUN, "app.py": PROGRAM, "workers.py": WORKERS}.items():
        (tmp_path / name).write_text(text)

    def run(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable if word == "python" else word for word in words]
        clean = {name: value for name, value in environ.items() if name != "PYTHONPATH"}
        return subprocess.run(
            command, cwd=tmp_path, env={**clean, **variables}, capture_output=True, text=True, timeout=240
        )

    return run


def inside(*options: str, ranks: int = 3, collector: str = "recorder", arguments: tuple[str, ...] = ()) -> list[str]:
    """The words by which each rank is started with a launcher of its own."""
    ours = ["python", "-m", "traceable", "run", "--collector", collector, "-o", "out", *options]
    return [
        "python",
        "mpirun.py",
        str(ranks),
        *(sys.executable if w == "python" else w for w in ours),
        "app.py",
        *arguments,
    ]


def outside(*options: str, collector: str = "recorder", program: tuple[str, ...]) -> list[str]:
    """The words by which a launcher starts what starts the processes."""
    return ["python", "-m", "traceable", "run", "--collector", collector, "-o", "out", *options, "--", *program]


def names(path: Path, *, with_range: str = "work") -> list[str]:
    """What the processes are called that recorded the range."""
    rows = traceable.load(path).ranges(by="process", range=with_range).rows()
    return sorted(str(row["process"]) for row in rows)


# ---- inside: each rank has a launcher


def test_each_chosen_rank_is_a_run_of_its_own_and_all_are_read_as_one(launch: Launch, tmp_path: Path) -> None:
    done = launch(*inside("--ranks", "0,2", "--steps", "5:9"))
    assert done.returncode == 0, done.stderr
    out = tmp_path / "out"
    assert sorted(entry.name for entry in out.iterdir()) == ["app_0", "app_2"]
    assert (tmp_path / "seen.1").read_text() == "-"
    assert "TRACEABLE_RUN_DIR" in (tmp_path / "seen.2").read_text()
    assert (out / "app_2" / "app_2.sqlite").exists()
    manifest = load_manifest(out / "app_2")
    assert (manifest["rank"]["rank"], manifest["rank"]["world_size"], manifest["rank"]["launcher"]) == (
        2,
        3,
        "Open MPI",
    )
    assert list(load_labels(out / "app_2", manifest).values()) == ["app_2"]
    report = launch("python", "-m", "traceable", "report", "out", "--strict")
    assert report.returncode == 0, report.stderr
    assert report.stdout.splitlines()[1:3] == [
        "requested steps 5-9, captured 8 of 8 in 2 of 2 windows (2 reports)",
        "ranks 0 and 2 opened at step 5",
    ]
    assert names(out) == ["app_0", "app_2"]


def test_without_ranks_all_are_recorded_and_none_collides(launch: Launch, tmp_path: Path) -> None:
    done = launch(*[word for word in inside() if word not in ("-o", "out")])
    assert done.returncode == 0, done.stderr
    (group,) = (tmp_path / "traceable-runs").iterdir()
    assert [part.name for part in list_parts(group)] == ["app_0", "app_1", "app_2"]
    assert names(group) == ["app_0", "app_1", "app_2"]


def test_a_rank_that_did_not_get_there_is_named(launch: Launch, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(
        PROGRAM.replace("range(20)", "range(20 if os.environ['OMPI_COMM_WORLD_RANK'] == '0' else 7)")
    )
    launch(*inside("--steps", "5:9", ranks=2))
    report = launch("python", "-m", "traceable", "report", "out", "--strict")
    assert report.returncode == 3
    said = report.stdout.splitlines()
    assert said[1] == "requested steps 5-9, captured 6 of 8 in 1 of 2 windows (2 reports)"
    assert said[2].startswith("steps 5-9 of app_1: ") and said[2].endswith("[window_stopped_early]")
    assert " step 7 " in said[2]


def test_the_exit_code_of_a_rank_that_is_not_recorded_is_its_own(launch: Launch) -> None:
    assert launch(*inside("--ranks", "0", ranks=2, arguments=("7",))).returncode == 7


def test_ranks_that_there_are_not_are_refused_before_anything_starts(launch: Launch, tmp_path: Path) -> None:
    done = launch(*inside("--ranks", "9", ranks=2))
    assert done.returncode == 2
    assert len(re.findall(r"traceable: --ranks 9 .* Open MPI .* 0 to 1\b.*\[no_rank_matches\]", done.stderr)) == 2
    assert not (tmp_path / "out").exists()


def test_ranks_of_two_jobs_are_not_taken_for_one(launch: Launch) -> None:
    launch(*inside("--ranks", "0", ranks=1))
    launch(*inside("--ranks", "1", ranks=2))
    report = launch("python", "-m", "traceable", "report", "out")
    assert report.returncode == 2
    assert re.search(r"\bout .*: app_0 and app_1; .*\[ranks_of_different_jobs\]", report.stderr)


def test_ranks_of_two_hosts_with_processes_of_one_number_are_not_mixed(launch: Launch, tmp_path: Path) -> None:
    launch(*inside("--ranks", "0", ranks=1))
    first, second = tmp_path / "out" / "app_0", tmp_path / "out" / "app_1"
    shutil.copytree(first, second)
    manifest = load_manifest(first)
    manifest["rank"]["rank"], manifest["host"]["name"], manifest["run_dir"] = 1, "elsewhere", str(second)
    (second / "run.json").write_text(json.dumps(manifest))
    report = launch("python", "-m", "traceable", "report", "out")
    assert report.returncode == 2
    refused = message(report.stderr, "ranks_of_several_hosts")
    assert refused.startswith("out ") and " 2 hosts" in refused


def test_a_run_that_force_has_put_aside_is_no_rank_of_the_new_one(launch: Launch, tmp_path: Path) -> None:
    for _ in range(2):
        done = launch(*inside("--ranks", "0", "--force", ranks=1))
        assert done.returncode == 0, done.stderr
    assert sorted(entry.name for entry in (tmp_path / "out").iterdir()) == ["app_0", "app_0.1"]
    assert names(tmp_path / "out") == ["app_0"]


def test_torchrun_records_the_one_rank_that_is_asked_for(launch: Launch, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    torchrun = Path(sys.executable).with_name("torchrun")
    if not torchrun.exists():
        skip_unless_ci("torchrun is missing")
    program = [str(REPOSITORY / "examples/train.py"), "--distributed", "--steps", "20"]
    ours = ["-m", "traceable", "run", "--collector", "recorder", "--ranks", "1", "--steps", "5:9", "-o", "out"]
    done = launch(str(torchrun), "--standalone", "--nproc-per-node", "2", "--role", "decode", *ours, *program)
    assert done.returncode == 0, done.stderr
    assert [entry.name for entry in (tmp_path / "out").iterdir()] == ["decode_1"]
    recording = traceable.load(tmp_path / "out" / "decode_1")
    assert recording.windows is not None and recording.windows.ok
    assert names(tmp_path / "out", with_range="all_reduce") == ["decode_1"]


def test_under_nsys_the_report_is_named_after_role_and_rank(launch: Launch, tmp_path: Path, nsys: str) -> None:
    done = launch(*inside("--ranks", "1", "--steps", "5:9", "--name", "decode", ranks=2, collector="nsys"))
    assert done.returncode == 0, done.stderr
    assert [entry.name for entry in (tmp_path / "out").iterdir()] == ["decode_1"]
    assert (tmp_path / "out" / "decode_1" / "decode_1.nsys-rep").exists()
    assert names(tmp_path / "out") == ["decode_1"]


# ---- outside: the processes decide


def test_ranks_that_the_program_starts_decide_for_themselves(launch: Launch, tmp_path: Path) -> None:
    done = launch(
        *outside("--ranks", "1", "--steps", "5:9", program=("python", "mpirun.py", "2", sys.executable, "app.py"))
    )
    assert done.returncode == 0, done.stderr
    assert "requested steps 5-9, captured 4 of 4" in done.stderr.splitlines()
    assert names(tmp_path / "out") == ["app_1"]
    # The other rank holds what its own children are to decide by, and no collector.
    assert (tmp_path / "seen.0").read_text() == "- TRACEABLE_CHOSEN TRACEABLE_RANKS"
    assert "NVTX_INJECTION64_PATH" in (tmp_path / "seen.1").read_text()


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_of_multiprocessing_are_chosen_by_name(launch: Launch, tmp_path: Path, method: str) -> None:
    done = launch(*outside("--processes", "worker-*,!worker-0", program=("python", "workers.py", method)))
    assert done.returncode == 0, done.stderr
    assert names(tmp_path / "out") == ["worker-1", "worker-2"]
    found = {str(row["name"]) for row in traceable.load(tmp_path / "out").ranges(by="name").rows()}
    assert found == {"step", "step.wait", "work"}  # and not what the parent had open


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_windows_are_opened_in_chosen_workers_only(launch: Launch, tmp_path: Path, method: str) -> None:
    options = ("--processes", "worker-1", "--steps", "5:9", "--strict")
    done = launch(*outside(*options, program=("python", "workers.py", method)))
    assert done.returncode == 0, done.stderr
    assert "requested steps 5-9, captured 4 of 4" in done.stderr.splitlines()
    assert names(tmp_path / "out") == ["worker-1"]
    assert [status["process"]["name"] for status in load_records(tmp_path / "out", "status")] == ["worker-1"]


def test_the_parent_can_be_chosen_and_its_forked_workers_not(launch: Launch, tmp_path: Path) -> None:
    done = launch(*outside("--processes", "workers", program=("python", "workers.py", "fork")))
    assert done.returncode == 0, done.stderr
    found = {str(row["name"]) for row in traceable.load(tmp_path / "out").ranges(by="name").rows()}
    assert found == {"parent"}


def test_under_nsys_a_worker_without_steps_keeps_its_name(launch: Launch, tmp_path: Path, nsys: str) -> None:
    (tmp_path / "workers.py").write_text(WORKERS.replace("traceable.steps(range(20))", "range(20)"))
    done = launch(*outside("--processes", "worker-1", collector="nsys", program=("python", "workers.py", "spawn")))
    assert done.returncode == 0, done.stderr
    assert names(tmp_path / "out") == ["worker-1"]


def test_under_nsys_each_chosen_worker_becomes_a_run(launch: Launch, tmp_path: Path, nsys: str) -> None:
    options = ("--processes", "worker-1", "--steps", "5:9", "--strict")
    done = launch(*outside(*options, collector="nsys", program=("python", "workers.py", "spawn")))
    assert done.returncode == 0, done.stderr
    assert [part.name for part in list_parts(tmp_path / "out")] == ["worker-1"]
    assert (tmp_path / "out" / "worker-1" / "worker-1.nsys-rep").exists()
    assert "requested steps 5-9, captured 4 of 4" in done.stderr.splitlines()
    assert names(tmp_path / "out") == ["worker-1"]


@pytest.mark.parametrize("options", [(), ("--processes", "worker-*")], ids=["all", "chosen"])
def test_under_nsys_forked_workers_are_named_as_lost(launch: Launch, options: tuple[str, ...], nsys: str) -> None:
    done = launch(*outside(*options, collector="nsys", program=("python", "workers.py", "fork")))
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.endswith("[forked_not_recorded]")]
    assert line.startswith("traceable: worker-0 (pid ")
    assert "worker-2 (pid " in line
    assert " --collector recorder," in line and " spawn " in line


# ---- servers

BOOTING = """
import os, traceable
with traceable.annotate("boot"): pass
"""

GUNICORN = """
workers = 3
def post_worker_init(worker):
    with open("ready", "w") as fifo: fifo.write("x")
"""


def test_workers_of_gunicorn_have_the_number_that_gunicorn_gives_them(launch: Launch, start, tmp_path: Path) -> None:
    gunicorn = Path(sys.executable).with_name("gunicorn")
    if not gunicorn.exists():
        skip_unless_ci("gunicorn is missing")
    (tmp_path / "wsgi.py").write_text(BOOTING + "def app(environ, start_response): return []\n")
    (tmp_path / "conf.py").write_text(GUNICORN)
    program = (str(gunicorn), "-c", "conf.py", "-b", "unix:socket", "wsgi:app")
    serve(outside("--processes", "worker-2", program=program), start, tmp_path, workers=3)
    assert names(tmp_path / "out", with_range="boot") == ["worker-2"]


ASGI = """
async def app(scope, receive, send):
    while True:
        event = (await receive())["type"]
        if event == "lifespan.startup":
            with open("ready", "w") as fifo: fifo.write("x")
        await send({"type": event + ".complete"})
        if event == "lifespan.shutdown":
            return
"""


def test_workers_of_uvicorn_are_those_of_multiprocessing(launch: Launch, start, tmp_path: Path) -> None:
    pytest.importorskip("uvicorn")
    (tmp_path / "asgi.py").write_text(BOOTING + ASGI)
    program = ("python", "-m", "uvicorn", "--workers", "2", "--uds", "socket", "--log-level", "error", "asgi:app")
    serve(outside("--processes", "SpawnProcess-1", program=program), start, tmp_path, workers=2)
    assert names(tmp_path / "out", with_range="boot") == ["SpawnProcess-1"]


def serve(words: list[str], start: Any, directory: Path, workers: int) -> None:
    """Start a server, wait until all of its workers are up, and end it."""
    os.mkfifo(directory / "ready")
    server = start([sys.executable if word == "python" else word for word in words], stderr=subprocess.DEVNULL)
    ready = 0
    while ready < workers:
        ready += len((directory / "ready").read_bytes())
    server.send_signal(signal.SIGTERM)
    assert server.wait(timeout=60) in (0, -signal.SIGTERM)


def load_records(directory: Path, what: str) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(directory.glob(f"{what}.*.json"))]
