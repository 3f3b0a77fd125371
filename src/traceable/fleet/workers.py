"""Recordings are reduced in processes of this machine, as many at a time as it has cores and memory for."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from traceable.errors import Message
from traceable.fleet.reduction import ReduceOptions

_BASE_BYTES = 100 << 20
"""What a worker takes without a recording."""

_BYTES_OF_A_BYTE = {".sqlite": 3, ".nsys-rep": 12, ".qdrep": 12, ".gz": 40, ".json": 8}
"""About how much memory reading a byte of a file takes, by its suffix: of SQLite as benchmarks/fleet.py measures it, of
the others, which become SQLite or are unpacked first, an upper estimate."""

_FREE_SHARE = 0.8
"""Which share of the free memory workers may take."""

_START = "import sys; sys.path[:] = sys.argv[2:]; from traceable.fleet.worker import main; main()"

_CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Reduction:
    """What became of one recording.

    Attributes:
        output: the file of its rank profiles; None if it could not be reduced.
        problem: why not; None if it was.
        seconds, peak_bytes: of the worker; None if it died.
    """

    output: Path | None
    problem: Message | None = None
    seconds: float | None = None
    peak_bytes: int | None = None


def choose_worker_count(paths: Sequence[Path]) -> int:
    """Return how many recordings can be reduced at a time: as many as there are cores, and memory for the largest."""
    largest = max(map(estimate_memory, paths), default=_BASE_BYTES)
    cores = len(os.sched_getaffinity(0))
    return max(1, min(cores, len(paths), int(_FREE_SHARE * _measure_free_memory()) // largest))


def estimate_memory(path: Path) -> int:
    """Return about how much memory the reduction of a recording takes, in bytes."""
    with contextlib.suppress(OSError):
        files = [one for one in path.rglob("*") if one.is_file()] if path.is_dir() else [path]
        return _BASE_BYTES + sum(
            one.stat().st_size * _BYTES_OF_A_BYTE.get(one.suffix, 0 if path.is_dir() else 3) for one in files
        )
    return _BASE_BYTES


def _measure_free_memory() -> int:
    """Return how much memory is free, also in the control group of a batch job or container."""
    free = psutil.virtual_memory().available
    with contextlib.suppress(OSError, ValueError):
        limit, used = ((_CGROUP / name).read_text() for name in ("memory.max", "memory.current"))
        free = min(free, int(limit) - int(used))
    return max(0, free)


def reduce_paths(
    paths: Sequence[Path],
    outputs: Sequence[Path],
    options: ReduceOptions,
    workers: int,
    on_done: Callable[[int, Reduction], None],
) -> None:
    """Reduce recordings, each in a process that reads no other at the time.

    Args:
        paths, outputs: of each recording, and the file for its rank profiles.
        options: what of each counts.
        workers: how many are read at a time.
        on_done: called, in this thread, with the place of each recording as soon as it is done.
    """
    # The largest first: the last ones to end are small.
    order = sorted(range(len(paths)), key=lambda place: -estimate_memory(paths[place]))
    with _Workers() as pool, ThreadPoolExecutor(max(1, workers), "traceable-fleet") as threads:
        try:
            waiting = {threads.submit(pool.reduce, paths[place], outputs[place], options): place for place in order}
            for done in as_completed(waiting):
                on_done(waiting[done], done.result())
        except BaseException:
            threads.shutdown(wait=False, cancel_futures=True)
            pool.kill()
            raise


class _Workers:
    """The worker processes, one for each thread that asks for one."""

    def __init__(self) -> None:
        self._of_thread = threading.local()
        self._all: list[_Worker] = []

    def __enter__(self) -> _Workers:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def kill(self) -> None:
        for worker in self._all:
            worker.kill()

    def reduce(self, path: Path, output: Path, options: ReduceOptions) -> Reduction:
        """Reduce a recording; once more, in another process, if a signal ended the first one."""
        end = ""
        for _ in range(2):
            worker = self._get_worker()
            result = worker.request({"path": str(path), "output": str(output), "options": options.to_json()})
            if result is not None:
                break
            self._of_thread.worker = None
            end = worker.describe_end()
        else:
            return Reduction(None, Message("reader_died", f"its reader {end}"))
        if error := result.get("error"):
            problem = Message(error["code"], f"{error['problem']}; {error['remedy']}")
            return Reduction(None, problem, result["seconds"], result["peak_bytes"])
        return Reduction(output, None, result["seconds"], result["peak_bytes"])

    def _get_worker(self) -> _Worker:
        worker: _Worker | None = getattr(self._of_thread, "worker", None)
        if worker is None:
            worker = self._of_thread.worker = _Worker()
            self._all.append(worker)
        return worker


class _Worker:
    """One worker process."""

    def __init__(self) -> None:
        reading, writing = os.pipe()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the process
        with os.fdopen(writing, "w"):
            self._process = subprocess.Popen(
                # Not with -m, which would search modules in the working directory.
                [sys.executable, "-c", _START, str(writing), *sys.path],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=self._errors,
                text=True,
                pass_fds=[writing],
            )
        self._results = os.fdopen(reading)

    def request(self, request: dict[str, Any]) -> dict[str, Any] | None:
        """Return the result of a request; None if the process died."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        line = self._results.readline()
        result: dict[str, Any] | None = json.loads(line) if line.endswith("\n") else None
        return result

    def describe_end(self) -> str:
        """Return how the process ended, as the end of a sentence."""
        code = self._process.wait()
        if code < 0:
            return f"was killed by {signal.Signals(-code).name}" + (
                " (out of memory?)" if code == -signal.SIGKILL else ""
            )
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return f"ended with {code}: {lines[-1][:200] if lines else 'no message'}"

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        self._results.close()
        self._errors.close()
