"""Made-up traces for hypothesis: what real ones have and more. Every oracle draws from here.

Crossing domains, ranges that end on other threads, zero durations, clipped ranges, coroutines with and without their
start/end range, identities that come again or name what ended or never was, calls inside calls, equal and absent
correlationIds in several processes, several devices and streams, nodes of CUDA graphs.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from traceable.trace import model
from traceable.trace.model import NULL, PUSH_POP, START_END, Trace

NAMES = (
    "a",
    "b",
    "c",
    "domain",
    "traceable.active",
    "cudaLaunchKernel_v7000",
    "cudaStreamSynchronize_v3020",
    "traceable.generator",
)
DOMAIN, ACTIVE, LAUNCH, WAIT, GENERATOR = 3, 4, 5, 6, 7
PROCESS_OF_THREAD = (0, 0, 1)
COPY_DIRECTIONS = {1: "h2d", 2: "d2h", 8: "d2d", 10: "p2p"}
DIRECTIONS = ("h2d", "d2h", "d2d", "p2p")

times = st.integers(1, 40)
durations = st.integers(0, 15)
threads = st.integers(0, 2)
names = st.integers(0, 2)
correlations = st.one_of(st.integers(0, 4), st.just(NULL))
nodes = st.integers(1, 5)


def packed(number: int, parent: int) -> int:
    return 1 << 62 | parent << 32 | number


identities = st.builds(packed, st.integers(1, 6), st.integers(0, 7))


@st.composite
def plain_ranges(draw: Any) -> dict[str, int]:
    start, style, thread = draw(times), draw(st.sampled_from([PUSH_POP, PUSH_POP, START_END])), draw(threads)
    elsewhere = style == START_END and draw(st.booleans())
    return {
        "start_ns": start,
        "end_ns": start + draw(durations),
        "name": draw(names),
        "domain": draw(st.sampled_from([-1, DOMAIN])),
        "category": -1,
        "thread": thread,
        "end_thread": (thread + 1) % 3 if elsewhere else -1,
        "style": style,
        "clipped": draw(st.booleans()),
        "payload": draw(st.integers(0, 2)),
        "has_payload": draw(st.booleans()),
        "identity": draw(st.one_of(st.just(NULL), identities)),
        "fields": -1,
    }


@st.composite
def coroutines(draw: Any, number: int) -> list[dict[str, int]]:
    """The stretches of one coroutine, which may move between threads of its process, and mostly its whole."""
    process = draw(st.integers(0, 1))
    where = st.sampled_from([thread for thread, of in enumerate(PROCESS_OF_THREAD) if of == process])
    name, at = draw(names), draw(times)
    identity = packed(number + 1, draw(st.integers(0, 7)))
    base = {"category": -1, "end_thread": -1, "clipped": False, "name": name, "fields": -1}
    base |= {"payload": identity, "has_payload": True, "identity": identity}
    result, stretch = [], draw(st.sampled_from([ACTIVE, ACTIVE, GENERATOR]))
    for _ in range(draw(st.integers(1, 3))):
        end = at + draw(st.integers(0, 6))
        place = {"domain": stretch, "style": PUSH_POP, "thread": draw(where)}
        result.append({**base, **place, "start_ns": at, "end_ns": end})
        at = end + draw(st.integers(1, 6))
    if draw(st.integers(0, 3)):
        start = result[0]["start_ns"] - draw(st.integers(0, 1))
        place = {
            "domain": DOMAIN,
            "style": START_END,
            "thread": result[0]["thread"],
            "has_payload": draw(st.booleans()),
        }
        # Where the user gave a number, the range carries that and no identity.
        place["identity"] = NULL if place["has_payload"] else identity
        result.append({**base, **place, "start_ns": start, "end_ns": at, "clipped": draw(st.booleans())})
    return result


@st.composite
def calls(draw: Any) -> dict[str, int]:
    start = draw(times)
    return {
        "start_ns": start,
        "end_ns": start + draw(st.integers(0, 6)),
        "name": draw(st.sampled_from([LAUNCH, LAUNCH, WAIT])),
        "thread": draw(threads),
        "correlation": draw(correlations),
        "driver": 0,
        "return_value": 0,
    }


@st.composite
def gpu_operations(draw: Any, **more: Any) -> dict[str, int]:
    start = draw(st.integers(1, 60))
    extra = {name: draw(values) for name, values in more.items()}
    place = {"device": draw(st.sampled_from([0, 0, 1])), "context": 0, "stream": draw(st.sampled_from([7, 7, 13]))}
    place["graph_node"] = draw(st.one_of(st.just(NULL), st.just(NULL), nodes))
    process, correlation = draw(st.integers(0, 1)), draw(correlations)
    end = start + draw(durations)
    return {"start_ns": start, "end_ns": end, "process": process, "correlation": correlation, **place, **extra}


sizes = st.integers(0, 100)
kernels = gpu_operations(name=names, short_name=names, geometry=st.integers(-1, 1))
copies = gpu_operations(
    size_bytes=sizes,
    kind=st.sampled_from([1, 2, 8, 10, 9, -1]),
    source_kind=st.integers(-1, 2),
    target_kind=st.integers(-1, 2),
    source_device=st.integers(-1, 1),
    target_device=st.integers(-1, 1),
)
memsets = gpu_operations(size_bytes=sizes, memory_kind=st.integers(-1, 2))
graphs = gpu_operations(graph=st.just(1))
synchronizations = gpu_operations(kind=st.sampled_from([1, 2, 3, 4, -1]))


@st.composite
def graph_nodes(draw: Any) -> dict[str, int]:
    original = draw(st.one_of(st.just(NULL), nodes))
    return {"start_ns": draw(times), "thread": draw(threads), "node": draw(nodes), "original": original}


@st.composite
def overheads(draw: Any) -> dict[str, int]:
    start = draw(times)
    return {
        "start_ns": start,
        "end_ns": start + draw(durations),
        "name": draw(names),
        "process": draw(st.integers(-1, 1)),
    }


@st.composite
def allocations(draw: Any) -> dict[str, int]:
    return {
        "start_ns": draw(times),
        "process": draw(st.integers(0, 1)),
        "device": draw(st.integers(0, 1)),
        "size_bytes": draw(sizes),
        "memory_kind": draw(st.sampled_from([1, 2, 2, 2, -1])),
        "release": draw(st.sampled_from([0, 0, 1, -1])),
        "address": draw(st.one_of(st.just(NULL), st.integers(0, 3))),
        "correlation": draw(correlations),
    }


def table(kind: Any, rows: list[dict[str, int]]) -> Any:
    """Build one of the trace's tables from rows, sorted as the reader sorts them; rows without fields have none."""
    types = {"Int64": np.int64, "Int32": np.int32, "Int8": np.int8, "Bool": np.bool_, "Float64": np.float64}
    rows = sorted(rows, key=lambda row: (row["start_ns"], -row.get("end_ns", 0)))
    rows = [{"fields": -1, **row} for row in rows]
    return kind(**{f.name: np.array([row[f.name] for row in rows], types[str(f.type)]) for f in fields(kind)})


