"""A process that takes no steps is recorded while the one that started it is: a worker that loads data."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.capture.conftest import Ran

from traceable.collectors.recorder.collector import RecorderCollector
from traceable.trace import load

pytestmark = pytest.mark.slow

Program = Callable[..., Ran]

WORKERS = """
import multiprocessing, sys, traceable
from traceable import annotate

def loads(pipe):
    while (n := pipe.recv()) is not None:
        with annotate("load", payload=n): pass
        pipe.send(n)

def trains(pipe):
    while (n := pipe.recv()) is not None:
        if n == 0:
            with annotate("prepare", payload=n): pass
        else:
            with traceable.step(), annotate("train", payload=n): pass
        pipe.send(n)

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    pipes = []
    for work in (loads, trains):
        mine, theirs = context.Pipe()
        context.Process(target=work, args=(theirs,)).start()
        pipes.append(mine)
    for n in traceable.steps(range(6)):
        for pipe in pipes: pipe.send(n)
        for pipe in pipes: assert pipe.recv() == n
    for pipe in pipes: pipe.send(None)
    for process in multiprocessing.active_children(): process.join()
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_worker_without_steps_follows_and_one_with_steps_leads(program: Program, tmp_path: Path, method: str) -> None:
    script = tmp_path / "workers.py"
    script.write_text(WORKERS)
    code = f"import subprocess, sys; sys.exit(subprocess.call([sys.executable, {str(script)!r}, {method!r}]))"
    ran = program(code, gated=True, TRACEABLE_STEPS="2:4")
    assert (ran.done.returncode, ran.done.stderr) == (0, "")
    ranges = ran.trace.ranges
    recorded = sorted(zip((ran.trace.names[name] for name in ranges.name), ranges.payload.tolist(), strict=True))
    # `train` began its own steps at the program's second: its steps 2 and 3 are at 3 and 4.
    work = [one for one in recorded if one[0] not in ("step", "step.wait")]
    assert work == [("load", 2), ("load", 3), ("train", 3), ("train", 4)]
    assert [n for name, n in recorded if name == "step"] == [2, 2, 3, 3]


def test_a_process_that_takes_its_first_step_in_another_ones_window_leaves_it(program: Program) -> None:
    code = """
import os, traceable
from traceable import annotate
for n in traceable.steps(range(3)):
    if n != 1: continue
    if os.fork() == 0:
        with annotate("follows"): pass
        with traceable.step():
            with annotate("own step 0"): pass
        with annotate("after it"): pass
        with traceable.step(), annotate("own step 1"): pass
        os._exit(0)
    os.wait()
    with annotate("parent"): pass
"""
    ran = program(code, gated=True, TRACEABLE_STEPS="1:2")
    assert (ran.done.returncode, ran.done.stderr) == (0, "")
    assert sorted({ran.trace.names[name] for name in ran.trace.ranges.name}) == [
        "follows",
        "own step 1",
        "parent",
        "step",
    ]


LOADER = """
import torch, traceable
from torch.utils.data import DataLoader, Dataset

class Numbers(Dataset):
    def __len__(self): return 320
    def __getitem__(self, index):
        with traceable.annotate("decode", payload=index): return index

for batch in traceable.steps(DataLoader(Numbers(), batch_size=8, num_workers=2)):
    with traceable.annotate("train"): batch.sum()
"""


def test_the_workers_of_a_dataloader_are_recorded_within_the_window(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    out = tmp_path / "out"
    run = [sys.executable, "-m", "traceable", "run", "--collector", "recorder", "--steps", "10:30", "-o", str(out)]
    done = subprocess.run([*run, "-c", LOADER], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "recorded no range" not in done.stderr
    trace = load(next(out.glob("*.sqlite")))
    ranges, (window,) = trace.ranges, trace.windows.start_ns
    decoded = ranges.name == trace.names.index("decode")
    # The index of batch n + 4 is sent before step n: 15 to 29 were loaded within the window, of 11 to 33 some may be.
    assert set(range(15 * 8, 30 * 8)) <= set(ranges.payload[decoded].tolist()) <= set(range(11 * 8, 34 * 8))
    assert len({trace.threads[thread].process for thread in ranges.thread[decoded]}) == 2
    # The end of the window is recorded before recording ends, and other processes may begin a range in between.
    assert (ranges.start_ns[decoded] >= window).all()


@pytest.mark.parametrize("later", [0, 1])
def test_the_window_of_an_ended_process_that_had_the_number_of_an_ancestor_is_ignored(
    program: Program, later: int
) -> None:
    code = f"""
import os, struct, subprocess, sys
from pathlib import Path
started = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
folder = Path(os.environ["TRACEABLE_RECORDING_DIR"])
folder.mkdir(exist_ok=True)
(folder / f".window.{{os.getpid()}}").write_bytes(struct.pack("<I4xQ", 2, started + {later}))
work = "import traceable\\nwith traceable.annotate('work'): pass"
sys.exit(subprocess.call([sys.executable, "-c", work]))
"""
    ran = program(code, gated=True, TRACEABLE_STEPS="1:2")
    assert (ran.done.returncode, ran.done.stderr) == (0, "")
    recorded = RecorderCollector().finalize(ran.run_dir, "app")
    assert (recorded.database is None) == bool(later)
