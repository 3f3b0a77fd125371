"""A finding about copies from or to pageable memory. docs/findings.md explains the bound."""

from __future__ import annotations

import numpy as np

from traceable.analysis.rules.evidence import (
    D2H,
    H2D,
    Copies,
    Evidence,
    Finding,
    Loads,
    PlaceOfCopies,
    Rule,
    Threshold,
    Values,
    bytes_and_least_ns,
    copies_by_place,
    merged_ns,
    part_of_copies,
    room_beside_copies_ns,
    share_of,
    with_known_peak,
)
from traceable.analysis.units import count, rate, size, time
from traceable.errors import UnanswerableError
from traceable.trace.model import Int64

_WORDS = {H2D: "host-to-device", D2H: "device-to-host"}


def pageable_copies(evidence: Evidence, values: Values) -> list[Finding]:
    """Return what copies from or to pageable memory take longer than pinned memory would let them.

    Copies of `bytes` or more between host and GPU whose host memory is pageable, by range, direction, process and GPU;
    host-to-device copies that do not recur (`Loads`) are left out.

    won_ns: the time in which such a copy or, from its begin on, the call that made it lasted, less the time that the
    bytes take at the peak of the link; at most what the GPU leaves of the time (`room_beside_copies_ns`). A copy does
    not exceed the peak of its link. That the calling thread waits for such copies is not in it: see
    `sync_in_hot_range`.
    """
    copies = Copies(evidence.context)
    with_host = (copies.direction == H2D) | (copies.direction == D2H)
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
    row = row[with_known_peak(evidence, copies, row)]
    loads = Loads(evidence)
    found = []
    for here, group in copies_by_place(evidence, copies, row, copies.direction[row].astype(np.int64)):
        mine = row[here]
        if not loads.one_off(copies.first + mine).any():
            found.append(_pageable(evidence, group, copies, mine))
    return found


def _pageable(evidence: Evidence, group: PlaceOfCopies, copies: Copies, row: Int64) -> Finding:
    start, end = copies.intervals(row, np.ones(len(row), np.bool_))
    took = evidence.any_ns(start, end)
    part, some = part_of_copies(evidence, copies, row)
    whole, least = bytes_and_least_ns(copies, row, part)
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
        won_ns=min(took - round(least), room_beside_copies_ns(evidence, copies, row)),
        total_ns=merged_ns(start, end),
        before_steady_ns=evidence.before_steady(merged_ns(*evidence.clipped_before(start, end))),
        range=group.range,
        domain=group.domain,
        device=group.device,
        pid=group.pid,
        call=copies.longest_call(row),
        count=number,
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
