"""What the annotations emit beyond a name, as one who reads knows it: identities, named fields, samples of counters.

The rules, with their reasons, stand in `protocol.nvtx`, which this room may not import; a test compares the two.
Here marks are matched to the ranges that they speak of. What that means for the tree is decided in `analysis`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from traceable.trace.model import NULL, Bool, Int32, Int64
from traceable.trace.rows import distinct

ACTIVE_DOMAIN = "traceable.active"
"""The domain of the stretches in which coroutines and async generators ran."""

GENERATOR_DOMAIN = "traceable.generator"
"""The domain of the stretches in which plain generators ran."""

PAYLOAD_DOMAIN = "traceable.payload"
"""The domain of the marks that say a range's fields or identity."""

COUNTER_DOMAIN = "traceable.counter"
"""The domain of the counters' samples."""

WINDOW_DOMAIN = "traceable.window"
"""The domain of what a window of steps emits: nsys's capture range, and in it a range that says the window's id."""

WINDOW_PREFIX = "window "
"""How the name of that range begins; the id follows."""

NO_FIELDS = "{}"
"""The text of a mark that says an identity alone."""

_TAG_BIT = 62
_PARENT_BIT = 32
_NUMBER_BITS = 0x3FFFFFFF
_ZERO_BITS = 3 << 30


def is_identity(payload: Int64) -> Bool:
    """Return which payloads are identities of instances and no numbers of the user's; NULL is none."""
    found: Bool = (payload >> _TAG_BIT == 1) & (payload & _ZERO_BITS == 0) & (payload & _NUMBER_BITS != 0)
    return found


def is_segment_domain(domain: Int32, number: Callable[[str], int]) -> Bool:
    """Return which of these are the domains of stretches.

    Args:
        domain: indices of names.
        number: returns the index of a name; for one that is not there, a number that no domain has.
    """
    stretch: Bool = domain == number(ACTIVE_DOMAIN)
    generator = number(GENERATOR_DOMAIN)
    return stretch if generator < 0 else stretch | (domain == generator)


def decode_number(identity: Int64) -> Int64:
    """Return the instance's number in each identity."""
    return identity & _NUMBER_BITS


def decode_parent_number(identity: Int64) -> Int64:
    """Return the number of the parent in each identity; 0 for none."""
    return identity >> _PARENT_BIT & _NUMBER_BITS


@dataclass(frozen=True)
class PayloadMarks:
    """The marks of PAYLOAD_DOMAIN, as equally long columns.

    `text` is an index into the trace's names, `bare` whether it is NO_FIELDS, `process` any number of the process.
    """

    start_ns: Int64
    text: Int32
    identity_only: Bool
    thread: Int32
    process: Int64
    identity: Int64

    def take(self, which: Bool) -> PayloadMarks:
        """Return the marks `which`."""
        return PayloadMarks(*(column[which] for column in vars(self).values()))


def match_payload_marks(
    said: PayloadMarks, start_ns: Int64, thread: Int32, process: Int64, stretch: Bool, payload: Int64
) -> tuple[Int64, Int32]:
    """Return the identity of each range (NULL for none) and the text that says its fields (-1 for none).

    Args:
        said: the marks; those without an identity speak of nothing.
        start_ns, thread, process, payload: of the ranges.
        stretch: which ranges are stretches. They carry an identity, fields are never theirs.
    """
    said = said.take(is_identity(said.identity))
    carried = is_identity(payload)
    identity = np.where(carried, payload, NULL)
    fields = np.full(len(start_ns), -1, np.int32)

    announced = said.take(said.identity_only)
    ranges = np.flatnonzero(~stretch)
    found = _next(announced.thread, announced.start_ns, thread[ranges], start_ns[ranges])
    found = np.where(carried[ranges[found]], -1, found) if len(ranges) else found
    identity[ranges[found[found >= 0]]] = announced.identity[found >= 0]

    spoken = said.take(~said.identity_only)
    ranges = np.flatnonzero(carried & ~stretch)
    kinds = _numbered(
        np.concatenate([spoken.process, process[ranges]]), np.concatenate([spoken.identity, payload[ranges]])
    )
    marks = len(spoken.start_ns)
    found = _next(kinds[:marks], spoken.start_ns, kinds[marks:], start_ns[ranges])
    fields[ranges[found[found >= 0]]] = spoken.text[found >= 0]
    return identity, fields


def _numbered(process: Int64, identity: Int64) -> Int64:
    """Number the distinct pairs."""
    _, processes = np.unique(process, return_inverse=True)
    _, identities = np.unique(identity, return_inverse=True)
    pairs: Int64 = identities.reshape(-1).astype(np.int64) * (len(process) + 1) + processes.reshape(-1)
    return pairs


def _next(kind: Int32 | Int64, time_ns: Int64, of_kind: Int32 | Int64, start_ns: Int64) -> Int64:
    """Return for each time the index of the first start of the same kind at or after it; -1 for none."""
    if not len(start_ns) or not len(time_ns):
        return np.full(len(time_ns), -1, np.int64)
    order = np.lexsort((start_ns, of_kind))
    kinds = distinct(of_kind)
    starts = distinct(start_ns)
    keys = np.searchsorted(kinds, of_kind[order]) * (len(starts) + 1) + np.searchsorted(starts, start_ns[order])
    wanted = np.searchsorted(kinds, kind) * (len(starts) + 1) + np.searchsorted(starts, time_ns)
    at = np.searchsorted(keys, wanted, "left")
    found = order[np.minimum(at, len(order) - 1)]
    return np.where((at < len(order)) & (of_kind[found] == kind), found, -1)
