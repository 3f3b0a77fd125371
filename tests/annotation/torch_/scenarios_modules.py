"""Small models, instrumented: what test_torch_modules.py looks at. Run by run_scenarios.py under the recorder."""

from __future__ import annotations

import copy
import dataclasses
import gc
import io
import pickle
import random
import threading
import weakref
from collections import namedtuple
from typing import Any, ClassVar

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import traceable
from traceable.annotation.torch.modules import instrument

torch.set_num_threads(1)
CALL = nn.Module.__call__
ENGINE = torch.autograd._engine_run_backward


class Attention(nn.Module):
    """Plain functions between its submodules, as in every transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.out = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights = torch.softmax(self.query(x) @ self.key(x).transpose(-1, -2), -1)
        return self.out(weights @ x)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.attn, self.mlp = nn.LayerNorm(4), Attention(), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.norm(x))
        return x + self.mlp(x)


class Net(nn.Module):
    def __init__(self, blocks: int = 2) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(blocks))
        self.head = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def data(*shape: int) -> torch.Tensor:
    return torch.randn(*(shape or (2, 3, 4)))


def scenario_forward_and_backward() -> Any:
    net = Net()
    with instrument(net) as handle:
        net(data()).sum().backward()
    return handle.names


def scenario_payload() -> Any:
    class Keyword(nn.Module):
        def forward(self, ids: list[int], *, mask: torch.Tensor | None = None) -> int:
            return len(ids)

    net, keyword = nn.Linear(4, 2), Keyword()
    with instrument(net), instrument(keyword):
        net(data(5, 4)).sum().backward()
        keyword([1, 2], mask=data(3, 7))
        keyword([1, 2])


def scenario_depth() -> Any:
    net = Net()
    with instrument(net, depth=0, backward=False):
        net(data())
    with instrument(net, depth=1, backward=False):
        net(data())
    with instrument(net, depth=2, backward=False):
        net(data())


def scenario_match() -> Any:
    net = Net()
    with instrument(net, match="*.attn"):
        net(data()).sum().backward()
    with instrument(net, match=lambda path: path.endswith("head"), backward=False):
        net(data())


def scenario_removed() -> Any:
    net = Net()
    handle = instrument(net)
    loss = net(data()).sum()
    handle.remove()
    handle.remove()
    with traceable.annotate("after"):
        loss.backward()
        net(data())
    return {
        "call": nn.Module.__call__ is CALL,
        "engine": torch.autograd._engine_run_backward is ENGINE and torch.autograd.graph._engine_run_backward is ENGINE,
        "gradients": all(p.grad is not None for p in net.parameters()),
    }


class Raises(nn.Module):
    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.inner, self.error = nn.Linear(4, 4), error

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.inner(x)
        raise self.error


def scenario_forward_raises() -> Any:
    caught = []
    for error in (ValueError("no"), KeyboardInterrupt(), SystemExit(3)):
        net = nn.Sequential(nn.Linear(4, 4), Raises(error))
        with instrument(net):
            try:
                net(data(2, 4))
            except BaseException as raised:  # noqa: BLE001 - all of them are meant
                caught.append(raised is error)
        with traceable.annotate("after"):
            pass
    return caught


class FailsBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        raise ValueError("no gradient here")


class Fails(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return FailsBackward.apply(x)


def scenario_backward_raises() -> Any:
    net = nn.Sequential(nn.Linear(4, 4), Fails(), nn.Linear(4, 4))
    caught = ""
    with instrument(net):
        try:
            with traceable.annotate("step"):
                net(data(2, 4)).sum().backward()
        except ValueError as error:
            caught = str(error)
        with traceable.annotate("after"):
            pass
    return caught


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.left(x), self.right(x)


def scenario_part_of_the_graph() -> Any:
    net = Branches()
    with instrument(net):
        net(data(2, 4))[0].sum().backward()
    return net.right.weight.grad is None


def scenario_called_twice() -> Any:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.shared = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.shared(torch.relu(self.shared(x)))

    net = Twice()
    with instrument(net):
        net(data(2, 4)).sum().backward()


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.first, self.block, self.last = nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.GELU()), nn.Linear(4, 4)
        self.reentrant = reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(checkpoint(self.block, self.first(x), use_reentrant=self.reentrant))


def scenario_checkpoint() -> Any:
    net = Checkpointed(reentrant=False)
    with instrument(net):
        net(data(2, 4)).sum().backward()


def scenario_checkpoint_reentrant() -> Any:
    net = Checkpointed(reentrant=True)
    with instrument(net):
        net(data(2, 4)).sum().backward()


def scenario_without_grad() -> Any:
    net = nn.Sequential(nn.Linear(4, 4))
    with instrument(net):
        with torch.no_grad():
            net(data(2, 4))
        with torch.inference_mode():
            net(data(2, 4))
        net.requires_grad_(False)
        net(data(2, 4))


def scenario_double_backward() -> Any:
    net = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    x = data(2, 4).requires_grad_()

    def penalty() -> list[torch.Tensor]:
        net.zero_grad()
        (gradient,) = torch.autograd.grad(net(x).sum(), x, create_graph=True)
        gradient.pow(2).sum().backward()
        return [p.grad.clone() for p in net.parameters() if p.grad is not None]

    plain = penalty()
    with instrument(net):
        names = penalty()
    return all(torch.equal(a, b) for a, b in zip(plain, names, strict=True))


@dataclasses.dataclass
class Output:
    logits: torch.Tensor
    hidden: list[torch.Tensor]


Pair = namedtuple("Pair", "left right")


class Nested(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.inner, self.kind = nn.Linear(4, 4), kind

    def forward(self, given: dict[str, Any]) -> Any:
        y = self.inner(given["x"][0])
        return {
            "dataclass": lambda: Output(y * 1, [y * 2]),
            "dict": lambda: {"a": {"b": (y * 1,)}, "c": None},
            "namedtuple": lambda: Pair(y * 1, "text"),
        }[self.kind]()


def scenario_nested_outputs() -> Any:
    loss = {
        "dataclass": lambda out: out.hidden[0].sum(),
        "dict": lambda out: out["a"]["b"][0].sum(),
        "namedtuple": lambda out: out.left.sum(),
    }
    for kind, of in loss.items():
        net = Nested(kind)
        with instrument(net), traceable.annotate(kind):
            of(net({"x": [data(2, 4).requires_grad_()]})).backward()


class InPlace(nn.Module):
    """Changes its submodules' outputs and inputs in place: what module backward hooks refuse."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.act, self.second = nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        x += 1
        y = self.second(self.act(x))
        y.mul_(2)
        y[0].zero_()
        return y


