"""Rows that CUDA ties together by number: equal correlationId in the same process. The id alone does not do."""

from __future__ import annotations

import numpy as np

from traceable.analysis.grouping import numbered
from traceable.trace.model import NULL, Int64, NDArray


def first_match(process: NDArray[np.integer], ids: Int64, of_process: NDArray[np.integer], of_ids: Int64) -> Int64:
    """Return, for each (process, id), the first of the rows (of_process, of_ids) equal to it; -1 for none.

    An id of NULL is equal to none.
    """
    found = np.full(len(ids), -1, np.int64)
    wanted, there = np.flatnonzero(ids != NULL), np.flatnonzero(of_ids != NULL)
    if not len(wanted) or not len(there):
        return found
    processes = np.concatenate([of_process[there], process[wanted]])
    code, first = numbered(processes, np.concatenate([of_ids[there], ids[wanted]]))
    # Those to be found stand before those that ask, so that a group's first row is one of them if it holds any.
    match = first[code[len(there) :]]
    known = match < len(there)
    found[wanted[known]] = there[match[known]]
    return found
