"""The events of one torch.profiler trace, sorted into columns by what they are. One file, its own clock, its own ids.

What Kineto writes, and which of its versions what, is in output_json.cpp and CuptiActivity.cpp of pytorch/kineto, and
in the traces that the tests use. `trace.kineto` makes a `Trace` of it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from traceable.trace import kineto_names
from traceable.trace.intern import Names
from traceable.trace.kineto_columns import (
    CALLS,
    COPIES,
    KERNELS,
    MARKS,
    MEMSETS,
    OVERHEADS,
    RANGES,
    SYNCHRONISATIONS,
    Table,
    arguments,
    integer,
    size,
    small,
    text,
)
from traceable.trace.kineto_flows import Flows
from traceable.trace.kineto_json import Document, nanoseconds
from traceable.trace.kineto_kinds import copy_kinds, memory_kind, synchronisation_kind
from traceable.trace.model import NULL, PUSH_POP, START_END

_LONGEST_NS = 1 << 53
"""Longer than any recording (104 days): damage, not time. As in nsys's reader."""

_STEP = re.compile(r"(ProfilerStep)#(\d{1,18})")

_WORDS = (int, str)
"""What names a process or a thread."""

_OF_THE_CPU = ("cpu_op", "operator", "python_function")
"""What is left out, and tells the process nevertheless."""

_SPANS = ("Spans", "Traces", "")
"""Pids that are none: what Kineto says of the recording itself."""


