"""Instrumentation changes no bit of what a model computes: outputs, losses, gradients, parameters, buffers."""

from __future__ import annotations

import pytest

SCENARIOS = "scenarios_results.py"


@pytest.mark.parametrize(
    "model",
    [
        "mlp",
        "encoder",
        "encoder_norm_first",
        "conv",
        "lstm",
        "tied",
        "checkpointed",
        "checkpointed_reentrant",
        "compiled",
    ],
)
def test_training_and_evaluation_are_equal_to_the_last_bit(nvtx_log, model):
    got = nvtx_log(model)
    compared, equal = got.answer
    assert compared > 5
    assert equal
    assert any(one.name.endswith(".backward") for one in got.ranges)
