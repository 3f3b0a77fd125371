"""`instrument_copies()`: a torch program's copies between host and device become ranges `h2d`, `d2h`, `d2d`.

The methods `Tensor.to`, `cuda`, `cpu`, `item`, `numpy`, `tolist` and `copy_` are wrapped, and with them what goes
through them: `Module.to`, `load_state_dict`, optimizers. A call that copies nothing between two devices emits nothing:
a change of dtype, a tensor that is already there, a copy within one device. Copies made elsewhere (a factory with
`device=`, `bool()` of a device tensor, C++ code) are not heard; CUDA's own rows in the trace have them. `pin_memory`
copies within the host, so it has no range.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_compiling
from torch.overrides import handle_torch_function

from traceable.annotation import engine
from traceable.annotation.handle import Handle
from traceable.annotation.ranges import annotate
from traceable.annotation.torch.frames import frame_left_alone
from traceable.annotation.torch.tensors import without_overrides
from traceable.annotation.torch.transfers import METHODS, Copy, Plan, planned

_overridden = torch._C._has_torch_function
_self_overridden = torch._C._has_torch_function_unary
_FROM_DEVICE = frozenset({"cpu", "item", "numpy", "tolist"})  # there is nothing to do for a host tensor
_lock = threading.RLock()
_handles = 0
_active: object | None = None  # of the wrappers now in place; those that could not be taken back call through
_undo: list[Callable[[], None]] = []


class CopyRanges(Handle):
    """The handle of `instrument_copies`; also a context manager."""

    def __init__(self) -> None:
        self._removed = False

    def remove(self) -> None:
        """Put torch's own methods back, unless another handle still needs the ranges. May be called again."""
        with _lock:
            if not self._removed:
                self._removed = True
                _uninstall()


def instrument_copies() -> CopyRanges:
    """Name the copies between host and device: ranges `h2d`, `d2h` and `d2d` around the calls that make them.

    The payload is the number of bytes that cross, the category says `pinned` or `pageable` for the host's side (none
    for `d2d`, for `item`, and where torch decides unseen). The range is the call's time on the CPU: one that does not
    block ends before the copy does. Several handles may be alive; a copy has one range. Without a listener nothing is
    done.

    Returns:
        The handle; its `remove()`, or leaving it as a context, puts torch's methods back.
    """
    with _lock:
        _install()
    return CopyRanges()


def _install() -> None:
    global _handles, _active
    _handles += 1
    if _handles > 1 or not engine.emits():
        return
    _active = object()
    _undo.extend(_replace(name, _copying(name, getattr(Tensor, name))) for name in METHODS)


def _uninstall() -> None:
    global _handles, _active
    _handles -= 1
    if _handles == 0:
        _active = None
        while _undo:
            _undo.pop()()


def _replace(name: str, ours: Callable[..., Any]) -> Callable[[], None]:
    """Set a method of Tensor. Returns what takes it back, unless someone has put theirs over it."""
    before = Tensor.__dict__.get(name)

    def undo() -> None:
        if Tensor.__dict__.get(name) is not ours:
            return
        if before is None:  # torch's own are inherited from the C class
            delattr(Tensor, name)
        else:
            setattr(Tensor, name, before)

    setattr(Tensor, name, ours)
    return undo


@functools.lru_cache(maxsize=16)
def _range(way: str, memory: str | None) -> annotate:
    return annotate(way, category=memory)


def _copying(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """Return the method `name` of Tensor with a range around the calls that copy between devices."""
    active = _active
    plan = METHODS[name]
    copies_from_device = name in _FROM_DEVICE

    @frame_left_alone
    @functools.wraps(original)
    def method(self: Tensor, /, *args: Any, **kwargs: Any) -> Any:
        if is_compiling() or active is not _active:
            return original(self, *args, **kwargs)
        if copies_from_device and not _self_overridden(self) and self.is_cpu:
            return original(self, *args, **kwargs)
        relevant = (self, *args, *kwargs.values())
        if _overridden(relevant):
            return _overriding(plan, original, relevant, self, args, kwargs)
        copy = planned(plan, self, args, kwargs)
        if copy is None:
            return original(self, *args, **kwargs)
        return _inside(copy, original, self, *args, **kwargs)

    return method


@frame_left_alone
def _inside(copy: Copy, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    made = _range(copy.direction, copy.memory)
    (made if copy.size_bytes is None else made._numbered(copy.size_bytes))._push()
    try:
        return call(*args, **kwargs)
    finally:
        made._pop()


@frame_left_alone
def _overriding(
    plan: Plan,
    original: Callable[..., Any],
    relevant: tuple[Any, ...],
    tensor: Tensor,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Call a method that a subclass or a mode overrides, handing it torch's own method and not ours.

    Overrides look their method up by identity. The C method would hand out what `Tensor` has now: ours.
    """
    with without_overrides():
        copy = planned(plan, tensor, args, kwargs)
    if copy is None:
        return handle_torch_function(original, relevant, tensor, *args, **kwargs)
    return _inside(copy, handle_torch_function, original, relevant, tensor, *args, **kwargs)
