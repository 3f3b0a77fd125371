"""Copies to and from a device made of numpy arrays: what test_torch_copies.py looks at. Run under the recorder.

torch lets Python implement a device (PrivateUse1): its dispatcher sends real copies between it and the CPU here.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

import traceable
from traceable.annotation.torch.copies import instrument_copies

_setup_privateuseone_for_python_backend("npy")
METHODS = ("to", "cuda", "cpu", "item", "numpy", "tolist", "copy_")
ORIGINALS = {name: getattr(torch.Tensor, name) for name in METHODS}


class OnDevice(torch.Tensor):
    __torch_function__ = torch._C._disabled_torch_function_impl
    held: Any

    @staticmethod
    def holding(host: torch.Tensor) -> OnDevice:
        made = torch._C._acc.create_empty_tensor(host.shape, host.dtype)
        made.__class__ = OnDevice
        made.held = host.detach().numpy().copy()
        return made


def on_host(tensor: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(tensor.held.copy()) if isinstance(tensor, OnDevice) else tensor


def to_copy(tensor: torch.Tensor, *, dtype: Any = None, device: Any = None, **_: Any) -> torch.Tensor:
    host = on_host(tensor)
    host = host.to(dtype) if dtype else host
    return host.clone() if device is not None and device.type == "cpu" else OnDevice.holding(host)


def copy_(target: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    if not isinstance(target, OnDevice):
        return target.copy_(on_host(source))
    target.held = on_host(source).to(target.dtype).expand(target.shape).numpy().copy()
    return target


LIBRARY = torch.library.Library("aten", "IMPL")
LIBRARY.impl("_to_copy", to_copy, "PrivateUse1")
LIBRARY.impl("copy_", copy_, "PrivateUse1")
LIBRARY.impl("_local_scalar_dense", lambda tensor: tensor.held.item(), "PrivateUse1")
LIBRARY.impl("detach", lambda tensor: OnDevice.holding(on_host(tensor)), "PrivateUse1")

HOST = torch.arange(6.0).reshape(2, 3)


def scenario_to() -> Any:
    with instrument_copies():
        there = HOST.to("npy")
        HOST.to(torch.device("npy", 0), torch.float64)
        HOST.to(device="npy:0", dtype=torch.int8, non_blocking=True)
        HOST.to(there)
        back = there.to("cpu")
        there.to(torch.device("cpu"), non_blocking=True)
        there.to(HOST)
    return torch.equal(back, HOST)


def scenario_other_methods() -> Any:
    there = HOST.to("npy")
    one = torch.tensor(2.5, dtype=torch.float64).to("npy")
    into = torch.zeros(2, 3)
    with instrument_copies():
        values = [there.cpu().tolist(), there.tolist(), one.item()]
        into.copy_(there)
        there.copy_(torch.ones(3, dtype=torch.float64))
    return [values == [HOST.tolist(), HOST.tolist(), 2.5], torch.equal(into, HOST), there.tolist()]


def scenario_nothing_crosses() -> Any:
    there = HOST.to("npy")
    with instrument_copies():
        HOST.to(torch.float64)
        HOST.to("cpu")
        HOST.to("cpu", torch.float64, copy=True)
        HOST.to(HOST.double())
        HOST.cpu()
        HOST[0, 0].item()
        HOST.tolist()
        HOST.numpy()
        HOST.numpy(force=True)
        HOST.clone().copy_(HOST)
        HOST.to("meta")
        HOST.clone().copy_(1)
        torch.zeros(0).to("npy")
        there.to("npy")
        there.to("npy:0")
        there.copy_(there)
        with FakeTensorMode():
            return str(torch.empty(3).to("cuda:0").cpu().device)


def scenario_through_modules() -> Any:
    net = nn.Linear(3, 2)
    with instrument_copies():
        net._apply(lambda tensor: tensor.to("npy"))


def refusals() -> list[str]:
    return [
        refusal(lambda: HOST.to("nowhere")),
        refusal(lambda: HOST.to([])),
        refusal(lambda: HOST.to("npy", 1, 2, 3, 4)),
        refusal(lambda: HOST.item()),
        refusal(lambda: HOST.to("npy").numpy()),
        refusal(lambda: HOST.copy_(torch.zeros(5).to("npy"))),
    ]


def refusal(wrong: Callable[[], object]) -> str:
    try:
        wrong()
    except (RuntimeError, TypeError) as error:
        return f"{type(error).__name__}: {error}"
    return "accepted"


def scenario_refused() -> Any:
    plain = refusals()
    with instrument_copies():
        names = refusals()
    return [plain, names]


def scenario_handles() -> Any:
    first, second = instrument_copies(), instrument_copies()
    HOST.to("npy")
    first.remove()
    first.remove()
    HOST.to("npy")
    same_text = all(
        getattr(torch.Tensor, name).__doc__ == ORIGINALS[name].__doc__
        and getattr(torch.Tensor, name).__name__ == name
        and describe_result(getattr(torch.Tensor, name)) == describe_result(ORIGINALS[name])
        for name in METHODS
    )
    second.remove()
    HOST.to("npy")
    back = all(getattr(torch.Tensor, name) is ORIGINALS[name] for name in METHODS)
    return [same_text, back, [name for name in METHODS if name in vars(torch.Tensor)]]


def describe_result(method: Any) -> str:
    try:
        return str(inspect.signature(method))
    except ValueError:
        return "none"


class Tabled(torch.Tensor):
    """Looks functions up by identity in a table made before anything was instrumented, as torchao does."""

    seen: ClassVar[list[str]] = []

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.seen.append(next((name for name in METHODS if ORIGINALS[name] is function), "other"))
        return super().__torch_function__(function, types, args, kwargs or {})


class Watching(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(next((name for name in METHODS if ORIGINALS[name] is function), "other"))
        return function(*args, **(kwargs or {}))


def scenario_overrides() -> Any:
    mine = HOST.as_subclass(Tabled)

    def use() -> tuple[list[str], list[str]]:
        Tabled.seen = []
        mine.to("npy")
        mine.to(torch.float64)
        HOST.clone().copy_(mine)
        with Watching() as mode:
            HOST.to("npy")
            HOST.cpu()
            torch.tensor(1.0).item()
        return Tabled.seen, mode.seen

    plain = use()
    with instrument_copies():
        names = use()
    return [plain == names, plain]


def scenario_after_another_patch() -> Any:
    ours = instrument_copies()
    patched = torch.Tensor.cpu

    def theirs(self: torch.Tensor) -> Any:
        return patched(self)

    torch.Tensor.cpu = theirs
    there = HOST.to("npy")
    ours.remove()
    with traceable.annotate("removed"):
        there.cpu()
    with instrument_copies(), traceable.annotate("again"):
        there.cpu()
    remaining = torch.Tensor.cpu is theirs
    del torch.Tensor.cpu
    return remaining
