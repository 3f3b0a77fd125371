"""JSON text of the records that a process writes into the run directory."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def to_json(value: Any) -> str:
    """Return a value as JSON in ASCII.

    Not the standard library's: importing `json` would load code into the program that it may have annotated with
    patterns, and double the cost of an interpreter start.

    Args:
        value: mappings and lists of strings, numbers, bool and None. nan and infinity become null.
    """
    if isinstance(value, dict):
        return "{" + ", ".join(f"{to_json(key)}: {to_json(one)}" for key, one in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(to_json, value)) + "]"
    if value is None or isinstance(value, int):
        return "null" if value is None else str(value).lower()
    if isinstance(value, float):
        return repr(value) if value - value == 0 else "null"
    units = value.encode("utf-16-be", "surrogatepass")
    numbers = [units[at] << 8 | units[at + 1] for at in range(0, len(units), 2)]
    return '"' + "".join(chr(n) if 31 < n < 127 and n not in b'"\\' else f"\\u{n:04x}" for n in numbers) + '"'
