"""The table "Equivalents in other tools" of docs/windows.md, each row against lines that do what that tool does."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from traceable.protocol.windows import parse_windows

STEPS = 120
DOCS = Path(__file__).parents[2] / "docs" / "windows.md"


def vllm(delay: int, maximum: int) -> set[int]:
    """WorkerProfiler.step() is called before each forward pass and counts from 1."""
    recorded, running, active = set(), delay == 0, 0
    for step in range(STEPS):
        count = step + 1
        if not running and delay and count == delay and not active:
            running = True
        active += running
        if running and active > maximum:
            running = False
        if running:
            recorded.add(step)
    return recorded


def sglang(start: int, number: int) -> set[int]:
    """run_batch counts first and then asks whether to stop or start."""
    recorded, running = set(), False
    for step in range(STEPS):
        forward_ct = step + 1
        if start + number <= forward_ct:
            running = False
        if forward_ct == start:
            running = True
        if running:
            recorded.add(step)
    return recorded


def tensorrt_llm(first: int, last: int) -> set[int]:
    """The loop asks at its top whether the iteration before was one to stop after, then counts, then starts."""
    recorded, running, it = set(), False, -1
    for step in range(STEPS):
        if it == last:
            running = False
        it += 1
        if it == first:
            running = True
        if running:
            recorded.add(step)
    return recorded


def megatron(start: int, end: int) -> set[int]:
    """Started at the top of the loop; the iteration is counted before it is asked whether to stop."""
    recorded, running, iteration = set(), False, 0
    while iteration < STEPS:
        if iteration == start:
            running = True
        if running:
            recorded.add(iteration)
        iteration += 1
        if iteration == end:
            running = False
    return recorded


def nemo(start: int, end: int) -> set[int]:
    """on_train_batch_start and on_train_batch_end both ask for the number of optimizer steps completed."""
    recorded, running = set(), False
    for step in range(STEPS):
        if step == start:
            running = True
        if running:
            recorded.add(step)
        if step + 1 == end:
            running = False
    return recorded


def nemo_1(start: int, end: int) -> set[int]:
    """Both hooks are given the number of the batch."""
    recorded, running = set(), False
    for step in range(STEPS):
        if step == start:
            running = True
        if running:
            recorded.add(step)
        if step == end:
            running = False
    return recorded


def torch_profiler(wait: int, warmup: int, active: int, repeat: int, skip_first: int) -> set[int]:
    profiler = pytest.importorskip("torch.profiler")
    action = profiler.schedule(wait=wait, warmup=warmup, active=active, repeat=repeat, skip_first=skip_first)
    recording = (profiler.ProfilerAction.RECORD, profiler.ProfilerAction.RECORD_AND_SAVE)
    return {step for step in range(STEPS) if action(step) in recording}


@pytest.mark.parametrize(
    ("tool", "recorded_by"),
    [
        ("vLLM", vllm),
        ("SGLang", sglang),
        ("TensorRT-LLM", tensorrt_llm),
        ("Megatron-LM", megatron),
        ("NeMo 2.0", nemo),
        ("NeMo 1.0", nemo_1),
        pytest.param("torch.profiler", torch_profiler, marks=pytest.mark.slow),
    ],
)
def test_the_windows_of_the_table_are_those_of_the_tool(tool: str, recorded_by: Callable[..., set[int]]) -> None:
    (row,) = (line for line in DOCS.read_text(encoding="utf-8").splitlines() if line.startswith(f"| {tool} |"))
    written, here = (re.findall(r"`([^`]+)`", cell) for cell in row.split("|")[2:4])
    numbers = [int(number) for number in re.findall(r"(?<=[=\-: ])\d+", written[0])]
    windows = itertools.takewhile(lambda window: window.start < STEPS, parse_windows(here[0]))
    assert recorded_by(*numbers) == {step for window in windows for step in range(*window) if step < STEPS}


def test_the_notes_of_the_table() -> None:
    assert vllm(0, 5) == vllm(1, 5)
    repeated = torch_profiler(1, 1, 2, 0, 10)
    windows = itertools.takewhile(lambda window: window.start < STEPS, parse_windows("every:4:2:12"))
    assert repeated == {step for window in windows for step in range(*window) if step < STEPS}
