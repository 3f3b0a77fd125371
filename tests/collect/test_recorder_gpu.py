"""`run --gpu`: what it sets, what the program does with it, and that whatever is missing is said."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.collect.gpu_runs import notes_of, process_of, rows
from tests.collect.gpu_traces import placed, read, say, write

from traceable import collect, environment
from traceable.capture import gpu_gate
from traceable.collect import kineto_clock, recorder_gpu
from traceable.collect.base import Gating
from traceable.collect.recorder import RecorderCollector
from traceable.collect.recording import read_recording
from traceable.errors import CollectorError
from traceable.trace import load

# ---- what is missing is said


def test_a_process_that_never_imported_torch_is_named(recorded: Callable[..., Path]) -> None:
    run_dir = recorded("import traceable\nwith traceable.annotate('a'): pass")
    pid = process_of(run_dir).pid
    assert notes_of(run_dir) == [
        f"process {pid} never imported torch: GPU work of its own, if any, is not recorded",
    ]


def test_a_torch_without_cuda_says_so_once_and_the_ranges_are_recorded(recorded: Callable[..., Path]) -> None:
    torch = pytest.importorskip("torch")
    if torch.version.cuda is not None:
        pytest.skip("this torch is built for CUDA")
    code = """
import multiprocessing, traceable, torch
def work():
    with traceable.annotate("child"): torch.ones(2)
if __name__ == "__main__":
    with traceable.annotate("parent"): torch.ones(2)
    child = multiprocessing.get_context("fork").Process(target=work)
    child.start()
    child.join()
"""
    run_dir = recorded(code)
    lines = [line for line in (run_dir / "stderr").read_text().splitlines() if line.startswith("traceable: ")]
    assert lines == [f"traceable: torch {torch.__version__} is built without CUDA: --gpu records no GPU"]
    assert notes_of(run_dir) == []
    assert len(load(run_dir / "app.sqlite").ranges) == 2
    ((remark,),) = rows(run_dir, "SELECT text FROM DIAGNOSTIC_EVENT")
    assert remark.endswith("is built without CUDA: no GPU is recorded")


def test_what_a_killed_process_recorded_of_the_gpu_is_lost_and_its_ranges_are_kept(
    recorded: Callable[..., Path],
) -> None:
    pytest.importorskip("torch")
    code = """
import os, signal, torch, traceable
from traceable.capture import gpu_gate, kineto
kineto.Kineto.start(gpu_gate.profiler)
with traceable.annotate("a"): pass
os.kill(os.getpid(), signal.SIGKILL)
"""
    run_dir = recorded(code, status=-9)
    pid = process_of(run_dir).pid
    (note,) = notes_of(run_dir)
    assert note.startswith(f"process {pid} did not end its recording of the GPU (it was killed, or still runs)")
    assert len(load(run_dir / "app.sqlite").ranges) == 1


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (gpu_gate.LOST, "what process {pid} recorded of the GPU could not be written: no room"),
        (gpu_gate.REFUSED, "the GPU work of process {pid} is not recorded: no room"),
        (
            gpu_gate.WAITING,
            "process {pid} imported torch and did not use CUDA with it: there is no GPU work",
        ),
    ],
)
def test_what_a_process_says_of_itself_is_said_at_the_end(
    recorded: Callable[..., Path], state: str, expected: str
) -> None:
    run_dir = recorded("import traceable\nwith traceable.annotate('a'): pass")
    pid = process_of(run_dir).pid
    say(run_dir, pid, state, "no room")
    assert notes_of(run_dir) == [expected.format(pid=pid)]


def test_a_damaged_file_costs_its_own_work_alone(captures: Path, recorded: Callable[..., Path]) -> None:
    document = read(captures / "kineto" / "gpu-user-annotation-steps.json.gz")
    run_dir = recorded("import traceable\nwith traceable.annotate('a'): pass")
    process = process_of(run_dir)
    whole = write(placed(document, process, process.monotonic_ns, {}), run_dir, process.pid, 1)
    cut = whole.with_name(f"{process.pid}-2.pt.trace.json.gz")
    cut.write_bytes(whole.read_bytes()[:2000])
    foreign = {"schemaVersion": 1, "traceEvents": [one for one in document["traceEvents"] if one.get("ph") == "X"]}
    unclocked = write(foreign, run_dir, process.pid, 3)
    say(run_dir, process.pid, gpu_gate.STOPPED)
    notes = notes_of(run_dir)
    assert len(notes) == 2
    assert notes[0].startswith(f"{cut} is cut off after ")
    assert notes[1] == f"{unclocked} does not say when it was recorded and was left out"
    assert len(load(run_dir / "app.sqlite").kernels) == 130


TORCH_WITH_CUDA = """
import json, os, torch, traceable
from traceable.capture import gpu_gate
def state():
    with open(f"{os.environ['TRACEABLE_GPU_DIR']}/.{os.getpid()}.json") as file:
        return json.load(file)["state"]
torch.version.cuda = "13.0"  # what a torch says that is built for CUDA
gpu_gate.profiler._awaited = False
gpu_gate.profiler.start()
"""


def test_kineto_waits_until_torch_begins_to_use_cuda_and_so_do_forked_children(recorded: Callable[..., Path]) -> None:
    """What then happens is what the torch of conda-forge does, which is built for CUDA and without CUPTI."""
    pytest.importorskip("torch")
    code = f"""{TORCH_WITH_CUDA}
