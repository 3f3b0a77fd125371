"""A synthetic recording of a decode server, in the schema of nsys's SQLite export: of any size, and reproducible.

    python benchmarks/generate_trace.py OUT.sqlite --kernels N [--seed S] [--processes 2] [--devices 2] [--shape decode]

The same arguments give the same rows. The file holds whole steps: it ends with the one that reaches N kernels. What
the server does is in `_decode_server.py`, how long that takes in `_program.py`, what is recorded of it in
`_profiler.py`. Per million kernels about 1.5 million API calls, 0.25 million ranges and 158 MB; a fifth of the kernels
are replayed graph nodes. `--shape small` has 4 layers instead of 24, so that a few thousand kernels show everything.
"""

from __future__ import annotations

import argparse
import sqlite3
import sys
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from _decode_server import HTTP, MAIN, Server
from _profiler import Process, Profiler, Recorded
from _program import CONTEXT, EVENT, LANES, STREAM, Int64
from _table_writer import NULL

LAYERS = {"decode": 24, "small": 4}
"""How many layers the model has, by shape."""

WARM_UP = 5
"""How many steps are slower at first."""

_LOAD, _CAPTURE = -2, -1
_GROW_EVERY, _GROW_AT = 180, 60
_REPLAYED, _LEARNED = 0.21, 0.06
_REQUEST_STEPS = 4
_FLUSH_EVERY_NS = 1_000_000_000


@dataclass
class _Worker:
    """One process of the server, and where it has got to.

    Attributes:
        lanes: when each stream of each device is free, as far as this process knows.
        step: its next step; the weights and the graphs come before step 0.
        grown: whether it holds the memory that it allocates from time to time.
        requests: (start, number) of those that are being served.
    """

    process: Process
    random: np.random.Generator
    lanes: Int64
    clock: int
    step: int = _LOAD
    grown: bool = False
    requests: list[tuple[int, int]] = field(default_factory=list)
    flushed: int = 0


class _Generator:
    """Runs the server's processes, always the one that is behind."""

    def __init__(self, database: sqlite3.Connection, shape: str, seed: int, processes: int, devices: int) -> None:
        server = Server(LAYERS[shape], devices)
        self._profiler = Profiler(database, server)
        prepare = self._profiler.prepare
        self._load = prepare(server.load())
        self._capture = prepare(server.capture())
        self._eager = [
            prepare(server.eager(batch, pinned, wait))
            for batch in (1, 8)
            for pinned, wait in ((True, STREAM), (True, EVENT), (False, STREAM), (True, CONTEXT))
        ]
        self._grow = [prepare(server.eager(1, False, STREAM, grow)) for grow in (0, 1)]
        self._replay = [prepare(server.replay(batch)) for batch in (1, 8)]
        self._learn = [prepare(server.learn(batch)) for batch in (1, 8)]
        self._workers = [
            _Worker(
                Process(pid=4100 + 20 * number),
                np.random.Generator(np.random.PCG64([seed, number])),
                np.zeros(devices * LANES, np.int64),
                clock=1_200_000_000 + 31_000_000 * number,
            )
            for number in range(processes)
        ]

    def run(self, kernels: int) -> None:
        """Run until `kernels` are recorded."""
        for worker in self._workers:
            self._profiler.begin(worker.process, worker.clock - 1000)
        done = sum(self._run_step(worker) for _ in (_LOAD, _CAPTURE) for worker in self._workers)
        # They serve when the last one is ready.
        ready = max(worker.clock for worker in self._workers)
        for worker in self._workers:
            worker.clock = ready
        while done < kernels:
            done += self._run_step(min(self._workers, key=lambda each: each.clock))
        for worker in self._workers:
            for start, number in worker.requests:
                self._profiler.request(worker.process, start, NULL, number, MAIN)
        end = max(worker.clock for worker in self._workers) + 50_000_000
        self._profiler.finish([worker.process for worker in self._workers], end)

    def _run_step(self, worker: _Worker) -> int:
        """Run one step; return how many kernels it has."""
        recorded = self._choose(worker)
        host, device = _advance_pace(worker)
        begin = worker.clock
        outcome = recorded.program.run(begin, worker.lanes, worker.random, host, device)
        self._profiler.record(worker.process, recorded, outcome)
        worker.clock = outcome.end
        if worker.step >= 0:
            self._serve(worker, begin)
        if worker.clock - worker.flushed > _FLUSH_EVERY_NS:
            worker.flushed = worker.clock
            self._profiler.flush(worker.process, worker.clock)
        worker.step += 1
        return recorded.program.kernels

    def _choose(self, worker: _Worker) -> Recorded:
        """Return what the process does next."""
        if worker.step < 0:
            return self._load if worker.step == _LOAD else self._capture
        choice, variant = worker.random.random(2).tolist()
        if worker.step < WARM_UP:
            return self._eager[worker.step % 4]
        if worker.step % _GROW_EVERY == _GROW_AT:
            worker.grown = not worker.grown
            return self._grow[0 if worker.grown else 1]
        if choice < _REPLAYED:
            return self._replay[int(variant * len(self._replay))]
        if choice < _REPLAYED + _LEARNED:
            return self._learn[int(variant * len(self._learn))]
        return self._eager[int(variant * len(self._eager))]

    def _serve(self, worker: _Worker, begin: int) -> None:
        """Open a request with each step, and close it some steps later, at times on another thread."""
        worker.requests.append((begin - 3000, worker.step))
        if len(worker.requests) > _REQUEST_STEPS:
            start, number = worker.requests.pop(0)
            closer = HTTP if number % 3 == 0 else MAIN
            self._profiler.request(worker.process, start, worker.clock + 1000, number, closer)


