"""A small causal transformer over bytes, on numpy arrays or torch tensors: what the example server serves.

It predicts the byte that follows a prompt. Its weights are random but fixed, so the predictions mean nothing and are
always the same; the arithmetic and the copies are what a real model does. It neither trains nor samples.
"""

from __future__ import annotations

from typing import Any

import numpy as np

VOCABULARY = 256
MAX_TOKENS = 128
WIDTH = 64
HEADS = 4
LAYERS = 2


def make_weights(seed: int = 0) -> dict[str, Any]:
    """Draw the weights, float32: the same for every back end."""
    random = np.random.default_rng(seed)

    def matrix(rows: int, columns: int) -> Any:
        return (random.standard_normal((rows, columns)) / np.sqrt(rows)).astype(np.float32)

    weights = {"embedding": matrix(VOCABULARY, WIDTH), "position": matrix(MAX_TOKENS, WIDTH)}
    for layer in range(LAYERS):
        weights[f"qkv{layer}"] = matrix(WIDTH, 3 * WIDTH)
        weights[f"mix{layer}"] = matrix(WIDTH, WIDTH)
        weights[f"up{layer}"] = matrix(WIDTH, 4 * WIDTH)
        weights[f"down{layer}"] = matrix(4 * WIDTH, WIDTH)
    # -inf above the diagonal: no position sees a later one. It also excludes the padding, on the right, from the
    # prediction.
    weights["mask"] = np.triu(np.full((MAX_TOKENS, MAX_TOKENS), -np.inf, dtype=np.float32), k=1)
    return weights


def pack(prompts: list[bytes]) -> tuple[Any, Any]:
    """Pad prompts of 1 to MAX_TOKENS bytes on the right: int64 tokens [batch, length], last positions [batch]."""
    tokens = np.zeros((len(prompts), max(map(len, prompts))), dtype=np.int64)
    for row, prompt in zip(tokens, prompts, strict=True):
        row[: len(prompt)] = np.frombuffer(prompt, dtype=np.uint8)
    return tokens, np.array([len(prompt) - 1 for prompt in prompts])


def logits(xp: Any, weights: dict[str, Any], tokens: Any, last: Any) -> Any:
    """Return the scores of the next byte, [batch, VOCABULARY]; `xp` is the module numpy or torch."""

    def norm(x: Any) -> Any:
        centred = x - x.mean(-1)[..., None]
        return centred / xp.sqrt((centred * centred).mean(-1) + 1e-5)[..., None]

    def softmax(x: Any) -> Any:
        e = xp.exp(x - xp.amax(x, -1)[..., None])
        return e / e.sum(-1)[..., None]

    batch, length = tokens.shape
    x = weights["embedding"][tokens] + weights["position"][:length]
    for layer in range(LAYERS):
        qkv = (norm(x) @ weights[f"qkv{layer}"]).reshape(batch, length, 3, HEADS, WIDTH // HEADS)
        q, k, v = (qkv[:, :, part].swapaxes(1, 2) for part in range(3))
        scores = q @ k.swapaxes(2, 3) / (WIDTH // HEADS) ** 0.5 + weights["mask"][:length, :length]
        x = x + (softmax(scores) @ v).swapaxes(1, 2).reshape(batch, length, WIDTH) @ weights[f"mix{layer}"]
        hidden = norm(x) @ weights[f"up{layer}"]
        x = x + (hidden * (hidden > 0)) @ weights[f"down{layer}"]
    return norm(x)[xp.arange(batch), last] @ weights["embedding"].T


class NumpyModel:
    """The model in numpy. Its "device" is the host's own memory: both copies are copies within it."""

    name = "numpy on cpu"

    def __init__(self) -> None:
        self._weights = make_weights()

    def to_device(self, tokens: Any, last: Any) -> tuple[Any, Any]:
        return tokens.copy(), last.copy()

    def forward(self, tokens: Any, last: Any) -> Any:
        return logits(np, self._weights, tokens, last)

    def to_host(self, scores: Any) -> Any:
        return scores.copy()


class TorchModel:
    """The model in torch, on the CPU or on a CUDA device."""

    def __init__(self, device: str) -> None:
        import torch

        self._torch = torch
        self._device = torch.device(device)
        self._weights = {name: torch.from_numpy(array).to(self._device) for name, array in make_weights().items()}
        self.name = f"torch on {device}"

    def to_device(self, tokens: Any, last: Any) -> tuple[Any, Any]:
        host = [self._torch.from_numpy(array) for array in (tokens, last)]
        if self._device.type == "cuda":
            # Only from pinned memory does the copy overlap with the CPU.
            host = [tensor.pin_memory() for tensor in host]
        moved = [tensor.to(self._device, non_blocking=True) for tensor in host]
        return moved[0], moved[1]

    def forward(self, tokens: Any, last: Any) -> Any:
        with self._torch.inference_mode():
            return logits(self._torch, self._weights, tokens, last)

    def to_host(self, scores: Any) -> Any:
        # On CUDA this waits for the kernels: the time of `forward` is only that of launching them.
        return scores.cpu().numpy()


def load(backend: str, device: str) -> NumpyModel | TorchModel:
    """Return the model on `backend` (auto, numpy, torch) and `device` (auto, cpu, cuda, cuda:1, ...).

    auto takes torch if it is installed, and CUDA if torch finds a GPU. Raises ImportError if torch is requested
    for and missing, ValueError for numpy on anything but the CPU.
    """
    if backend != "numpy":
        try:
            import torch
        except ImportError:
            if backend == "torch":
                raise
        else:
            if device == "auto":
                device = "cuda" if torch.cuda.is_available() else "cpu"
            return TorchModel(device)
    if device not in ("auto", "cpu"):
        raise ValueError(f"device {device}: numpy computes on the CPU only")
    return NumpyModel()
