"""A transformer of any number of layers, in torch: the full model, or a mock of one layer of it.

    python -m traceable run -o full examples/align_transformer.py --layers 12
    python -m traceable run -o mock examples/align_transformer.py --layers 1
    python -m traceable align full mock --layer 5

Every step is one forward pass over random numbers: an embedding, the layers, each in a range `layers.N` with
`attention` and `mlp` in it, and a head. --bare leaves the embedding and the head out, as a mock does. --heads, --batch,
--length and --dtype make a mock that is not faithful.
"""

from __future__ import annotations

import argparse

import torch
from torch import nn

import traceable

VOCABULARY = 8192


class Layer(nn.Module):
    """One layer: attention and a perceptron, each after a norm and with a residual."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self._heads = heads
        self.attention_norm, self.mlp_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        with traceable.annotate("attention"):
            qkv = self.qkv(self.attention_norm(x)).view(batch, length, 3, self._heads, width // self._heads)
            query, key, value = qkv.permute(2, 0, 3, 1, 4)
            mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
            x = x + self.projection(mixed.transpose(1, 2).reshape(batch, length, width))
        with traceable.annotate("mlp"):
            x = x + self.down(nn.functional.gelu(self.up(self.mlp_norm(x))))
        return x


class Transformer(nn.Module):
    """Layers between an embedding and a head; `bare`: the layers alone."""

    def __init__(self, layers: int, width: int, heads: int, bare: bool) -> None:
        super().__init__()
        self.embedding = None if bare else nn.Embedding(VOCABULARY, width)
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(layers))
        self.head = None if bare else nn.Linear(width, VOCABULARY)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.embedding is not None:
            x = self.embedding(x)
        for number, layer in enumerate(self.layers):
            with traceable.annotate(f"layers.{number}"):
                x = layer(x)
        if self.head is not None:
            x = self.head(x)
        return x


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--bare", action="store_true")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), default="float32")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    dtype = getattr(torch, arguments.dtype)
    model = Transformer(arguments.layers, arguments.width, arguments.heads, arguments.bare)
    model.to(arguments.device, dtype)
    shape = (arguments.batch, arguments.length)
    if arguments.bare:
        x = torch.randn(*shape, arguments.width, device=arguments.device, dtype=dtype)
    else:
        x = torch.randint(VOCABULARY, shape, device=arguments.device)
    with torch.inference_mode():
        for _ in traceable.steps(range(arguments.steps)):
            model(x)
            if arguments.device != "cpu":
                torch.cuda.synchronize()
    print(f"{arguments.steps} steps of {arguments.layers} layers on {arguments.device}")


if __name__ == "__main__":
    main()
