"""Events as Parquet: a directory with one file for each kind of event, for pandas, DuckDB, Polars and the like.

Absent is null. The metadata of each file has `utc_epoch_ns`, the wall clock of time 0.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from traceable.analysis.event_tables import EventColumn, list_event_tables
from traceable.errors import UsageError
from traceable.report.document import create_directory
from traceable.report.export.content import describe_recording, query_requests
from traceable.report.text import escape_unencodable

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
    requests = query_requests(recording)
    with create_directory(path) as directory:
        for name, columns in list_event_tables(recording.context):
            table = arrow.table({name: _to_arrow(arrow, column) for name, column in columns.items()})
            if table.num_rows:
                parquet.write_table(table.replace_schema_metadata(metadata), directory / f"{name}.parquet")
        if requests is not None:
            table = requests.to_arrow().replace_schema_metadata(metadata)
            parquet.write_table(table, directory / "requests.parquet")
    return notes


def _to_arrow(arrow: Any, column: EventColumn) -> Any:
    """Return a column of Arrow: of texts a dictionary, so that each is there once."""
    values = arrow.array(column.values, mask=column.is_absent)
    if column.texts is None:
        return values
    if column.texts and not isinstance(column.texts[0], str):
        lists = [[escape_unencodable(text, None) for text in texts] for texts in column.texts]
        return arrow.array(lists, arrow.list_(arrow.string())).take(values)
    texts = [escape_unencodable(str(text), None) for text in column.texts]
    return arrow.DictionaryArray.from_arrays(values, arrow.array(texts, arrow.string()))
