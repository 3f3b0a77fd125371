"""The question of waits: which range waited how long, in which call, for what, and which range had launched that.

`d2h` waits 3.1 ms for `forward`: a copy back takes long because the kernels before it in the stream do. So the time of
a wait is shared out among the operations that ran during it (`analysis.blocking`), and grouped by the range that
launched them. What is left is overhead: nothing that the call waits for was running. Every column is explained in
docs/report.md.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from traceable.analysis.blocking import Pieces, Waits, waited_for, waiting_calls
from traceable.analysis.context import Context
from traceable.analysis.grouping import numbered, ranked
from traceable.analysis.matching import first_match
from traceable.analysis.named import call_name, operation_labels, operation_name, range_columns, range_labels
from traceable.analysis.remedies import record_gpu
from traceable.analysis.statistics import totals
from traceable.analysis.table import Table, integers, objects, ratios
from traceable.analysis.units import often, time
from traceable.errors import Message, UnanswerableError
from traceable.trace.model import NULL, Int64, NDArray, Trace

_OUTSIDE, _NOTHING = -1, -2
"""Instead of the number of a range: no range launched it, and there was nothing to be launched."""

_SENTENCES = 3


def sync(context: Context, *, range_name: str | None = None) -> Table:
    """Return who waited for whom: one row a waiting range, call and range waited for, the longest wait first.

    The waiting range is the innermost around the call; the range waited for is the innermost that the operation
    belongs to, by whichever rule. A row without `waited_for` is overhead. The rows of a range and call add up to the
    time it spent in that call.

    Args:
        range_name: only waits inside a range of this name, at any depth.

    `others` holds `calls` (one row a waiting range and call) and `operations` (with the operation waited for). The
    three longest waits stand as sentences in `notes`.

    Raises:
        UnanswerableError: the trace holds no API calls, none that waits, or no range of that name.
    """
    trace = context.trace
    if not len(trace.calls):
        if context.whole is not None and len(context.whole.trace.calls):
            raise UnanswerableError(
                "no_calls_selected", "no CUDA API call lies in the selected time", "select more of the recording"
            )
        raise UnanswerableError("no_calls_recorded", "no CUDA API calls in the trace", record_gpu(context.trace))
    waits = waiting_calls(context)
    number = len(waits)
    if range_name is not None:
        waits = waits.take(context.calls_in(range_name)[waits.call])
    if not len(waits):
        raise _nobody_waits(len(trace.calls), number, range_name)
    asked = _asked(context, waits)
    answer = _by_range(asked)
    others = {"calls": _by_call(asked), "operations": _by_operation(asked)}
    return replace(answer, others=others, notes=_sentences(answer))


@dataclass(frozen=True)
class _Parts:
    """Pieces of equal waiting range, call, range waited for and operation, summed up: few where pieces are many.

    Attributes:
        wait: one of the waits, which stands for range and call.
        launching: the label of the range waited for; -1 for none.
        operation: the number of the operation's name (`operation_labels`).
        count, ns: how many pieces, and for how long.
    """

    wait: Int64
    launching: Int64
    operation: Int64
    count: Int64
    ns: Int64


@dataclass(frozen=True)
class _Asked:
    """The waits and what they were for, with the numbers that rows are grouped by.

    Attributes:
        label: see `range_labels`; first_of_label: an instance of each, and -1 at the end, for what is outside.
        text, texts: of each wait the index of its call's name, and the names.
        waiting: the label of the range of each wait; -1 for none.
        launching: of each piece the label of the range that it is waited for; -1 for none.
        parts: the pieces summed up by who waits in which call for which range and operation.
        cpu_ns: how long each label's ranges lasted, and 0 at the end.
    """

    context: Context
    waits: Waits
    pieces: Pieces
    first_of_label: Int64
    text: Int64
    texts: tuple[str, ...]
    waiting: Int64
    launching: Int64
    parts: _Parts
    cpu_ns: Int64

    @property
    def duration_ns(self) -> Int64:
        return self.waits.end_ns - self.waits.start_ns

    def who(self, wait: Int64) -> dict[str, NDArray[Any]]:
        """Return the columns that say which range waits in which call."""
        return {
            **range_columns(self.context.trace, self.context.found, self.first_of_label[self.waiting[wait]]),
            "call": objects(self.texts[i] for i in self.text[wait].tolist()),
        }

    def shares(self, wait: Int64, total: Int64) -> dict[str, NDArray[Any]]:
        """Return the columns that say what part of all waiting, and of the waiting range's time, a total is."""
        return {
            "wait_share": ratios(total, np.full(len(total), int(self.duration_ns.sum()))),
            "cpu_share": ratios(total, self.cpu_ns[self.waiting[wait]]),
        }


def _asked(context: Context, waits: Waits) -> _Asked:
    trace, found = context.trace, context.found
    pieces = waited_for(context, waits)
    label, first = range_labels(found)
    label = np.append(label, _OUTSIDE)
    text, texts = _texts(trace, waits.call)
    lasting = np.where(found.entered, found.end_ns - found.start_ns, 0)
    waiting = label[context.innermost_around_calls(waits.call)]
    launching = label[context.innermost[pieces.operation]]
    operation = operation_labels(context, pieces.operation)
    who = numbered(waiting, text)[0]
    part, first_of_part = numbered(who[pieces.wait], launching, operation)
    return _Asked(
        context=context,
        waits=waits,
        pieces=pieces,
        first_of_label=np.append(first, -1),
        text=text,
        texts=texts,
        waiting=waiting,
        launching=launching,
        parts=_Parts(
            wait=pieces.wait[first_of_part],
            launching=launching[first_of_part],
            operation=operation[first_of_part],
            count=np.bincount(part, minlength=len(first_of_part)),
            ns=totals(part, pieces.ns, len(first_of_part)),
        ),
        cpu_ns=np.append(totals(label[:-1], lasting, len(first)), 0),
    )


