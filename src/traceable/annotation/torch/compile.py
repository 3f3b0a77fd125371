"""While torch.compile traces, ranges are not there: no graph break, no error under `fullgraph=True`.

A range says when code ran, and what torch.compile traces is not what runs. So nothing is emitted from inside a graph;
a compiled call counts to the range that is open around it, which may be that of the compiled function itself. What is
decorated needs little of this: `ranges.carry` names what is to be traced in its stead. Loaded by whoever imports
torch._dynamo, and so by whoever compiles.
"""

from __future__ import annotations

from contextlib import nullcontext
from functools import lru_cache, partial
from types import FunctionType
from typing import Any

from torch._dynamo.guards import GuardBuilder
from torch._dynamo.source import AttrSource
from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.builder import VariableBuilder
from torch._dynamo.variables.constant import ConstantVariable
from torch._dynamo.variables.ctx_manager import NullContextVariable

from traceable.annotation import counters, domains, engine, ranges
from traceable.annotation.torch import profiler_backend
from traceable.annotation.torch.frames import disable_compile, skip_frame
from traceable.protocol import environment

_VERBS: tuple[Any, ...] = (
    ranges.mark,
    ranges.push_range,
    ranges.pop_range,
    ranges.start_range,
    ranges.end_range,
    counters.counter,
)


class _Unheard(NullContextVariable):
    """What was made outside of the graph and emits: a range, a counter, a domain."""

    def call_method(self, tx: Any, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:  # noqa: ARG002
        """Do nothing, as a `DummyDomain` does."""
        return ConstantVariable.create(None)


def _unheard(builder: Any, _value: Any) -> Any:
    builder.install_guards(GuardBuilder.TYPE_MATCH)
    return _Unheard()


def _wrapped(builder: Any, value: Any) -> Any:
    builder.install_guards(GuardBuilder.TYPE_MATCH)
    return VariableBuilder(builder.tx, AttrSource(builder.source, "__wrapped__"))(value.__wrapped__)


def _annotate(message: Any = None, *_arguments: Any, **_named: Any) -> Any:
    """Stand in the place of `annotate`."""
    return message if callable(message) else nullcontext()


def _nothing(*_arguments: Any, **_named: Any) -> None:
    """Stand in the place of what emits."""


def _stand_in(function: Any) -> Any:
    def stand_in(builder: Any, _value: Any) -> Any:
        builder.install_guards(GuardBuilder.ID_MATCH)
        return VariableTracker.build(builder.tx, function)

    return stand_in


def patch_dynamo() -> None:
    """Have torch.compile see through all that emits. To be called once in a process."""
    by_identity = VariableBuilder._id_dispatch()
    by_identity[id(ranges.annotate)] = _stand_in(_annotate)
    by_identity.update(dict.fromkeys(map(id, _VERBS), _stand_in(_nothing)))
    models: dict[Any, Any] = {counters.Counter: _unheard, domains.Domain: _unheard}
    # Those that are counted are of classes of their own.
    names = (None,) if engine.requests is None else (None, engine.requests.NAME)
    for range_ in map(ranges.annotate, names):
        models[type(range_)] = _unheard
        for function in (_nothing, partial(_nothing), lru_cache(_nothing)):
            wrapper: Any = engine.wrap(function, range_)
            if type(wrapper) is FunctionType:
                skip_frame(wrapper)  # so that what it calls is compiled, and inside of its range
            elif wrapper is not function:
                models[type(wrapper)] = _wrapped
    for trace_numpy in (True, False):
        VariableBuilder._type_dispatch_impl(trace_numpy).update(models)
    if environment.is_torch_collector():
        disable_compile(profiler_backend.push_range)
        disable_compile(profiler_backend.pop_range)
