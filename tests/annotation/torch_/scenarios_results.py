"""Training steps of small models with and without instrumentation: what test_torch_results.py compares.

The two runs start from the same seed, in this process, under the recorder.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from traceable.annotation.torch.copies import instrument_copies
from traceable.annotation.torch.modules import instrument

torch.set_num_threads(1)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(8, 8, 2, batch_first=True, dropout=0.1), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out, (hidden, _cell) = self.lstm(x)
        return self.head(out) + hidden[-1].unsqueeze(1)


class TiedLanguageModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.mix, self.out = nn.Embedding(8, 8), nn.Linear(8, 8), nn.Linear(8, 8, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(torch.relu_(self.mix(self.embed(x.argmax(-1)))))


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.2), nn.GELU()) for _ in range(3))
        self.first, self.reentrant = nn.Linear(8, 8), reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=self.reentrant)
        return x


class Images(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Flatten()
        )
        self.head = nn.LazyLinear(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x.unsqueeze(1)))


def encoder(**options: Any) -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, **options)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(6), nn.ReLU(inplace=True), nn.Dropout(0.3), nn.Linear(16, 8))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "mlp": mlp,
    "encoder": encoder,
    "encoder_norm_first": lambda: encoder(norm_first=True, activation="gelu"),
    "conv": Images,
    "lstm": Recurrent,
    "tied": TiedLanguageModel,
    "checkpointed": lambda: Checkpointed(reentrant=False),
    "checkpointed_reentrant": lambda: Checkpointed(reentrant=True),
    "compiled": lambda: torch.compile(mlp(), backend="aot_eager"),
}


def train(make: Callable[[], nn.Module], instrumented: bool) -> list[torch.Tensor]:
    """Two steps of training and one evaluation: losses, outputs, gradients, parameters and buffers."""
    torch.manual_seed(7)
    random.seed(7)
    torch._dynamo.reset()
    net = make()
    result = []
    with contextlib.ExitStack() as stack:
        if instrumented:
            stack.enter_context(instrument(net))
            stack.enter_context(instrument_copies())
        net(torch.randn(5, 6, 8))
        optimizer = torch.optim.AdamW(net.parameters(), 0.01)
        for _ in range(2):
            optimizer.zero_grad()
            loss = net(torch.randn(5, 6, 8)).pow(2).mean()
            loss.backward()
            optimizer.step()
            result += [loss.detach(), *(p.grad.clone() for p in net.parameters() if p.grad is not None)]
        net.eval()
        with torch.inference_mode():
            result.append(net(torch.randn(5, 6, 8)))
    return [*result, *net.state_dict().values()]


def compare_results(name: str) -> Any:
    plain = train(MODELS[name], instrumented=False)
    names = train(MODELS[name], instrumented=True)
    return [len(plain), len(plain) == len(names) and all(map(torch.equal, plain, names))]


for _name in MODELS:
    globals()[f"scenario_{_name}"] = lambda name=_name: compare_results(name)