def _by_range(asked: _Asked) -> Table:
    """Return the answer: the time of the waits, shared out by the range that had launched what ran."""
    pieces = asked.pieces
    # Neighbours of one wait and range are many; their sums are few.
    begins = np.flatnonzero((np.diff(pieces.wait, prepend=-1) != 0) | (np.diff(asked.launching, prepend=NULL + 1) != 0))
    sums = np.add.reduceat(pieces.ns, begins) if len(begins) else pieces.ns
    overhead = asked.duration_ns - totals(pieces.wait, pieces.ns, len(asked.waits))
    idle = np.flatnonzero(overhead > 0)
    wait = np.append(pieces.wait[begins], idle)
    launching = np.append(asked.launching[begins], np.full(len(idle), _NOTHING))
    part, first = numbered(wait, launching)
    part_ns = totals(part, np.append(sums, overhead[idle]), len(first))
    wait, launching = wait[first], launching[first]

    group, first = numbered(asked.waiting[wait], asked.text[wait], launching)
    spread = ranked(group, part_ns, len(first))
    of_row, range_of_row = wait[first], launching[first]
    real = range_of_row != _NOTHING
    row = _rows_of(asked, of_row, range_of_row)
    operations = totals(row, asked.parts.count, len(first))
    total = spread.totals()
    return _longest_first(
        {
            **asked.who(of_row),
            **_whom(asked, range_of_row),
            "waited_for": _most_waited_for(asked, row, len(first)),
            "count": spread.number,
            "operations": integers(operations, real),
            "wait_total_ns": total,
            **spread.spread("wait"),
            **asked.shares(of_row, total),
        }
    )


def _by_call(asked: _Asked) -> Table:
    """Return one row a waiting range and call: how long it waited in all, and how much of that for the GPU."""
    group, first = numbered(asked.waiting, asked.text)
    groups = len(first)
    spread = ranked(group, asked.duration_ns, groups)
    total = spread.totals()
    blocked = totals(group[asked.pieces.wait], asked.pieces.ns, groups)
    return _longest_first(
        {
            **asked.who(first),
            "count": spread.number,
            "wait_total_ns": total,
            **spread.spread("wait"),
            "blocked_on_gpu_ns": blocked,
            "overhead_ns": total - blocked,
            **asked.shares(first, total),
        }
    )


def _by_operation(asked: _Asked) -> Table:
    """Return one row a waiting range, call, range waited for and operation."""
    parts, trace = asked.parts, asked.context.trace
    return _longest_first(
        {
            **asked.who(parts.wait),
            **_whom(asked, parts.launching),
            "waited_for": objects(operation_name(trace, label) for label in parts.operation.tolist()),
            "operations": parts.count,
            "wait_total_ns": parts.ns,
            **asked.shares(parts.wait, parts.ns),
        }
    )


def _rows_of(asked: _Asked, wait: Int64, launching: Int64) -> Int64:
    """Return the row of each part, given a wait and the range waited for of each row."""
    texts = len(asked.texts)
    who, of_part = (asked.waiting[i] * texts + asked.text[i] for i in (wait, asked.parts.wait))
    return first_match(of_part, asked.parts.launching, who, launching)


def _most_waited_for(asked: _Asked, row: Int64, rows: int) -> NDArray[Any]:
    """Return the name of the operation that took most of each row, of equal ones the first by name's number."""
    parts = asked.parts
    # Written from the least to the most, so that the most stays.
    order = np.lexsort((-parts.operation, parts.ns))
    most = np.full(rows, -1, np.int64)
    most[row[order]] = parts.operation[order]
    trace = asked.context.trace
    return objects(operation_name(trace, label) if label >= 0 else None for label in most.tolist())


def _whom(asked: _Asked, label: Int64) -> dict[str, NDArray[Any]]:
    first = asked.first_of_label[np.maximum(label, _OUTSIDE)]
    return range_columns(asked.context.trace, asked.context.found, first, "waited_for_")


def _texts(trace: Trace, call: Int64) -> tuple[Int64, tuple[str, ...]]:
    """Number the names of calls, of which several may differ by their version alone."""
    name, first = numbered(trace.calls.name[call])
    written = [call_name(trace.names[i]) for i in trace.calls.name[call[first]].tolist()]
    texts = sorted(set(written))
    return np.array([texts.index(text) for text in written], np.int64)[name], tuple(texts)


def _longest_first(columns: dict[str, NDArray[Any]]) -> Table:
    return Table(columns).take(np.argsort(-columns["wait_total_ns"], kind="stable"))


def _sentences(answer: Table) -> tuple[Message, ...]:
    real = [row for row in answer.rows() if row["waited_for"] is not None]
    return tuple(
        Message(
            "longest_wait",
            f"{row['range'] or 'what is outside every range'} waits {time(row['wait_total_ns'])} in total for "
            f"{row['waited_for_range'] or row['waited_for']} ({row['call']}, {often(row['count'])})",
        )
        for row in real[:_SENTENCES]
    )


def _nobody_waits(calls: int, waits: int, range_name: str | None) -> UnanswerableError:
    if waits:
        return UnanswerableError(
            "no_waits_in_range",
            f"none of the {waits} waiting API calls is inside a range {range_name!r}",
            "`--view sync` without --range lists them all",
        )
    return UnanswerableError(
        "no_waiting_calls",
        f"none of the {calls} CUDA API calls in the trace waits for the GPU",
        "record a window that holds what waits: a synchronising call, or a synchronous or pageable copy",
    )
