"""What of `instrument` and `instrument_copies` only a GPU can show: its autograd threads, real copies, graphs."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="torch.cuda.is_available() is False: no GPU, or a CPU build of torch"
)

SCENARIOS = "scenarios_cuda.py"

BACKWARD = "Net.backward(Net.second.backward Net.first.backward)"


def test_copies_by_direction_bytes_and_memory(nvtx_log):
    assert [(one.name, one.payload, one.category) for one in nvtx_log("copies").ranges] == [
        ("h2d", 4096, "pageable"),
        ("h2d", 4096, "pinned"),
        ("h2d", 4096, "pinned"),
        ("h2d", 2048, "pageable"),
        ("d2h", 4096, "pageable"),
        ("d2h", 4096, "pinned"),
        ("d2h", 4096, "pageable"),
        ("d2h", 4096, "pageable"),
        ("d2h", 4, None),
        ("d2h", 4096, "pinned"),
        ("h2d", 4096, "pageable"),
        ("h2d", 64 * 64 * 4, "pageable"),
        ("h2d", 64 * 4, "pageable"),
        ("h2d", 64 * 64 * 4, "pageable"),
        ("h2d", 64 * 4, "pageable"),
    ]


def test_backward_is_named_on_autograds_thread_and_ends_with_each_step(nvtx_log):
    got = nvtx_log("backward")
    (step,) = [one for one in got.ranges if one.name == "step"]
    backward = [one for one in got.ranges if one.name == "Net.backward"]
    assert [one.name for one in step.inner] == ["Net"] * 3
    assert list(map(str, backward)) == [BACKWARD] * 3
    assert {one.thread for one in backward}.isdisjoint({step.thread})
    for earlier, later in zip(step.inner[1:], backward, strict=False):
        assert later.end <= earlier.start


def test_a_backward_that_raised_does_not_stay_open_over_the_next(nvtx_log):
    got = nvtx_log("backward_raises")
    assert got.answer is True
    assert [str(one) for one in got.ranges if one.name == "Net.backward"] == [BACKWARD] * 2


def test_graph_capture_goes_through(nvtx_log):
    got = nvtx_log("graph_capture")
    assert got.answer is True
    assert [one.name for one in got.ranges].count("Net.backward") == 2


def test_graphed_callables_accept_an_instrumented_model(nvtx_log):
    (replay,) = [one for one in nvtx_log("graphed_callables").ranges if one.name == "replay"]
    assert [one.name for one in replay.inner] == ["Net"]


def test_inductor_compiles_one_graph_and_the_call_is_named(nvtx_log):
    got = nvtx_log("inductor")
    assert got.answer is True
    (then,) = [one for one in got.ranges if one.name == "then"]
    assert [one.name for one in then.inner] == ["Net"]


def test_gradients_are_equal_to_the_last_bit(nvtx_log):
    assert nvtx_log("equal").answer is True