assert state() == "waiting" and not gpu_gate.profiler.running
child = os.fork()
with traceable.annotate("both"): pass
if not child:
    (begins,) = (call for call, _ in torch.cuda._queued_calls if getattr(call, "__self__", None) is gpu_gate.profiler)
    begins()
    assert state() == "refused"
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
assert state() == "waiting"
"""
    run_dir = recorded(code)
    processes = {one.pid: one for one in read_recording(run_dir / "recording").processes}
    (child,) = (pid for pid, one in processes.items() if one.parent_pid in processes)
    (parent,) = processes.keys() - {child}
    why = "this torch was built without CUPTI"
    assert f"traceable: the GPU is not recorded in process {child}: {why}\n" in (run_dir / "stderr").read_text()
    assert notes_of(run_dir) == [
        f"the GPU work of process {child} is not recorded: {why}",
        f"process {parent} imported torch and did not use CUDA with it: there is no GPU work",
    ]
    assert len(load(run_dir / "app.sqlite").ranges) == 2


def test_a_profiler_of_the_programs_own_ends_ours_and_ours_is_kept(recorded: Callable[..., Path]) -> None:
    pytest.importorskip("torch")
    code = """
import torch, traceable
from traceable.capture import gpu_gate, kineto
kineto.Kineto.start(gpu_gate.profiler)
with traceable.annotate("a"), torch.autograd.profiler.profile(use_kineto=True):
    torch.ones(2)
assert not gpu_gate.profiler.running
gpu_gate.profiler.start()
with torch.autograd.profiler.profile(use_kineto=True):
    torch.ones(2)
"""
    run_dir = recorded(code)
    lines = [line for line in (run_dir / "stderr").read_text().splitlines() if line.startswith("traceable: ")]
    assert "traceable: the program starts a torch profiler of its own, so ours ended there: " in "\n".join(lines)
    assert len(list((run_dir / "gpu").glob("*.gz"))) == 1
    assert notes_of(run_dir) == []


def test_windows_are_files_of_their_own(recorded: Callable[..., Path]) -> None:
    pytest.importorskip("torch")
    code = """
import torch, traceable
from traceable.capture import gpu_gate, kineto
gpu_gate.profiler.start = lambda: kineto.Kineto.start(gpu_gate.profiler)  # as if CUDA were in use
for index in traceable.steps(range(9)):
    with traceable.annotate("work"):
        torch.ones(2)
"""
    run_dir = recorded(code, gating=Gating(2), **{environment.STEPS: "2:4,6:7"})
    pid = process_of(run_dir).pid
    assert notes_of(run_dir) == []
    trace = load(run_dir / "app.sqlite")
    steps = trace.ranges.name == trace.names.index("step")
    assert trace.ranges.payload[steps].tolist() == [2, 3, 6]
    assert sorted(path.name for path in (run_dir / "gpu").glob("*.gz")) == [
        f"{pid}-{number}.pt.trace.json.gz" for number in (1, 2)
    ]
    assert len(rows(run_dir, "SELECT 1 FROM DIAGNOSTIC_EVENT WHERE text LIKE '%is placed among its ranges to%'")) == 2


# ---- how it is asked for


def test_the_plan_adds_kineto_to_what_the_recorder_has(tmp_path: Path) -> None:
    plain, whole = (RecorderCollector(gpu=gpu).plan(["a"], tmp_path, "a").environment for gpu in (False, True))
    added = dict(whole.items() - plain.items())
    assert added.pop("PYTHONPATH").split(os.pathsep)[0].endswith("bootstrap")
    added.pop("KINETO_LOG_LEVEL", None)
    assert added == {
        environment.GPU_DIR: str(tmp_path / "gpu"),
        environment.TORCH: "whole",
        environment.GATE: "gpu",
    }
    gated = RecorderCollector(gpu=True).plan(["a"], tmp_path, "a", Gating(None)).environment
    assert (gated[environment.TORCH], gated[environment.RECORDING_GATED]) == ("windows", "1")


def test_only_the_recorder_needs_help_and_under_nsys_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NVTX_INJECTION64_PATH", "CUDA_INJECTION64_PATH", "NSYS_PROFILING_SESSION_ID"):
        monkeypatch.delenv(name, raising=False)
    none = collect.choose("none")
    assert collect.with_gpu(none) is none
    assert "the GPU by the program's own torch" in collect.with_gpu(collect.choose("recorder")).reason
    monkeypatch.setenv("NSYS_PROFILING_SESSION_ID", "1")
    with pytest.raises(CollectorError, match="one profiler at a time"):
        collect.with_gpu(collect.choose("recorder"))


def test_the_two_sides_agree_on_their_words() -> None:
    assert kineto_clock.METADATA == gpu_gate.METADATA
    for word in ("NO_CUDA", "WAITING", "RECORDING", "LOST", "REFUSED"):
        assert getattr(recorder_gpu, word) == getattr(gpu_gate, word)
    assert gpu_gate.GpuGate.name == "gpu"
    assert gpu_gate.MARKER == "traceable.clock"
