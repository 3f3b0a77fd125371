"""Findings about copies: small ones that could be one, and those from or to pageable memory.

docs/findings.md explains each bound.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from traceable.analysis.context import Context
from traceable.analysis.grouping import numbered
from traceable.analysis.intervals import lanes_of
from traceable.analysis.memory import ASYNCHRONOUS, SYNCHRONOUS, Moves, moves_of
from traceable.analysis.named import call_name
from traceable.analysis.operations import DIRECTIONS
from traceable.analysis.rules.evidence import Evidence, Finding, Rule, Threshold, Values, merged_ns, share_of
from traceable.analysis.rules.loads import Loads
from traceable.analysis.rules.words import gpu as gpu_words
from traceable.analysis.rules.words import listed, named
from traceable.analysis.shared import nccl_kernels
from traceable.analysis.statistics import totals
from traceable.analysis.units import count, rate, size, time
from traceable.errors import UnanswerableError
from traceable.trace.model import Bool, Float64, Int64
from traceable.trace.rows import distinct

_H2D, _D2H = DIRECTIONS.index("h2d"), DIRECTIONS.index("d2h")
_WORDS = {_H2D: "host-to-device", _D2H: "device-to-host"}


def small_h2d_copies(evidence: Evidence, values: Values) -> list[Finding]:
    """Return what small copies to the GPU, one directly after another, take longer than one copy of all would.

    A run is `run` or more host-to-device copies of at most `bytes` each, which follow one another on their stream with
    nothing between, belong to the same range instance and come from the same kind of memory. Runs are summed up by
    range, process and GPU.

    won_ns: the time in which such a copy or the call that made it lasted (of the first of a run, its call counts from
    the begin of the copy: before that it may have waited for the work before), less the time that their bytes take at
    the peak of the link; at most what the GPU leaves of the time (`_room_ns`). One copy of all is no faster than the
    link, and nothing but these copies becomes shorter.
    """
    copies = _Copies(evidence.context)
    if not (copies.direction == _H2D).any():
        return []
    if not copies.sized[copies.direction == _H2D].any():
        raise UnanswerableError(
            "copy_sizes_not_recorded", "the sizes of copies were not recorded", "export the recording with a newer nsys"
        )
    small = (copies.direction == _H2D) & copies.sized & (copies.moves.size_bytes[: len(copies)] <= values["bytes"])
    if not small.any() or _most_in_one_instance(evidence.context, copies, small) < values["run"]:
        return []
    row, run = _runs(evidence.context, copies, small)
    long = np.bincount(run)[run] >= values["run"]
    row, run = row[long], run[long]
    known = _with_known_peak(evidence, copies, row)
    row, run = row[known], run[known]
    first = np.diff(run, prepend=-1) != 0
    return [
        _batchable(evidence, group, copies, row[here], run[here], first[here])
        for here, group in _by_place(evidence, copies, row)
    ]


def _batchable(evidence: Evidence, group: _Place, copies: _Copies, row: Int64, run: Int64, first: Bool) -> Finding:
    start, end = copies.intervals(row, first)
    took = evidence.any_ns(start, end)
    part, some = _part_of(evidence, copies, row)
    size_bytes, least = _bytes_and_least(copies, row, part)
    runs, number = len(distinct(run[some])), int(some.sum())
    copied = count(number, "host-to-device copy", "host-to-device copies")
    return Finding(
        sentence=(
            f"{group.words}: {copied} of {size(size_bytes / max(1, number))} on average, {count(runs, 'run')} of "
            f"{number / max(1, runs):.3g} in a row, take {time(took)} with their calls; at the link's peak, "
            f"{rate(copies.peak[row].max())}, their bytes take {time(least)}"
        ),
        advice="gather what is copied into one buffer and copy that once",
        won_ns=min(took - round(least), _room_ns(evidence, copies, row)),
        total_ns=merged_ns(start, end),
        before_steady_ns=evidence.before_steady(merged_ns(*evidence.clipped_before(start, end))),
        range=group.range,
        domain=group.domain,
        device=group.device,
        pid=group.pid,
        call=copies.longest_call(row),
        count=number,
    )


def pageable_copies(evidence: Evidence, values: Values) -> list[Finding]:
    """Return what copies from or to pageable memory take longer than pinned memory would let them.

    Copies of `bytes` or more between host and GPU whose host memory is pageable, by range, direction, process and GPU;
    host-to-device copies that do not recur (`Loads`) are left out.

    won_ns: the time in which such a copy or, from its begin on, the call that made it lasted, less the time that the
    bytes take at the peak of the link; at most what the GPU leaves of the time (`_room_ns`). A copy does not exceed the
    peak of its link. That the calling thread waits for such copies is not in it: see `sync_in_hot_range`.
    """
    copies = _Copies(evidence.context)
    with_host = (copies.direction == _H2D) | (copies.direction == _D2H)
    if not with_host.any():
        return []
    moves = copies.moves
    told = moves.told[: len(copies)]
    if not told[with_host].any():
        raise UnanswerableError(
            "host_memory_kind_not_recorded",
            "the kind of host memory of the copies was not recorded",
            "export the recording with a newer nsys",
        )
    large = moves.size_bytes[: len(copies)] >= values["bytes"]
    row = np.flatnonzero(moves.pageable[: len(copies)] & with_host & large)
    row = row[_with_known_peak(evidence, copies, row)]
    loads = Loads(evidence)
    found = []
    for here, group in _by_place(evidence, copies, row, copies.direction[row].astype(np.int64)):
        mine = row[here]
        if not loads.one_off(copies.first + mine).any():
            found.append(_pageable(evidence, group, copies, mine))
    return found


def _pageable(evidence: Evidence, group: _Place, copies: _Copies, row: Int64) -> Finding:
    start, end = copies.intervals(row, np.ones(len(row), np.bool_))
    took = evidence.any_ns(start, end)
    part, some = _part_of(evidence, copies, row)
    whole, least = _bytes_and_least(copies, row, part)
    direction = _WORDS[int(copies.direction[row[0]])]
    number = int(some.sum())
    copied = count(number, f"{direction} copy", f"{direction} copies")
    return Finding(
        sentence=(
            f"{group.words}: {copied} with pageable memory, {size(whole)} in all, take {time(took)} "
            f"({rate(whole / max(1, took))}); at the link's peak, {rate(copies.peak[row].max())}, their bytes take "
            f"{time(least)}"
        ),
        advice="keep this memory pinned (pin_memory(), cudaHostAlloc) and copy it asynchronously (non_blocking=True)",
        won_ns=min(took - round(least), _room_ns(evidence, copies, row)),
        total_ns=merged_ns(start, end),
        before_steady_ns=evidence.before_steady(merged_ns(*evidence.clipped_before(start, end))),
        range=group.range,
        domain=group.domain,
        device=group.device,
        pid=group.pid,
        call=copies.longest_call(row),
        count=number,
    )


def _with_known_peak(evidence: Evidence, copies: _Copies, row: Int64) -> Bool:
    """Return which copies go over a link whose peak is known.

    Raises:
        UnanswerableError: there are some, and none of them does.
    """
    known: Bool = ~np.isnan(copies.peak[row])
    if len(row) and not known.any():
        used = {int(gpu) for gpu in distinct(copies.moves.gpu[row]).tolist()}
        names = [device.name or "without a name" for device in evidence.context.trace.devices if device.number in used]
        of = f" ({listed(names)})" if names else ""
        raise UnanswerableError(
            "link_peak_unknown",
            f"the peak of the link to the GPU{of} is not known, and without it no bound",
            "`--view memory` shows the rate that the copies reached",
        )
    return known


def _part_of(evidence: Evidence, copies: _Copies, row: Int64) -> tuple[Float64, Bool]:
    """Return which share of each copy lies in the part that bounds are of, and whether any of it does."""
    gpu, operation = evidence.context.gpu, copies.first + row
    part = evidence.inside_share(gpu.start_ns[operation], gpu.end_ns[operation])
    return part, part > 0


def _bytes_and_least(copies: _Copies, row: Int64, part: Float64) -> tuple[float, float]:
    """Return the bytes of these shares of the copies, and the ns that they take at the peak of the link."""
    moved = copies.moves.size_bytes[row] * part
    return float(moved.sum()), float((moved / copies.peak[row]).sum())


def _room_ns(evidence: Evidence, copies: _Copies, row: Int64) -> int:
    """Return the length of the part that bounds are of, less the time in which their GPU worked on anything else.

    NCCL's kernels are no such work: they may wait for a GPU that waits for these copies.

    Args:
        row: copies of one GPU.
    """
    gpu, operation = evidence.context.gpu, copies.first + row
    other = evidence.gpu_of_operation == evidence.gpu_of_operation[operation[0]]
    other[operation] = False
    other[nccl_kernels(evidence.context)] = False
    rows = gpu.by_start[other[gpu.by_start]]
    return evidence.window_ns - evidence.any_ns(gpu.start_ns[rows], gpu.end_ns[rows])


@dataclass(frozen=True)
class _Place:
    """Where copies were made: the innermost range, the process and the GPU; and in words as much of it as is needed."""

    range: str | None
    domain: str | None
    device: int | None
    pid: int
    words: str


class _Copies:
    """The copies of a trace; rows are those of `Trace.copies`."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.moves: Moves = moves_of(context)
        self.first = self.moves.first
        self.direction = context.gpu.direction[self.first : self.first + len(self)]
        self.sized: Bool = context.trace.copies.size_bytes >= 0

    def __len__(self) -> int:
        return len(self.context.trace.copies)

    @property
    def peak(self) -> Float64:
        """Of each copy the peak of its link, in bytes a ns; NaN where it is not known."""
        return self.moves.peak_gb_per_s[: len(self)]

    def intervals(self, row: Int64, from_copy: Bool) -> tuple[Int64, Int64]:
        """Return when these copies lasted, and the copying calls that made them.

        Args:
            from_copy: of which of them the call counts from the begin of the copy only.
        """
        gpu, calls = self.context.gpu, self.context.trace.calls
        start, end = gpu.start_ns[self.first + row], gpu.end_ns[self.first + row]
        call = self._copying_call(row)
        called = np.flatnonzero(call >= 0)
        begun = calls.start_ns[call[called]]
        begun = np.where(from_copy[called], np.maximum(begun, start[called]), begun)
        ended = np.maximum(begun, calls.end_ns[call[called]])
        return np.append(start, begun), np.append(end, ended)

    def longest_call(self, row: Int64) -> str | None:
        """Return the copying call that took most time to make these copies."""
        calls = self.context.trace.calls
        call = distinct(self._copying_call(row))
        call = call[call >= 0]
        if not len(call):
            return None
        name, first = numbered(calls.name[call])
        total = totals(name, calls.end_ns[call] - calls.start_ns[call], len(first))
        return call_name(self.context.trace.names[int(calls.name[call[first[int(total.argmax())]]])])

    def _copying_call(self, row: Int64) -> Int64:
        """Return the call of each copy that was made by a call that copies, not by the launch of a graph; else -1."""
        kind = self.moves.call_kind[row]
        copying = (kind == SYNCHRONOUS) | (kind == ASYNCHRONOUS)
        # One outside the time that the trace was cut to took none of it.
        copying &= self.moves.call[row] < len(self.context.trace.calls)
        call: Int64 = np.where(copying, self.moves.call[row], -1)
        return call


