"""How long threads ran, and how long they waited for a CPU although they could run, as Linux's scheduler counts it.

The files have three numbers: the time on a CPU in ns, the time waiting for one in ns, and the number of time slices.
Some kernels and sandboxes have none of them, or zeros. Every annotated process imports this: it imports nothing.
"""

from __future__ import annotations

import os
from typing import NamedTuple

_THREADS = "/proc/self/task"


class CpuTimes(NamedTuple):
    """How long threads ran and waited for a CPU, in ns."""

    run_ns: int
    wait_ns: int


def read_thread_times(thread: str = "/proc/thread-self") -> CpuTimes | None:
    """Return the times of a thread, of this one if no other is given; None if not available, or it has ended."""
    try:
        # Opened each time: after a program has closed all descriptors, one that is kept could be one of its own.
        descriptor = os.open(f"{thread}/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        try:
            run_ns, wait_ns, *_ = map(int, os.read(descriptor, 100).split())
        finally:
            os.close(descriptor)
    except (OSError, ValueError):
        return None
    return CpuTimes(run_ns, wait_ns) if run_ns else None


def read_process_times() -> CpuTimes | None:
    """Return the sums of the times of all threads of this process that have not ended; None if not available."""
    try:
        threads = os.listdir(_THREADS)  # noqa: PTH208 - pathlib takes 5 ms to import
    except OSError:
        return None
    times = [one for one in (read_thread_times(f"{_THREADS}/{thread}") for thread in threads) if one is not None]
    return CpuTimes(*map(sum, zip(*times, strict=True))) if times else None
