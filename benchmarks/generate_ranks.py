"""Synthetic recordings of a training job, a file for each rank, in the schema of nsys's SQLite export; reproducible.

    python benchmarks/generate_ranks.py FOLDER [--ranks 64] [--steps 20] [--kernels 8] [--per-host 8] [--seed S]
        [--straggler RANK=FACTOR] [--late RANK@STEP] [--clock-error-us N]

All ranks run forward, backward, an all-reduce and an optimizer in each step. A straggler's kernels of `forward` take
FACTOR times as long; a late rank comes to the all-reduce of one step 5 ms later. Each host has a clock of its own, off
by up to N us. The all-reduce begins when a rank is there and ends on all ranks together. `--kernels` is of each of the
three ranges, so that a file has 3 * kernels + 1 kernels a step.
"""

from __future__ import annotations

import argparse
import sqlite3
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
from _profiler import UTC_EPOCH_NS
from _trace_tables import ENUMS, GPU, PRODUCT_VERSION, SCHEMA_VERSION, TABLES

LATE_NS = 5_000_000
"""By how much a late rank is late."""

_BEGIN_NS = 1_000_000_000
_KERNEL_NS = 100_000
_TRANSFER_NS = 400_000
_LAUNCH_NS, _CALL_NS = 6_000, 4_000
_PUSH_POP = 59
_COMPUTE, _NCCL = 7, 20
_ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
_RANGES = ("forward", "backward", "optimizer")
_GEMM = "ampere_sgemm_128x64_tn"


def generate(
    folder: Path,
    ranks: int = 64,
    steps: int = 20,
    kernels: int = 8,
    *,
    per_host: int = 8,
    seed: int = 0,
    straggler: tuple[int, float] | None = None,
    late: tuple[int, int] | None = None,
    clock_error_us: int = 200,
    only: Sequence[int] | None = None,
) -> list[Path]:
    """Write `rank-000.sqlite` and so on, and return them.

    Args:
        folder: an existing directory.
        straggler: a rank, and how many times as long its kernels of `forward` take.
        late: a rank, and the step in which it comes late to the all-reduce.
        clock_error_us: by how much the clocks of hosts are off at most.
        only: the ranks whose files are written; None for all.
    """
    random = np.random.Generator(np.random.PCG64(seed))
    scale = 1 + 0.03 * random.standard_normal((ranks, steps, len(_RANGES), kernels))
    durations = np.maximum(1000, _KERNEL_NS * scale).astype(np.int64)
    if straggler is not None:
        durations[straggler[0], :, 0] = durations[straggler[0], :, 0] * straggler[1]
    lateness = random.integers(0, 20_000, (ranks, steps))
    if late is not None:
        lateness[late] += LATE_NS
    hosts = (ranks + per_host - 1) // per_host
    errors = random.integers(-clock_error_us * 1000, clock_error_us * 1000 + 1, hosts)
    # What is before the all-reduce takes each rank its own time; then all go on together.
    arrivals = durations[:, :, :2].sum(axis=(2, 3)) + lateness
    tails = durations[:, :, 2].sum(axis=2)
    lengths = arrivals.max(axis=0) + _TRANSFER_NS + tails.max(axis=0) + 50_000
    begins = _BEGIN_NS + np.cumsum(lengths) - lengths
    paths = []
    for rank in range(ranks) if only is None else only:
        path = folder / f"rank-{rank:03}.sqlite"
        _Rank(rank, rank // per_host, rank % per_host, int(errors[rank // per_host])).write(
            path, begins.tolist(), durations[rank].tolist(), lateness[rank].tolist(), arrivals.max(axis=0).tolist()
        )
        paths.append(path)
    return paths


