"""Models in the wrappers of distributed training, on one CPU process: what test_torch_wrappers.py looks at."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parametrizations

from traceable.annotation.torch.modules import instrument

torch.set_num_threads(1)
STORE = Path(tempfile.mkdtemp()) / "store"
distributed.init_process_group("gloo", init_method=f"file://{STORE}", rank=0, world_size=1)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def run(model: nn.Module) -> Any:
    with instrument(model) as handle:
        model(torch.randn(2, 4)).sum().backward()
    return handle.names


def scenario_ddp() -> Any:
    return run(DistributedDataParallel(Net()))


def scenario_ddp_of_compiled() -> Any:
    return run(DistributedDataParallel(torch.compile(Net(), backend="eager")))


def scenario_compiled_ddp() -> Any:
    return run(torch.compile(DistributedDataParallel(Net()), backend="eager"))


def scenario_fsdp() -> Any:
    net = Net()
    net.layers[0] = FullyShardedDataParallel(net.layers[0], device_id=torch.device("cpu"))
    return run(FullyShardedDataParallel(net, device_id=torch.device("cpu")))


def scenario_fsdp2() -> Any:
    net = Net()
    mesh = distributed.device_mesh.init_device_mesh("cpu", (1,))
    for layer in net.layers:
        fully_shard(layer, mesh=mesh)
    return run(fully_shard(net, mesh=mesh))


def scenario_checkpoint_wrapper() -> Any:
    net = Net()
    net.layers[0] = checkpoint_wrapper(net.layers[0])
    return run(net)


def scenario_data_parallel() -> Any:
    return run(nn.DataParallel(Net()))


def scenario_parametrised_root() -> Any:
    return run(parametrizations.weight_norm(nn.Linear(4, 4)))


def scenario_own_module_attribute() -> Any:
    class Holder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.module(x)

    return run(Holder())
