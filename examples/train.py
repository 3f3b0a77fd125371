"""A training loop: a small network learns to predict the next byte of a text, in torch or in numpy.

    python examples/train.py --steps 200
    python -m traceable run examples/train.py --steps 200
    python -m traceable run --steps 10:30 examples/train.py     # records steps 10 to 29 only
    torchrun --nproc-per-node 2 -m traceable run --ranks 1 examples/train.py --distributed

Every step is one range `step` that holds `data`, `forward`, `backward` and `optimizer`. The text is this file.
With --distributed each rank learns from batches of its own, and `all_reduce` makes the gradients the mean of all.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

import traceable

CONTEXT = 8
WIDTH = 16
HIDDEN = 64
VOCABULARY = 128


def make_parameters(dtype: Any = np.float32) -> dict[str, Any]:
    """Draw the parameters the same for every back end: embedding, one hidden layer, output."""
    random = np.random.default_rng(0)
    return {
        "embedding": random.standard_normal((VOCABULARY, WIDTH)).astype(dtype),
        "hidden": (random.standard_normal((CONTEXT * WIDTH, HIDDEN)) / np.sqrt(CONTEXT * WIDTH)).astype(dtype),
        "output": (random.standard_normal((HIDDEN, VOCABULARY)) / np.sqrt(HIDDEN)).astype(dtype),
    }


class Text:
    """Random windows of a text: CONTEXT bytes and the byte that follows them."""

    def __init__(self, path: Path, seed: int = 1) -> None:
        self._bytes = np.frombuffer(path.read_bytes(), dtype=np.uint8).astype(np.int64) % VOCABULARY
        self._random = np.random.default_rng(seed)

    def batch(self, size: int) -> tuple[Any, Any]:
        """Return int64 arrays: contexts [size, CONTEXT] and targets [size]."""
        starts = self._random.integers(0, len(self._bytes) - CONTEXT, size)
        return self._bytes[starts[:, None] + np.arange(CONTEXT)], self._bytes[starts + CONTEXT]


class NumpyModel:
    """The network with its gradients written out."""

    name = "numpy on cpu"

    def __init__(self, dtype: Any = np.float32) -> None:
        self.parameters = make_parameters(dtype)
        self.gradients: dict[str, Any] = {}
        self._saved: tuple[Any, ...] = ()

    def load(self, contexts: Any, targets: Any) -> tuple[Any, Any]:
        return contexts, targets

    def forward(self, contexts: Any, targets: Any) -> float:
        """Return the mean cross entropy, and keep what `backward` needs."""
        p = self.parameters
        x = p["embedding"][contexts].reshape(len(contexts), -1)
        hidden = np.tanh(x @ p["hidden"])
        scores = hidden @ p["output"]
        scores -= scores.max(axis=1, keepdims=True)
        log_probability = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
        self._saved = contexts, targets, x, hidden, log_probability
        return float(-log_probability[np.arange(len(targets)), targets].mean())

    def backward(self) -> None:
        p = self.parameters
        contexts, targets, x, hidden, log_probability = self._saved
        d_scores = np.exp(log_probability)
        d_scores[np.arange(len(targets)), targets] -= 1
        d_scores /= len(targets)
        d_hidden = (d_scores @ p["output"].T) * (1 - hidden * hidden)
        d_embedding = np.zeros_like(p["embedding"])
        np.add.at(d_embedding, contexts, (d_hidden @ p["hidden"].T).reshape(*contexts.shape, WIDTH))
        self.gradients = {"embedding": d_embedding, "hidden": x.T @ d_hidden, "output": hidden.T @ d_scores}

    def update(self, rate: float) -> None:
        for name, gradient in self.gradients.items():
            self.parameters[name] -= rate * gradient


class TorchModel:
    """The same network in torch, its gradients by autograd, on a GPU where there is one."""

    def __init__(self, device: str) -> None:
        import torch

        self._torch = torch
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        self._device = torch.device(device)
        self.name = f"torch on {device}"
        self.parameters: dict[str, Any] = {
            name: torch.from_numpy(array).to(self._device).requires_grad_() for name, array in make_parameters().items()
        }
        self._loss: Any = None

    def load(self, contexts: Any, targets: Any) -> tuple[Any, Any]:
        return (self._torch.from_numpy(contexts).to(self._device), self._torch.from_numpy(targets).to(self._device))

    def forward(self, contexts: Any, targets: Any) -> float:
        p = self.parameters
        hidden = self._torch.tanh(p["embedding"][contexts].flatten(1) @ p["hidden"])
        self._loss = self._torch.nn.functional.cross_entropy(hidden @ p["output"], targets)
        return float(self._loss.detach())

    def backward(self) -> None:
        self._loss.backward()

    @property
    def gradients(self) -> dict[str, Any]:
        return {name: parameter.grad for name, parameter in self.parameters.items()}

    def update(self, rate: float) -> None:
        with self._torch.no_grad():
            for parameter in self.parameters.values():
                parameter -= rate * parameter.grad
                parameter.grad = None


class Ranks:
    """The processes that torchrun has started: over NCCL where they compute on GPUs, over gloo else."""

    def __init__(self, model: NumpyModel | TorchModel) -> None:
        import torch.distributed

        if not isinstance(model, TorchModel):
            raise ValueError("--distributed: the gradients must be torch's, so --backend torch")
        self._distributed = torch.distributed
        self._distributed.init_process_group("nccl" if "cuda" in model.name else "gloo")
        self.rank = self._distributed.get_rank()
        self.size = self._distributed.get_world_size()

    def average(self, gradients: dict[str, Any]) -> None:
        """Make each gradient the mean of those of all ranks."""
        for gradient in gradients.values():
            self._distributed.all_reduce(gradient)
            gradient /= self.size

    def leave(self) -> None:
        self._distributed.destroy_process_group()


def make_model(backend: str, device: str) -> NumpyModel | TorchModel:
    """Return the network on `backend`; auto takes torch where it is installed."""
    if backend != "numpy":
        try:
            return TorchModel(device)
        except ImportError:
            if backend == "torch":
                raise
    if device not in ("auto", "cpu"):
        raise ValueError(f"device {device}: numpy computes on the CPU only")
    return NumpyModel()


def train(model: NumpyModel | TorchModel, steps: int, batch_size: int, rate: float, ranks: Ranks | None) -> None:
    first = ranks is None or ranks.rank == 0
    text = Text(Path(__file__), seed=1 if ranks is None else 1 + ranks.rank)
    for step in traceable.steps(range(steps)):
        with traceable.annotate("data"):
            batch = model.load(*text.batch(batch_size))
        with traceable.annotate("forward"):
            loss = model.forward(*batch)
        with traceable.annotate("backward"):
            model.backward()
        if ranks is not None:
            with traceable.annotate("all_reduce"):
                ranks.average(model.gradients)
        with traceable.annotate("optimizer"):
            model.update(rate)
        if first and (step % 50 == 0 or step == steps - 1):
            print(f"step {step}: loss {loss:.4f}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--rate", type=float, default=0.5, help="learning rate (default: 0.5)")
    parser.add_argument("--backend", choices=("auto", "numpy", "torch"), default="auto")
    parser.add_argument("--device", default="auto", help="cpu, cuda, cuda:1 (default: a GPU where torch finds one)")
    parser.add_argument("--distributed", action="store_true", help="train together with the other ranks of torchrun")
    arguments = parser.parse_args()
    device = arguments.device
    if arguments.distributed and device == "cuda":
        device = f"cuda:{os.environ.get('LOCAL_RANK', '0')}"
    try:
        model = make_model(arguments.backend, device)
        ranks = Ranks(model) if arguments.distributed else None
    except (ImportError, ValueError) as error:
        print(f"train: {error}", file=sys.stderr)
        return 1
    if ranks is None or ranks.rank == 0:
        print(f"training in {model.name}" + (f", {ranks.size} ranks" if ranks else ""), flush=True)
    train(model, arguments.steps, arguments.batch_size, arguments.rate, ranks)
    if ranks is not None:
        ranks.leave()
    return 0


if __name__ == "__main__":
    sys.exit(main())
