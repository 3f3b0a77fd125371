"""What several questions derive from the same trace, computed when it is first asked for, and once a `Context`.

For what only some of the questions need; what nearly all do is part of the `Context` itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import wraps
from typing import TypeVar

import numpy as np

from traceable.analysis.context import Context
from traceable.analysis.naming import ALLOCATING, COPYING, GRAPH_LAUNCHING, NCCL, SYNCHRONISING, names_like, which_like
from traceable.trace.model import Int64

T = TypeVar("T")


def once(part: Callable[[Context], T]) -> Callable[[Context], T]:
    """Make a function of a context return what it returned before for the same context; who gets it changes nothing.

    What it raises is not kept.
    """
    name = f"{part.__module__}.{part.__qualname__}"

    @wraps(part)
    def kept(context: Context) -> T:
        parts = vars(context)
        if name not in parts:
            parts[name] = part(context)
        found: T = parts[name]
        return found

    return kept


def calls_like(context: Context, pattern: re.Pattern[str]) -> Int64:
    """Return the API calls of a kind, in order: ALLOCATING, SYNCHRONISING, COPYING or GRAPH_LAUNCHING."""
    return _calls_by_kind(context)[pattern]


@once
def _calls_by_kind(context: Context) -> dict[re.Pattern[str], Int64]:
    # No name is of two of these kinds, so that one pass over the calls tells all of them.
    kinds = (ALLOCATING, SYNCHRONISING, COPYING, GRAPH_LAUNCHING)
    name = context.trace.calls.name
    kind = which_like(context.trace, kinds, name)[name]
    return {pattern: np.flatnonzero(kind == number) for number, pattern in enumerate(kinds)}


@once
def nccl_kernels(context: Context) -> Int64:
    """Return the operations that are kernels of NCCL, by their short or demangled name, in order."""
    kernels = context.trace.kernels
    matching = names_like(context.trace, NCCL, kernels.name, kernels.short_name)
    if not matching.any():
        return np.empty(0, np.int64)
    return np.flatnonzero(matching[kernels.name] | matching[kernels.short_name])