class Events:
    """What one file holds.

    Args:
        document: the file.
        names: where names are numbered.
        geometries: where launch geometries are numbered, by their columns.

    Attributes:
        ranges, marks, calls, kernels, copies, memsets, synchronisations, overheads: the events.
        threads: number of each thread by (pid, tid), as the file writes them.
        first_ns, last_ns: first start and last end of all events, those left out included; None for none.
        begin_ns, end_ns: of the recording, where that was written.
        left_out: how many events of which category are in no table.
        untimed: how many have no time or no length, or an impossible one.
        known: whether any event is of a category that Kineto writes.
        process_names: by pid.
        cpu_pids: how many events of the CPU are of which pid; by frequency it tells the process.
    """

    def __init__(self, document: Document, names: Names, geometries: dict[tuple[int, ...], int]) -> None:
        self._names, self._geometries = names, geometries
        self.ranges, self.calls, self.kernels = Table(RANGES), Table(CALLS), Table(KERNELS)
        self.marks = Table(MARKS)
        self.copies, self.memsets = Table(COPIES), Table(MEMSETS)
        self.synchronisations, self.overheads = Table(SYNCHRONISATIONS), Table(OVERHEADS)
        self.threads: dict[tuple[Any, Any], int] = {}
        self.thread_names: dict[tuple[Any, Any], str] = {}
        self.process_names: dict[Any, str] = {}
        self.cpu_pids: Counter[Any] = Counter()
        self.first_ns: int | None = None
        self.last_ns: int | None = None
        self.begin_ns: int | None = None
        self.end_ns: int | None = None
        self.left_out: Counter[str] = Counter()
        self.untimed = 0
        self.known = False
        self._pieces: list[tuple[int, bool, dict[str, Any]]] = []
        self._flows = Flows()
        self._momentary: list[tuple[int, Any]] = []
        self._launching: set[Any] = set()
        self._begun: dict[int, tuple[int, kineto_names.Named, int]] = {}
        self._ended: dict[int, tuple[int, int]] = {}
        self._metadata_so_far = document.metadata
        self._take: dict[str, Callable[[dict[str, Any], int, int], None]] = {
            "user_annotation": self._range,
            "cuda_runtime": self._runtime_call,
            "runtime": self._runtime_call,
            "cuda_driver": self._driver_call,
            "kernel": self._kernel,
            "gpu_memcpy": self._copy,
            "memcpy": self._copy,
            "gpu_memset": self._memset,
            "memset": self._memset,
            "cuda_sync": self._synchronisation,
            "overhead": self._overhead,
        }
        for event in document.events():
            self._event(event)
        self._pair_pieces()
        self._leave_open()
        self._pair_starts()
        self._flows.link(document.path, self.calls, list(self.threads))
        if self.first_ns is not None and self.last_ns is not None and self.last_ns - self.first_ns >= _LONGEST_NS:
            self._drop_strays()
        self.metadata = document.metadata

    def _event(self, event: dict[str, Any]) -> None:
        phase = event.get("ph")
        if phase == "X":
            start = nanoseconds(event.get("ts"))
            length = nanoseconds(event.get("dur"))
            if start is None or length is None or not 0 <= length < _LONGEST_NS:
                self.untimed += 1
            else:
                self._complete(event, start, start + length)
        elif phase in ("s", "f"):
            # Kineto of every version writes a correlation too: these are read again in the rare trace without.
            return
        elif phase == "M":
            self._metadata(event)
        elif phase == "i":
            self._instant(event)
        elif phase in ("B", "E"):
            time = nanoseconds(event.get("ts"))
            if time is None:
                self.untimed += 1
            else:
                self._pieces.append((time, phase == "B", event))
        else:
            self.left_out[f"phase {str(phase)[:20]}"] += 1

    def _complete(self, event: dict[str, Any], start: int, end: int) -> None:
        # Kineto wrote Kernel, Memcpy, Runtime and Operator until 2022.
        kind = (text(event.get("cat")) or "no category").lower()
        take = self._take.get(kind)
        if take is None and kind == "operator" and str(event.get("name"))[:13] == "ProfilerStep#":
            take = self._range
        if kind == "trace":
            self.begin_ns = start if self.begin_ns is None else min(self.begin_ns, start)
            return
        if take is None:
            if kind == "gpu_user_annotation":
                self._launching.add(integer(arguments(event).get("External id")))
            if kind in _OF_THE_CPU:
                self.known = True
                self._see_process(event)
            self.left_out[kind[:40]] += 1
        else:
            self.known = True
            take(event, start, end)
        if self.first_ns is None or start < self.first_ns:
            self.first_ns = start
        if self.last_ns is None or end > self.last_ns:
            self.last_ns = end

    def _range(self, event: dict[str, Any], start: int, end: int) -> None:
        name = text(event.get("name")) or ""
        step = _STEP.fullmatch(name)
        if step is not None:
            found = kineto_names.Named(step[1], int(step[2]))
        elif kineto_names.METADATA in self._metadata_so_far:
            found = kineto_names.read(name)
        else:
            found = kineto_names.Named(name)
        thread = self._thread(event)
        if found.kind == kineto_names.START:
            self._begun[found.number] = start, found, thread
        elif found.kind == kineto_names.END:
            self._ended[found.number] = start, thread
        elif found.kind == kineto_names.MARK:
            scope = self._optional(found.domain), self._optional(found.category)
            row = (start, start, self._names.index(found.name), thread, found.payload, found.real, *scope)
            self.marks.values.extend(row)
        else:
            if start == end:
                self._momentary.append((len(self.ranges), integer(arguments(event).get("External id"))))
            self._add_range(found, start, end, thread, "still open" in event, PUSH_POP, -1)

    def _add_range(
        self, found: kineto_names.Named, start: int, end: int, thread: int, still_open: bool, style: int, closer: int
    ) -> None:
        name, domain, category = (
            self._names.index(found.name),
            self._optional(found.domain),
            self._optional(found.category),
        )
        self.ranges.values.extend(
            (start, end, name, thread, found.payload, int(still_open), domain, category, style, closer)
        )

    def _optional(self, name: str) -> int:
        return self._names.index(name) if name else -1

    def _runtime_call(self, event: dict[str, Any], start: int, end: int) -> None:
        self._call(event, start, end, 0)

    def _driver_call(self, event: dict[str, Any], start: int, end: int) -> None:
        self._call(event, start, end, 1)

    def _call(self, event: dict[str, Any], start: int, end: int, driver: int) -> None:
        correlation = integer(arguments(event).get("correlation")) or NULL
        if correlation == NULL:
            self._flows.await_flow(self.calls, event, start)
        name = self._name(event)
        self.calls.values.extend((start, end, name, self._thread(event), correlation, driver))

    def _kernel(self, event: dict[str, Any], start: int, end: int) -> None:
        args = arguments(event)
        operation = self._operation(self.kernels, event, args, start, end)
        self.kernels.values.extend((*operation, self._name(event), self._geometry(args)))

    def _copy(self, event: dict[str, Any], start: int, end: int) -> None:
        args = arguments(event)
        operation = self._operation(self.copies, event, args, start, end)
        kinds = copy_kinds(event.get("name"))
        devices = small(args.get("fromDevice")), small(args.get("toDevice"))
        self.copies.values.extend((*operation, size(args.get("bytes")), *kinds, *devices))

    def _memset(self, event: dict[str, Any], start: int, end: int) -> None:
        args = arguments(event)
        operation = self._operation(self.memsets, event, args, start, end)
        self.memsets.values.extend((*operation, size(args.get("bytes")), memory_kind(event.get("name"))))

    def _synchronisation(self, event: dict[str, Any], start: int, end: int) -> None:
        args = arguments(event)
        operation = self._operation(self.synchronisations, event, args, start, end)
        kind = synchronisation_kind(args.get("cuda_sync_kind", event.get("name")))
        self.synchronisations.values.extend((*operation, kind))

    def _overhead(self, event: dict[str, Any], start: int, end: int) -> None:
        self.overheads.values.extend((start, end, self._name(event)))

    def _instant(self, event: dict[str, Any]) -> None:
        if event.get("name") == "Record Window End":
            self.end_ns = nanoseconds(event.get("ts"))
        elif event.get("pid") not in _SPANS:
            category = text(event.get("cat")) or "no category"
            self.left_out[f"instant {category[:40]}"] += 1

    def _metadata(self, event: dict[str, Any]) -> None:
        args, pid = event.get("args"), event.get("pid")
        if type(args) is not dict or not isinstance(pid, _WORDS):
            return
        if event.get("name") == "process_name":
            self.process_names[pid] = text(args.get("name")) or ""
        elif event.get("name") == "process_labels" and args.get("labels") == "CPU":
            self.cpu_pids[pid] += 0
        elif event.get("name") == "thread_name" and isinstance(event.get("tid"), _WORDS):
            self.thread_names[pid, event["tid"]] = (text(args.get("name")) or "").strip()

    def _operation(
        self, table: Table, event: dict[str, Any], args: dict[str, Any], start: int, end: int
    ) -> tuple[int, ...]:
        """Return the columns that every GPU operation has. Kineto shows a GPU as a process, a stream as a thread."""
        correlation = integer(args.get("correlation")) or NULL
        if correlation == NULL and table is not self.synchronisations:
            self._flows.await_flow(table, event, start)
        return (
            start,
            end,
            small(args.get("device", args.get("inDevice", event.get("pid")))),
            small(args.get("context", args.get("inContext"))),
            small(args.get("stream", event.get("tid"))),
            correlation,
            # A node of 0 is none.
            integer(args.get("graph node id")) or NULL,
        )

    def _geometry(self, args: dict[str, Any]) -> int:
        """Return the number of the launch geometry; -1 where it was not recorded.

        Kineto adds static and dynamic shared memory up: their sum stands for the dynamic, the static is absent.
        """
        sizes: list[int] = []
        for name in ("grid", "block"):
            dimensions = args.get(name)
            if type(dimensions) is not list or len(dimensions) != 3:
                return -1
            sizes += map(size, dimensions)
        geometry = (*sizes, size(args.get("registers per thread")), NULL, size(args.get("shared memory")))
        return self._geometries.setdefault(geometry, len(self._geometries))

    def _name(self, event: dict[str, Any]) -> int:
        name = text(event.get("name"))
        return -1 if name is None else self._names.index(name)

    def _thread(self, event: dict[str, Any]) -> int:
        pid, tid = self._see_process(event), event.get("tid")
        key = (pid, tid if isinstance(tid, _WORDS) else -1)
        return self.threads.setdefault(key, len(self.threads))

    def _see_process(self, event: dict[str, Any]) -> int | str:
        pid = event.get("pid")
        pid = pid if isinstance(pid, _WORDS) else -1
        self.cpu_pids[pid] += 1
        return pid

    def _pair_pieces(self) -> None:
        """Make whole events of begins and ends; a range that never ends lasts as long as the trace."""
        begun: dict[tuple[Any, Any], list[tuple[int, dict[str, Any]]]] = {}
        for time, begins, event in sorted(self._pieces, key=lambda piece: piece[0]):
            stack = begun.setdefault((str(event.get("pid")), str(event.get("tid"))), [])
            if begins:
                stack.append((time, event))
            elif stack:
                start, first = stack.pop()
                self._complete({**event, **first, "args": {**arguments(event), **arguments(first)}}, start, time)
            else:
                self.left_out["end without a begin"] += 1
        last = max((piece[0] for piece in self._pieces), default=0)
        last = max(last, self.last_ns if self.last_ns is not None else last)
        for stack in begun.values():
            for start, event in stack:
                if event.get("cat") == "user_annotation":
                    self._complete({**event, "still open": True}, start, last)
                else:
                    self.left_out["begin without an end"] += 1

    def _leave_open(self) -> None:
        """Give ranges that were open when the profiler stopped the end of the recording.

        Kineto writes them with a length of 0. It tells them by its GPU annotations: what launched something lasted.
        """
        last = max((time for time in (self.last_ns, self.end_ns) if time is not None), default=0)
        starts, ends, still_open = (self.ranges.column(name) for name in ("start", "end", "open"))
        for row, identity in self._momentary:
            if identity != NULL and identity in self._launching:
                ends[row] = max(last, starts[row])
                still_open[row] = 1

    def _pair_starts(self) -> None:
        """Make ranges of the begins and ends of start/end ranges; what begun before the recording is not in it."""
        last = max((time for time in (self.last_ns, self.end_ns) if time is not None), default=0)
        for number, (start, found, thread) in self._begun.items():
            end, closer = self._ended.get(number, (max(last, start), thread))
            still_open = number not in self._ended
            # The end may stand on another core's clock.
            self._add_range(
                found, start, max(end, start), thread, still_open, START_END, -1 if closer == thread else closer
            )

    def _drop_strays(self) -> None:
        """Leave out events that lie years from the rest: CUPTI gives what never ran a start of 0."""
        starts = np.concatenate([table.column("start") for table in self.tables()])
        middle = self.begin_ns if self.begin_ns is not None else int(np.median(starts)) if len(starts) else 0
        for table in self.tables():
            near = np.abs(table.column("start") - middle) < _LONGEST_NS
            self.untimed += int((~near).sum())
            table.keep(near)
        starts = np.concatenate([table.column("start") for table in self.tables()])
        ends = np.concatenate([table.column("end") for table in self.tables()])
        self.first_ns, self.last_ns = (int(starts.min()), int(ends.max())) if len(starts) else (None, None)

    def tables(self) -> tuple[Table, ...]:
        """Return all tables."""
        operations = (self.kernels, self.copies, self.memsets, self.synchronisations)
        return (self.ranges, self.marks, self.calls, *operations, self.overheads)
