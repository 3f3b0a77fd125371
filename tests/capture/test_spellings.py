"""The windows of others, each against a few lines that do what the other does, step by step."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traceable.capture import spellings
from traceable.protocol.window_spec import Spec

STEPS = 120
small = st.integers(0, 12)
positive = st.integers(1, 12)


def recorded(spec: Spec) -> set[int]:
    windows = itertools.takewhile(lambda window: window.start < STEPS, spec)
    return {step for window in windows for step in range(*window) if step < STEPS}


@given(delay=small, most=positive)
def test_vllm(delay, most):
    """WorkerProfiler.step() is called before each forward pass and counts from 1."""
    found, running, active = set(), delay == 0, 0
    for step in range(STEPS):
        count = step + 1
        if not running and delay and count == delay and not active:
            running = True
        active += running
        if running and active > most:
            running = False
        if running:
            found.add(step)
    assert recorded(spellings.from_vllm(delay, most)) == found


@given(start=positive, number=positive)
def test_sglang(start, number):
    """run_batch counts first and then asks whether to stop or start."""
    found, running = set(), False
    for step in range(STEPS):
        forward_ct = step + 1
        if start + number <= forward_ct:
            running = False
        if forward_ct == start:
            running = True
        if running:
            found.add(step)
    assert recorded(spellings.from_sglang(start, number)) == found


@given(first=small, more=small)
def test_tensorrt_llm(first, more):
    """The loop asks at its top whether the iteration before was one to stop after, then counts, then starts."""
    last, found, running, it = first + more, set(), False, -1
    for step in range(STEPS):
        if it == last:
            running = False
        it += 1
        if it == first:
            running = True
        if running:
            found.add(step)
    assert recorded(spellings.from_tensorrt_llm(f"{first}-{last}")) == found


@given(start=small, more=positive)
def test_megatron(start, more):
    """Started at the top of the loop; the iteration is counted before it is asked whether to stop."""
    found, running, iteration = set(), False, 0
    while iteration < STEPS:
        if iteration == start:
            running = True
        if running:
            found.add(iteration)
        iteration += 1
        if iteration == start + more:
            running = False
    assert recorded(spellings.from_megatron(start, start + more)) == found


@given(start=small, more=positive)
def test_nemo(start, more):
    """on_train_batch_start and on_train_batch_end both ask for the number of optimizer steps completed."""
    found, running = set(), False
    for step in range(STEPS):
        if step == start:
            running = True
        if running:
            found.add(step)
        if step + 1 == start + more:
            running = False
    assert recorded(spellings.from_nemo(start, start + more)) == found


@given(start=small, more=small)
def test_nemo_1(start, more):
    """Both hooks are given the number of the batch."""
    found, running = set(), False
    for step in range(STEPS):
        if step == start:
            running = True
        if running:
            found.add(step)
        if step == start + more:
            running = False
    assert recorded(spellings.from_nemo_1(start, start + more)) == found


@pytest.fixture(scope="module")
def profiler() -> Any:
    """torch.profiler, imported before hypothesis looks at the clock."""
    return pytest.importorskip("torch.profiler")


@given(wait=small, warmup=st.integers(1, 5), active=positive, repeat=st.integers(0, 3), first=small, skip=st.booleans())
def test_torch_schedule(profiler, wait, warmup, active, repeat, first, skip):
    words = {"wait": wait, "warmup": warmup, "active": active, "repeat": repeat, "skip_first": first}
    action = profiler.schedule(**words, skip_first_wait=int(skip))
    kept = (profiler.ProfilerAction.RECORD, profiler.ProfilerAction.RECORD_AND_SAVE)
    found = {step for step in range(STEPS) if action(step) in kept}
    assert recorded(spellings.from_torch_schedule(**words, skip_first_wait=int(skip))) == found


@pytest.mark.parametrize(
    "refused",
    [
        lambda: spellings.from_vllm(3, 0),
        lambda: spellings.from_sglang(0, 5),
        lambda: spellings.from_tensorrt_llm("ten-20"),
        lambda: spellings.from_nemo(10, 10),
    ],
)
def test_what_has_no_window_is_refused(refused):
    with pytest.raises(ValueError, match=r"\w"):
        refused()
