"""Compiled models, instrumented: what test_torch_compile.py looks at. Run by run_scenarios.py under the recorder."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import traceable
from traceable.annotation.torch.copies import instrument_copies
from traceable.annotation.torch.modules import instrument

torch.set_num_threads(1)


class Sub(nn.Module):
    def __init__(self, breaks: bool = False) -> None:
        super().__init__()
        self.linear, self.breaks = nn.Linear(4, 4), breaks

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.linear(x)
        if self.breaks:
            torch._dynamo.graph_break()
        return torch.relu(x).to(torch.float32).cpu()


class Net(nn.Module):
    def __init__(self, breaks: bool = False, subs: int = 3) -> None:
        super().__init__()
        self.subs = nn.ModuleList(Sub(breaks) for _ in range(subs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for sub in self.subs:
            x = sub(x)
        return x


X = torch.randn(2, 4)


def compiled_under(backend: str) -> Any:
    torch._dynamo.reset()
    net = Net()
    plain = net(X)
    with instrument(net), instrument_copies():
        explained = torch._dynamo.explain(net)(X)
        compiled = torch.compile(net, backend=backend, fullgraph=True)
        compiled(X)
        with traceable.annotate("then"):
            out = compiled(X)
            out.sum().backward()
    return {
        "breaks": explained.graph_break_count,
        "graphs": explained.graph_count,
        "equal": torch.equal(out, plain),
        "gradients": all(p.grad is not None for p in net.parameters()),
    }


def scenario_eager() -> Any:
    return compiled_under("eager")


def scenario_aot_eager() -> Any:
    return compiled_under("aot_eager")


def scenario_compiled_before() -> Any:
    torch._dynamo.reset()
    compiled = torch.compile(Net(), backend="eager", fullgraph=True)
    compiled(X)
    with instrument(compiled) as handle:
        compiled(X).sum().backward()
    with traceable.annotate("after"):
        compiled(X)
    return handle.names


def scenario_compiled_in_place() -> Any:
    torch._dynamo.reset()
    net = Net()
    net.compile(backend="eager", fullgraph=True)
    with instrument(net):
        net(X).sum().backward()


def scenario_compiled_function() -> Any:
    torch._dynamo.reset()
    net = Net()

    @torch.compile(backend="eager", fullgraph=True)
    def step(x: torch.Tensor) -> torch.Tensor:
        return net(x) * 2

    with instrument(net):
        out = step(X)
    return torch.equal(out, net(X) * 2)


def recompilations(instrumented: bool) -> tuple[int, int]:
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    net = Net(breaks=True, subs=12)
    with instrument(net if instrumented else nn.Identity()):
        compiled = torch.compile(net, backend="eager")
        compiled(X)
        with traceable.annotate("then" if instrumented else "bare"):
            compiled(X).sum().backward()
    return counters["stats"]["unique_graphs"], sum(counters["graph_break"].values())


def scenario_graph_breaks() -> Any:
    return [recompilations(instrumented=False), recompilations(instrumented=True)]


def scenario_train_step_with_backward() -> Any:
    torch._dynamo.reset()
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)

    @torch.compile(backend="eager")
    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = net(x).sum()
        loss.backward()
        optimizer.step()
        return loss

    with instrument(net):
        step(X)
        step(X)
    return all(p.grad is not None for p in net.parameters())


def scenario_compiled_autograd() -> Any:
    torch._dynamo.reset()
    net = Net()
    net(X).sum().backward()
    plain = [p.grad.clone() for p in net.parameters() if p.grad is not None]
    net.zero_grad()
    with instrument(net), torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager")):
        net(X).sum().backward()
    return all(torch.equal(a, b.grad) for a, b in zip(plain, net.parameters(), strict=True))
