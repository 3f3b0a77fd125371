"""A recording as tracks with slices: what the formats of timelines, Perfetto's and Chrome's, have in common.

Processes hold threads, coroutines, GPUs with their streams, and counters; requests lie beside the processes. On a track
slices nest and do not cross: what would cross lies on a further lane of the track (`analysis.lanes`), which has the
same name. Times are those of the recording.

Ranges count as in the report: a coroutine is one slice of its process, and its active segments are slices of the
threads on which they ran, in a category of their own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from traceable.analysis.attribution import REASONS, RULES
from traceable.analysis.context import Context
from traceable.analysis.gpus import find_streams
from traceable.analysis.labels import OPERATION_NAMES, label_operations, strip_call_version
from traceable.analysis.lanes import assign_lanes
from traceable.analysis.memory import MEMORY_KINDS
from traceable.analysis.operations import COPY, GRAPH, KERNEL, MEMSET
from traceable.analysis.table import Table
from traceable.protocol.nvtx import is_identity
from traceable.trace.model import GEOMETRY, NULL, START_END, Bool, Float64, Int64, NDArray, find_distinct

RANGE, SEGMENT, CALL, KERNELS, COPIES, MEMSETS, GRAPHS, TASK, REQUEST, MARK = range(10)

CATEGORIES = (
    *("range", "segment", "call", "kernel", "copy", "memset", "graph"),
    *("task", "request", "mark"),
)
"""The categories of slices and instants, by their number."""

NUMBER, TEXT, FIELDS = range(3)
"""Kinds of arguments: a whole number, an index into the texts, an index of a text that is a JSON object."""

_CATEGORY_OF_KIND = np.array([KERNELS, COPIES, MEMSETS, GRAPHS], np.int8)
"""By kind of operation."""

_NO_NAME = "(no name)"

_NESTED_MAX = 1 << 20
"""Thread and lane in one number: no thread has so many lanes."""


@dataclass(frozen=True)
class Track:
    """One track.

    Attributes:
        name: what people read; empty for a thread or process without a name.
        parent: index of the track around it; -1 for none.
        pid, tid: of the track of a process, of a thread both; None for others, and where the number is not unique.
        is_counter: whether it has samples instead of slices.
    """

    name: str
    parent: int = -1
    pid: int | None = None
    tid: int | None = None
    is_counter: bool = False


@dataclass(frozen=True)
class Argument:
    """What is known of slices besides their names and times: a column. Absent is NULL."""

    name: str
    kind: int
    values: Int64

    @property
    def has_value(self) -> Bool:
        """Which of the slices have it."""
        has_value: Bool = self.values != NULL
        return has_value

    def take(self, rows: Int64 | slice) -> Argument:
        """Return the argument of some of the slices."""
        return replace(self, values=self.values[rows])


@dataclass(frozen=True)
class Slices:
    """Slices in drawing order, as equally long columns: by track, those of a track by start, the longer one first.

    Attributes:
        track: index of the track.
        name: index into the texts.
        category: index into CATEGORIES.
        flow: the number of the arrow that ends here, from 1; 0 for none.
        first_flow, flows: the arrows that begin here: `flows` of them in `TrackEvents.flows`.
    """

    track: Int64
    start_ns: Int64
    end_ns: Int64
    name: Int64
    category: NDArray[np.int8]
    arguments: tuple[Argument, ...] = ()
    flow: Int64 | None = None
    first_flow: Int64 | None = None
    flows: Int64 | None = None

    def __len__(self) -> int:
        return len(self.start_ns)


@dataclass(frozen=True)
class Samples:
    """The samples of all counters, by start."""

    track: Int64
    start_ns: Int64
    value: Float64


@dataclass(frozen=True)
class TrackEvents:
    """A recording, drawn.

    Attributes:
        tracks: parents before their children.
        texts: names and texts of arguments.
        slices: one batch for each kind of track.
        instants: slices without length.
        samples: of the counters.
        flows: the numbers of arrows, by the slice that they begin at.
        zero_ns: the first instant of all, in the time of the recording: 0, or before it where events are.
        utc_epoch_ns: the wall clock at time 0 of the recording; None if unknown.
    """

    tracks: tuple[Track, ...]
    texts: Sequence[str]
    slices: tuple[Slices, ...]
    instants: Slices
    samples: Samples
    flows: Int64
    zero_ns: int
    utc_epoch_ns: int | None

    @property
    def batches(self) -> tuple[Slices, ...]:
        """All slices and instants."""
        return (*self.slices, self.instants)

    def count_slices(self) -> int:
        """Return how many slices and instants there are."""
        return sum(map(len, self.batches))

    def list_names(self) -> Int64:
        """Return the texts that are names of slices, in order."""
        return _find_used([batch.name for batch in self.batches])

    def list_argument_texts(self) -> Int64:
        """Return the texts that are values of arguments, in order."""
        arguments = (argument for batch in self.batches for argument in batch.arguments)
        return _find_used([one.values[one.has_value] for one in arguments if one.kind == TEXT])


def select_calls(context: Context) -> Int64:
    """Return the API calls that the context is about, in order."""
    calls = np.arange(len(context.trace.calls))
    return calls if context.selection is None else calls[context.selection.calls[: len(calls)]]


def select_operations(context: Context) -> Int64:
    """Return the GPU operations that the context is about, in order."""
    operations = np.arange(len(context.gpu))
    return operations if context.selection is None else operations[context.selection.operations]


def get_payloads(context: Context, instances: Int64) -> tuple[Int64, Int64]:
    """Return the integer payload of some range instances, and the index of their category's name; NULL for none."""
    ranges = (context.trace if context.whole is None else context.whole.trace).ranges
    row = context.range_of_instance[instances]
    if not len(ranges):
        return np.full(len(row), NULL), np.full(len(row), NULL)
    payload, category = ranges.payload[row], ranges.category[row]
    has_payload = (row >= 0) & ranges.has_payload[row] & ~is_identity(payload)
    return np.where(has_payload, payload, NULL), np.where((row >= 0) & (category >= 0), category.astype(np.int64), NULL)


