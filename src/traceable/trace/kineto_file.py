"""One file of torch.profiler's: its events, whose they are, and what its times mean."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from traceable.errors import TraceError
from traceable.trace.intern import Names
from traceable.trace.kineto_events import Events
from traceable.trace.kineto_json import Document

_SINCE_NS, _UNTIL_NS = 946_684_800 * 10**9, 4_102_444_800 * 10**9
"""The years 2000 to 2100: a time outside of them is none since 1970."""

_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True)
class File:
    """One file that was read.

    Attributes:
        to_wall_ns: what its times lack to ns since 1970; None where that is not known.
        rank, host: empty where they were not recorded.
        main: pid of the process that GPU operations are of where nothing says more.
    """

    path: Path
    size_bytes: int
    events: Events
    to_wall_ns: int | None
    rank: int | None
    host: str
    main: Any

    @property
    def begin_ns(self) -> int | None:
        """When its recording began, on its own clock."""
        times = [time for time in (self.events.begin_ns, self.events.first_ns) if time is not None]
        return min(times, default=None)

    def process(self, pid: Any) -> tuple[Any, ...]:
        """Return what tells a process from those of other files."""
        return self.host, self.rank, pid


def read_file(path: Path, names: Names, geometries: dict[tuple[int, ...], int]) -> File:
    """Read one file, numbering names and launch geometries.

    Raises:
        TraceError: it is no trace of torch.profiler, or is cut off, or damaged.
    """
    with Document(path) as document:
        events = Events(document, names, geometries)
        has_events = document.has_events
    metadata = events.metadata
    if not has_events or not (events.known or "schemaVersion" in metadata or "deviceProperties" in metadata):
        found = f"{path} is JSON, but no trace of torch.profiler"
        raise TraceError("not_a_torch_trace", found, "give a file that export_chrome_trace wrote")
    distributed = metadata.get("distributedInfo")
    rank = distributed.get("rank") if isinstance(distributed, dict) else None
    host = metadata.get("host_name")
    return File(
        path=path,
        size_bytes=path.stat().st_size,
        events=events,
        to_wall_ns=_to_wall_ns(metadata.get("baseTimeNanoseconds"), events),
        # Kineto has written it as a text, too.
        rank=int(rank) if isinstance(rank, int | str) and str(rank).isdecimal() else None,
        host=host if isinstance(host, str) else "",
        main=events.cpu_pids.most_common(1)[0][0] if events.cpu_pids else -1,
    )


def _to_wall_ns(base: Any, events: Events) -> int | None:
    """Return what a time lacks to ns since 1970. Until 2024 the times themselves were that, and no base was written."""
    times = [time for time in (events.begin_ns, events.first_ns) if time is not None]
    if not times:
        return None
    for lacking in (base, 0):
        if type(lacking) is int and _SINCE_NS < min(times) + lacking < _UNTIL_NS:
            return lacking
    return None


def whole(value: Any) -> int:
    """Return a pid or tid as a number; -1 where the file has a word for it."""
    if isinstance(value, int):
        return value
    return int(value) if re.fullmatch(r"-?[0-9]{1,18}", value) else -1


def readable(text: str) -> str:
    r"""Return a name with bytes that are not UTF-8, and halves of characters, as escapes (`\xd6`)."""

    def escape(half: re.Match[str]) -> str:
        code = ord(half[0])
        return f"\\x{code - 0xDC00:02x}" if 0xDC80 <= code <= 0xDCFF else f"\\u{code:04x}"

    return _SURROGATE.sub(escape, text)
