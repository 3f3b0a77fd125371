"""Which thread of the system made each CUDA call that Kineto recorded.

CUPTI knows a thread by its pthread_self, of which Kineto keeps the lower half. Kineto turns it into the system's
number where torch has recorded something on that thread, which --gpu hardly makes it do; else the half stands in the
file, as a number with a sign. The embedded recorder notes both numbers of every thread that has a range, so each such
thread is found. A pthread_self is used again once its thread has ended: then it is the time that tells.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from traceable.collect import recording as rec
from traceable.collect.recording import read_events
from traceable.trace.model import Int64

_SYSTEM_THREADS = 1 << 22
"""Linux numbers threads below this."""

_LAST = (1 << 24) - 1
"""The largest number that nsys's schema has room for: threads of which no number is known count down from here."""


@dataclass(frozen=True)
class _Known:
    """A thread that the recorder saw; `first_ns` is CLOCK_MONOTONIC at its first event."""

    tid: int
    half: int
    thread: rec.ThreadRecording
    monotonic_ns: int

    def first_ns(self) -> int:
        events = next(iter(read_events(self.thread, [], records=64)), None)
        return self.monotonic_ns + (int(events.time_ns[0]) if events is not None else 0)


class Threads:
    """The threads of one process.

    Args:
        processes: the recordings of that process: several where it became another program.

    Attributes:
        unknown: the number that was given to each thread of which only a half was known, by what Kineto said.
    """

    def __init__(self, processes: Sequence[rec.ProcessRecording]) -> None:
        self._by_half: dict[int, list[_Known]] = {}
        self._half_of: dict[int, int] = {}
        self.unknown: dict[Any, int] = {}
        for process in processes:
            for thread in process.threads:
                if thread.pthread:
                    half = _half(thread.pthread)
                    self._by_half.setdefault(half, []).append(_Known(thread.tid, half, thread, process.monotonic_ns))
                    self._half_of[thread.tid] = half

    def tids(self, said: Any, times: Int64) -> Int64:
        """Return the system's number of the thread that Kineto calls `said`, at each CLOCK_MONOTONIC in ns."""
        # Kineto may say the system's number of an earlier thread with the same pthread_self.
        known = self._by_half.get(self._half_of.get(said, said), [])
        tids = {thread.tid for thread in known}
        if len(tids) > 1:
            return _by_time(known, times)
        return np.full(len(times), tids.pop() if tids else self._alone(said), np.int64)

    def _alone(self, said: Any) -> int:
        """Return the number of a thread without a range."""
        if isinstance(said, int) and 0 < said < _SYSTEM_THREADS:
            return said
        return self.unknown.setdefault(said, _LAST - len(self.unknown))


def _by_time(known: list[_Known], times: Int64) -> Int64:
    """Return at each time the thread that began last; before all of them, the first."""
    pairs = sorted((thread.first_ns(), thread.tid) for thread in known)
    begins, tids = np.array([begin for begin, _ in pairs]), np.array([tid for _, tid in pairs], np.int64)
    return tids[np.maximum(np.searchsorted(begins, times, side="right") - 1, 0)]


def _half(pthread: int) -> int:
    """Return the lower half of a pthread_self as CUPTI's number of it is written: 32 bits with a sign."""
    half = pthread & 0xFFFFFFFF
    return half - (1 << 32) if half >= 1 << 31 else half
