"""Types of the reader of request ids (`fields.c`)."""

from collections.abc import Callable

from traceable.trace.model import Int32, Int64

def read_ids(
    names: tuple[str, ...],
    fields: Int32,
    parse: Callable[[str], tuple[str | None, list[str]]],
    own: Int32,
    first: Int64,
) -> tuple[tuple[str, ...], bytearray]: ...
def group_steps(listed: Int32, counts: Int64, first: Int64, step: Int32) -> None: ...