class _Rank:
    """One rank, and the rows of its tables."""

    def __init__(self, rank: int, host: int, device: int, clock_error_ns: int) -> None:
        self._rank, self._host, self._device, self._clock_error_ns = rank, host, device, clock_error_ns
        self._pid = 4000 + rank
        self._global_pid = (1 << 48) | (self._pid << 24)
        self._strings = {text: number for number, text in enumerate((_GEMM, _ALL_REDUCE, "cudaLaunchKernel_v7000"))}
        self._calls: list[tuple[object, ...]] = []
        self._kernels: list[tuple[object, ...]] = []
        self._ranges: list[tuple[object, ...]] = []

    def write(
        self,
        path: Path,
        begins: Sequence[int],
        durations: Sequence[Sequence[Sequence[int]]],
        lateness: Sequence[int],
        arrivals: Sequence[int],
    ) -> None:
        """Write the file, which appears when it is whole."""
        for step, begin in enumerate(begins):
            self._run_step(step, begin, durations[step], lateness[step], begin + arrivals[step] + _TRANSFER_NS)
        part = path.with_name(f".{path.name}.part")
        part.unlink(missing_ok=True)
        try:
            with closing(sqlite3.connect(part, isolation_level=None)) as database:
                database.execute("PRAGMA journal_mode = OFF")
                database.execute("PRAGMA synchronous = OFF")
                database.execute("BEGIN")
                self._write_tables(database)
                database.execute("COMMIT")
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)

    def _run_step(self, step: int, begin: int, durations: Sequence[Sequence[int]], lateness: int, reduced: int) -> None:
        """Add a step that begins at a time and whose all-reduce ends at another one."""
        at, gpu_free = begin, begin
        for name, of_range in zip(_RANGES, durations, strict=True):
            if name == "optimizer":
                self._add_range("all_reduce", at, at + _LAUNCH_NS + 2000)
                self._launch(at + 1000, gpu_free + lateness, reduced, _NCCL, _ALL_REDUCE)
                at, gpu_free = at + _LAUNCH_NS + 3000, reduced
            first = at
            for duration in of_range:
                start = max(gpu_free, at + _LAUNCH_NS)
                self._launch(at, start, start + duration, _COMPUTE, _GEMM)
                at, gpu_free = at + _LAUNCH_NS, start + duration
            self._add_range(name, first, at)
        # The step ends when the GPU has.
        self._add_range("step", begin - 500, max(at, gpu_free) + 1000, step)

    def _launch(self, at: int, start: int, end: int, stream: int, name: str) -> None:
        correlation = len(self._calls) + 1
        call = (at, at + _CALL_NS, 0, self._global_pid | self._pid, correlation, 2, 0, None)
        place = (start, end, self._device, 1, None, stream, correlation, self._global_pid)
        shape = (32, 64, 1, 1, 128, 1, 1, 0, 0, 0, 0, 0, None, None, None)
        number = self._strings[name]
        self._calls.append(call)
        self._kernels.append((*place, number, number, None, 0, 0, *shape))

    def _add_range(self, name: str, start: int, end: int, payload: int | None = None) -> None:
        row = (start, end, _PUSH_POP, None, None, None, name, self._global_pid | self._pid, None, None, 0)
        self._ranges.append((*row, None, payload, *(None,) * 6))

    def _write_tables(self, database: sqlite3.Connection) -> None:
        uuid = f"00000000-0000-4000-8{self._host:03}-{self._device:012}"
        bus = f"0000:{7 + 8 * self._device:02x}:00.0"
        gpu = {**GPU, "id": self._device, "busLocation": bus, "uuid": uuid, "pwGpuId": self._device}
        columns, marks = ", ".join(gpu), ", ".join("?" * len(gpu))
        clock = UTC_EPOCH_NS + self._clock_error_ns
        rows: dict[str, Sequence[Sequence[object]]] = {
            "StringIds": [(number, text) for text, number in self._strings.items()],
            "TARGET_INFO_SESSION_START_TIME": [(clock, *["2026-01-01T00:00:00"] * 2)],
            "TARGET_INFO_SYSTEM_ENV": [(0, None, "Hostname", None, f"host-{self._host}")],
            "CUPTI_ACTIVITY_KIND_RUNTIME": self._calls,
            "CUPTI_ACTIVITY_KIND_KERNEL": self._kernels,
            "NVTX_EVENTS": sorted(self._ranges, key=lambda row: (row[0], -int(str(row[1])))),
            "PROCESSES": [(self._global_pid, self._pid, "python")],
            "META_DATA_CAPTURE": [("GENERATED_BY", "generate_ranks.py")],
            "META_DATA_EXPORT": [
                ("EXPORT_PRODUCT_NAME", "NVIDIA Nsight Systems"),
                ("EXPORT_PRODUCT_VERSION", PRODUCT_VERSION),
                ("EXPORT_SCHEMA_VERSION", SCHEMA_VERSION),
            ],
            **ENUMS,
        }
        environment = "globalVid INTEGER, devStateName TEXT, name TEXT, nameEnum INTEGER, value TEXT"
        enumeration = "id INTEGER, name TEXT, label TEXT"
        tables = {**TABLES, "TARGET_INFO_SYSTEM_ENV": environment, **dict.fromkeys(ENUMS, enumeration)}
        for name in (*rows, "TARGET_INFO_GPU"):
            database.execute(f"CREATE TABLE {name} ({tables[name]})")
        database.execute(f"INSERT INTO TARGET_INFO_GPU ({columns}) VALUES ({marks})", list(gpu.values()))
        for name, of_table in rows.items():
            marks = ", ".join("?" * len(of_table[0]))
            database.executemany(f"INSERT INTO {name} VALUES ({marks})", of_table)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="where; it is made")
    for name, default in (("ranks", 64), ("steps", 20), ("kernels", 8), ("per-host", 8), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=default, help=f"(default: {default})")
    parser.add_argument("--clock-error-us", type=int, default=200, help="(default: 200)")
    parser.add_argument("--straggler", metavar="RANK=FACTOR", help="as in 17=1.3")
    parser.add_argument("--late", metavar="RANK@STEP", help="as in 41@9")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    slow, at = (options.straggler or "").split("="), (options.late or "").split("@")
    generate(
        options.folder,
        options.ranks,
        options.steps,
        options.kernels,
        per_host=options.per_host,
        seed=options.seed,
        straggler=(int(slow[0]), float(slow[1])) if options.straggler else None,
        late=(int(at[0]), int(at[1])) if options.late else None,
        clock_error_us=options.clock_error_us,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
