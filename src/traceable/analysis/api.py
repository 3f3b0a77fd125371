"""The question of API calls: what launching, allocating, synchronising and copying cost the CPU, in all and by range.

By call its numbers are those of nsys's `cuda_api_sum`. A call made inside another one on its thread (a driver call that
the runtime made) counts in full in both, as nsys has it; how much of each sum is so nested is a column beside it. Every
column is explained in docs/report.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traceable.analysis.api_names import KINDS, NOT_READY, error_name, kind_of
from traceable.analysis.context import Context
from traceable.analysis.grouping import commonest, distinct_counts, distinct_pairs, numbered, ranked
from traceable.analysis.named import call_name
from traceable.analysis.range_rows import OUTSIDE, in_order, range_and_style
from traceable.analysis.remedies import record_gpu
from traceable.analysis.statistics import totals
from traceable.analysis.table import Table, integers, objects, ratios
from traceable.errors import UnanswerableError
from traceable.trace import model
from traceable.trace.model import NULL, Bool, Int64, Trace


def api(context: Context, *, by: str = "call", range_name: str | None = None) -> Table:
    """Return what the CUDA API calls cost, the largest total first.

    Args:
        by: `call`: one row a function. `kind`: one row a kind of function. `range`: one row a range (domain, name,
            style) and kind, with what lies outside ranges at the end; `others["paths"]` has the same by range path.
        range_name: only calls inside a range of this name, or `domain:name`; by range, only its rows.

    Raises:
        UnanswerableError: the trace holds no such calls, no range of that name or, by range, no ranges.
        ValueError: `by` is none of the words above.
    """
    if by not in BY:
        raise ValueError(f"by={by!r}: one of {', '.join(BY)}")
    _require_calls(context.trace)
    if by == "range":
        return _by_range(context, range_name)
    return _VIEWS[by](_asked(context, range_name))


@dataclass(frozen=True)
class _Asked:
    """The calls that are asked about, as equally long columns.

    Attributes:
        nested: which lie inside another call of their thread, of all the calls there are.
        texts, kinds: name without version, and index into KINDS, of the indices into `Trace.names` that occur.
    """

    trace: Trace
    calls: model.Calls
    duration_ns: Int64
    nested: Bool
    texts: dict[int, str]
    kinds: Int64

    @property
    def kind(self) -> Int64:
        """Index into KINDS of each call."""
        of_call: Int64 = self.kinds[self.calls.name]
        return of_call


def _asked(context: Context, range_name: str | None) -> _Asked:
    calls, inside = context.trace.calls, nested(context.trace.calls)
    if range_name is not None:
        which = context.calls_in(range_name)
        if not which.any():
            raise UnanswerableError(
                f"no CUDA API call lies inside a range {range_name!r}", "`--view ranges` lists what each range did"
            )
        calls, inside = model.Calls(**calls.take(which)), inside[which]
    texts = {
        name: call_name(context.trace.names[name]) if name >= 0 else ""
        for name in calls.name[numbered(calls.name)[1]].tolist()
    }
    kinds = np.full(len(context.trace.names) + 1, KINDS.index("other"), np.int64)
    for name, text in texts.items():
        kinds[name] = KINDS.index(kind_of(text))
    return _Asked(context.trace, calls, calls.end_ns - calls.start_ns, inside, texts, kinds)


def nested(calls: model.Calls) -> Bool:
    """Return which calls lie inside another call of their thread; of two with equal times the second.

    Calls come by start, the longer first, so that one lies inside another if it ends no later than the latest end so
    far on its thread.
    """
    order = np.argsort(calls.thread.astype(np.int16) if _few(calls.thread) else calls.thread, kind="stable")
    thread, end = calls.thread[order], calls.end_ns[order]
    inside = np.zeros(len(order), np.bool_)
    bounds = np.flatnonzero(np.diff(thread, prepend=-2, append=-2))
    for first, last in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        latest = np.maximum.accumulate(end[first:last])
        inside[order[first + 1 : last]] = end[first + 1 : last] <= latest[:-1]
    return inside


def _by_call(asked: _Asked) -> Table:
    calls = asked.calls
    group, first = numbered(calls.name)
    groups = len(first)
    driver = calls.driver[first] == 1
    failed, known = _failures(calls.return_value)
    errors = np.bincount(group[failed], minlength=groups)
    answered = np.bincount(group[known], minlength=groups) > 0
    waiting = np.bincount(group[calls.return_value == NOT_READY], minlength=groups)
    code = np.full(groups, NULL, np.int64)
    if failed.any():
        code = commonest(group[failed], calls.return_value[failed], groups)[1]
    names = calls.name[first].tolist()
    values = {
        "name": objects(asked.texts[name] or None for name in names),
        "kind": objects(KINDS[kind] for kind in asked.kind[first].tolist()),
        "api": objects("driver" if one else "runtime" for one in driver.tolist()),
        **_times(asked, group, groups),
        "errors": integers(errors, answered),
        "error": objects(
            None if one == NULL else error_name(one, of_driver)
            for one, of_driver in zip(code.tolist(), driver.tolist(), strict=True)
        ),
        "not_ready": integers(waiting, answered),
    }
    return Table(values, notes=_notes(asked)).take(_largest_first(values))


def _by_kind(asked: _Asked) -> Table:
    group, first = numbered(asked.kind)
    groups = len(first)
    failed, known = _failures(asked.calls.return_value)
    answered = np.bincount(group[known], minlength=groups) > 0
    values = {
        "kind": objects(KINDS[kind] for kind in asked.kind[first].tolist()),
        "functions": distinct_counts(group, asked.calls.name, groups),
        **_times(asked, group, groups),
        "errors": integers(np.bincount(group[failed], minlength=groups), answered),
    }
    return Table(values, notes=_notes(asked)).take(_largest_first(values))


_VIEWS: dict[str, Callable[[_Asked], Table]] = {"call": _by_call, "kind": _by_kind}

BY = (*_VIEWS, "range")
"""The words for `by` of `api`."""


def _by_range(context: Context, range_name: str | None) -> Table:
    found = context.found
    if not len(found):
        raise UnanswerableError("the trace holds no ranges", "annotate the program, and have nvtx in --trace")
    asked = _asked(context, None)
    wanted = np.ones(len(found), np.bool_) if range_name is None else context.instances_of(range_name)
    pieces = [(instance[wanted[instance]], call[wanted[instance]]) for instance, call in context.call_pairs()]
    instance = np.concatenate([np.empty(0, np.int64), *(piece[0] for piece in pieces)])
    call = np.concatenate([np.empty(0, np.int64), *(piece[1] for piece in pieces)])
    if range_name is not None and not len(call):
        raise UnanswerableError(
            f"no CUDA API call lies inside a range {range_name!r}", "`--view ranges` lists what each range did"
        )
    alone = np.zeros(0, np.int64)
    if range_name is None:
        outside = np.ones(len(asked.calls), np.bool_)
        outside[call] = False
        alone = np.flatnonzero(outside)
    names = _range_table(context, asked, numbered(found.domain, found.name, found.style), instance, call, alone)
    paths = _range_table(
        context, asked, numbered(found.path, found.domain, found.style), instance, call, alone, paths=True
    )
    return Table(names.values, {"paths": paths}, _notes(asked))


def _range_table(
    context: Context,
    asked: _Asked,
    numbers: tuple[Int64, Int64],
    instance: Int64,
    call: Int64,
    alone: Int64,
    paths: bool = False,
) -> Table:
    """Return one row a range and kind.

    Args:
        numbers: the range of each instance, and of each range its first instance.
        instance, call: pairs; a call counts once in a range, in however many of its instances it lies.
        alone: calls outside every range.
    """
    of_instance, first = numbers
    ranges, once = of_instance[instance], call
    if _overlapping(context, of_instance):
        ranges, once = distinct_pairs(ranges, once, len(asked.calls))
    ranges = np.concatenate([ranges, np.full(len(alone), OUTSIDE)])
    once = np.concatenate([once, alone])
    kind = asked.kind[once]
    group, row = numbered(ranges, kind)
    found = ranked(group, asked.duration_ns[once], len(row))
    total = found.totals()
    number = ranges[row]
    # What a CUDA graph does again is no range that was entered, and makes no calls.
    entered = np.bincount(of_instance[~context.found.replay], minlength=len(first))
    instances = np.where(number == OUTSIDE, 0, entered[number])
    inner = asked.nested[once]
    values = {
        **(_path_column(context, first, number) if paths else {}),
        **range_and_style(context.trace, context.found, first, number),
        "kind": objects(KINDS[code] for code in kind[row].tolist()),
        "range_instances": integers(instances, number != OUTSIDE),
        "count": found.number,
        "total_ns": total,
        "count_per_instance": ratios(found.number, instances),
        "total_per_instance_ns": ratios(total, instances),
        "nested_count": np.bincount(group[inner], minlength=len(row)),
        "nested_total_ns": totals(group[inner], asked.duration_ns[once][inner], len(row)),
        **found.spread("call"),
        "call_stddev_ns": found.deviations(),
    }
    return Table(values).take(in_order(number, total))


def _overlapping(context: Context, of_instance: Int64) -> bool:
    """Whether a call may lie in two instances of a range: whether any two run at one time on one thread."""
    where = context.found.stretches
    number = of_instance[where.owner]
    order = np.lexsort((where.start_ns, where.thread, number))
    same = (np.diff(number[order]) == 0) & (np.diff(where.thread[order]) == 0)
    return bool((same & (where.start_ns[order][1:] <= where.end_ns[order][:-1])).any())


def _path_column(context: Context, first: Int64, number: Int64) -> dict[str, NDArray[Any]]:
    found, names = context.found, context.trace.names
    paths = [found.paths[found.path[first[one]]] if one != OUTSIDE else None for one in number.tolist()]
    return {"path": objects(None if path is None else [names[name] for name in path] for path in paths)}


def _times(asked: _Asked, group: Int64, groups: int) -> dict[str, NDArray[Any]]:
    found = ranked(group, asked.duration_ns, groups)
    total = found.totals()
    inner = asked.nested
    return {
        "count": found.number,
        "total_ns": total,
        "api_share": ratios(total, np.full(groups, total.sum())),
        "nested_count": np.bincount(group[inner], minlength=groups),
        "nested_total_ns": totals(group[inner], asked.duration_ns[inner], groups),
        **found.spread("call"),
        "call_stddev_ns": found.deviations(),
    }


def _failures(code: Int64) -> tuple[Bool, Bool]:
    """Return which calls failed, and of which the return code was recorded."""
    known = code != NULL
    return known & (code != 0) & (code != NOT_READY), known


def _notes(asked: _Asked) -> tuple[str, ...]:
    inner = asked.duration_ns[asked.nested]
    if not len(inner):
        return ()
    return (
        f"{len(inner)} calls were made inside another call of their thread: their {inner.sum() / 1e6:.3f} ms count in "
        "both, as in nsys's sums",
    )


def _few(thread: NDArray[Any]) -> bool:
    """Whether the numbers fit 16 bits, of which numpy sorts a million in a few ms."""
    return not len(thread) or int(thread.max()) < 1 << 15


def _largest_first(values: dict[str, NDArray[Any]]) -> Int64:
    return np.argsort(-values["total_ns"], kind="stable")


def _require_calls(trace: Trace) -> None:
    if len(trace.calls):
        return
    tables = trace.source.tables
    if "CUPTI_ACTIVITY_KIND_RUNTIME" in tables:
        raise UnanswerableError(
            "no CUDA API call in the part of the trace that was asked about", "ask about more of it"
        )
    if len(trace.kernels) or any(table.startswith("CUPTI_ACTIVITY_KIND_") for table in tables):
        raise UnanswerableError(
            "no CUDA API call in the trace, though GPU work was recorded",
            "record with nsys and --trace=cuda, which records calls and GPU work together",
        )
    raise UnanswerableError(
        "no CUDA API call in the trace: no CUDA activity was recorded", record_gpu(trace, "have cuda in --trace")
    )
