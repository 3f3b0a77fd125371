"""The mangled names of kernels, out of an nsys SQLite file. Of use to ncu alone, so `Trace` does without them.

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

    None where the file does not hold one for each: it is no nsys SQLite file, or one that lacks that column.
    """
    found: dict[str, list[str]] = {}
    try:
        connection = untrusted.open_database(path)
        try:
            # Names are not always UTF-8.
            connection.text_factory = lambda value: value.decode("utf-8", "replace")
            for demangled, mangled in connection.execute(_QUERY):
                found.setdefault(demangled, []).append(mangled)
        finally:
            connection.close()
    except (OSError, *untrusted.SQLITE_ERRORS):
        return None
    wanted = list(names)
    if any(name not in found for name in wanted):
        return None
    return [symbol for name in wanted for symbol in sorted(found[name])]
