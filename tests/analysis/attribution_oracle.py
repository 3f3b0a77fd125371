"""Slow readings of the two rules that infer, word for word: one call and one instant at a time.

Rows are those of `tests/analysis/sample_traces.py`: dictionaries by column, calls in order of their start.
"""

from __future__ import annotations

from typing import Any

from tests.analysis.sample_traces import PROCESS_OF_THREAD

Rows = list[dict[str, Any]]


def is_candidate(calls: Rows, thread: int, call: dict[str, Any]) -> bool:
    """Whether a thread made a CUDA call ever, and none near a call of another thread on at least one side of it."""
    theirs = instants([one for one in calls if one["thread"] == thread])
    mine = instants([one for one in calls if one["thread"] == call["thread"]])
    first, last = bounds(mine, 2 * call["start_ns"])
    before = {at for at in mine if at < first}
    after = {at for at in mine if at > last}
    stretches = []
    if before:
        stretches.append((bounds(mine, max(before))[0], last))
    if after:
        stretches.append((first, bounds(mine, min(after))[1]))
    return bool(theirs) and any(theirs.isdisjoint(range(since, until + 1)) for since, until in stretches)


def instants(calls: Rows) -> set[int]:
    """The half nanoseconds, ends included, in which one of the calls lasts: calls that touch have one in common."""
    return {at for call in calls for at in range(2 * call["start_ns"], 2 * call["end_ns"] + 1)}


def bounds(within: set[int], at: int) -> tuple[int, int]:
    """The first and the last instant of those that are in one piece with `at`."""
    first = last = at
    while first - 1 in within:
        first -= 1
    while last + 1 in within:
        last += 1
    return first, last


def calls_around(calls: Rows, operations: Rows, operation: dict[str, Any]) -> tuple[dict[str, Any], ...] | None:
    """The two calls between which the missing launch call of an operation lies by its id; None if it isn't so clear."""
    of_process = [call for call in calls if PROCESS_OF_THREAD[call["thread"]] == operation["process"]]
    ids = {call["correlation"] for call in of_process if call["correlation"] > 0}
    of_operations = {one["correlation"] for one in operations if one["process"] == operation["process"]}
    lower = [one for one in ids if one < operation["correlation"]]
    higher = [one for one in ids if one > operation["correlation"]]
    if not lower or not higher or operation["correlation"] in ids:
        return None
    if any(max(lower) < one < min(higher) for one in of_operations - {operation["correlation"]}):
        return None
    low, high = (next(call for call in of_process if call["correlation"] == one) for one in (max(lower), min(higher)))
    clear = low["thread"] == high["thread"] and low["end_ns"] <= high["start_ns"]
    return (low, high) if clear and operation["start_ns"] >= low["start_ns"] else None


def is_before_recording(calls: Rows, operation: dict[str, Any]) -> bool:
    """Whether the id of an operation is below that of every recorded call of its process."""
    ids = [call["correlation"] for call in calls if PROCESS_OF_THREAD[call["thread"]] == operation["process"]]
    known = [one for one in ids if one > 0]
    return bool(known) and 0 < operation["correlation"] < min(known)
