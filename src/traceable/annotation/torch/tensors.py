"""Finding the tensors in the arguments and results of a module, without running any code of the user's.

Containers are read by their base class's own methods, and a tensor's properties outside `__torch_function__`, so that
neither a subclass nor a mode (`torch.device(...)` as a context is one) notices the access.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from traceable.annotation.torch.frames import disable_compile

_DEEPEST = 6
_MOST = 64

_overridden = torch._C._has_torch_function_unary
without_overrides: Any = torch._C.DisableTorchFunction


def find_tensors(values: Iterable[object]) -> Iterator[Tensor]:
    """Yield the tensors in `values`: bare, in lists, tuples, dicts and dataclasses; at most 64, and 6 levels deep."""
    left = _MOST
    for value in values:
        for tensor in _walk(value, _DEEPEST):
            yield tensor
            left -= 1
            if not left:
                return


def _walk(value: object, levels: int) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
        return
    if not levels:
        return
    held: Iterable[object] = ()
    if isinstance(value, tuple):
        held = tuple.__iter__(value)
    elif isinstance(value, list):
        held = list.__iter__(value)
    elif isinstance(value, dict):
        held = list(dict.values(value))
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [one.name for one in dataclasses.fields(value)]
        held = [object.__getattribute__(value, name) for name in names if _has_attribute(value, name)]
    for one in held:
        yield from _walk(one, levels - 1)


def _has_attribute(value: object, name: str) -> bool:
    try:
        object.__getattribute__(value, name)
    except AttributeError:
        return False
    return True


def get_grad_node(tensor: Tensor) -> Any:
    """Return the autograd node that made `tensor`, or None."""
    if _overridden(tensor):
        with without_overrides():
            return tensor.grad_fn
    return tensor.grad_fn


def get_grad_nodes(values: tuple[object, ...]) -> list[Any]:
    """Return the autograd nodes that made the tensors in `values`."""
    if len(values) == 1 and type(values[0]) is Tensor:  # most calls of most modules
        node = get_grad_node(values[0])
        return [] if node is None else [node]
    return [node for tensor in find_tensors(values) if (node := get_grad_node(tensor)) is not None]


def count_elements(tensor: Tensor) -> int | None:
    """Return the number of elements, or None where it is not a plain number (a symbolic shape, an odd subclass)."""
    try:
        if _overridden(tensor):
            with without_overrides():
                count = tensor.numel()
        else:
            count = tensor.numel()
    except Exception:  # noqa: BLE001 - a subclass may reject anything; then its size is not known
        return None
    return count if type(count) is int else None


@disable_compile
def count_first_elements(args: tuple[object, ...], kwargs: dict[str, object]) -> int | None:
    """Return the number of elements of the first tensor among a call's arguments, or None where there is none."""
    if args and type(args[0]) is Tensor:
        return count_elements(args[0])
    try:
        first = next(find_tensors((*args, *kwargs.values())), None)
    except Exception:  # noqa: BLE001 - an argument that can't be inspected has no size
        return None
    return None if first is None else count_elements(first)