def build_track_events(context: Context, requests: Table | None = None) -> TrackEvents:
    """Return the tracks of a recording, or of the selected part of it.

    Args:
        context: of a part that fields select, only those ranges, operations and calls are drawn.
        requests: the view `requests`; None without requests.
    """
    builder = _Builder(context)
    slices = [builder.draw_threads(), builder.draw_tasks(), builder.draw_streams()]
    if requests is not None:
        slices.append(builder.draw_requests(requests))
    instants, samples = builder.draw_marks(), builder.draw_counters()
    starts = [one.start_ns for one in (*slices, instants)] + [samples.start_ns]
    return TrackEvents(
        tracks=tuple(builder.tracks),
        texts=builder.texts.all(),
        slices=tuple(one for one in slices if len(one)),
        instants=instants,
        samples=samples,
        flows=builder.flows,
        zero_ns=min(int(column.min(initial=0)) for column in starts),
        utc_epoch_ns=context.trace.utc_epoch_ns,
    )


class _Texts:
    """The names of a trace, those of operations, and what is added, each once."""

    def __init__(self, names: Sequence[str]) -> None:
        self._texts = [*names, *OPERATION_NAMES]
        self._added: dict[str, int] = {}

    def add(self, text: str) -> int:
        """Return the index of a text, which is new if it was not added before."""
        index = self._added.setdefault(text, len(self._texts))
        if index == len(self._texts):
            self._texts.append(text)
        return index

    def add_all(self, texts: Sequence[str | None]) -> Int64:
        """Return the index of each text; NULL for none."""
        return np.array([NULL if text is None else self.add(text) for text in texts], np.int64)

    def get(self, index: int) -> str:
        """Return the text of an index."""
        return self._texts[index]

    def all(self) -> Sequence[str]:
        """Return the texts, in order."""
        return self._texts


