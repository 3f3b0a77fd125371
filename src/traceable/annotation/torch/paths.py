"""The stable path of every module of a torch model: what its ranges are called.

A path begins with the root's class name and goes on with the attribute names, `Net.layers.0.attn`. What training
frameworks put around a module (DataParallel, DistributedDataParallel, FSDP, `torch.compile`, activation checkpointing)
leaves no trace in it, so one name means one layer in every way of running the model. Nothing is called or changed here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import nn

_COMPILED = "_orig_mod"
_WRAPPED = (_COMPILED, "_fsdp_wrapped_module", "_checkpoint_wrapped_module")


@dataclass
class Place:
    """Where a module stands in its model.

    Attributes:
        path: the module's path, the first one found where it is reachable by several.
        below: how many attribute names the path has after the root's.
        module: the module whose call is the range.
        shells: the wrappers around it, outermost first, and the modules that `module` stands for.
        aliases: the other paths by which the same module is reached: tied modules.
    """

    path: str
    below: int
    module: nn.Module
    shells: tuple[nn.Module, ...]
    aliases: list[str] = field(default_factory=list)


def places(root: nn.Module) -> list[Place]:
    """Return every module of `root` once, parents before children, in the order of `named_modules`.

    Modules inside a scripted or traced module are left out: torch runs them without returning to Python.
    """
    found: dict[int, Place] = {}
    _visit(root, "", 0, found)
    return list(found.values())


def _visit(module: nn.Module, path: str, below: int, found: dict[int, Place]) -> None:
    layers = list(_layers(module))
    inner = layers[-1]
    path = path or _class_name(inner)
    if id(inner) in found:
        found[id(inner)].aliases.append(path)
        return
    # A compiled module calls what it holds through a reference taken when it was made, so that only its own call is
    # sure to be heard; every other wrapper calls what it holds as any program would.
    compiled = [layer for layer in layers if _COMPILED in layer._modules]
    named = compiled[-1] if compiled else inner
    found[id(inner)] = Place(path, below, named, tuple(layer for layer in layers if layer is not named))
    if isinstance(inner, torch.jit.ScriptModule):
        return
    for name, child in inner._modules.items():
        if child is not None:
            _visit(child, f"{path}.{name}", below + 1, found)


def _layers(module: nn.Module | None) -> Iterator[nn.Module]:
    """Yield `module` and what stands inside it under the same path, outermost first."""
    while module is not None:
        yield module
        if isinstance(module, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
            module = module.module
        elif isinstance(module, torch.jit.ScriptModule):
            return
        else:
            held = module._modules
            module = next((held[name] for name in _WRAPPED if held.get(name) is not None), None)


def _class_name(module: nn.Module) -> str:
    """The class as it was written: FSDP2 and parametrisations give a module a class made for it."""
    kind = type(module)
    made_by_torch = getattr(module, "parametrizations", None) is not None and kind.__name__.startswith("Parametrized")
    if made_by_torch or any(base.__name__ == "FSDPModule" for base in kind.__bases__):
        kind = kind.__bases__[-1]
    return kind.__name__
