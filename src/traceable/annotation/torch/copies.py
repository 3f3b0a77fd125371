"""`instrument_copies()`: a torch program's copies between host and device become ranges `h2d`, `d2h`, `d2d`.

The methods `Tensor.to`, `cuda`, `cpu`, `item`, `numpy`, `tolist` and `copy_` are wrapped, and with them their
callers: `Module.to`, `load_state_dict`, optimizers. A call that copies nothing between two devices emits nothing:
a change of dtype, a tensor that is already there, a copy within one device. Copies made elsewhere (a factory with
`device=`, `bool()` of a device tensor, C++ code) are not recorded; CUDA's own rows in the trace have them. `pin_memory`
copies within the host, so it has no range.

What a call will copy (direction, bytes, the memory on the host's side) is read from its arguments before it, as torch
would read them.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.compiler import is_compiling
from torch.overrides import handle_torch_function

from traceable.annotation import engine
from traceable.annotation.external.patcher import Patches
from traceable.annotation.handle import Handle
from traceable.annotation.ranges import annotate
from traceable.annotation.torch.frames import disable_compile, skip_frame
from traceable.annotation.torch.tensors import without_overrides

_overridden = torch._C._has_torch_function
_self_overridden = torch._C._has_torch_function_unary
_PLAIN = (Tensor, torch.nn.Parameter)
_FROM_DEVICE = frozenset({"cpu", "item", "numpy", "tolist"})  # there is nothing to do for a host tensor
_lock = threading.RLock()
_handles = 0
_active: object | None = None  # of the wrappers now in place; those that could not be removed call through
_patches = Patches()


class Copy(NamedTuple):
    """One copy between two devices.

    Attributes:
        direction: `h2d`, `d2h` or `d2d` (from one device to another).
        size_bytes: bytes that cross, or None where the layout does not determine it (sparse, tensors made of tensors).
        memory: `pinned` or `pageable`, of the host's side; None where there is none or torch decides internally.
    """

    direction: str
    size_bytes: int | None
    memory: str | None


CopyPredictor = Callable[[Tensor, tuple[Any, ...], dict[str, Any]], Copy | None]


class CopyRanges(Handle):
    """The handle of `instrument_copies`; also a context manager."""

    def __init__(self) -> None:
        self._removed = False

    def remove(self) -> None:
        """Restore torch's own methods, unless another handle still needs the ranges. May be called again."""
        global _handles, _active
        with _lock:
            if self._removed:
                return
            self._removed = True
            _handles -= 1
            if _handles == 0:
                _active = None
                _patches.undo()


def instrument_copies() -> CopyRanges:
    """Name the copies between host and device: ranges `h2d`, `d2h` and `d2d` around the calls that make them.

    The payload is the number of bytes that cross, the category is `pinned` or `pageable` for the host's side (none for
    `d2d`, for `item`, and where torch decides internally). The range is the call's time on the CPU: one that does not
    block ends before the copy does. Several handles may be alive; a copy has one range. Without a profiler nothing is
    done.

    Returns:
        The handle; its `remove()`, or leaving it as a context, restores torch's methods.
    """
    global _handles, _active
    with _lock:
        _handles += 1
        if _handles == 1 and engine.can_emit():
            _active = object()
            for name in METHODS:
                # torch's own are inherited from the C class.
                _patches.wrap(Tensor, name, functools.partial(_wrap_method, name))
    return CopyRanges()


@functools.lru_cache(maxsize=16)
def _make_range(way: str, memory: str | None) -> annotate:
    return annotate(way, category=memory)