def _most_in_one_instance(context: Context, copies: _Copies, small: Bool) -> int:
    """Return how many small copies an instance has at most: what is cheap to know, and no run is longer."""
    group = numbered(context.innermost[copies.first + np.flatnonzero(small)])[0]
    return int(np.bincount(group).max())


def _runs(context: Context, copies: _Copies, small: Bool) -> tuple[Int64, Int64]:
    """Return the small copies in the order of their streams, and the run that each is of, numbered from 0.

    Args:
        small: at least one.
    """
    trace, gpu = context.trace, context.gpu
    of_context = np.concatenate(
        [kind.context for kind in (trace.kernels, trace.copies, trace.memsets, trace.graph_launches)]
    )
    stream, first = numbered(gpu.process, gpu.device, of_context, gpu.stream)
    order = lanes_of(stream, len(first), gpu.by_start).order
    wanted = np.zeros(len(gpu), np.bool_)
    wanted[copies.first + np.flatnonzero(small)] = True
    place = np.flatnonzero(wanted[order])
    operation = order[place]
    row = operation - copies.first
    begins = np.diff(place, prepend=-2) != 1
    for column in (stream[operation], context.innermost[operation], trace.copies.source_kind[row]):
        begins |= np.diff(column, prepend=column[:1] - 1) != 0
    return row, np.cumsum(begins) - 1