class _Builder:
    """Draws a context: makes tracks as they are needed, and slices on them."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.trace = context.trace
        self.texts = _Texts(context.trace.names)
        self.tracks: list[Track] = []
        self._children: dict[tuple[int, str, int], int] = {}
        self._processes = self._add_processes()
        self._threads = self._add_threads()
        self.flows = np.empty(0, np.int64)
        self._flow_of_operation = np.zeros(len(context.gpu), np.int64)
        self._first_flow, self._flow_count = self._number_flows()

    # ---- tracks

    def _add(self, track: Track) -> int:
        self.tracks.append(track)
        return len(self.tracks) - 1

    def _find_child(self, parent: int, name: str, lane: int = 0) -> int:
        """Return the track of this name in another one, a new one for each lane."""
        key = parent, name, lane
        if key not in self._children:
            self._children[key] = self._add(Track(name, parent))
        return self._children[key]

    def _add_processes(self) -> list[int]:
        pids = Counter(process.pid for process in self.trace.processes)
        tracks = []
        for process in self.trace.processes:
            words = [process.name or "process", *([f"rank {process.rank}"] if process.rank is not None else [])]
            words += [process.side] if process.side is not None else []
            label = ", ".join(words)
            is_unique = pids[process.pid] == 1 and _is_system_number(process.pid)
            tracks.append(
                self._add(Track(label, pid=process.pid) if is_unique else Track(f"{label} (pid {process.pid})"))
            )
        return tracks

    def _add_threads(self) -> Int64:
        numbers = Counter((thread.process, thread.tid) for thread in self.trace.threads)
        tracks = []
        for thread in self.trace.threads:
            process = self.tracks[self._processes[thread.process]]
            is_unique = numbers[thread.process, thread.tid] == 1 and _is_system_number(thread.tid)
            if process.pid is not None and is_unique:
                track = Track(thread.name, self._processes[thread.process], process.pid, thread.tid)
            else:
                track = Track(f"{thread.name or 'thread'} (tid {thread.tid})", self._processes[thread.process])
            tracks.append(self._add(track))
        return np.array(tracks, np.int64)

    def _spread_lanes(
        self, track: Int64, lane: NDArray[np.int32], further: dict[int, tuple[int, str]] | None = None
    ) -> Int64:
        """Return the track of each slice, given that of its lane 0.

        Args:
            further: of a track, the parent and the name of its further lanes; by default its own.
        """
        if not lane.any():
            return track
        key = track * _NESTED_MAX + lane
        distinct, row = np.unique(key, return_inverse=True)
        tracks = []
        for one in distinct.tolist():
            first, number = divmod(one, _NESTED_MAX)
            if not number:
                tracks.append(first)
                continue
            parent, name = (further or {}).get(first, (self.tracks[first].parent, self.tracks[first].name))
            tracks.append(self._find_child(parent, name, number))
        spread: Int64 = np.array(tracks, np.int64)[row.reshape(-1)]
        return spread

    # ---- arrows

    def _number_flows(self) -> tuple[Int64, Int64]:
        """Number the arrows from calls to what they launched; return of each call its first one, and how many."""
        context, calls = self.context, self.trace.calls
        launched = context.launches.call_of
        has_call = (launched >= 0) & (launched < len(calls))
        if context.selection is not None:
            has_call &= context.selection.operations
            has_call[has_call] = context.selection.calls[launched[has_call]]
        operation = np.flatnonzero(has_call)
        # Of an operation that begins before its call, as clocks that are apart have it, an arrow would point back.
        operation = operation[context.gpu.start_ns[operation] >= calls.start_ns[launched[operation]]]
        operation = operation[np.argsort(launched[operation], kind="stable")]
        self.flows = np.arange(1, len(operation) + 1)
        self._flow_of_operation[operation] = self.flows
        count = np.bincount(launched[operation], minlength=len(calls))
        return np.cumsum(count) - count, count

    # ---- slices

    def draw_threads(self) -> Slices:
        """Return what ran on threads: ranges, active segments of coroutines, API calls."""
        context, trace, instances = self.context, self.trace, self.context.instances
        selected = context.selected_instances & instances.entered
        is_task = instances.task | (instances.style == START_END)
        ranges = np.flatnonzero(selected & ~is_task)
        segments = instances.segments
        is_segment = (selected & instances.task)[segments.owner]
        owner = segments.owner[is_segment]
        starts, ends = segments.start_ns[is_segment], segments.end_ns[is_segment]
        thread_of_segment = segments.thread[is_segment]
        if trace.cut is not None:
            inside = (ends > trace.cut.first_ns) & (starts < trace.cut.last_ns)
            owner, thread_of_segment = owner[inside], thread_of_segment[inside]
            starts, ends = (np.clip(one[inside], trace.cut.first_ns, trace.cut.last_ns) for one in (starts, ends))
        calls = select_calls(context)
        numbers = (len(ranges), len(owner), len(calls))
        thread = np.concatenate([instances.thread[ranges], thread_of_segment, trace.calls.thread[calls]])
        start = np.concatenate([instances.start_ns[ranges], starts, trace.calls.start_ns[calls]])
        end = np.concatenate([instances.end_ns[ranges], ends, trace.calls.end_ns[calls]])
        order, lane = assign_lanes(thread, start, end, nested=True)
        track = self._threads[thread[order]]
        crossing = {int(one): (int(one), "crossing") for one in self._threads}
        before, behind = np.zeros(sum(numbers[:2]), np.int64), np.full(sum(numbers[1:]), NULL)
        of_ranges = [
            replace(one, values=np.concatenate([one.values, behind])) for one in self._make_range_arguments(ranges)
        ]
        of_calls = self._make_call_arguments(calls)
        arguments = (
            *of_ranges,
            *(replace(one, values=np.concatenate([before + NULL, one.values])) for one in of_calls),
        )
        names = [self._get_names(one) for one in (instances.name[ranges], instances.name[owner])]
        return Slices(
            track=self._spread_lanes(track, lane, crossing),
            start_ns=start[order],
            end_ns=end[order],
            name=np.concatenate([*names, self._name_calls(calls)])[order],
            category=np.repeat(np.array([RANGE, SEGMENT, CALL], np.int8), numbers)[order],
            arguments=tuple(one.take(order) for one in arguments),
            first_flow=np.concatenate([before, self._first_flow[calls]])[order],
            flows=np.concatenate([before, self._flow_count[calls]])[order],
        )

    def draw_tasks(self) -> Slices:
        """Return coroutines and start/end ranges: of each process and name a track, with a lane for each at a time."""
        instances = self.context.instances
        is_task = instances.task | (instances.style == START_END)
        rows = np.flatnonzero(self.context.selected_instances & instances.entered & is_task)
        process = self._get_process(instances.thread[rows])
        pairs, group = np.unique(
            np.stack([process, instances.name[rows].astype(np.int64)]), axis=1, return_inverse=True
        )
        tracks = np.array(
            [
                self._find_child(self._find_child(self._processes[one], "tasks"), self._get_name(name))
                for one, name in pairs.T.tolist()
            ],
            np.int64,
        )
        group = group.reshape(-1)
        order, lane = assign_lanes(group, instances.start_ns[rows], instances.end_ns[rows], nested=False)
        drawn = rows[order]
        path = self._add_paths()
        return Slices(
            track=self._spread_lanes(tracks[group[order]], lane),
            start_ns=instances.start_ns[drawn],
            end_ns=instances.end_ns[drawn],
            name=self._get_names(instances.name[drawn]),
            category=np.full(len(drawn), TASK, np.int8),
            arguments=(
                *self._make_range_arguments(drawn),
                Argument("path", TEXT, path[instances.path[drawn]]),
                Argument("active_ns", NUMBER, instances.active_ns[drawn]),
            ),
        )

    def draw_streams(self) -> Slices:
        """Return the operations of GPUs: a track for each stream of each process."""
        context, gpu = self.context, self.context.gpu
        tracks = self._add_streams()
        rows = select_operations(context)
        of_row = tracks[find_streams(context).stream_of_operation[rows]]
        order, lane = assign_lanes(of_row, gpu.start_ns[rows], gpu.end_ns[rows], nested=False)
        drawn = rows[order]
        arguments: dict[str, Argument] = {}
        for kind in (KERNEL, COPY, MEMSET, GRAPH):
            mine = np.flatnonzero(gpu.kind[drawn] == kind)
            for argument in self._make_operation_arguments(kind, drawn[mine]) if len(mine) else ():
                if argument.name not in arguments:
                    arguments[argument.name] = replace(argument, values=np.full(len(drawn), NULL))
                arguments[argument.name].values[mine] = argument.values
        return Slices(
            track=self._spread_lanes(of_row[order], lane),
            start_ns=gpu.start_ns[drawn],
            end_ns=gpu.end_ns[drawn],
            name=label_operations(context, drawn),
            category=_CATEGORY_OF_KIND[gpu.kind[drawn]],
            arguments=tuple(arguments.values()),
            flow=self._flow_of_operation[drawn],
        )

    def draw_requests(self, requests: Table) -> Slices:
        """Return the requests that have a wall time: one track, with a lane for each at a time."""
        start, end = requests.values["start_ns"], requests.values["end_ns"]
        rows = np.flatnonzero((start != NULL) & (end != NULL))
        order, lane = assign_lanes(np.zeros(len(rows), np.int64), start[rows], end[rows], nested=False)
        drawn = rows[order]
        track = np.full(len(drawn), self._find_child(-1, "requests"), np.int64)
        names = [str(name) for name in requests.values["request_id"][drawn].tolist()]
        arguments = [Argument("status", TEXT, self.texts.add_all(requests.values["status"][drawn].tolist()))]
        for name, values in requests.values.items():
            is_time = name.endswith("_ns") and name not in ("start_ns", "end_ns", "server_start_ns", "server_end_ns")
            if is_time and values.dtype.kind == "i" and (values[drawn] != NULL).any():
                arguments.append(Argument(name, NUMBER, values[drawn]))
        return Slices(
            track=self._spread_lanes(track, lane),
            start_ns=start[drawn],
            end_ns=end[drawn],
            name=self.texts.add_all(names),
            category=np.full(len(drawn), REQUEST, np.int8),
            arguments=tuple(arguments),
        )

    def draw_marks(self) -> Slices:
        """Return the marks, on their threads; none of a selection by fields, as they are of no range."""
        marks = self.trace.marks
        rows = np.arange(len(marks) if self.context.selection is None else 0)
        return Slices(
            track=self._threads[marks.thread[rows]],
            start_ns=marks.start_ns[rows],
            end_ns=marks.start_ns[rows],
            name=self._get_names(marks.name[rows]),
            category=np.full(len(rows), MARK, np.int8),
            arguments=(
                Argument("domain", TEXT, _mask_index(marks.domain[rows])),
                Argument("category", TEXT, _mask_index(marks.category[rows])),
                Argument("fields", FIELDS, _mask_index(marks.fields[rows])),
            ),
        )

    def draw_counters(self) -> Samples:
        """Return the samples of counters, a track for each process and counter; none of a selection by fields."""
        samples = self.trace.counters
        count = len(samples) if self.context.selection is None else 0
        keys = np.stack([samples.process[:count], samples.domain[:count], samples.name[:count]])
        distinct, group = np.unique(keys, axis=1, return_inverse=True)
        tracks = []
        for process, domain, name in distinct.T.tolist():
            words = [self.texts.get(index) for index in (domain, name) if index >= 0]
            tracks.append(self._add(Track(": ".join(words), self._processes[process], is_counter=True)))
        return Samples(np.array(tracks, np.int64)[group.reshape(-1)], samples.start_ns[:count], samples.value[:count])

    # ---- details

    def _get_process(self, thread: NDArray[np.integer]) -> Int64:
        process: Int64 = np.array([one.process for one in self.trace.threads], np.int64)[thread]
        return process

    def _get_names(self, name: NDArray[np.integer]) -> Int64:
        """Return the index of the text of each name."""
        return np.where(name >= 0, name.astype(np.int64), self.texts.add(_NO_NAME))

    def _get_name(self, name: int) -> str:
        return self.texts.get(name) if name >= 0 else _NO_NAME

    def _add_paths(self) -> Int64:
        """Return the index of the text of each path of ranges."""
        instances = self.context.instances
        return self.texts.add_all([" > ".join(map(self._get_name, path)) for path in instances.paths])

    def _add_streams(self) -> Int64:
        """Return the track of each stream."""
        streams = find_streams(self.context)
        names = {device.number: device.name for device in self.trace.devices}
        rows = zip(
            *(getattr(streams, name).tolist() for name in ("process", "number", "stream", "context")), strict=True
        )
        places = list(rows)
        repeated = Counter(place[:3] for place in places)
        tracks = []
        for process, number, stream, context in places:
            device = "GPU" if number < 0 else f"GPU {number}"
            device += f" ({names[number]})" if names.get(number) else ""
            label = "stream" if stream < 0 else f"stream {stream}"
            label += f" of context {context}" if repeated[process, number, stream] > 1 else ""
            tracks.append(self._find_child(self._find_child(self._processes[process], device), label))
        return np.array(tracks, np.int64)

    def _make_range_arguments(self, rows: Int64) -> tuple[Argument, ...]:
        """Return what ranges carry: domain, category, payload, fields; and how they were recorded."""
        instances = self.context.instances
        payload, category = get_payloads(self.context, rows)
        recorded_name = instances.recorded_name[rows].astype(np.int64)
        is_renamed = recorded_name != instances.name[rows]
        return (
            Argument("domain", TEXT, _mask_index(instances.domain[rows])),
            Argument("category", TEXT, category),
            Argument("recorded_name", TEXT, np.where(is_renamed, recorded_name, NULL)),
            Argument("payload", NUMBER, payload),
            Argument("clipped", NUMBER, np.where(instances.clipped[rows], 1, NULL)),
            Argument("fields", FIELDS, _mask_index(instances.fields[rows])),
        )

    def _name_calls(self, rows: Int64) -> Int64:
        """Return the index of the text of the name of API calls, which is that of the report."""
        names = self.trace.calls.name[rows]
        texts = np.full(len(self.trace.names), NULL)
        for name in find_distinct(names).tolist():
            texts[name] = self.texts.add(strip_call_version(self.trace.names[name]))
        return texts[names]

    def _make_call_arguments(self, rows: Int64) -> tuple[Argument, ...]:
        calls = self.trace.calls
        error = calls.return_value[rows]
        return (
            Argument("correlation", NUMBER, calls.correlation[rows]),
            Argument("error", NUMBER, np.where(error == 0, NULL, error)),
        )

    def _make_operation_arguments(self, kind: int, operation: Int64) -> Iterator[Argument]:
        """Yield what is known of operations of one kind: the range that they belong to, and how they were launched."""
        context, trace, attribution = self.context, self.trace, self.context.attribution
        tables = {
            KERNEL: trace.kernels,
            COPY: trace.copies,
            MEMSET: trace.memsets,
            GRAPH: trace.graph_launches,
        }
        first = sum(len(tables[earlier]) for earlier in range(kind))
        rows = operation - first
        table = tables[kind]
        innermost = attribution.innermost[operation]
        path = np.append(self._add_paths(), NULL)[np.append(context.instances.path, -1)[innermost]]
        yield Argument("range", TEXT, path)
        rules = self.texts.add_all((*RULES, *REASONS))
        yield Argument("attribution", TEXT, rules[attribution.rule[operation]])
        yield Argument("correlation", NUMBER, table.correlation[rows])
        yield Argument("graph_node", NUMBER, table.graph_node[rows])
        if kind == KERNEL:
            yield from self._make_geometry_arguments(trace.kernels.geometry[rows])
        elif kind == COPY:
            copies = trace.copies
            yield Argument("size_bytes", NUMBER, copies.size_bytes[rows])
            for name, column in (("source_memory", copies.source_kind), ("target_memory", copies.target_kind)):
                yield Argument(name, TEXT, self._name_memory(column[rows]))
            for name, column in (("source_device", copies.source_device), ("target_device", copies.target_device)):
                yield Argument(name, NUMBER, _mask_index(column[rows]))
        elif kind == MEMSET:
            yield Argument("size_bytes", NUMBER, trace.memsets.size_bytes[rows])
            yield Argument("memory", TEXT, self._name_memory(trace.memsets.memory_kind[rows]))
        else:
            yield Argument("graph", NUMBER, trace.graph_launches.graph[rows])

    def _make_geometry_arguments(self, geometry: NDArray[np.int32]) -> Iterator[Argument]:
        table = np.append(self.trace.geometries, np.full((1, len(GEOMETRY)), NULL), axis=0)
        for name in ("grid", "block"):
            sides = table[:, [GEOMETRY.index(f"{name}_{side}") for side in "xyz"]].tolist()
            texts = [None if NULL in one else "x".join(map(str, one)) for one in sides]
            yield Argument(name, TEXT, self.texts.add_all(texts)[geometry])
        registers = table[:, GEOMETRY.index("registers_per_thread")]
        shared = table[:, [GEOMETRY.index("static_shared_bytes"), GEOMETRY.index("dynamic_shared_bytes")]]
        total = np.where((shared == NULL).any(axis=1), NULL, shared.sum(axis=1))
        yield Argument("registers_per_thread", NUMBER, registers[geometry])
        yield Argument("shared_bytes", NUMBER, total[geometry])

    def _name_memory(self, kind: NDArray[np.int32]) -> Int64:
        names = np.append(self.texts.add_all(MEMORY_KINDS), NULL)
        is_known: Bool = (kind >= 0) & (kind < len(MEMORY_KINDS))
        name: Int64 = names[np.where(is_known, kind, -1)]
        return name


def _find_used(columns: Sequence[Int64]) -> Int64:
    return find_distinct(np.concatenate([np.empty(0, np.int64), *map(find_distinct, columns)]))


def _is_system_number(number: int) -> bool:
    """Whether this can be the number of a process or thread: timelines take 0 for the idle process."""
    return 0 < number < 1 << 31


def _mask_index(index: NDArray[np.integer]) -> Int64:
    """Return indices as a column that is NULL where they are negative."""
    return np.where(index >= 0, index.astype(np.int64), NULL)
