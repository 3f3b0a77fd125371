"""The names by which traceable's own annotations reach torch.profiler: read back into what they were.

The rules stand in `annotation.torch.records`, which this room may not import; a test compares the two. They hold in a
file whose metadata has `METADATA`, and for a name that ends as they say: what the program itself named with
`record_function` stands beside ours and is left as it is.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass

from traceable.trace.model import NULL

METADATA = "traceable"
"""The key that files of `traceable run --collector torch` have."""

RANGE, MARK, START, END = "", "mark", "start", "end"
"""What a name may be of: a push/pop range, a mark, the begin or the end of a start/end range."""

_NUMBER = r"-?\d{1,19}|-?\d+\.\d+(?:e[+-]\d+)?|-?\d+e[+-]\d+|-?inf|nan"
_CODED = re.compile(
    rf"(?P<name>[^\[\]]*) \[(?=[^ \]])(?:%|(?:#(?P<payload>{_NUMBER}))? ?(?:@(?P<domain>[^ \[\]]+))? ?"
    r"(?:&(?P<category>[^ \[\]]+))? ?(?:~(?P<kind>mark|start|end)(?::(?P<number>\d{1,18}))?)?)\]"
)
_ESCAPED = re.compile("(?:%[0-9A-F]{2})+")
_TOP = 1 << 64


@dataclass(frozen=True)
class Named:
    """What a name says.

    Attributes:
        payload: a whole number; NULL for none. real: the bits of a payload with a fraction; NULL for none.
        domain, category: empty for none.
        kind: RANGE, MARK, START or END.
        number: tells which START and END belong together.
    """

    name: str
    payload: int = NULL
    real: int = NULL
    domain: str = ""
    category: str = ""
    kind: str = RANGE
    number: int = 0


def read(text: str) -> Named:
    """Return what the name of an annotation says."""
    found = _CODED.fullmatch(text) if text.endswith("]") else None
    if found is None:
        return Named(text)
    payload, real = NULL, NULL
    number = found["payload"]
    if number is not None and number.lstrip("-").isdecimal():
        payload = int(number)
        payload -= _TOP if payload >= _TOP >> 1 else 0
    elif number is not None:
        (real,) = struct.unpack("<q", struct.pack("<d", float(number)))
    return Named(
        _plain(found["name"]),
        payload,
        real,
        _plain(found["domain"] or ""),
        _plain(found["category"] or ""),
        found["kind"] or RANGE,
        int(found["number"] or 0),
    )


def _plain(text: str) -> str:
    return _ESCAPED.sub(lambda found: bytes.fromhex(found[0].replace("%", "")).decode("utf-8", "replace"), text)
