"""Kineto's words for kinds of copies, of memory and of synchronisations, as the numbers that CUPTI and nsys have."""

from __future__ import annotations

import re
from typing import Any

from traceable.trace.kineto_columns import text

_COPY_KINDS = {
    name: number
    for number, name in enumerate(("HtoD", "DtoH", "HtoA", "AtoH", "AtoA", "AtoD", "DtoA", "DtoD", "HtoH", "PtoP"), 1)
}
_MEMORY_KINDS = {
    name: number
    for number, name in enumerate(
        ("Pageable", "Pinned", "Device", "Array", "Managed", "Device Static", "Managed Static")
    )
}
_SYNCHRONISATIONS = {"Event Sync": 1, "Stream Wait Event": 2, "Stream Sync": 3, "Context Sync": 4}
_COPY = re.compile(r"Memcpy (\w+)(?: \(([\w ]+) -> ([\w ]+)\))?")
_MEMSET = re.compile(r"Memset \(([\w ]+)\)")


def copy_kinds(name: Any) -> tuple[int, int, int]:
    """Return the kind of a copy, of its source and of its target, from its name; -1 for what is not known.

    Example:
        >>> copy_kinds("Memcpy HtoD (Pageable -> Device)"), copy_kinds("Memcpy PtoP")
        ((1, 0, 2), (10, -1, -1))
    """
    words = _COPY.fullmatch(text(name) or "")
    kind, source, target = words.groups() if words else (None, None, None)
    return _COPY_KINDS.get(kind or "", -1), _MEMORY_KINDS.get(source or "", -1), _MEMORY_KINDS.get(target or "", -1)


def memory_kind(name: Any) -> int:
    """Return the kind of memory that a memset sets, from its name; -1 for not known."""
    words = _MEMSET.fullmatch(text(name) or "")
    return _MEMORY_KINDS.get(words[1], -1) if words else -1


def synchronisation_kind(word: Any) -> int:
    """Return the kind of a synchronisation; -1 for not known."""
    return _SYNCHRONISATIONS.get(text(word) or "", -1)
