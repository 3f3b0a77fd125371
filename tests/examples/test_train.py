"""The example training loop learns, with gradients that are those of its loss."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest


def test_the_loss_falls(example: Any, backend: str) -> None:
    done = example("train", "--steps", "120", "--backend", backend)
    assert (done.returncode, done.stderr) == (0, "")
    losses = [float(loss) for loss in re.findall(r"^step \d+: loss ([\d.]+)$", done.stdout, re.MULTILINE)]
    assert len(losses) == 4  # steps 0, 50, 100 and the last
    assert losses[-1] < 0.7 * losses[0]


def test_an_unknown_device_of_numpy_is_said_in_one_line(example: Any) -> None:
    done = example("train", "--backend", "numpy", "--device", "cuda")
    assert (done.returncode, done.stderr) == (1, "train: device cuda: numpy computes on the CPU only\n")


@pytest.mark.parametrize("name", ["embedding", "hidden", "output"])
def test_a_gradient_is_the_slope_of_the_loss(load: Any, name: str) -> None:
    train = load("train")
    model = train.NumpyModel(np.float64)
    contexts, targets = train.Text(Path(train.__file__)).batch(16)
    model.forward(contexts, targets)
    model.backward()
    gradient = model.gradients[name].copy()
    # The largest entries: of the embedding, most rows belong to bytes that this batch does not hold.
    for index in np.argsort(-np.abs(gradient), axis=None)[:: max(1, gradient.size // 400)][:20]:
        entry = np.unravel_index(index, gradient.shape)
        remaining = model.parameters[name][entry]
        losses = []
        for shift in (1e-6, -1e-6):
            model.parameters[name][entry] = remaining + shift
            losses.append(model.forward(contexts, targets))
        model.parameters[name][entry] = remaining
        assert gradient[entry] == pytest.approx((losses[0] - losses[1]) / 2e-6, rel=1e-4, abs=1e-8)


def test_torch_finds_the_same_gradients(load: Any) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    train = load("train")
    ours, theirs = train.NumpyModel(), train.TorchModel("cpu")
    contexts, targets = train.Text(Path(train.__file__)).batch(16)
    assert ours.forward(contexts, targets) == pytest.approx(theirs.forward(*theirs.load(contexts, targets)), rel=1e-5)
    ours.backward()
    theirs.backward()
    for name, gradient in ours.gradients.items():
        np.testing.assert_allclose(theirs.gradients[name].numpy(), gradient, atol=1e-6)


def test_torch_computes_the_same_logits_as_numpy(load: Any) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    transformer = load("transformer")
    tokens, last = transformer.pack([b"a", b"bc" * 30, b"d" * 128])
    expected = transformer.logits(np, transformer.make_weights(), tokens, last)
    model = transformer.TorchModel("cpu")
    scores = model.to_host(model.forward(*model.to_device(tokens, last)))
    np.testing.assert_allclose(scores, expected, atol=1e-4)