def _by_place(
    evidence: Evidence, copies: _Copies, row: Int64, further: Int64 | None = None
) -> list[tuple[Int64, _Place]]:
    """Return the places in `row` of the copies of each range, process and GPU (and of each value of `further`)."""
    context, labels = evidence.context, evidence.labels
    operation = copies.first + row
    of_row = labels.of_instance[context.innermost[operation]]
    process, gpu = context.gpu.process[operation], evidence.used.of(operation)
    keys = (of_row, process, gpu) if further is None else (of_row, process, gpu, further)
    group, first = numbered(*keys)
    order = np.argsort(group, kind="stable")
    bounds = np.searchsorted(group[order], np.arange(len(first) + 1))
    found = []
    for i, one in enumerate(first.tolist()):
        name, domain = labels.names[of_row[one]]
        device, pid = evidence.device(int(gpu[one])), evidence.pids[int(process[one])]
        words = named(name)
        if len(evidence.used) > 1:
            words += f" on {gpu_words(device)}"
        if len(evidence.used.processes[int(gpu[one])]) > 1:
            words += f" by process {pid}"
        found.append((order[bounds[i] : bounds[i + 1]], _Place(name, domain, device, pid, words)))
    return found


SMALL_H2D_COPIES = Rule(
    "small_h2d_copies",
    "small host-to-device copies that could be one",
    (
        Threshold("bytes", 65_536, "bytes", "a copy is small up to this size"),
        Threshold("run", 8, "count", "fewest small copies in a row"),
        share_of(0.005),
    ),
    small_h2d_copies,
)

PAGEABLE_COPIES = Rule(
    "pageable_copies",
    "copies slowed down by pageable memory",
    (
        Threshold(
            "bytes", 65_536, "bytes", "copies below this size do not count: the link's rate says nothing of them"
        ),
        share_of(0.005),
    ),
    pageable_copies,
)