def _advance_pace(worker: _Worker) -> tuple[float, float]:
    """Return how slow host and GPU are in this step, after letting the time before it pass."""
    idle, host, device, rare = worker.random.random(4).tolist()
    worker.clock += int(20_000 + 180_000 * idle)
    if rare < 0.01:
        worker.clock += 5_000_000  # no requests
    slow = 1.0
    if 0 <= worker.step < WARM_UP:
        slow = 1.0 + WARM_UP - worker.step
    elif rare > 0.995:
        slow = 4.0
    return (0.85 + 0.3 * host) * slow, 0.5 + 1.3 * device


def generate(
    path: Path, kernels: int, seed: int = 0, processes: int = 2, devices: int = 2, shape: str = "decode"
) -> None:
    """Write a trace to `path`, which appears only when it is whole.

    Args:
        kernels: at least so many; the step that reaches the number is finished.
        devices: at most as many as the shape has layers.
        shape: a key of LAYERS.
    """
    temporary = path.with_name(f".{path.name}.part")
    temporary.unlink(missing_ok=True)
    try:
        with closing(sqlite3.connect(temporary, isolation_level=None)) as database:
            # A half-written file is thrown away, so SQLite need not be able to recover one.
            database.execute("PRAGMA journal_mode = OFF")
            database.execute("PRAGMA synchronous = OFF")
            database.execute("BEGIN")
            _Generator(database, shape, seed, processes, devices).run(kernels)
            database.execute("COMMIT")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _parse_positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    return number


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path, metavar="OUT.sqlite", help="the file to write; replaced if it is there")
    parser.add_argument("--kernels", type=_parse_positive, required=True, help="how many kernels, at least")
    parser.add_argument("--seed", type=int, default=0, help="another seed, another trace (default: 0)")
    parser.add_argument("--processes", type=_parse_positive, default=2, help="(default: 2)")
    parser.add_argument("--devices", type=_parse_positive, default=2, help="at most as many as layers (default: 2)")
    parser.add_argument("--shape", choices=sorted(LAYERS), default="decode", help="(default: decode)")
    options = parser.parse_args()
    if options.devices > LAYERS[options.shape]:
        parser.error(f"--devices {options.devices}: the shape {options.shape} has {LAYERS[options.shape]} layers")
    if options.seed < 0:
        parser.error("--seed must not be negative")
    if not options.path.parent.is_dir():
        parser.error(f"{options.path.parent} is not a directory")
    generate(options.path, options.kernels, options.seed, options.processes, options.devices, options.shape)
    return 0


if __name__ == "__main__":
    sys.exit(main())
