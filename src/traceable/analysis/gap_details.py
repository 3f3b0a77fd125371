"""One sentence for a gap: the evidence for its cause, with the names and times that a user would look up next.

For the few gaps that are listed; what decides the cause of every gap is `gap_causes`.
"""

from __future__ import annotations

import re

import numpy as np

from traceable.analysis.context import Context
from traceable.analysis.gap_causes import CALLS_OF_CAUSE, CAUSES, OVERHEADS_OF_CAUSE
from traceable.analysis.gpus import Gpus
from traceable.analysis.intervals import Between, Blocks, merged
from traceable.analysis.named import call_name, operation_labels, operation_name
from traceable.analysis.shared import overheads_like
from traceable.trace.model import Int8, Int64


def details(context: Context, used: Gpus, gaps: Between, cause: Int8) -> list[str]:
    """Return a sentence for each gap, given its cause as an index into CAUSES."""
    writer = _Writer(context, used)
    return [writer.sentence(gaps, i, CAUSES[cause[i]]) for i in range(len(gaps))]


_SLIGHT = 20
"""What covers less than one in so many parts of a gap is not named as its reason."""


class _Writer:
    def __init__(self, context: Context, used: Gpus) -> None:
        self.context, self.used = context, used
        self.calls = Blocks(context.trace.calls.start_ns, context.trace.calls.end_ns)
        self.operations = Blocks(context.gpu.start_ns, context.gpu.end_ns)

    def sentence(self, gaps: Between, i: int, cause: str) -> str:
        begin, end, after = int(gaps.start_ns[i]), int(gaps.end_ns[i]), int(gaps.after[i])
        launch = int(self.context.launched.call_of[after])
        process = int(self.context.gpu.process[after])
        if cause in OVERHEADS_OF_CAUSE:
            rows = overheads_like(self.context, OVERHEADS_OF_CAUSE[cause])
            evidence, covered = self._overheads(rows, process, begin, end)
            if 2 * covered >= end - begin:
                return evidence
        if launch < 0:
            return "no launch call is recorded for what followed"
        calls = self.context.launched.calls
        thread, begun, ended = int(calls.thread[launch]), int(calls.start_ns[launch]), int(calls.end_ns[launch])
        if cause in CALLS_OF_CAUSE:
            own = f"the launch itself copies pageable memory, until {_said(max(0, end - ended))} before the gap's end"
            until = min(begun, end)
            return self._during(thread, begin, until, end - begin, CALLS_OF_CAUSE[cause]) or own
        if cause == "host_late":
            before = self._during(thread, begin, min(begun, end), end - begin, None)
            every = np.arange(len(self.context.trace.overheads))
            meanwhile, covered = self._overheads(every, process, begin, end)
            if _SLIGHT * covered < end - begin:
                meanwhile = ""
            return "; ".join(filter(None, (f"the launch began {_said(begun - begin)} into the gap", before, meanwhile)))
        if cause == "launch_latency" and ended > begin:
            return (
                f"the launch took {_said(ended - begun)}, {_said(min(ended, end) - max(begun, begin))} of it in the gap"
            )
        queued = f"launched {_said(begin - ended)} before the gap"
        if ended > begin:
            queued = f"the launch returned {_said(end - ended)} before the gap's end"
        if cause == "waiting_other_device":
            return f"{queued}; {self._elsewhere(int(gaps.lane[i]), begin, end)}"
        return queued + ("; nothing recorded explains why it waited" if cause == "queued" else "")

    def _overheads(self, rows: Int64, process: int, begin: int, end: int) -> tuple[str, int]:
        """Return which of some overheads of a process cover how much of a time; empty where none does."""
        trace = self.context.trace
        overheads = trace.overheads
        rows = rows[overheads.process[rows] == process]
        start, until = np.maximum(overheads.start_ns[rows], begin), np.minimum(overheads.end_ns[rows], end)
        inside = np.flatnonzero(until > start)
        if not len(inside):
            return "", 0
        covered = int(merged(start[inside], until[inside]).total_ns()[0])
        name = int(overheads.name[rows[inside[int(np.argmax((until - start)[inside]))]]])
        longest = trace.names[name] if name >= 0 else "overhead without a name"
        return f"{_and_others(longest, len(inside))} {_percent(covered, end - begin)}", covered

    def _during(self, thread: int, begin: int, end: int, gap: int, pattern: re.Pattern[str] | None) -> str:
        """Say which calls the thread was in from `begin` to `end`: those like `pattern`, or all; empty for none."""
        trace = self.context.trace
        rows = self.calls.overlapping(begin, end)
        rows = rows[trace.calls.thread[rows] == thread]
        if pattern is not None:
            rows = rows[[pattern.match(trace.names[name]) is not None for name in trace.calls.name[rows].tolist()]]
        if not len(rows):
            return ""
        start = np.maximum(trace.calls.start_ns[rows], begin)
        until = np.minimum(trace.calls.end_ns[rows], end)
        covered = int(merged(start, until).total_ns()[0])
        if pattern is None and _SLIGHT * covered < gap:
            return ""
        longest = call_name(trace.names[trace.calls.name[rows[int(np.argmax(until - start))]]])
        return f"{_and_others(longest, len(rows))} {_percent(covered, gap)}"

    def _elsewhere(self, lane: int, begin: int, end: int) -> str:
        """Name the operation of another device that ended last before the gap's end."""
        gpu = self.context.gpu
        rows = self.operations.overlapping(begin, end + 1)
        rows = rows[(self.used.of(rows) != lane) & (gpu.end_ns[rows] <= end)]
        last = rows[[np.argmax(gpu.end_ns[rows])]]
        name = operation_name(self.context.trace, int(operation_labels(self.context, last)[0]))
        device = self.used.number[int(self.used.of(last)[0])]
        return f"{name} on device {device} ended {_said(end - int(gpu.end_ns[last[0]]))} before the gap's end"


def _and_others(longest: str, number: int) -> str:
    return f"{longest} and {number - 1} more cover" if number > 1 else f"{longest} covers"


def _said(ns: int) -> str:
    """Write a length of time as people say it."""
    for unit, size in (("s", 10**9), ("ms", 10**6), ("us", 10**3)):
        if abs(ns) >= size:
            return f"{ns / size:.3g} {unit}" if abs(ns) < 1000 * size else f"{ns / size:.0f} {unit}"
    return f"{ns} ns"


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f} % of the gap"
