"""What a call of a Tensor's method will copy between devices: direction, bytes, and the memory on the host's side.

Read from the arguments before the call, as torch would read them; nothing is run and nothing is emitted here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from traceable.annotation.torch.frames import frames_left_alone

_PLAIN = (Tensor, torch.nn.Parameter)


class Copy(NamedTuple):
    """One copy between two devices.

    Attributes:
        direction: `h2d`, `d2h` or `d2d` (from one device to another).
        size_bytes: bytes that cross, or None where the layout does not tell (sparse, tensors made of tensors).
        memory: `pinned` or `pageable`, of the host's side; None where there is none or torch decides unseen.
    """

    direction: str
    size_bytes: int | None
    memory: str | None


Plan = Callable[[Tensor, tuple[Any, ...], dict[str, Any]], Copy | None]


def direction(source: torch.device, target: torch.device) -> str | None:
    """Return `h2d`, `d2h` or `d2d` for a copy from `source` to `target`, or None where nothing crosses.

    Any device that is neither `cpu` nor `meta` counts as a device; `meta` holds no data.
    """
    if source == target or "meta" in (source.type, target.type):
        return None
    if source.type == "cpu":
        return None if target.type == "cpu" else "h2d"
    return "d2h" if target.type == "cpu" else "d2d"


class _Target(NamedTuple):
    device: torch.device
    on_host: bool  # asked once a spelling: reading `torch.device.type` costs a quarter of a microsecond


@functools.lru_cache(maxsize=64)
def _target(spec: str | int | torch.device) -> _Target:
    device = torch.device(spec)
    return _Target(device, device.type == "cpu")


_HOST = _target("cpu")
_PLACES = (str, torch.device)


def _with_index(device: torch.device) -> torch.device:
    """Return `device` with the index that torch would take: the current one where none is given."""
    if device.index is not None or device.type in ("cpu", "meta"):
        return device
    return torch.device(device.type, torch.get_device_module(device.type).current_device())


def _between(source: torch.device, target: torch.device) -> str | None:
    return direction(_with_index(source), _with_index(target))


def _size(tensor: Tensor, elements: int, dtype: Any) -> int | None:
    if tensor.layout is not torch.strided or hasattr(type(tensor), "__tensor_flatten__"):
        return None
    # torch also takes Python's `float` and the like for a dtype
    return elements * dtype.itemsize if type(elements) is int and isinstance(dtype, torch.dtype) else None


def _memory(pinned: bool) -> str:
    return "pinned" if pinned else "pageable"


def _moved(tensor: Tensor, target: _Target, dtype: Any, non_blocking: bool) -> Copy | None:
    if (target.on_host and tensor.is_cpu) or not tensor.numel():
        return None
    way = _between(tensor.device, target.device)
    if way is None:
        return None
    # torch converts on the side it copies from, so the target's dtype is what crosses.
    size = _size(tensor, tensor.numel(), dtype or tensor.dtype)
    if way == "h2d":
        return Copy(way, size, _memory(tensor.is_pinned()))
    # For a copy to the host that does not block torch takes pinned memory; else it is pageable.
    return Copy(way, size, _memory(non_blocking) if way == "d2h" else None)


def _to(tensor: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Copy | None:
    kind = type(args[0]) if args else None
    if kind is torch.dtype:
        return None
    if kind in _PLACES and len(args) == 1 and not kwargs:  # the usual call; isinstance of Tensor is slow
        return _moved(tensor, _target(args[0]), None, False)
    device, dtype, other = kwargs.get("device"), kwargs.get("dtype"), kwargs.get("other")
    non_blocking = kwargs.get("non_blocking", False)
    if args:
        first, rest = args[0], args[1:]
        if isinstance(first, Tensor):
            other = first
        else:
            device = first
            dtype, rest = (rest[0] if rest else dtype), rest[1:]
        if rest:
            non_blocking = rest[0]
    if other is not None:
        device, dtype = other.device, other.dtype
    return None if device is None else _moved(tensor, _target(device), dtype, bool(non_blocking))


def _cuda(tensor: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Copy | None:
    device = args[0] if args else kwargs.get("device")
    non_blocking = args[1] if len(args) > 1 else kwargs.get("non_blocking", False)
    if device is None or isinstance(device, int):
        device = "cuda" if device is None else torch.device("cuda", device)
    return _moved(tensor, _target(device), None, bool(non_blocking))


def _cpu(tensor: Tensor, _args: tuple[Any, ...], _kwargs: dict[str, Any]) -> Copy | None:
    return _moved(tensor, _HOST, None, False)


def _item(tensor: Tensor, _args: tuple[Any, ...], _kwargs: dict[str, Any]) -> Copy | None:
    if tensor.is_cpu or tensor.is_meta or tensor.numel() != 1:
        return None
    return Copy("d2h", _size(tensor, 1, tensor.dtype), None)


def _numpy(tensor: Tensor, _args: tuple[Any, ...], kwargs: dict[str, Any]) -> Copy | None:
    # Without force a device tensor is refused.
    return _moved(tensor, _HOST, None, False) if kwargs.get("force") else None


def _copy_(tensor: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Copy | None:
    source = args[0] if args else kwargs.get("src", kwargs.get("other"))
    if not isinstance(source, Tensor) or (source.is_cpu and tensor.is_cpu):
        return None
    if not source.numel() or isinstance(source, FakeTensor):
        return None
    way = _between(source.device, tensor.device)
    if way is None:
        return None
    host = source if way == "h2d" else tensor
    return Copy(way, _size(tensor, tensor.numel(), tensor.dtype), None if way == "d2d" else _memory(host.is_pinned()))


METHODS: dict[str, Plan] = {
    "to": _to,
    "cuda": _cuda,
    "cpu": _cpu,
    "item": _item,
    "numpy": _numpy,
    "tolist": _cpu,
    "copy_": _copy_,
}


def copy_of(method: str, tensor: Tensor, *args: Any, **kwargs: Any) -> Copy | None:
    """Return what `tensor.<method>(*args, **kwargs)` will copy between devices, or None. Runs nothing of it."""
    return planned(METHODS[method], tensor, args, kwargs)


@frames_left_alone
def planned(plan: Plan, tensor: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Copy | None:
    """Return what the call will copy between devices, or None.

    What can't be told (arguments that torch will refuse, too) counts as nothing.
    """
    if type(tensor) not in _PLAIN and isinstance(tensor, FakeTensor):
        return None
    try:
        return plan(tensor, args, kwargs)
    except Exception:  # noqa: BLE001 - the call itself goes on, and says what is wrong with it
        return None
