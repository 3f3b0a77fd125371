"""Tables of events: a row for each event, every column of one length, and texts where a row has one."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from tests.analysis.sample_gpu_traces import gpu_traces
from tests.analysis.sample_requests import make_trace, span

from traceable.analysis.context import Context
from traceable.analysis.event_tables import EventColumn, EventTable, list_event_tables
from traceable.trace.model import Trace

OPERATIONS = ("kernels", "copies", "memsets", "graph_launches")


def values(column: EventColumn) -> list[Any]:
    """The values of a column, None where absent."""
    absent = np.zeros(len(column.values), np.bool_) if column.is_absent is None else column.is_absent
    plain = zip(column.values.tolist(), absent.tolist(), strict=True)
    return [None if is_absent else value if column.texts is None else column.texts[value] for value, is_absent in plain]


def tables(context: Context) -> dict[str, EventTable]:
    return dict(list_event_tables(context))


@settings(max_examples=25)
@given(gpu_traces())
def test_each_event_is_a_row_and_each_row_has_every_column(trace: Trace) -> None:
    context = Context(trace)
    made = tables(context)
    for columns in made.values():
        assert len({len(values(column)) for column in columns.values()}) == 1
    lengths = {name: len(columns["start_ns"].values) for name, columns in made.items()}
    assert {name: lengths[name] for name in ("calls", *OPERATIONS)} == {
        name: len(getattr(trace, name)) for name in ("calls", *OPERATIONS)
    }
    assert lengths["ranges"] == context.instances.entered.sum()
    paths = [path for name in OPERATIONS for path in values(made[name]["range_path"])]
    instances = context.instances
    assert paths == [
        None if one < 0 else [context.trace.names[name] for name in instances.paths[instances.path[one]]]
        for one in context.attribution.innermost.tolist()
    ]


def test_a_range_has_the_row_of_the_one_around_it() -> None:
    trace = make_trace([span("step", 0, 0, 100), span("pack", 0, 10, 20, payload=7, has_payload=True)])
    ranges = tables(Context(trace))["ranges"]
    rows = {name: values(ranges[name]) for name in ("name", "parent_row", "payload", "path", "fields", "self_ns")}
    assert rows == {
        "name": ["step", "pack"],
        "parent_row": [None, 0],
        "payload": [None, 7],
        "path": [["step"], ["step", "pack"]],
        "fields": [None, None],
        "self_ns": [90, 10],
    }
