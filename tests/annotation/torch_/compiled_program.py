"""Annotated code, compiled with and without `fullgraph=True`: run by test_torch_compile.py under each collector.

python compiled_program.py ANSWERS.json

What each call emits stands inside the range `<form> <plain|fullgraph>`.
"""

from __future__ import annotations

import functools
import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch._dynamo.utils import counters

import traceable
from traceable import annotate

torch.set_num_threads(1)
X = torch.randn(4)
MADE_BEFORE = annotate("made before", payload={"kind": "test"})
SPAN_BEFORE = annotate("span before", otel=True)
COUNTER = traceable.Counter("depth")


@annotate
def helper(x: torch.Tensor) -> torch.Tensor:
    return x.sin()


@annotate("with fields", payload={"kind": "test"})
def with_fields(x: torch.Tensor) -> torch.Tensor:
    return x.cos()


@annotate("span", otel=True)
def spanned(x: torch.Tensor) -> torch.Tensor:
    return x.cos()


@annotate
def generator(x: torch.Tensor) -> Any:
    yield x
    yield x + 1


class Times:
    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x * 3


partial = annotate("partial")(functools.partial(torch.mul, torch.ones(4)))
times = annotate("times")(Times())


class Net(torch.nn.Module):
    @annotate
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.method(x) + self.static(x) + self.of_class(x) + self.factor

    @annotate
    def method(self, x: torch.Tensor) -> torch.Tensor:
        return x.tanh()

    @annotate
    @staticmethod
    def static(x: torch.Tensor) -> torch.Tensor:
        return x + 2

    @classmethod
    @annotate
    def of_class(cls, x: torch.Tensor) -> torch.Tensor:
        return x + 3

    @annotate
    @property
    def factor(self) -> int:
        return 2


net = Net()


def calls(x: torch.Tensor) -> torch.Tensor:
    return times(partial(with_fields(helper(x)))) + sum(generator(x))


def blocks(x: torch.Tensor) -> torch.Tensor:
    with annotate("block", color="red", domain="d", category="c", payload=len(x)):
        for number in range(2):
            with annotate(f"inner {number}"), MADE_BEFORE:
                x = helper(x)
    with annotate("fields", payload={"size": len(x)}, level=2) as entered:
        del entered
        return x + 1


def verbs(x: torch.Tensor) -> torch.Tensor:
    traceable.mark("mark")
    traceable.push_range("pushed")
    started = traceable.start_range("started")
    traceable.counter("count", 1)
    COUNTER.sample(len(x))
    x = x.sin()
    traceable.end_range(started)
    traceable.pop_range()

    @annotate("defined inside")
    def inside(y: torch.Tensor) -> torch.Tensor:
        return y + 1

    return inside(x)


def spans(x: torch.Tensor) -> torch.Tensor:
    with SPAN_BEFORE, annotate("span inside", otel=True):
        return spanned(x)


def module(x: torch.Tensor) -> torch.Tensor:
    return net(x)


@annotate("outermost")
def outermost(x: torch.Tensor) -> torch.Tensor:
    return helper(x) + 1


def broken_block(x: torch.Tensor) -> torch.Tensor:
    with annotate("block"):
        x = x.sin()
        torch._dynamo.graph_break()
        return x.cos()


@annotate
def broken(x: torch.Tensor) -> torch.Tensor:
    x = x.sin()
    torch._dynamo.graph_break()
    return x.cos()


def calls_broken(x: torch.Tensor) -> torch.Tensor:
    return broken(x + 1) * 2


def bare_broken(x: torch.Tensor) -> torch.Tensor:
    x = x.sin()
    torch._dynamo.graph_break()
    return x.cos()


def compiled(name: str, function: Any, fullgraph: bool) -> Any:
    torch._dynamo.reset()
    counters.clear()
    plain = function(X)
    call = torch.compile(function, backend="eager", fullgraph=fullgraph)
    call(X)
    with annotate(f"{name} {'fullgraph' if fullgraph else 'plain'}"):
        out = call(X)
    return [torch.equal(out, plain), counters["stats"]["unique_graphs"], sum(counters["graph_break"].values())]


def main() -> None:
    answers = {}
    for function in (calls, blocks, verbs, spans, module, outermost):
        answers[function.__name__] = [compiled(function.__name__, function, full) for full in (False, True)]
    for function in (broken_block, calls_broken, bare_broken):
        answers[function.__name__] = [compiled(function.__name__, function, False)]
    with annotate("eager"):
        calls(X)
        blocks(X)
        module(X)
    Path(sys.argv[1]).write_text(json.dumps(answers))


main()