@st.composite
def traces(draw: Any, busy: bool = False) -> Trace:
    """A trace; a busy one has at least so much of everything that much of it meets."""
    ranges = draw(st.lists(plain_ranges(), min_size=6 * busy, max_size=8))
    for number in range(draw(st.integers(2 * busy, 3))):
        ranges += draw(coroutines(number))
    few = {"min_size": 3 * busy, "max_size": 5}
    return trace_of(
        ranges=table(model.Ranges, ranges),
        calls=table(model.Calls, draw(st.lists(calls(), min_size=9 * busy, max_size=12))),
        kernels=table(model.Kernels, draw(st.lists(kernels, min_size=7 * busy, max_size=8))),
        copies=table(model.Copies, draw(st.lists(copies, **few))),
        memsets=table(model.Memsets, draw(st.lists(memsets, **few))),
        graph_launches=table(model.GraphLaunches, draw(st.lists(graphs, **few))),
        synchronizations=table(model.Synchronizations, draw(st.lists(synchronizations, **few))),
        graph_nodes=table(model.GraphNodes, draw(st.lists(graph_nodes(), max_size=6))),
        allocations=table(model.Allocations, draw(st.lists(allocations(), max_size=6))),
        overheads=table(model.Overheads, draw(st.lists(overheads(), max_size=3))),
    )


