"""Kineto's clock against the recorder's: where a time of the one lies on the other, and how sure that is.

Kineto counts the processor's ticks and makes ns since 1970 of them; the recorder uses CLOCK_MONOTONIC. The process has
annotated a few moments at the start and at the end of each recording of Kineto's, and has read CLOCK_MONOTONIC before
and after each (`capture/gpu_gate.py`). What Kineto says of a moment lies between its two readings: all moments of one
end of the recording together leave a stretch of possible offsets of 1 to 2 us. Between the two ends the offset is taken
to change evenly.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from traceable import untrusted
from traceable.errors import Message
from traceable.trace.kineto_events import File
from traceable.trace.model import Int64

METADATA = "traceable_gpu"
"""The key of what the process says in the file; `capture.gpu_gate.METADATA`."""

_DIGITS = 10
_MARKER = re.compile(r"traceable\.clock (\d{1,6})")


@dataclass(frozen=True)
class Clock:
    """What to add to Kineto's times to have CLOCK_MONOTONIC.

    Attributes:
        at_ns: one or two times of Kineto's.
        offset_ns: what to add at each.
        uncertainty_ns: by how much it may be wrong; None where there were no markers to measure it by.
    """

    at_ns: tuple[int, ...]
    offset_ns: tuple[int, ...]
    uncertainty_ns: int | None

    def monotonic_ns(self, times: Int64) -> Int64:
        """Return CLOCK_MONOTONIC at each time of Kineto's."""
        first = self.offset_ns[0]
        # Small differences alone become doubles, which hold no ns since 1970.
        drift = np.interp(times - self.at_ns[0], np.subtract(self.at_ns, self.at_ns[0]), self.drifts_ns)
        return times + first + np.rint(drift).astype(np.int64)

    @property
    def drifts_ns(self) -> tuple[int, ...]:
        """How far the offset has moved at each of these times."""
        return tuple(offset - self.offset_ns[0] for offset in self.offset_ns)


@dataclass(frozen=True)
class Said:
    """What the process says in its file.

    Attributes:
        monotonic_ns, realtime_ns: both clocks at one moment near the end.
        markers: of each marker its number, and CLOCK_MONOTONIC before and after it.
        gpus: the UUID of CUDA's devices, by their number.
    """

    monotonic_ns: int
    realtime_ns: int
    markers: tuple[tuple[int, int, int], ...]
    gpus: dict[int, str]


def said_in(file: File) -> Said | None:
    """Return what the process says in its file; None where it says nothing that can be understood."""
    said: Any = file.events.metadata.get(METADATA)
    try:
        untrusted.checked(said, untrusted.GPU_CLOCK)
        gpus = {int(device): uuid for device, uuid in said["gpus"].items() if len(device) < _DIGITS and uuid}
    except ValueError:
        return None
    markers = tuple((number, before, after) for number, before, after in said["markers"])
    return Said(said["monotonic_ns"], said["realtime_ns"], markers, gpus)


def clock_of(file: File, said: Said, names: Sequence[str]) -> Clock | None:
    """Return how the file's times become CLOCK_MONOTONIC: by its markers, or else by its wall clock.

    Args:
        file: a recording of Kineto's.
        said: by its process.
        names: by the numbers that the file's annotations have.

    Returns:
        The clock; None where the file has neither a marker nor a wall clock.
    """
    begins = _markers(file, names)
    half = len(said.markers) // 2
    ends = [_offset(begins, said.markers[:half]), _offset(begins, said.markers[half:])]
    known = [end for end in ends if end is not None]
    if known:
        return Clock(
            tuple(at for at, _, _ in known),
            tuple(offset for _, offset, _ in known),
            max(uncertainty for _, _, uncertainty in known),
        )
    if file.to_wall_ns is None:
        return None
    return Clock((0,), (file.to_wall_ns + said.monotonic_ns - said.realtime_ns,), None)


def _markers(file: File, names: Sequence[str]) -> dict[int, int]:
    """Return when each marker begins, by its number."""
    ranges = file.events.ranges
    found = {}
    for name, start in zip(ranges.column("name").tolist(), ranges.column("start").tolist(), strict=True):
        words = _MARKER.fullmatch(names[name])
        if words:
            found[int(words[1])] = start
    return found


def _offset(begins: dict[int, int], markers: Sequence[tuple[int, int, int]]) -> tuple[int, int, int] | None:
    """Return a time of Kineto's, the offset at it, and by how much that may be wrong; None without a marker."""
    bounds: list[tuple[int, int, int]] = [
        (begins[number], before - begins[number], after - begins[number])
        for number, before, after in markers
        if number in begins
    ]
    if not bounds:
        return None
    low, high = max(bound[1] for bound in bounds), min(bound[2] for bound in bounds)
    # Where no offset suits all markers (low > high), Kineto's clock is uneven by as much.
    return bounds[len(bounds) // 2][0], (low + high) // 2, -(-abs(high - low) // 2)


def describe(clock: Clock, pid: int) -> Message:
    """Return a sentence on how a process's GPU work was placed among its ranges."""
    if clock.uncertainty_ns is None:
        return Message(
            "gpu_placed_by_wall_clock",
            f"the GPU work of process {pid} is placed among its ranges by the wall clock, as its file has no marker "
            "of ours: it may be off by some microseconds",
        )
    drift = clock.drifts_ns[-1]
    seconds = (clock.at_ns[-1] - clock.at_ns[0]) / 1e9
    return Message(
        "gpu_placed_by_markers",
        f"the GPU work of process {pid} is placed among its ranges to {clock.uncertainty_ns / 1000:.1f} us; Kineto's "
        f"clock drifted by {drift / 1000:.1f} us in {seconds:.1f} s, which is made good",
    )
