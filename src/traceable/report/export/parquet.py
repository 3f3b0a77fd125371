"""Events as Parquet: a directory with one file for each kind of event, for pandas, DuckDB, Polars and the like.

Each row is an event with all that is known of it, names written out. Absent is null. Times are int64 nanoseconds from
the start of the recording; the metadata of each file has `utc_epoch_ns`, the wall clock of time 0.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from traceable.analysis.attribution import REASONS, RULES
from traceable.analysis.gpus import find_streams
from traceable.analysis.labels import OPERATION_NAMES, label_operations, strip_call_version
from traceable.analysis.memory import MEMORY_KINDS
from traceable.errors import UsageError
from traceable.report.document import create_directory
from traceable.report.export.tracks import (
    describe_recording,
    get_payloads,
    query_requests,
    select_calls,
    select_operations,
)
from traceable.report.text import escape_unencodable
from traceable.trace.model import GEOMETRY, NULL, START_END, Int64, NDArray

if TYPE_CHECKING:
    from traceable.errors import Message
    from traceable.recording import Recording


def export(recording: Recording, path: Path) -> tuple[Message, ...]:
    """Write a recording to a new directory; arguments, result and errors as of `Exporter.export`.

    Raises:
        UsageError: pyarrow is not installed.
    """
    try:
        arrow, parquet = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    except ModuleNotFoundError:
        raise UsageError(
            "pyarrow_missing", "Parquet needs the package pyarrow", "type `pip install 'traceable[arrow]'`"
        ) from None
    notes = describe_recording(recording)
    epoch_ns = recording.trace.utc_epoch_ns
    metadata = {} if epoch_ns is None else {"utc_epoch_ns": str(epoch_ns)}
    with create_directory(path) as directory:
        for name, columns in _Tables(recording, arrow).iter_tables():
            table = arrow.table(columns).replace_schema_metadata(metadata)
            if table.num_rows:
                parquet.write_table(table, directory / f"{name}.parquet", compression="zstd")
    return notes


class _Tables:
    """The tables of a recording as columns of Arrow."""

    def __init__(self, recording: Recording, arrow: Any) -> None:
        self._recording = recording
        self._context = recording.context
        self._trace = recording.context.trace
        self._arrow = arrow
        self._names = self._make_texts((*self._trace.names, *OPERATION_NAMES))

    def iter_tables(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Yield each table: its name, and its columns by name."""
        yield "ranges", self._make_ranges()
        yield "marks", self._make_marks()
        yield "counters", self._make_counters()
        yield "calls", self._make_calls()
        first = 0
        for kind, events in (
            ("kernels", self._trace.kernels),
            ("copies", self._trace.copies),
            ("memsets", self._trace.memsets),
            ("graph_launches", self._trace.graph_launches),
        ):
            operations = select_operations(self._context)
            mine = operations[(operations >= first) & (operations < first + len(events))]
            yield kind, self._make_operations(mine, vars(events), mine - first)
            first += len(events)
        if (requests := query_requests(self._recording)) is not None:
            table = requests.to_arrow()
            yield "requests", dict(zip(table.column_names, table.columns, strict=True))

    def _make_ranges(self) -> dict[str, Any]:
        context, instances = self._context, self._context.instances
        rows = np.flatnonzero(context.selected_instances & instances.entered)
        row_of_instance = np.full(len(instances) + 1, NULL)
        row_of_instance[rows] = np.arange(len(rows))
        payload, category = get_payloads(context, rows)
        return {
            "start_ns": self._arrow.array(instances.start_ns[rows]),
            "end_ns": self._arrow.array(instances.end_ns[rows]),
            "name": self._look_up(instances.name[rows]),
            "recorded_name": self._look_up(instances.recorded_name[rows]),
            "domain": self._look_up(instances.domain[rows]),
            "category": self._look_up(category),
            "style": self._choose(("push_pop", "start_end"), (instances.style[rows] == START_END).astype(np.int64)),
            "is_coroutine": self._arrow.array(instances.task[rows]),
            "clipped": self._arrow.array(instances.clipped[rows]),
            **self._make_thread_columns(instances.thread[rows]),
            "path": self._make_paths(instances.path[rows]),
            "parent_row": self._make_ints(row_of_instance[instances.parent[rows]]),
            "self_ns": self._make_ints(instances.self_ns[rows]),
            "active_ns": self._make_ints(instances.active_ns[rows]),
            "payload": self._make_ints(payload),
            "fields": self._look_up(instances.fields[rows]),
        }

    def _make_marks(self) -> dict[str, Any]:
        marks = self._trace.marks
        rows = slice(None if self._context.selection is None else 0)
        return {
            "start_ns": self._arrow.array(marks.start_ns[rows]),
            **{name: self._look_up(getattr(marks, name)[rows]) for name in ("name", "domain", "category")},
            **self._make_thread_columns(marks.thread[rows]),
            "fields": self._look_up(marks.fields[rows]),
        }

    def _make_counters(self) -> dict[str, Any]:
        counters = self._trace.counters
        rows = slice(None if self._context.selection is None else 0)
        return {
            "start_ns": self._arrow.array(counters.start_ns[rows]),
            **{name: self._look_up(getattr(counters, name)[rows]) for name in ("name", "domain")},
            **self._make_process_columns(counters.process[rows]),
            "value": self._arrow.array(counters.value[rows]),
        }

    def _make_calls(self) -> dict[str, Any]:
        calls, rows = self._trace.calls, select_calls(self._context)
        return {
            "start_ns": self._arrow.array(calls.start_ns[rows]),
            "end_ns": self._arrow.array(calls.end_ns[rows]),
            "name": self._choose([strip_call_version(name) for name in self._trace.names], calls.name[rows]),
            **self._make_thread_columns(calls.thread[rows]),
            "correlation": self._make_ints(calls.correlation[rows]),
            "is_driver": self._arrow.array(calls.driver[rows] == 1),
            "return_value": self._make_ints(calls.return_value[rows]),
        }

    def _make_operations(self, operation: Int64, events: Mapping[str, Any], rows: Int64) -> dict[str, Any]:
        """Return the columns of operations of one kind, with the range that they belong to.

        Args:
            operation: of each its number among all operations.
            events: the columns of the trace of that kind.
            rows: of each its row among these.
        """
        context, gpu, streams = self._context, self._context.gpu, find_streams(self._context)
        attribution = context.attribution
        stream = streams.stream_of_operation[operation]
        path = np.append(context.instances.path, -1)[attribution.innermost[operation]]
        columns = {
            "start_ns": self._arrow.array(gpu.start_ns[operation]),
            "end_ns": self._arrow.array(gpu.end_ns[operation]),
            "name": self._look_up(label_operations(context, operation)),
            **self._make_process_columns(gpu.process[operation]),
            "gpu": self._make_ints(_mask_negative(streams.number[stream])),
            "context": self._make_ints(_mask_negative(streams.context[stream])),
            "stream": self._make_ints(_mask_negative(streams.stream[stream])),
            "correlation": self._make_ints(events["correlation"][rows]),
            "graph_node": self._make_ints(events["graph_node"][rows]),
            "queue_ns": self._make_ints(context.launches.queue_ns[operation]),
            "range_path": self._make_paths(path),
            "attribution": self._choose((*RULES, *REASONS), attribution.rule[operation].astype(np.int64)),
        }
        if "geometry" in events:
            geometries = np.append(self._trace.geometries, np.full((1, len(GEOMETRY)), NULL), axis=0)
            columns["short_name"] = self._look_up(events["short_name"][rows])
            for place, name in enumerate(GEOMETRY):
                columns[name] = self._make_ints(geometries[events["geometry"][rows], place])
        for name in ("size_bytes", "graph"):
            if name in events:
                columns[name] = self._make_ints(events[name][rows])
        for name in ("source_kind", "target_kind", "memory_kind"):
            if name in events:
                columns[name] = self._choose(MEMORY_KINDS, events[name][rows])
        for name in ("source_device", "target_device"):
            if name in events:
                columns[name] = self._make_ints(_mask_negative(events[name][rows]))
        return columns

    # ---- columns

    def _make_thread_columns(self, thread: NDArray[np.integer]) -> dict[str, Any]:
        threads = self._trace.threads
        process = np.array([one.process for one in threads], np.int64)[thread]
        return {
            **self._make_process_columns(process),
            "tid": self._arrow.array(np.array([one.tid for one in threads], np.int64)[thread]),
            "thread": self._choose([one.name for one in threads], thread),
        }

    def _make_process_columns(self, process: NDArray[np.integer]) -> dict[str, Any]:
        processes = self._trace.processes
        columns = {
            "pid": self._arrow.array(np.array([one.pid for one in processes], np.int64)[process]),
            "process": self._choose([one.name for one in processes], process),
        }
        if any(one.rank is not None for one in processes):
            ranks = np.array([NULL if one.rank is None else one.rank for one in processes], np.int64)
            columns["rank"] = self._make_ints(ranks[process])
        if any(one.side is not None for one in processes):
            columns["side"] = self._choose([one.side or "" for one in processes], process)
        return columns

    def _make_paths(self, path: Int64) -> Any:
        names = self._trace.names
        lists = [
            [escape_unencodable(names[one] if one >= 0 else "", None) for one in of]
            for of in self._context.instances.paths
        ]
        dictionary = self._arrow.array(lists, self._arrow.list_(self._arrow.string()))
        return dictionary.take(self._arrow.array(path, mask=path < 0))

    def _make_ints(self, values: NDArray[Any]) -> Any:
        return self._arrow.array(values, mask=values == NULL)

    def _make_texts(self, texts: Sequence[str]) -> Any:
        return self._arrow.array([escape_unencodable(text, None) for text in texts], self._arrow.string())

    def _look_up(self, index: NDArray[np.integer]) -> Any:
        """Return the texts with these indices; null for a negative one."""
        return self._arrow.DictionaryArray.from_arrays(self._arrow.array(index, mask=index < 0), self._names)

    def _choose(self, texts: Sequence[str], index: NDArray[np.integer]) -> Any:
        """Return one of a few texts for each row; null where there is none with such an index, or it is empty."""
        known = np.array([bool(text) for text in texts] + [False])
        is_absent = (index < 0) | ~known[np.clip(index, 0, len(texts))]
        return self._arrow.DictionaryArray.from_arrays(
            self._arrow.array(index, mask=is_absent), self._make_texts(texts)
        )


def _mask_negative(values: NDArray[np.integer]) -> Int64:
    return np.where(values >= 0, values.astype(np.int64), NULL)