FIELD_TEXTS = (
    '{"phase": "decode", "batch": 8, "requests": ["a"]}',
    '{"phase": "decode", "batch": 16, "requests": ["a", "b"]}',
    '{"phase": "prefill", "batch": 1.5}',
    '{"phase": "mixed", "flag": true}',
    '{"phase": null, "flag": false, "batch": 8.0}',
    '{"flag": "true", "requests": []}',
    '{"flag": 1}',
    "no JSON",
)
"""Fields of ranges: `phase` is text, `batch` a number, `flag` of several types, `requests` a list."""


@st.composite
def traces_with_fields(draw: Any) -> Trace:
    """A busy trace, some ranges of which carry fields."""
    trace = draw(traces(busy=True))
    ranges = trace.ranges
    known = st.sampled_from([-1, -1, *range(len(NAMES), len(NAMES) + len(FIELD_TEXTS))])
    texts = np.array(draw(st.lists(known, min_size=len(ranges), max_size=len(ranges))), np.int32)
    return replace(trace, names=NAMES + FIELD_TEXTS, ranges=replace(ranges, fields=texts))


@st.composite
def lossy_traces(draw: Any) -> Trace:
    """A trace whose correlation ids mostly rise with the calls; some calls are lost, and their kernels are not."""
    call, kernel, at, number = [], [], 1, draw(st.integers(0, 2))
    where = draw(st.sampled_from([(0,), (0, 0, 0, 1), (0, 1, 1, 2)]))
    for _ in range(draw(st.integers(5, 14))):
        number += draw(st.sampled_from([1, 1, 1, 2, 5, 0, -1]))
        row = {**draw(calls()), "start_ns": at, "end_ns": at + draw(st.integers(0, 4)), "correlation": number}
        row["thread"] = draw(st.sampled_from(where))
        if draw(st.integers(0, 3)):
            call.append(row)
        if draw(st.integers(0, 3)):
            later = {"correlation": number, "process": PROCESS_OF_THREAD[row["thread"]]}
            start = max(0, at + draw(st.integers(-1, 9)))
            kernel.append({**draw(kernels), **later, "start_ns": start, "end_ns": start + draw(durations)})
        at += draw(st.integers(0, 4))
    ranges = draw(st.lists(plain_ranges(), max_size=5))
    for thread in draw(st.sampled_from([(0,), (0,), (0, 1), (0, 1, 2)])):
        start = draw(st.integers(0, 3))
        ranges.append(
            {**draw(plain_ranges()), "start_ns": start, "end_ns": start + 30, "end_thread": -1, "thread": thread}
        )
    return trace_of(
        ranges=table(model.Ranges, ranges), calls=table(model.Calls, call), kernels=table(model.Kernels, kernel)
    )


def trace_of(**tables: Any) -> Trace:
    """A trace that holds these tables and nothing else."""
    nothing = {
        "ranges": model.Ranges,
        "marks": model.Marks,
        "counters": model.Counters,
        "calls": model.Calls,
        "kernels": model.Kernels,
        "copies": model.Copies,
        "memsets": model.Memsets,
        "graph_launches": model.GraphLaunches,
        "synchronizations": model.Synchronizations,
        "graph_nodes": model.GraphNodes,
        "allocations": model.Allocations,
        "overheads": model.Overheads,
    }
    return Trace(
        source=model.Source("made up", 0, "", "", "", frozenset(), ()),
        names=NAMES,
        processes=tuple(model.Process(p, p, "") for p in range(2)),
        threads=tuple(model.Thread(t, t, p, "") for t, p in enumerate(PROCESS_OF_THREAD)),
        utc_epoch_ns=None,
        capture_ns=None,
        geometries=np.array([[1, 1, 1, 32, 1, 1, 16, 0, 0], [8, 1, 1, 128, 1, 1, 32, 0, 1024]], np.int64),
        devices=(),
        cuda_devices={},
        **{name: tables.get(name, table(kind, [])) for name, kind in nothing.items()},
    )


def rows_of(events: Any) -> list[dict[str, Any]]:
    columns = {f.name: getattr(events, f.name).tolist() for f in fields(events)}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
