"""Findings about copies: small ones that could be one, and those from or to pageable memory.

docs/findings.md says how the time to be won is estimated, and why it is an upper bound.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from traceable.analysis.context import Context
from traceable.analysis.finding_rules import Evidence, Finding, Rule, Threshold, Values, share_of
from traceable.analysis.finding_words import gpu as gpu_words
from traceable.analysis.finding_words import named
from traceable.analysis.grouping import numbered
from traceable.analysis.intervals import lanes_of, union
from traceable.analysis.moves import ASYNCHRONOUS, SYNCHRONOUS, Moves, moves_of
from traceable.analysis.named import call_name
from traceable.analysis.operations import DIRECTIONS
from traceable.analysis.statistics import totals
from traceable.analysis.units import count, rate, size, time
from traceable.errors import UnanswerableError
from traceable.trace.model import Bool, Float64, Int64

_H2D, _D2H = DIRECTIONS.index("h2d"), DIRECTIONS.index("d2h")
_WORDS = {_H2D: "host-to-device", _D2H: "device-to-host"}


def small_h2d_copies(evidence: Evidence, values: Values) -> list[Finding]:
    """Return what small copies to the GPU, one directly after another, take longer than one copy of all would.

    A run is `run` or more host-to-device copies of at most `bytes` each, which follow one another on their stream with
    nothing between, belong to the same range instance and come from the same kind of memory. Runs are summed up by
    range, process and GPU.

    won_ns: the time in which such a copy or the call that made it lasted (of the first of a run, its call counts from
    the begin of the copy: before that it may have waited for the work before), less the time that their bytes take at
    the rate of the fastest host-to-device copy from such memory to that GPU in the trace. One copy of all goes no
    faster, and nothing but these copies becomes shorter.
    """
    copies = _Copies(evidence.context)
    if not (copies.direction == _H2D).any():
        return []
    if not copies.sized[copies.direction == _H2D].any():
        raise UnanswerableError("the sizes of copies were not recorded", "export the recording with a newer nsys")
    small = (copies.direction == _H2D) & copies.sized & (copies.moves.size_bytes[: len(copies)] <= values["bytes"])
    if not small.any() or _most_in_one_instance(evidence.context, copies, small) < values["run"]:
        return []
    row, run = _runs(evidence.context, copies, small)
    long = np.bincount(run)[run] >= values["run"]
    row, run = row[long], run[long]
    first = np.diff(run, prepend=-1) != 0
    fastest = copies.fastest_rates(copies.direction == _H2D)[row]
    found = []
    for here, group in _by_place(evidence, copies, row):
        took = copies.time_ns(row[here], first[here])
        # Without any rate, because no such copy took time, the bytes are taken to take none.
        least = float(np.nansum(copies.moves.size_bytes[row[here]] / fastest[here]))
        found.append(_batchable(group, copies, row[here], run[here], took, least))
    return found


def _batchable(group: _Place, copies: _Copies, row: Int64, run: Int64, took: int, least: float) -> Finding:
    runs = len(np.unique(run))
    mean = copies.moves.size_bytes[row].mean()
    copied = count(len(row), "host-to-device copy", "host-to-device copies")
    return Finding(
        sentence=(
            f"{group.words}: {copied} of {size(mean)} on average, {count(runs, 'run')} of {len(row) / runs:.3g} "
            f"in a row, take {time(took)} with their calls; "
            f"as fast as the fastest such copy of the recording, their bytes take {time(least)}"
        ),
        advice="gather what is copied into one buffer and copy that once",
        won_ns=took - round(least),
        range=group.range,
        domain=group.domain,
        device=group.device,
        pid=group.pid,
        call=copies.longest_call(row),
        count=len(row),
    )


def pageable_copies(evidence: Evidence, values: Values) -> list[Finding]:
    """Return what copies from or to pageable memory take longer than pinned memory would let them.

    Copies of `bytes` or more between host and GPU whose host memory is pageable, by range, direction, process and GPU.

    won_ns: the time in which such a copy or, from its begin on, the call that made it lasted, less the time that the
    bytes take at the peak of the link or, where that is not known, at the rate of the fastest pinned copy of that
    direction and GPU in the trace. A copy does not exceed the peak of its link. Where neither is known all of the time
    counts. That the calling thread waits for such copies is not in it: see `sync_in_hot_range`.
    """
    copies = _Copies(evidence.context)
    with_host = (copies.direction == _H2D) | (copies.direction == _D2H)
    if not with_host.any():
        return []
    moves = copies.moves
    told = moves.told[: len(copies)]
    if not told[with_host].any():
        raise UnanswerableError(
            "the kind of host memory of the copies was not recorded", "export the recording with a newer nsys"
        )
    large = moves.size_bytes[: len(copies)] >= values["bytes"]
    row = np.flatnonzero(moves.pageable[: len(copies)] & with_host & large)
    if not len(row):
        return []
    pinned = copies.fastest_rates(with_host & moves.pinned[: len(copies)], by_memory=False)
    peak = moves.peak_gb_per_s[: len(copies)]
    possible = np.where(np.isnan(peak), pinned, peak)
    found = []
    for here, group in _by_place(evidence, copies, row, copies.direction[row].astype(np.int64)):
        mine = row[here]
        took = copies.time_ns(mine, np.ones(len(mine), np.bool_))
        bounds = possible[mine]
        known = not np.isnan(bounds).any()
        least = float((moves.size_bytes[mine] / bounds).sum()) if known else 0.0
        of_peak = known and not np.isnan(peak[mine]).any()
        found.append(_pageable(group, copies, mine, took, least, float(bounds.max()) if known else None, of_peak))
    return found


def _pageable(
    group: _Place, copies: _Copies, row: Int64, took: int, least: float, possible: float | None, of_peak: bool
) -> Finding:
    whole = int(copies.moves.size_bytes[row].sum())
    direction = _WORDS[int(copies.direction[row[0]])]
    copied = count(len(row), f"{direction} copy", f"{direction} copies")
    if possible is None:
        against = "neither the link's peak nor a pinned copy is known to compare with"
    else:
        what = "the link's peak" if of_peak else "the rate of the fastest pinned copy"
        against = f"at {what}, {rate(possible)}, their bytes take {time(least)}"
    return Finding(
        sentence=(
            f"{group.words}: {copied} with pageable memory, {size(whole)} in all, take {time(took)} "
            f"({rate(whole / max(1, took))}); {against}"
        ),
        advice="keep this memory pinned (pin_memory(), cudaHostAlloc) and copy it asynchronously (non_blocking=True)",
        won_ns=took - round(least),
        range=group.range,
        domain=group.domain,
        device=group.device,
        pid=group.pid,
        call=copies.longest_call(row),
        count=len(row),
    )


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

    def fastest_rates(self, which: Bool, by_memory: bool = True) -> Float64:
        """Return for each copy the rate (bytes a ns) of the fastest of `which` of its direction, GPU and, if said, kind
        of host memory; NaN where there is none.
        """
        moves, copies = self.moves, len(self)
        memory = self.context.trace.copies.source_kind if by_memory else np.zeros(copies, np.int32)
        group, first = numbered(self.direction, moves.gpu[:copies], memory)
        duration, moved = moves.duration_ns[:copies], moves.size_bytes[:copies]
        usable = which & (duration > 0) & (moved > 0)
        fastest = np.zeros(len(first))
        np.maximum.at(fastest, group[usable], moved[usable] / duration[usable])
        return np.where(fastest > 0, fastest, np.nan)[group]

    def time_ns(self, row: Int64, from_copy: Bool) -> int:
        """Return for how long any of these copies, or of the copying calls that made them, lasted.

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
        starts, ends = np.append(start, begun), np.append(end, ended)
        everything = lanes_of(np.zeros(len(starts), np.int64), 1, np.argsort(starts, kind="stable"))
        return int(union(starts, ends, everything).total_ns()[0])

    def longest_call(self, row: Int64) -> str | None:
        """Return the copying call that took most time to make these copies."""
        calls = self.context.trace.calls
        call = np.unique(self._copying_call(row))
        call = call[call >= 0]
        if not len(call):
            return None
        name, first = numbered(calls.name[call])
        total = totals(name, calls.end_ns[call] - calls.start_ns[call], len(first))
        return call_name(self.context.trace.names[int(calls.name[call[first[int(total.argmax())]]])])

    def _copying_call(self, row: Int64) -> Int64:
        """Return the call of each copy that was made by a call that copies, not by the launch of a graph; else -1."""
        kind = self.moves.call_kind[row]
        call: Int64 = np.where((kind == SYNCHRONOUS) | (kind == ASYNCHRONOUS), self.moves.call[row], -1)
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
