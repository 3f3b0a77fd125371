"""Findings about a host that waits: synchronisation inside hot ranges, and allocation in the steady state.

docs/findings.md says how the time to be won is estimated, and why it is an upper bound.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from traceable.analysis.context import Context
from traceable.analysis.finding_rules import Evidence, Finding, Rule, Threshold, Values, share_of
from traceable.analysis.finding_words import listed, named
from traceable.analysis.grouping import numbered
from traceable.analysis.intervals import Union, covered_ns, lanes_of, union
from traceable.analysis.named import call_name
from traceable.analysis.naming import ALLOCATING, COPYING, without_numbers
from traceable.analysis.shared import calls_like
from traceable.analysis.statistics import totals
from traceable.analysis.table import Table
from traceable.analysis.units import count, share, time
from traceable.errors import UnanswerableError
from traceable.trace.model import Bool, Int64

if TYPE_CHECKING:
    from traceable.analysis.step_detection import Steps


def sync_in_hot_range(evidence: Evidence, values: Values) -> list[Finding]:
    """Return which waits for the GPU take much of a range that takes much of the recording.

    A range is hot if its instances last `hot` of the recording or longer in all. A call of it speaks if the waits in
    which it is the innermost range take `wait` of that time or more; see the question of sync for what waits, and for
    what.

    won_ns: the time waited, but no more than the host can win at all (`Evidence.room_ns`): without the waits the GPU
    still has all its work to do.
    """
    evidence.need_calls()
    evidence.need_ranges()
    try:
        answer = evidence.ask("sync")
    except UnanswerableError:
        # There are calls, so this says that none of them waits.
        return []
    cpu_ns = _lasting_ns(evidence)
    waits = _Waits(answer)
    room = evidence.room_ns()
    found = []
    for (name, domain, call), row in waits.calls.items():
        cpu = cpu_ns.get((name, domain), 0)
        if name is None or row["wait_total_ns"] < values["wait"] * cpu or cpu < values["hot"] * evidence.window_ns:
            continue
        whom = waits.longest.get((name, domain, call))
        found.append(
            Finding(
                sentence=(
                    f"{named(name)}: {call} waits {time(row['wait_total_ns'])} in {count(row['count'], 'call')}, "
                    f"{share(row['wait_total_ns'] / max(1, cpu))} of the range's time; {_for_what(row, whom)}"
                ),
                advice=_instead(call, whom),
                won_ns=min(row["wait_total_ns"], room),
                range=name,
                domain=domain,
                call=call,
                count=row["count"],
            )
        )
    return found


def _lasting_ns(evidence: Evidence) -> dict[tuple[str | None, str | None], int]:
    """Return how long the instances of each range last in all, by name and domain."""
    found, labels = evidence.context.found, evidence.labels
    real = np.flatnonzero(~found.replay)
    lasting = totals(labels.of_instance[real], (found.end_ns - found.start_ns)[real], len(labels.names))
    return dict(zip(labels.names, lasting.tolist(), strict=True))


class _Waits:
    """The answer to the question of waits by range, domain and call, ranges named as in `finding_places`.

    Attributes:
        calls: `wait_total_ns`, `blocked_on_gpu_ns` and `count`.
        longest: what of it was waited for longest, as a row of the answer; absent where nothing ran meanwhile.
    """

    def __init__(self, answer: Table) -> None:
        self.calls: dict[tuple[Any, ...], dict[str, int]] = {}
        self.longest: dict[tuple[Any, ...], dict[str, Any]] = {}
        for row in answer.others["calls"].rows():
            mine = self.calls.setdefault(_who(row), dict.fromkeys(_SUMMED, 0))
            for name in _SUMMED:
                mine[name] += row[name]
        for row in answer.rows():
            if row["waited_for"] is not None:
                # The rows come by time.
                self.longest.setdefault(_who(row), row)


_SUMMED = ("wait_total_ns", "blocked_on_gpu_ns", "count")


def _who(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return (None if row["range"] is None else without_numbers(row["range"]), row["domain"], row["call"])


def _for_what(row: Mapping[str, int], whom: Mapping[str, Any] | None) -> str:
    if whom is None:
        return "nothing that it waits for ran meanwhile"
    operation = named(whom["waited_for"])
    of_range = f" of {named(without_numbers(whom['waited_for_range']))}" if whom["waited_for_range"] is not None else ""
    return f"{time(row['blocked_on_gpu_ns'])} of it for the GPU, most for {operation}{of_range}"


def _instead(call: str, whom: Mapping[str, Any] | None) -> str:
    if COPYING.match(call):
        return "copy from and to pinned memory, asynchronously, and wait only where the data is used"
    if whom is None:
        return "take the wait out: what it waits for is over by then"
    return "take the wait out, or wait later: an event, or the result one step on, lets the host run ahead"


def allocation_in_steady_state(evidence: Evidence, values: Values) -> list[Finding]:
    """Return which processes allocate or release memory in the steps after the warm-up.

    Calls that allocate or release memory and begin during a steady step of their process, on whichever of its threads;
    `per_step` of them a steady step, or more. What steps are and which are steady is the question of steps.

    won_ns: the time in which any such call of the process lasted, but no more than the host can win at all
    (`Evidence.room_ns`).
    """
    evidence.need_calls()
    context = evidence.context
    trace, calls = context.trace, context.trace.calls
    allocating = calls_like(context, ALLOCATING)
    if not len(allocating):
        return []
    # Loaded where memory is allocated at all: a small recording is answered in less time than that takes.
    from traceable.analysis.step_detection import steps_of

    found_steps = steps_of(context, None, None)
    steady = steady_steps(context, found_steps, allocating)
    if not steady.any():
        raise UnanswerableError("no step is in the steady state", "record more steps")
    owner = found_steps.process[found_steps.lane][steady]
    spans = _spans(owner, found_steps.start_ns[steady], found_steps.end_ns[steady])
    process = np.array([thread.process for thread in trace.threads], np.int64)[calls.thread[allocating]]
    inside = _begins_in(spans, process, calls.start_ns[allocating])
    found = []
    for one in np.unique(process[inside]).tolist():
        call, number = allocating[inside & (process == one)], int((owner == one).sum())
        if len(call) >= values["per_step"] * number:
            found.append(_allocation(evidence, one, call, number))
    return found


def steady_steps(context: Context, found: Steps, allocating: Int64) -> Bool:
    """Return which steps the question of steps takes for steady, without all else that it answers.

    Args:
        allocating: the calls that allocate or release memory.
    """
    from traceable.analysis.step_detection import RANGE
    from traceable.analysis.steps import warm_up_steps

    step, thread = np.arange(len(found)), found.thread
    start, end = found.start_ns, found.end_ns
    if found.kind == RANGE:
        stretches = context.found.stretches
        step_of = np.full(len(context.found), -1, np.int64)
        step_of[found.instance] = step
        here = step_of[stretches.owner] >= 0
        step, thread = step_of[stretches.owner[here]], stretches.thread[here].astype(np.int64)
        start, end = stretches.start_ns[here], stretches.end_ns[here]
    calls = context.trace.calls
    begun = np.zeros(len(found), np.int64)
    for one in np.unique(calls.thread[allocating]).tolist():
        times = calls.start_ns[allocating[calls.thread[allocating] == one]]
        rows = np.flatnonzero(thread == one)
        number = np.searchsorted(times, end[rows], "left") - np.searchsorted(times, start[rows], "left")
        np.add.at(begun, step[rows], np.maximum(0, number))
    return ~warm_up_steps(found, found.end_ns - found.start_ns, begun) & ~found.edge


def _allocation(evidence: Evidence, process: int, call: Int64, steps: int) -> Finding:
    trace, calls = evidence.context.trace, evidence.context.trace.calls
    start, end = calls.start_ns[call], calls.end_ns[call]
    took = int(_spans(np.zeros(len(call), np.int64), start, end, 1).total_ns()[0])
    name, first = numbered(calls.name[call])
    total = totals(name, end - start, len(first))
    order = np.argsort(-total, kind="stable")
    names = [call_name(trace.names[calls.name[call[first[i]]]]) for i in order.tolist()]
    often = np.bincount(name)[order].tolist()
    label = evidence.labels.of_instance[evidence.context.innermost_of_call[call]]
    around, of_range = numbered(label)
    most = int(totals(around, end - start, len(of_range)).argmax())
    range_name, domain = evidence.labels.names[label[of_range[most]]]
    which = listed([f"{count(number)} of {one}" for one, number in list(zip(names, often, strict=True))[:3]])
    where = f", most of it in {named(range_name)}" if range_name is not None else ""
    return Finding(
        sentence=(
            f"process {evidence.pids[process]} allocates or releases memory {count(len(call), 'time')} in "
            f"{count(steps, 'steady step')}, {len(call) / steps:.3g} a step ({which}), which takes {time(took)}{where}"
        ),
        advice="allocate before the steps and reuse it, or use a caching allocator",
        won_ns=min(took, evidence.room_ns(process)),
        range=range_name,
        domain=domain,
        pid=evidence.pids[process],
        call=names[0],
        count=len(call),
        start_ns=int(start.min()),
        end_ns=int(end.max()),
    )


def _spans(lane: Int64, start_ns: Int64, end_ns: Int64, lanes: int | None = None) -> Union:
    """Return the union of intervals by lane."""
    number = int(lane.max(initial=-1)) + 1 if lanes is None else lanes
    return union(start_ns, end_ns, lanes_of(lane, number, np.argsort(start_ns, kind="stable")))


def _begins_in(spans: Union, lane: Int64, at_ns: Int64) -> Bool:
    """Return which times lie in a span of their lane, its end not included."""
    covered = np.where(lane < len(spans), lane, -1)
    inside: Bool = covered_ns(spans, covered, at_ns, at_ns + 1) > 0
    return inside


SYNC_IN_HOT_RANGE = Rule(
    "sync_in_hot_range",
    "waits for the GPU inside ranges that take much of the time",
    (
        Threshold("hot", 0.1, "share", "a range is hot from this share of the recording on"),
        Threshold("wait", 0.1, "share", "least share of the range's time that is waited"),
        share_of(0.005),
    ),
    sync_in_hot_range,
)

ALLOCATION_IN_STEADY_STATE = Rule(
    "allocation_in_steady_state",
    "memory allocated or released in steps after the warm-up",
    (
        Threshold("per_step", 1, "count", "fewest such calls a steady step"),
        share_of(0.001),
    ),
    allocation_in_steady_state,
)