def scenario_in_place() -> Any:
    net = InPlace()
    with instrument(net):
        net(data(2, 4)).sum().backward()


def scenario_identity_and_side_output() -> Any:
    class Side(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.keep, self.body = nn.Identity(), nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.side = self.body(self.keep(x))  # leaves the module by an attribute
            return x

    net = Side()
    with instrument(net):
        net(data(2, 4))
        net.side.sum().backward()


def scenario_tied() -> Any:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encode = nn.Linear(4, 4)
            self.decode = self.encode

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.decode(self.encode(x))

    net = Tied()
    with instrument(net) as handle:
        net(data(2, 4)).sum().backward()
    return [handle.names, handle.aliases]


def refusal(model: nn.Module) -> str:
    try:
        instrument(model)
    except ValueError as error:
        return str(error)
    return ""


def scenario_twice() -> Any:
    net = Net(1)
    with instrument(net, match="*.norm"):
        with instrument(net, match="*.mlp", backward=False):
            net(data())
        for model in (net, nn.Sequential(net.layers[0])):
            output = refusal(model)
        with traceable.annotate("after"):
            net(data())
    return output


def scenario_added_later() -> Any:
    net = nn.Sequential(nn.Linear(4, 4))
    with instrument(net, backward=False) as handle:
        net.append(nn.ReLU())
        net(data(2, 4))
        added = handle.update()
        net(data(2, 4))
        net[0] = nn.Tanh()
        again = handle.update()
        net(data(2, 4))
    return [added, again, handle.names]


def scenario_copies_and_pickles() -> Any:
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    before = {name: dict(vars(module)) for name, module in net.named_modules()}
    with instrument(net):
        untouched = all(vars(module) == before[name] for name, module in net.named_modules())
        x = data(2, 4)
        twin = copy.deepcopy(net)
        with torch.no_grad():
            twin[0].weight.zero_()
        file = io.BytesIO()
        torch.save(net, file)
        file.seek(0)
        loaded = torch.load(file, weights_only=False)
        with traceable.annotate("copies"):
            own = torch.equal(twin(x), torch.relu(twin[0].bias).expand(2, 4))
            same = torch.equal(loaded(x), pickle.loads(pickle.dumps(net))(x))
        return {
            "untouched": untouched,
            "own weights": own,
            "same": same,
            "keys": list(net.state_dict()) == list(twin.state_dict()),
            "types": [type(module).__name__ for module in loaded],
        }


def scenario_freed() -> Any:
    net = Net(1)
    handle = instrument(net)
    gone = weakref.ref(net)
    net(data()).sum().backward()
    del net
    gc.collect()
    freed = gone() is None
    with traceable.annotate("after"):
        Net(1)(data())
    handle.remove()
    return freed


def scenario_threads() -> Any:
    nets = [Net(1), Net(1)]
    barrier = threading.Barrier(2)

    def work(net: Net) -> None:
        barrier.wait()
        for _ in range(20):
            net(data()).sum().backward()

    with instrument(nets[0]), instrument(nets[1]):
        threads = [threading.Thread(target=work, args=(net,)) for net in nets]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def scenario_replicas() -> Any:
    net = nn.Sequential(nn.Linear(4, 4))
    with instrument(net):
        replica = net._replicate_for_data_parallel()
        replica._modules = {"0": net[0]._replicate_for_data_parallel()}
        for name, parameter in net[0].named_parameters():
            setattr(replica._modules["0"], name, parameter.clone())
        replica(data(2, 4))


def scenario_users_hooks() -> Any:
    net = Net(1)
    seen = []
    net.head.register_forward_hook(lambda module, args, output: seen.append("forward"))
    net.head.register_full_backward_hook(lambda module, grad_in, grad_out: seen.append("backward"))
    net.layers[0].register_forward_pre_hook(lambda module, args: seen.append("pre"))
    with instrument(net):
        net(data()).sum().backward()
    return seen


def scenario_scripted() -> Any:
    inner = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    net = nn.Sequential(torch.jit.script(inner), nn.Linear(4, 4), torch.jit.trace(nn.Linear(4, 4), data(2, 4)))
    with instrument(net) as handle:
        net(data(2, 4)).sum().backward()
        torch.jit.script(inner)(data(2, 4))
        torch.jit.trace(inner, data(2, 4))
    return handle.names


def scenario_fx_and_export() -> Any:
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    x = data(2, 4)
    with instrument(net), traceable.annotate("traced"):
        traced = torch.fx.symbolic_trace(net)
        exported = torch.export.export(net, (x,)).module()
    return [torch.equal(traced(x), net(x)), torch.equal(exported(x), net(x))]


def scenario_functional() -> Any:
    net = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    parameters = dict(net.named_parameters())
    x = data(2, 4)

    def loss(parameters: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(net, parameters, (x,)).sum()

    def both() -> list[torch.Tensor]:
        gradients = torch.func.grad(loss)(parameters, x)
        each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, x)
        hessian = torch.func.hessian(loss, argnums=1)(parameters, x[0])
        return [*gradients.values(), *each.values(), hessian]

    plain = both()
    with instrument(net):
        names = both()
    return all(torch.equal(a, b) for a, b in zip(plain, names, strict=True))


class Noticing(torch.Tensor):
    noticed: ClassVar[list[str]] = []

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.noticed.append(getattr(function, "__name__", str(function)))
        return super().__torch_function__(function, types, args, kwargs or {})


def scenario_overrides_notice_nothing() -> Any:
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU())

    def noticed() -> list[str]:
        Noticing.noticed = []
        net(data(2, 4).as_subclass(Noticing)).sum().backward()
        return Noticing.noticed

    plain = noticed()
    with instrument(net):
        names = noticed()
    return plain == names and bool(plain)


