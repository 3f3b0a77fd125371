"""The mangled names of kernels, out of an nsys SQLite file. Only ncu needs them, so `Trace` does not have them.

A demangled name is written differently by every tool and version (`(int)4` or `4`, with or without namespaces); the
mangled one is the symbol itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from traceable.protocol import untrusted

_QUERY = """SELECT DISTINCT demangled.value, mangled.value
            FROM (SELECT DISTINCT demangledName, mangledName FROM CUPTI_ACTIVITY_KIND_KERNEL) AS kernel
            JOIN StringIds AS demangled ON demangled.id = kernel.demangledName
            JOIN StringIds AS mangled ON mangled.id = kernel.mangledName"""


def load_mangled_names(path: Path, names: Iterable[str]) -> list[str] | None:
    """Return the symbols of the kernels of these demangled names, in their order.

    None if the file does not hold one for each: it is not an nsys SQLite file, or lacks that column.
    """
    symbols: dict[str, list[str]] = {}
    try:
        connection = untrusted.open_database(path)
        try:
            # Names are not always UTF-8.
            connection.text_factory = lambda value: value.decode("utf-8", "replace")
            for demangled, mangled in connection.execute(_QUERY):
                symbols.setdefault(demangled, []).append(mangled)
        finally:
            connection.close()
    except (OSError, *untrusted.SQLITE_ERRORS):
        return None
    requested_names = list(names)
    if any(name not in symbols for name in requested_names):
        return None
    return [symbol for name in requested_names for symbol in sorted(symbols[name])]
