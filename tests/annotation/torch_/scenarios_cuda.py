"""Instrumented models on a real GPU: what test_torch_cuda.py looks at. Run by run_scenarios.py under the recorder."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import traceable
from traceable.annotation.torch.copies import instrument_copies
from traceable.annotation.torch.modules import instrument


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(x)))


def net() -> nn.Module:
    return Net().cuda()


def scenario_copies() -> Any:
    host = torch.zeros(256, 4)
    pinned = host.pin_memory()
    there = host.cuda()
    with instrument_copies():
        host.to("cuda")
        pinned.to("cuda", non_blocking=True)
        pinned.cuda(non_blocking=True).to("cuda")
        host.to("cuda", torch.float16)
        there.cpu()
        there.to("cpu", non_blocking=True)
        there.tolist()
        there.numpy(force=True)
        there[0, 0].item()
        pinned.copy_(there)
        there.copy_(host)
        there.to(torch.float16)
        there.clone().copy_(there)
        Net().cuda()
    torch.cuda.synchronize()


def scenario_backward() -> Any:
    model = net()
    x = torch.randn(8, 64, device="cuda")
    model(x).sum().backward()
    with instrument(model):
        with traceable.annotate("step"):
            for _ in range(3):
                model(x).sum().backward()
        torch.cuda.synchronize()


class Fails(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        raise ValueError("no gradient here")


def scenario_backward_raises() -> Any:
    model = net()
    x = torch.randn(8, 64, device="cuda", requires_grad=True)
    caught = False
    with instrument(model):
        try:
            model(Fails.apply(x)).sum().backward()
        except ValueError:
            caught = True
        model(x).sum().backward()
    return caught


def scenario_graph_capture() -> Any:
    model = net()
    x = torch.randn(8, 64, device="cuda")
    with instrument(model):
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            model(x).sum().backward()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        model.zero_grad()
        with torch.cuda.graph(graph):
            out = model(x)
            out.sum().backward()
        graph.replay()
        torch.cuda.synchronize()
    return torch.equal(out, model(x))


def scenario_graphed_callables() -> Any:
    model = net()
    with instrument(model):
        graphed = torch.cuda.make_graphed_callables(model, (torch.randn(8, 64, device="cuda"),))
        with traceable.annotate("replay"):
            graphed(torch.randn(8, 64, device="cuda")).sum().backward()
        torch.cuda.synchronize()


def scenario_inductor() -> Any:
    model = net()
    x = torch.randn(8, 64, device="cuda")
    plain = model(x)
    with instrument(model):
        compiled = torch.compile(model, fullgraph=True)
        compiled(x)
        with traceable.annotate("then"):
            out = compiled(x)
            out.sum().backward()
        torch.cuda.synchronize()
    return torch.allclose(out, plain, atol=1e-3)


def scenario_equal() -> Any:
    def gradients(instrumented: bool) -> list[torch.Tensor]:
        torch.manual_seed(3)
        model = net()
        with instrument(model if instrumented else nn.Identity()):
            model(torch.randn(8, 64, device="cuda")).pow(2).sum().backward()
        return [p.grad for p in model.parameters() if p.grad is not None]

    return all(map(torch.equal, gradients(False), gradients(True)))
