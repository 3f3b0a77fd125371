"""`traceable.instrument`: wrappers of distributed training leave no trace in the paths."""

from __future__ import annotations

import pytest

SCENARIOS = "scenarios_wrappers.py"

NAMES = ["Net", "Net.layers", "Net.layers.0", "Net.layers.1"]
FORWARD = "Net(Net.layers.0 Net.layers.1)"
BACKWARD = "Net.backward(Net.layers.1.backward Net.layers.0.backward)"


@pytest.mark.parametrize("wrapper", ["ddp", "fsdp", "fsdp2", "data_parallel"])
def test_a_wrapped_model_has_the_ranges_of_the_bare_one(nvtx_log, wrapper):
    got = nvtx_log(wrapper)
    assert got.answer == NAMES
    assert got.tree() == f"{FORWARD} {BACKWARD}"


@pytest.mark.parametrize("wrapper", ["ddp_of_compiled", "compiled_ddp"])
def test_compiled_and_wrapped_in_either_order(nvtx_log, wrapper):
    got = nvtx_log(wrapper)
    assert got.answer == NAMES
    assert [one.name for one in got.ranges] == ["Net", "Net.backward"]


def test_a_checkpoint_wrapper_recomputes_under_the_same_name(nvtx_log):
    got = nvtx_log("checkpoint_wrapper")
    assert got.answer == NAMES
    assert got.tree() == (f"{FORWARD} Net.backward(Net.layers.1.backward Net.layers.0.backward(Net.layers.0))")


def test_a_parametrised_root_keeps_its_class_name(nvtx_log):
    assert nvtx_log("parametrised_root").answer[0] == "Linear"


def test_an_attribute_that_is_called_module_is_part_of_the_path(nvtx_log):
    assert nvtx_log("own_module_attribute").answer == ["Holder", "Holder.module"]
