"""What the names of API calls and kernels say of their kind. Patterns that match from a name's beginning, no more."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from traceable.trace.model import Bool, Int8, Int32, Trace

ALLOCATING = re.compile(
    r"cuda(Malloc|Free|HostAlloc|HostRegister|HostUnregister|MemPool)"
    r"|cuMem(Alloc|Free|HostAlloc|HostRegister|HostUnregister|Create|Release|Map|Unmap|SetAccess|Address|Pool)"
)
"""Calls that allocate or release memory, of the device or pinned, or map it."""

SYNCHRONISING = re.compile(r"cu(da)?(Thread|Device|Ctx|Context|Stream|Event)Synchronize")
"""Calls that return when the GPU has done something."""

COPYING = re.compile(r"cu(da)?Memcpy")
"""Calls that copy memory."""

GRAPH_LAUNCHING = re.compile(r"cu(da)?GraphLaunch")
"""Calls that launch a CUDA graph."""

_APPENDED = re.compile(r", (seq|op_id|sizes|input_op_ids) = .*", re.DOTALL)

NCCL = re.compile(r"(void )?nccl")
"""NCCL's kernels: ncclDevKernel_..., ncclKernel_..., in old versions with a return type before it."""


def names_like(trace: Trace, pattern: re.Pattern[str], *used: Int32) -> Bool:
    """Return which names match `pattern`, of those that occur in the columns `used`.

    The result has one value for each of `trace.names` and one more, False, so that -1, no name, may index it too.
    """
    matching: Bool = which_like(trace, (pattern,), *used) == 0
    return matching


def which_like(trace: Trace, patterns: Sequence[re.Pattern[str]], *used: Int32) -> Int8:
    """Return the index of the first pattern that each name matches, -1 for none; names and length as `names_like`."""
    occurs = np.zeros(len(trace.names) + 1, np.bool_)
    for indices in used:
        occurs[indices] = True
    found = np.full(len(trace.names) + 1, -1, np.int8)
    for i in np.flatnonzero(occurs[:-1]).tolist():
        name = trace.names[i]
        found[i] = next((number for number, pattern in enumerate(patterns) if pattern.match(name)), -1)
    return found


def without_numbers(name: str) -> str:
    """Return the name of a range without what torch's emit_nvtx appends to it, which differs from call to call.

    Examples:
        >>> without_numbers("aten::copy_, seq = 47512, op_id = 998978")
        'aten::copy_'
    """
    return _APPENDED.sub("", name)
