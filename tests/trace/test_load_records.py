"""Records of a client as columns hold what the file holds, in the time of the trace."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from traceable.errors import TraceError
from traceable.protocol.load_record import FILE_NAME, LoadRecord, LoadRecordWriter
from traceable.trace.load_records import load_client_records
from traceable.trace.model import NULL

EPOCH_NS = 1_795_455_140_000_000_000


def test_columns_are_those_of_the_records_ordered_by_start(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    records = []
    for number in range(50):
        # Some began before the trace.
        start = EPOCH_NS + int(draw.integers(-(10**9), 10**9))
        times = tuple(start + int(offset) for offset in np.sort(draw.integers(0, 10**6, int(draw.integers(0, 5)))))
        first = times[0] if times else None
        tokens = len(times) or None
        error = None if times else "timed_out"
        records.append(LoadRecord(f"id{number}", start, first, start + 10**6, tokens, 7, times, error, number % 9 == 0))
    writer = LoadRecordWriter(tmp_path / FILE_NAME)
    for record in records:
        writer.write(record)
    writer.close()
    with (tmp_path / FILE_NAME).open("a") as file:
        file.write('{"request_id"')
    columns = load_client_records(tmp_path, EPOCH_NS)
    assert columns is not None
    assert columns.damaged_lines == 1
    assert (np.diff(columns.start_ns) >= 0).all()
    rebuilt = [
        LoadRecord(
            request_id=columns.request_ids[row],
            start_ns=int(columns.start_ns[row]) + EPOCH_NS,
            first_token_ns=None if columns.first_token_ns[row] == NULL else int(columns.first_token_ns[row]) + EPOCH_NS,
            end_ns=int(columns.end_ns[row]) + EPOCH_NS,
            input_tokens=None if columns.input_tokens[row] == NULL else int(columns.input_tokens[row]),
            output_tokens=None if columns.output_tokens[row] == NULL else int(columns.output_tokens[row]),
            token_ns=tuple(
                int(time_ns) + EPOCH_NS
                for time_ns in columns.token_ns[columns.token_bounds[row] : columns.token_bounds[row + 1]]
            ),
            error=columns.errors[row],
            warmup=bool(columns.warmup[row]),
        )
        for row in range(50)
    ]
    assert sorted(rebuilt, key=lambda record: record.request_id) == sorted(
        records, key=lambda record: record.request_id
    )


def test_without_records_there_are_none(tmp_path: Path) -> None:
    assert load_client_records(tmp_path, EPOCH_NS) is None
    writer = LoadRecordWriter(tmp_path / FILE_NAME)
    writer.close()
    columns = load_client_records(tmp_path, EPOCH_NS)
    assert columns is not None
    assert len(columns.start_ns) == len(columns.token_ns) == 0
    assert columns.token_bounds.tolist() == [0]
    (tmp_path / FILE_NAME).write_text("{}\n")
    with pytest.raises(TraceError):
        load_client_records(tmp_path, EPOCH_NS)
