"""The arguments of `annotate` and similar functions: each is checked once, where the range is made, and never at run
time.

The native core calls this module for every range it has not seen before.
"""

from __future__ import annotations

import sys
from _collections_abc import Mapping
from typing import Any

from traceable.annotation.colors import parse_color
from traceable.protocol import environment

_INT64 = 1 << 63
_dumps: Any = None

ARRAY_MAX = 1024
"""Maximum number of an array's numbers that are recorded; of a longer array also its length."""

LEVEL_MAX = 9
"""The highest level of a range; 1 is the lowest."""


def _text(value: object, argument: str) -> str | None:
    """Return a string NVTX can carry: UTF-8 that ends at its first NUL. What it can't carry is replaced, not cut."""
    if value is None:
        return None
    if not isinstance(value, str):
        raise TypeError(f"{argument} must be a string, not {type(value).__name__}")
    if "\0" in value:
        value = value.replace("\0", "\N{SYMBOL FOR NULL}")
    try:
        value.encode()
    except UnicodeEncodeError:
        value = value.encode("utf-8", "replace").decode()
    return str(value)


def normalize_thread_name(name: object) -> str | None:
    """Return the name of a thread as NVTX can carry it; None for none."""
    return _text(name, "name") or None


def _category(value: object) -> str | int | None:
    if value is None or isinstance(value, str):
        return _text(value, "category") or None
    if not isinstance(value, int):
        raise TypeError(f"category must be a string or an int, not {type(value).__name__}")
    if not 0 <= value <= 0xFFFFFFFF:
        raise ValueError(f"category {value} does not fit NVTX's 32 bits: give 0 to 4294967295, or a name")
    return int(value)


def _level(value: object) -> int:
    if value is None:
        return 1
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"level must be an int from 1 to {LEVEL_MAX}, not {type(value).__name__}")
    if not 1 <= value <= LEVEL_MAX:
        raise ValueError(f"level {value} is out of range: give 1 (stages), 2 (details), ... {LEVEL_MAX}")
    return int(value)


def _scalar(value: Any) -> Any:
    """Return the Python number of a numpy scalar, and anything else as it is."""
    if type(value).__module__ == "numpy" and getattr(value, "shape", None) == () and hasattr(value, "item"):
        return value.item()
    return value


def _number(value: object, argument: str, accepted: str) -> int | float:
    value = _scalar(value)
    if isinstance(value, int):
        if not -_INT64 <= value < _INT64:
            raise ValueError(
                f"{argument} {value} does not fit NVTX's signed 64 bits: give it as a float, or a part of it"
            )
        return int(value)
    if isinstance(value, float):
        return float(value)
    raise TypeError(f"{argument} must be {accepted}, not {type(value).__name__}")


def _is_mapping(value: object) -> bool:
    if isinstance(value, dict):
        return True
    return hasattr(value, "keys") and isinstance(value, Mapping)


def _field(value: Any, argument: str) -> Any:
    """Return a field's value as JSON has it."""
    value = _scalar(value)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _text(value, argument)
    if isinstance(value, list | tuple):  # a shape
        return [_field(item, f"{argument}[{place}]") for place, item in enumerate(value)]
    number = _number(value, argument, "an int, a float, a bool, a string, None, or a list of these")
    return number if isinstance(number, int) or number - number == 0 else None  # JSON has neither nan nor infinity


def _fields(payload: Any) -> str | None:
    """Return named fields as compact JSON; None for no fields at all, or where JSON can't be imported."""
    fields: dict[str, Any] = {}
    for name, value in payload.items():
        if not isinstance(name, str):
            raise TypeError(f"payload's field names must be strings, not {type(name).__name__}")
        fields[str(_text(name, "payload"))] = _field(value, f"payload[{name!r}]")
    if not fields:
        return None
    global _dumps
    if _dumps is None:  # kept: a finalizer may get here when nothing can be imported any more
        try:
            from json import dumps as _dumps
        except Exception as error:  # noqa: BLE001 - no descriptor is left, or no interpreter: the range has no fields
            message = f"the fields of ranges are not recorded: {type(error).__name__}: {error}"
            environment.warn_once("fields_not_recorded", message)
            return None
    text: str = _dumps(fields, ensure_ascii=False, separators=(",", ":"))
    return text


def _is_array(value: object) -> bool:
    if isinstance(value, list | tuple | range | bytes):
        return True
    return type(value).__module__ == "numpy" and (bool(getattr(value, "shape", ())) or _names(value) is not None)


def _names(value: Any) -> Any:
    return getattr(getattr(value, "dtype", None), "names", None)


def _array(value: Any) -> dict[str, Any]:
    """Return an array as named fields: those of its dtype, where it is one record, else `payload`."""
    if isinstance(value, bytes):
        return {"payload": _plain(value)}
    if hasattr(value, "tolist"):
        if value.shape == ():
            return dict(zip(_names(value), map(_plain, value.item()), strict=True))
        length = value.size
        value = value.tolist() if length <= ARRAY_MAX else value.ravel()[:ARRAY_MAX].tolist()
    else:
        length = len(value)
    if not length:
        return {}
    fields: dict[str, Any] = {"payload": [_plain(item) for item in value[:ARRAY_MAX]]}
    return fields if length <= ARRAY_MAX else {**fields, "payload_length": length}


def _plain(item: Any) -> Any:
    """Return an array's item as a field takes it."""
    if isinstance(item, bytes):
        return item.decode("utf-8", "backslashreplace")
    if hasattr(item, "tolist"):
        item = item.tolist()
    return [_plain(one) for one in item] if isinstance(item, list | tuple) else item


def log_lost_range() -> None:
    """Log, once, that a range could not be made: out of memory, or the interpreter is ending."""
    if sys.meta_path is not None:  # the interpreter sets it so as it ends, and then nothing can be logged
        environment.warn_once("range_not_recorded", "a range is not recorded: no memory is left")


def normalize_payload(value: object) -> int | float | str | None:
    """Return `value` as the int (64 bits, signed) or float that NVTX has room for, named fields as JSON text.

    Raises:
        TypeError: `value` is neither int, float, bool, a numpy scalar, nor a mapping of names to such values, nor an
            array of them.
        ValueError: an int that needs more than 64 bits.
    """
    if value is None or type(value) is float:
        return value
    if _is_mapping(value):
        return _fields(value)
    if _is_array(value):
        return _fields(_array(value))
    return _number(value, "payload", "an int, a float, a numpy scalar, an array or a mapping of named fields")


def is_mutable(payload: object) -> bool:
    """Whether a range with this payload reads it each time it is used: a list or an array, as in the nvtx package."""
    return isinstance(payload, list) or hasattr(payload, "tolist")


def normalize_value(value: object) -> int | float:
    """Return a counter's value as the int (64 bits, signed) or float that NVTX has room for.

    Raises:
        TypeError: `value` is neither int, float, bool nor a numpy scalar.
        ValueError: an int that needs more than 64 bits.
    """
    return _number(value, "value", "an int, a float or a numpy scalar")


def normalize_arguments(
    message: object, color: object, domain: object, category: object, payload: object, level: object
) -> tuple[str | None, int, str | None, str | int | None, int | float | str | None, int]:
    """Return the arguments of a range as NVTX takes them, the color as an ARGB number.

    An empty domain or category is none: nsys 2022.4 can't import a report that holds one.

    Raises:
        TypeError, ValueError: one of them is not accepted; the message begins with the argument's name.
    """
    return (
        _text(message, "message"),
        parse_color(color),
        _text(domain, "domain") or None,
        _category(category),
        normalize_payload(payload),
        _level(level),
    )
