"""Train a small transformer for a few steps with every module's forward and backward named, and the copies as well.

python -m traceable run examples/annotate_torch_model.py --steps 5
python examples/annotate_torch_model.py            (the same without a profiler: nothing is instrumented)

Needs torch; runs on the GPU if there is one. Without one there are no copies to annotate.
"""

from __future__ import annotations

import argparse

import torch
from torch import nn

import traceable


class Classifier(nn.Module):
    """Tokens in, one of two classes out."""

    def __init__(self, width: int = 64, layers: int = 2) -> None:
        super().__init__()
        self.embed = nn.Embedding(128, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, 2)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        encoded: torch.Tensor = self.encoder(self.embed(tokens))
        logits: torch.Tensor = self.head(encoded.mean(1))
        return logits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=5)
    steps = parser.parse_args().steps
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = Classifier().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    # depth=4 is a layer's parts, Classifier.encoder.layers.0.linear1, not their children.
    with traceable.instrument(model, depth=4), traceable.instrument_copies():
        for step in range(steps):
            with traceable.annotate("step", payload=step):
                tokens = torch.randint(0, 128, (8, 32)).to(device)
                labels = (tokens.sum(1) % 2).to(device)
                loss = nn.functional.cross_entropy(model(tokens), labels)
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
                optimizer.step()
                print(f"step {step}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