def scenario_quantised_and_meta() -> Any:
    quantised = torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(4, 4)), {nn.Linear})
    with torch.device("meta"):
        meta = nn.Sequential(nn.Linear(4, 4))
    with instrument(quantised), instrument(meta):
        quantised(data(2, 4))
        meta(torch.empty(2, 4, device="meta")).sum().backward()


def scenario_grad_inside_forward() -> Any:
    class Inner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.energy = nn.Linear(4, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x.requires_grad_()
            return torch.autograd.grad(self.energy(x).sum(), x, create_graph=True)[0]

    net = Inner()
    with instrument(net):
        net(data(2, 4)).sum().backward()


class Grown(nn.Module):
    """A random composition: children one after the other, side by side or around a skip, plain functions between."""

    def __init__(self, choice: random.Random, levels: int) -> None:
        super().__init__()
        self.way = choice.choice(["chain", "sum", "skip"])
        self.children_ = nn.ModuleList(
            Grown(choice, levels - 1) if levels and choice.random() < 0.6 else nn.Linear(4, 4)
            for _ in range(choice.randint(1, 3))
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(x)
        if self.way == "sum":
            return sum(child(x) for child in self.children_)
        for child in self.children_:
            x = x + child(x) if self.way == "skip" else torch.sigmoid(child(x))
        return x


def scenario_grown() -> Any:
    for seed in range(60):
        net = Grown(random.Random(seed), 3)
        with instrument(net), traceable.annotate(f"net {seed}"):
            with traceable.annotate("forward"):
                loss = net(data(2, 4)).sum()
            with traceable.annotate("backward"):
                loss.backward()
