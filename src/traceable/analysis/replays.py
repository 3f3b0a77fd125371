"""What CUDA graphs do again: the ranges that were open when a node was captured, once more for every launch.

While a stream is captured, ranges open and close around kernels that do not run; when the graph is launched, the
kernels run and no range opens. A replay is an instance without CPU time that puts the two together: one for each
launch call and each range that was open around the creation of a node, below the range that launched the graph.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from traceable.analysis.enclosure import Events, innermost_around, pairs, sorted_events
from traceable.analysis.instances import Instances, Stretches, paths_of
from traceable.analysis.operations import GpuOperations, Launches
from traceable.analysis.rules import Links
from traceable.trace.model import NULL, GraphNodes, Int64, Trace
from traceable.trace.rows import distinct

DEEPEST = 128
"""How many ranges are followed from a node's capture outwards, and how many copies from a node to its first."""


@dataclass(frozen=True)
class Replayed:
    """Pairs of replay (as an index of the instances) and operation, sorted by both; no pair twice.

    Attributes:
        depth: of the replays of one operation the inner ones have the greater depth.
    """

    instance: Int64
    operation: Int64
    depth: Int64


def with_replays(
    trace: Trace, found: Instances, gpu: GpuOperations, launched: Launches, links: Links, innermost: Int64
) -> tuple[Instances, Replayed]:
    """Return the instances with the replays after them, and what each replay ran.

    Args:
        innermost: of each operation, the innermost instance around its launch; -1 for none.
    """
    nothing = np.empty(0, np.int64)
    nodes = np.flatnonzero((gpu.graph_node != NULL) & (launched.call_of >= 0))
    if not len(nodes) or not len(trace.graph_nodes):
        return found, Replayed(nothing, nothing, nothing)
    origin = _origins(trace, found, gpu, nodes)
    nodes, origin = nodes[origin >= 0], origin[origin >= 0]
    captured, operation, level = _levels(found, links.events, nodes, origin)
    if not len(operation):
        return found, Replayed(nothing, nothing, nothing)
    call = launched.call_of[operation]
    stride = len(found)
    key, replay = np.unique(call * stride + captured, return_inverse=True)
    launcher = np.full(len(trace.calls), -1, np.int64)
    launcher[call] = innermost[operation]
    joined = _joined(trace, found, key // stride, key % stride, launcher)
    replay = replay.reshape(-1) + len(found)
    order = np.lexsort((gpu.start_ns[operation], replay))
    return joined, Replayed(replay[order], operation[order], -level[order])


def _levels(found: Instances, events: Events, nodes: Int64, origin: Int64) -> tuple[Int64, Int64, Int64]:
    """Return (captured range, operation, level): for each operation its origin, what that lies inside, and so on.

    What is still open around the launch is left out: that is no replay, it has the operation itself.
    """
    found_at = [(origin, nodes, np.zeros(len(nodes), np.int64))]
    captured, operation = origin, nodes
    for level in range(1, DEEPEST):
        above = found.parent[captured]
        captured, operation = above[above >= 0], operation[above >= 0]
        if not len(operation):
            break
        found_at.append((captured, operation, np.full(len(operation), level)))
    ranges, operations, levels = (np.concatenate(column) for column in zip(*found_at, strict=True))
    stretches = found.stretches
    mine = np.isin(stretches.owner, distinct(ranges))
    of_ranges = Stretches(*(getattr(stretches, f.name)[mine] for f in fields(Stretches)))
    which = np.isin(events.item, nodes)
    places = replace(
        events,
        thread=events.thread[which],
        start_ns=events.start_ns[which],
        end_ns=events.end_ns[which],
        item=events.item[which],
    )
    own = [instance * events.items + item for instance, item in pairs(of_ranges, places)]
    replayed = ~np.isin(ranges * events.items + operations, np.concatenate([np.empty(0, np.int64), *own]))
    return ranges[replayed], operations[replayed], levels[replayed]


def _joined(trace: Trace, found: Instances, call: Int64, captured: Int64, launcher: Int64) -> Instances:
    """Return the instances and, after them, one replay for each pair of launch call and captured range."""
    stride = len(found)
    key = call * stride + captured
    above = found.parent[captured]
    at = np.searchsorted(key, call * stride + above)
    at = np.minimum(at, len(key) - 1)
    inner = (above >= 0) & (key[at] == call * stride + above)
    parent = np.where(inner, stride + at, launcher[call])
    columns: dict[str, Any] = {
        "start_ns": trace.calls.start_ns[call],
        "end_ns": trace.calls.end_ns[call],
        "name": found.name[captured],
        "recorded": found.recorded[captured],
        "domain": found.domain[captured],
        "style": found.style[captured],
        "clipped": np.zeros(len(key), np.bool_),
        "task": np.zeros(len(key), np.bool_),
        "replay": np.ones(len(key), np.bool_),
        "outside": np.zeros(len(key), np.bool_),
        "identity": np.full(len(key), NULL, np.int64),
        "fields": np.full(len(key), -1, np.int32),
        "parent": parent,
        "self_ns": np.full(len(key), NULL, np.int64),
        "active_ns": np.full(len(key), NULL, np.int64),
        "thread": trace.calls.thread[call],
    }
    joined: dict[str, Any] = {name: np.concatenate([getattr(found, name), column]) for name, column in columns.items()}
    path, paths = paths_of(joined["parent"], joined["name"], found.path, found.paths)
    return replace(found, **joined, path=path, paths=paths)


def _origins(trace: Trace, found: Instances, gpu: GpuOperations, nodes: Int64) -> Int64:
    """Return the innermost instance that was open when the node of each operation was captured; -1 for none."""
    created = trace.graph_nodes
    process_of_thread = np.array([thread.process for thread in trace.threads], np.int64)
    ids = distinct(np.concatenate([created.node, created.original[created.original != NULL], gpu.graph_node[nodes]]))
    key = process_of_thread[created.thread] * len(ids) + np.searchsorted(ids, created.node)
    first = _first_originals(created, ids, key, process_of_thread)
    wanted = gpu.process[nodes].astype(np.int64) * len(ids) + np.searchsorted(ids, gpu.graph_node[nodes])
    nodes_wanted, inverse = np.unique(wanted, return_inverse=True)
    capture = _capture_of(nodes_wanted, key, first)
    inner = np.full(len(nodes_wanted), -1, np.int64)
    known = capture >= 0
    thread, at_ns = created.thread[capture[known]], created.start_ns[capture[known]]
    every = np.arange(len(thread))
    inner[known] = innermost_around(found, sorted_events(thread, at_ns, at_ns, every, every))
    origin: Int64 = inner[inverse.reshape(-1)]
    return origin


def _first_originals(created: GraphNodes, ids: Int64, key: Int64, process_of_thread: Int64) -> dict[int, int]:
    """Return, by key of a node, the key of the node that it is a copy of; of several that say so the first."""
    copies = np.flatnonzero(created.original != NULL)
    of = process_of_thread[created.thread[copies]] * len(ids) + np.searchsorted(ids, created.original[copies])
    return dict(zip(key[copies][::-1].tolist(), of[::-1].tolist(), strict=True))


def _capture_of(wanted: Int64, key: Int64, copy_of: dict[int, int]) -> Int64:
    """Return the row of the creation of each node's first original; -1 where the trace does not hold it.

    A node that is a copy may have a row without an original as well: its being a copy counts.
    """
    first_row: dict[int, int] = {}
    for row, node in enumerate(key.tolist()):
        first_row.setdefault(node, row)
    capture = []
    for node in wanted.tolist():
        for _ in range(DEEPEST):
            if node not in copy_of:
                break
            node = copy_of[node]
        capture.append(first_row.get(node, -1))
    return np.array(capture, np.int64)
