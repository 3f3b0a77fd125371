"""The requests that a load generator recorded, as columns in the time of a trace.

A client without NVTX, such as aiperf, has no ranges in a recording. What it recorded of its requests joins the ranges
of the server by their ids.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from traceable.errors import Message, TraceError
from traceable.protocol.load_record import LoadRecord, find_load_file, read_load_file
from traceable.trace.model import NULL, Bool, Int64, Trace


@dataclass(frozen=True)
class ClientRecords:
    """The requests of a client, ordered by start: one element of each column a request. Times are ns of the trace.

    Attributes:
        request_ids: the ids that the requests carried. One may occur more than once: what a client in another language
            wrote is not checked.
        start_ns: when it was sent.
        first_token_ns: when the first token of a streamed response arrived; NULL without one.
        end_ns: when the response was complete, or the request failed.
        input_tokens, output_tokens: the lengths of prompt and response; NULL if unknown.
        warmup: it was sent before the load counted as steady.
        errors: why it failed; None if it did not.
        token_ns: when each piece of each streamed response arrived, request after request.
        token_bounds: the pieces of request i are `token_ns[token_bounds[i]:token_bounds[i + 1]]`.
        damaged_lines: how many lines of the file are not valid records.
    """

    request_ids: tuple[str, ...]
    start_ns: Int64
    first_token_ns: Int64
    end_ns: Int64
    input_tokens: Int64
    output_tokens: Int64
    warmup: Bool
    errors: tuple[str | None, ...]
    token_ns: Int64
    token_bounds: Int64
    damaged_lines: int

    @property
    def output_tokens_per_s(self) -> float | None:
        """Tokens of the steady responses per second, as `launch.load_tools.LoadResults` has it; None if not known."""
        completed = ~self.warmup & np.array([error is None for error in self.errors], np.bool_)
        tokens = self.output_tokens[completed]
        if not len(tokens) or NULL in tokens:
            return None
        duration_ns = int(self.end_ns[completed].max() - self.start_ns[completed].min())
        return int(tokens.sum()) * 1e9 / duration_ns if duration_ns else None

    def count_output_tokens(self, start_ns: int, end_ns: int) -> float | None:
        """Return how many tokens of responses arrived in an interval; None if of any request in it that is not known.

        The tokens of a streamed response are spread evenly over its pieces: a piece may have several. A response that
        is not streamed, or a failed one, has to be outside the interval.
        """
        count = 0.0
        for row in np.flatnonzero((self.end_ns >= start_ns) & (self.start_ns <= end_ns)).tolist():
            arrived = self.token_ns[self.token_bounds[row] : self.token_bounds[row + 1]]
            if not len(arrived) or self.errors[row] is not None or self.output_tokens[row] == NULL:
                return None
            inside = np.count_nonzero((arrived >= start_ns) & (arrived <= end_ns))
            count += int(inside) * int(self.output_tokens[row]) / len(arrived)
        return count or None


def load_client_records(run_directory: Path, utc_epoch_ns: int) -> ClientRecords | None:
    """Read the records of a load generator in a run directory.

    Args:
        run_directory: the run directory, or that of a side: `protocol.load_record.find_load_file` finds the file in it.
        utc_epoch_ns: the wall clock at time 0 of the trace.

    Returns:
        The records; None if there are none.

    Raises:
        TraceError: the file can't be read, or is not one of a load generator.
    """
    path = find_load_file(run_directory)
    if path is None:
        return None
    content = read_load_file(path)
    records = sorted(content.records, key=lambda record: record.start_ns)

    def make_column(get_value: Callable[[LoadRecord], int | None], zero: int = 0) -> Int64:
        values = (get_value(record) for record in records)
        column = (NULL if value is None else value - zero for value in values)
        return np.fromiter(column, np.int64, len(records))

    lengths = make_column(lambda record: len(record.token_ns))
    bounds = np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths)))
    tokens = (token_ns - utc_epoch_ns for record in records for token_ns in record.token_ns)
    return ClientRecords(
        request_ids=tuple(record.request_id for record in records),
        start_ns=make_column(lambda record: record.start_ns, utc_epoch_ns),
        first_token_ns=make_column(lambda record: record.first_token_ns, utc_epoch_ns),
        end_ns=make_column(lambda record: record.end_ns, utc_epoch_ns),
        input_tokens=make_column(lambda record: record.input_tokens),
        output_tokens=make_column(lambda record: record.output_tokens),
        warmup=np.fromiter((record.warmup for record in records), np.bool_, len(records)),
        errors=tuple(record.error for record in records),
        token_ns=np.fromiter(tokens, np.int64, int(bounds[-1])),
        token_bounds=bounds,
        damaged_lines=content.damaged_lines,
    )


def add_client_records(trace: Trace, run_directory: Path, offset_ns: int = 0) -> tuple[Trace, ClientRecords | None]:
    """Return the records of a load generator in a run directory, and the trace with a note if they can't be read.

    Args:
        trace: of the run.
        run_directory: as for `load_client_records`.
        offset_ns: what to add to the wall clock of the load generator.
    """
    if trace.utc_epoch_ns is None:
        return trace, None
    try:
        return trace, load_client_records(run_directory, trace.utc_epoch_ns - offset_ns)
    except TraceError as error:
        note = Message("client_records_excluded", f"the client's records are excluded: {error.problem}")
        return replace(trace, source=replace(trace.source, notes=(*trace.source.notes, note))), None