def _wrap_method(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """Return the method `name` of Tensor with a range around the calls that copy between devices."""
    active = _active
    plan = METHODS[name]
    copies_from_device = name in _FROM_DEVICE

    @skip_frame
    @functools.wraps(original)
    def call(self: Tensor, /, *args: Any, **kwargs: Any) -> Any:
        if is_compiling() or active is not _active:
            return original(self, *args, **kwargs)
        if copies_from_device and not _self_overridden(self) and self.is_cpu:
            return original(self, *args, **kwargs)
        relevant = (self, *args, *kwargs.values())
        if _overridden(relevant):
            return _call_override(plan, original, relevant, self, args, kwargs)
        copy = predict_copy(plan, self, args, kwargs)
        if copy is None:
            return original(self, *args, **kwargs)
        return _call_in_range(copy, original, self, *args, **kwargs)

    return call


@skip_frame
def _call_in_range(copy: Copy, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    range_ = _make_range(copy.direction, copy.memory)
    (range_ if copy.size_bytes is None else range_._with_payload(copy.size_bytes))._push()
    try:
        return call(*args, **kwargs)
    finally:
        range_._pop()


@skip_frame
def _call_override(
    plan: CopyPredictor,
    original: Callable[..., Any],
    relevant: tuple[Any, ...],
    tensor: Tensor,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Call a method that a subclass or a mode overrides, passing it torch's own method and not ours.

    Overrides look their method up by identity. The C method would return what `Tensor` has now: ours.
    """
    with without_overrides():
        copy = predict_copy(plan, tensor, args, kwargs)
    if copy is None:
        return handle_torch_function(original, relevant, tensor, *args, **kwargs)
    return _call_in_range(copy, handle_torch_function, original, relevant, tensor, *args, **kwargs)


def get_copy_direction(source: torch.device, target: torch.device) -> str | None:
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
    on_host: bool  # computed once a spelling: reading `torch.device.type` costs a quarter of a microsecond


@functools.lru_cache(maxsize=64)
def _resolve_target(spec: str | int | torch.device) -> _Target:
    device = torch.device(spec)
    return _Target(device, device.type == "cpu")


_HOST = _resolve_target("cpu")
_PLACES = (str, torch.device)


def _add_index(device: torch.device) -> torch.device:
    """Return `device` with the index that torch would take: the current one where none is given."""
    if device.index is not None or device.type in ("cpu", "meta"):
        return device
    return torch.device(device.type, torch.get_device_module(device.type).current_device())


def _find_direction(source: torch.device, target: torch.device) -> str | None:
    return get_copy_direction(_add_index(source), _add_index(target))


def _compute_size(tensor: Tensor, elements: int, dtype: Any) -> int | None:
    if tensor.layout is not torch.strided or hasattr(type(tensor), "__tensor_flatten__"):
        return None
    # torch also takes Python's `float` and the like for a dtype
    return elements * dtype.itemsize if type(elements) is int and isinstance(dtype, torch.dtype) else None


def _name_memory(pinned: bool) -> str:
    return "pinned" if pinned else "pageable"


def _predict_move(tensor: Tensor, target: _Target, dtype: Any, non_blocking: bool) -> Copy | None:
    if (target.on_host and tensor.is_cpu) or not tensor.numel():
        return None
    way = _find_direction(tensor.device, target.device)
    if way is None:
        return None
    # torch converts on the side it copies from, so the target's dtype is what crosses.
    size = _compute_size(tensor, tensor.numel(), dtype or tensor.dtype)
    if way == "h2d":
        return Copy(way, size, _name_memory(tensor.is_pinned()))
    # For a copy to the host that does not block torch takes pinned memory; else it is pageable.
    return Copy(way, size, _name_memory(non_blocking) if way == "d2h" else None)


def _predict_to(tensor: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Copy | None:
    kind = type(args[0]) if args else None
    if kind is torch.dtype:
        return None
    if kind in _PLACES and len(args) == 1 and not kwargs:  # the usual call; isinstance of Tensor is slow
        return _predict_move(tensor, _resolve_target(args[0]), None, False)
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
    return None if device is None else _predict_move(tensor, _resolve_target(device), dtype, bool(non_blocking))


def _predict_cuda(tensor: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Copy | None:
    device = args[0] if args else kwargs.get("device")
    non_blocking = args[1] if len(args) > 1 else kwargs.get("non_blocking", False)
    if device is None or isinstance(device, int):
        device = "cuda" if device is None else torch.device("cuda", device)
    return _predict_move(tensor, _resolve_target(device), None, bool(non_blocking))


def _predict_cpu(tensor: Tensor, _args: tuple[Any, ...], _kwargs: dict[str, Any]) -> Copy | None:
    return _predict_move(tensor, _HOST, None, False)


def _predict_item(tensor: Tensor, _args: tuple[Any, ...], _kwargs: dict[str, Any]) -> Copy | None:
    if tensor.is_cpu or tensor.is_meta or tensor.numel() != 1:
        return None
    return Copy("d2h", _compute_size(tensor, 1, tensor.dtype), None)


def _predict_numpy(tensor: Tensor, _args: tuple[Any, ...], kwargs: dict[str, Any]) -> Copy | None:
    # Without force a device tensor is rejected.
    return _predict_move(tensor, _HOST, None, False) if kwargs.get("force") else None


def _predict_copy_(tensor: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Copy | None:
    source = args[0] if args else kwargs.get("src", kwargs.get("other"))
    if not isinstance(source, Tensor) or (source.is_cpu and tensor.is_cpu):
        return None
    if not source.numel() or isinstance(source, FakeTensor):
        return None
    way = _find_direction(source.device, tensor.device)
    if way is None:
        return None
    host = source if way == "h2d" else tensor
    memory = None if way == "d2d" else _name_memory(host.is_pinned())
    return Copy(way, _compute_size(tensor, tensor.numel(), tensor.dtype), memory)


METHODS: dict[str, CopyPredictor] = {
    "to": _predict_to,
    "cuda": _predict_cuda,
    "cpu": _predict_cpu,
    "item": _predict_item,
    "numpy": _predict_numpy,
    "tolist": _predict_cpu,
    "copy_": _predict_copy_,
}


@disable_compile
def predict_copy(plan: CopyPredictor, tensor: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Copy | None:
    """Return what the call will copy between devices, or None.

    What can't be predicted (arguments that torch will reject, too) counts as nothing.
    """
    if type(tensor) not in _PLAIN and isinstance(tensor, FakeTensor):
        return None
    try:
        return plan(tensor, args, kwargs)
    except Exception:  # noqa: BLE001 - the call itself is made, and raises its own error
        return None
