"""Small nsys exports of a model: steps with layers of named kernels, of which a test may change any."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PID = 70
GLOBAL_PID = PID << 24
_CUPTI = "CUPTI_ACTIVITY_KIND_"
_TABLES = {
    "META_DATA_EXPORT": "name, value",
    "StringIds": "id INTEGER, value TEXT",
    "PROCESSES": "globalPid INTEGER, pid INTEGER, name TEXT",
    "NVTX_EVENTS": "start INTEGER, end INTEGER, text TEXT, eventType INTEGER, globalTid INTEGER",
    _CUPTI + "RUNTIME": "start INTEGER, end INTEGER, globalTid INTEGER, correlationId INTEGER, nameId INTEGER, "
    "returnValue INTEGER",
    _CUPTI + "KERNEL": "start INTEGER, end INTEGER, deviceId INTEGER, contextId INTEGER, streamId INTEGER, "
    "correlationId INTEGER, globalPid INTEGER, demangledName INTEGER, shortName INTEGER, gridX INTEGER, "
    "gridY INTEGER, gridZ INTEGER, blockX INTEGER, blockY INTEGER, blockZ INTEGER, registersPerThread INTEGER, "
    "staticSharedMemory INTEGER, dynamicSharedMemory INTEGER, graphNodeId INTEGER",
    _CUPTI + "MEMCPY": "start INTEGER, end INTEGER, deviceId INTEGER, contextId INTEGER, streamId INTEGER, "
    "correlationId INTEGER, globalPid INTEGER, bytes INTEGER, copyKind INTEGER, srcKind INTEGER, dstKind INTEGER",
}


@dataclass(frozen=True)
class Work:
    """One operation of the GPU: a kernel, or a copy if it has no name.

    Attributes:
        duration_ns, gap_ns: how long it takes, and how long the GPU is idle before it.
        region: name of the range around its launch, inside that of the layer.
        node: whether a CUDA graph launched it.
    """

    name: str | None
    duration_ns: int = 10_000
    gap_ns: int = 1_000
    grid: tuple[int, int, int] | None = (8, 1, 1)
    block: tuple[int, int, int] = (128, 1, 1)
    region: str | None = None
    node: bool = False


QKV = Work("ampere_bf16_s16816gemm_bf16_128x128_tn", 40_000, grid=(24, 4, 1))
ATTENTION = Work("void flash_fwd_kernel<bf16, 128>(Params)", 60_000, grid=(8, 1, 32), region="attention")
PROJECTION = Work("ampere_bf16_s16816gemm_bf16_64x64_tn", 20_000, grid=(16, 4, 1))
NORM = Work("void rms_norm_kernel<__nv_bfloat16>(float*)", 5_000, grid=(64, 1, 1))
MLP = Work("ampere_bf16_s16816gemm_bf16_256x128_tn", 80_000, grid=(32, 8, 1), region="mlp")
GELU = Work("void gelu_kernel<__nv_bfloat16>(float*)", 7_000, grid=(128, 1, 1), region="mlp")
LAYER = (NORM, QKV, ATTENTION, PROJECTION, MLP, GELU)
EMBEDDING = Work("void embedding_kernel(long*)", 9_000, grid=(64, 1, 1))
HEAD = Work("ampere_bf16_s16816gemm_bf16_128x256_tn", 90_000, grid=(250, 4, 1))

Layers = Sequence[Sequence[Work]]


def write_model(
    path: Path,
    layers: Layers = (LAYER,) * 4,
    *,
    around: tuple[Sequence[Work], Sequence[Work]] = ((EMBEDDING,), (HEAD,)),
    steps: int = 5,
    step_names: Sequence[str] = ("step",),
    ranges: bool = True,
    change: Callable[[int, int, Work], Work] = lambda step, place, work: work,
) -> Path:
    """Write the export of a model and return its path.

    Args:
        layers: the operations of each layer, in a range `layers.N`.
        around: those before and after the layers.
        step_names: names of the ranges of the steps, in turn; those with DECODE have half of the layers.
        ranges: whether there are ranges for the layers and inside them.
        change: returns another operation for one of a step.
    """
    rows: dict[str, list[tuple[Any, ...]]] = {name: [] for name in _TABLES}
    names: dict[str, int] = {"cudaLaunchKernel_v7000": 1, "cudaMemcpyAsync_v3020": 2}
    clock = launch = 1_000_000
    correlation = 0
    for step in range(steps):
        step_name = step_names[step % len(step_names)]
        parts: list[tuple[str | None, Sequence[Work]]] = [(None, around[0])]
        here = layers[: len(layers) // 2] if "DECODE" in step_name else layers
        parts += [(f"layers.{number}", layer) for number, layer in enumerate(here)]
        parts.append((None, around[1]))
        begin, place = launch, 0
        clock = max(clock, launch)
        for layer_name, layer in parts:
            layer_begin = launch
            for planned in layer:
                work = change(step, place, planned)
                place, correlation = place + 1, correlation + 1
                call = names["cudaLaunchKernel_v7000" if work.name else "cudaMemcpyAsync_v3020"]
                if work.region and ranges:
                    rows["NVTX_EVENTS"].append((launch, launch + 500, work.region, 59, GLOBAL_PID | PID))
                rows[_CUPTI + "RUNTIME"].append((launch + 100, launch + 400, GLOBAL_PID | PID, correlation, call, 0))
                clock += work.gap_ns
                times = (clock, clock + work.duration_ns, 0, 1, 7, correlation, GLOBAL_PID)
                if work.name is None:
                    rows[_CUPTI + "MEMCPY"].append((*times, 4096, 1, 1, 2))
                else:
                    name = names.setdefault(work.name, len(names) + 1)
                    shape = (*work.grid, *work.block) if work.grid else (None,) * 6
                    node = (1 << 40) + place if work.node else None
                    rows[_CUPTI + "KERNEL"].append((*times, name, name, *shape, 32, 0, 0, node))
                clock += work.duration_ns
                launch += 600
            if layer_name and ranges:
                rows["NVTX_EVENTS"].append((layer_begin, launch, layer_name, 59, GLOBAL_PID | PID))
        rows["NVTX_EVENTS"].append((begin, launch, step_name, 59, GLOBAL_PID | PID))
        launch = clock = max(launch, clock) + 20_000
    rows["META_DATA_EXPORT"] = [("EXPORT_SCHEMA_VERSION", "3.16.1"), ("EXPORT_PRODUCT_NAME", "maker")]
    rows["PROCESSES"] = [(GLOBAL_PID, PID, "/usr/bin/model")]
    rows["StringIds"] = [(number, name) for name, number in names.items()]
    _write_tables(path, rows)
    return path


def _write_tables(path: Path, rows: dict[str, Iterable[tuple[Any, ...]]] | Any) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        for name, columns in _TABLES.items():
            connection.execute(f"CREATE TABLE {name} ({columns})")
            marks = ", ".join("?" for _ in columns.split(","))
            connection.executemany(f"INSERT INTO {name} VALUES ({marks})", rows[name])
