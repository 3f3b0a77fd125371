"""The program of `soak.py`: threads that open and close ranges, then tasks that are all open at once.

    _soak_program.py THREADS RANGES TASKS SUSPENSIONS OUTPUT

Writes to OUTPUT, as JSON: the ids of the threads, how long each part took, and samples of its own resident memory as
pairs of seconds and bytes.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import sys
import threading
import time
from pathlib import Path

from traceable import annotate

Samples = list[tuple[float, int]]
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_INTERVAL_SECONDS = 0.1


def sample(samples: Samples) -> None:
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_BYTES
    samples.append((time.perf_counter(), resident))


def sample_until(done: threading.Event, samples: Samples) -> None:
    while not done.wait(_INTERVAL_SECONDS):
        sample(samples)


def run_thread(name: str, ranges: int, begin: threading.Barrier, ids: dict[str, int]) -> None:
    ids[name] = threading.get_native_id()
    work = annotate(name)
    begin.wait()
    for _ in itertools.repeat(None, ranges):
        with work:
            pass


def run_threads(threads: int, ranges: int, samples: Samples) -> list[int]:
    """Run the threads to their end; return their ids. Memory is sampled meanwhile."""
    ids: dict[str, int] = {}
    begin, done = threading.Barrier(threads), threading.Event()
    names = [f"thread-{i}" for i in range(threads)]
    running = [threading.Thread(target=run_thread, args=(name, ranges, begin, ids)) for name in names]
    sampler = threading.Thread(target=sample_until, args=(done, samples))
    sample(samples)
    sampler.start()
    for one in running:
        one.start()
    for one in running:
        one.join()
    done.set()
    sampler.join()
    sample(samples)
    return [ids[name] for name in names]


async def run_tasks(tasks: int, suspensions: int, samples: Samples) -> None:
    """Run the tasks so that each is open while all others are, and suspends this often."""

    @annotate("task")
    async def run_task(turns: list[asyncio.Event]) -> None:
        for turn in turns:
            await turn.wait()

    turns = [asyncio.Event() for _ in range(suspensions)]
    running = [asyncio.create_task(run_task(turns)) for _ in range(tasks)]
    for turn in turns:
        await asyncio.sleep(0)  # every task has run as far as it can, and waits for this turn
        sample(samples)
        turn.set()
    await asyncio.gather(*running)
    sample(samples)


def main() -> None:
    threads, ranges, tasks, suspensions = map(int, sys.argv[1:5])
    threads_memory: Samples = []
    tasks_memory: Samples = []
    begin = time.perf_counter()
    ids = run_threads(threads, ranges, threads_memory)
    middle = time.perf_counter()
    asyncio.run(run_tasks(tasks, suspensions, tasks_memory))
    results = {
        "thread_ids": ids,
        "threads_seconds": middle - begin,
        "tasks_seconds": time.perf_counter() - middle,
        "threads_memory": threads_memory,
        "tasks_memory": tasks_memory,
    }
    Path(sys.argv[5]).write_text(json.dumps(results))


if __name__ == "__main__":
    main()
