"""A small decoder-only transformer over words, in torch, with a cache of keys and values: what openai_server.py serves.

Its weights are random but fixed by a seed, so the words that it generates mean nothing and are always the same; the
arithmetic, the cache and the copies are what a real model does. Prefill computes whole prompts, decode one token of
each sequence, as in vLLM, SGLang and TensorRT-LLM.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

TOKENIZER = Path(__file__).with_name("tokenizer")
HEADS = 4


class Tokenizer:
    """The word-level tokenizer of `examples/tokenizer`: a token for each word."""

    def __init__(self) -> None:
        model = json.loads((TOKENIZER / "tokenizer.json").read_text(encoding="utf-8"))["model"]
        self._ids: dict[str, int] = model["vocab"]
        self._unknown = self._ids[model["unk_token"]]
        self._words = sorted(self._ids, key=self._ids.__getitem__)

    def __len__(self) -> int:
        return len(self._words)

    def encode(self, text: str) -> list[int]:
        """Return a token for each word of a text."""
        return [self._ids.get(word, self._unknown) for word in text.lower().split()]

    def decode(self, token: int) -> str:
        """Return the word of a token, with the space before it."""
        return f" {self._words[token]}"


class LanguageModel:
    """The transformer and its cache, which has a slot for each sequence.

    Args:
        device: cpu, cuda, cuda:1, ...
        vocabulary: number of tokens.
        slots: number of sequences at a time.
        max_tokens: length of a sequence at most, with its prompt.
    """

    def __init__(
        self, device: str, vocabulary: int, slots: int, max_tokens: int, width: int = 64, layers: int = 2, seed: int = 0
    ) -> None:
        self.device = torch.device(device)
        self._width, self._layers = width, layers
        random = torch.Generator().manual_seed(seed)

        def matrix(rows: int, columns: int) -> Any:
            return (torch.randn(rows, columns, generator=random) / math.sqrt(rows)).to(self.device)

        self._embedding, self._position = matrix(vocabulary, width), matrix(max_tokens, width)
        self._weights = [
            {
                "qkv": matrix(width, 3 * width),
                "mix": matrix(width, width),
                "up": matrix(width, 4 * width),
                "down": matrix(4 * width, width),
            }
            for _ in range(layers)
        ]
        self._keys, self._values = (
            torch.zeros(layers, slots, HEADS, max_tokens, width // HEADS, device=self.device) for _ in range(2)
        )

    def to_device(self, *columns: list[Any]) -> list[Any]:
        """Copy lists of whole numbers to the device, as tensors."""
        tensors = [torch.tensor(column) for column in columns]
        if self.device.type == "cuda":
            # Only from pinned memory does the copy overlap with the CPU.
            tensors = [tensor.pin_memory() for tensor in tensors]
        return [tensor.to(self.device, non_blocking=True) for tensor in tensors]

    @torch.inference_mode()
    def prefill(self, tokens: Any, lengths: Any, slots: Any) -> Any:
        """Fill the cache with prompts and return the first token of each response.

        Args:
            tokens: the prompts, [batch, length], padded on the right. No position sees a later one, so none sees the
                padding.
            lengths: of each prompt, [batch].
            slots: of each sequence, [batch].
        """
        batch, length = tokens.shape
        x = self._embedding[tokens] + self._position[:length]
        for layer, weights in enumerate(self._weights):
            q, k, v = self._project(x, weights).permute(2, 0, 3, 1, 4)  # each [batch, heads, length, width of a head]
            self._keys[layer, slots, :, :length] = k
            self._values[layer, slots, :, :length] = v
            attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = self._mix(x, attended.transpose(1, 2).reshape(batch, length, self._width), weights)
        return self._choose_token(x[torch.arange(batch, device=self.device), lengths - 1])

    @torch.inference_mode()
    def decode(self, tokens: Any, positions: Any, longest: int) -> Any:
        """Append a token to the sequence in each of the first slots, and return the next ones.

        All slots up to the last one that is in use are computed: a selection of them would copy the cache.

        Args:
            tokens: the last token of each sequence, [slots]; anything for a slot that is free.
            positions: its index in the sequence, [slots]; 0 for a slot that is free.
            longest: the length of the longest sequence: so much of the cache is read.
        """
        slots = torch.arange(len(tokens), device=self.device)
        x = self._embedding[tokens] + self._position[positions]
        # No sequence sees what an earlier one left in its slot.
        mask = (torch.arange(longest, device=self.device) <= positions[:, None])[:, None, None]
        for layer, weights in enumerate(self._weights):
            q, k, v = self._project(x, weights).unbind(1)  # each [slots, heads, width of a head]
            self._keys[layer, slots, :, positions] = k
            self._values[layer, slots, :, positions] = v
            keys, values = (cache[layer, : len(tokens), :, :longest] for cache in (self._keys, self._values))
            attended = functional.scaled_dot_product_attention(q[:, :, None], keys, values, attn_mask=mask)
            x = self._mix(x, attended.reshape(len(tokens), self._width), weights)
        return self._choose_token(x)

    def _project(self, x: Any, weights: dict[str, Any]) -> Any:
        """Return query, key and value of each head, [..., 3, HEADS, width of a head]."""
        qkv = functional.layer_norm(x, (self._width,)) @ weights["qkv"]
        return qkv.reshape(*x.shape[:-1], 3, HEADS, self._width // HEADS)

    def _mix(self, x: Any, attended: Any, weights: dict[str, Any]) -> Any:
        x = x + attended @ weights["mix"]
        return x + functional.relu(functional.layer_norm(x, (self._width,)) @ weights["up"]) @ weights["down"]

    def _choose_token(self, x: Any) -> Any:
        return (functional.layer_norm(x, (self._width,)) @ self._embedding.T).argmax(-1)
