"""What is known of a run whose recording is lost: what its processes wrote down themselves, and where nsys's stream is.

Nothing here is a recording: how many steps there were, and which ranges, but no time. Where there is a report, nobody
asks.
"""

from __future__ import annotations

import contextlib
import os
import re
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from traceable.analysis.units import format_bytes
from traceable.errors import TraceableError
from traceable.protocol import untrusted

STREAM_SUFFIX = ".qdstrm"
STREAMS_KEY = "streams"
"""Where the manifest keeps the files that nsys recorded into; nsys deletes them once it has made its report."""

NAMES_MAX = 6
PROCESSES_MAX = 4

_OF_PROCESS = re.compile(r"status\.(\d+)\.(steps|lives)")


def find_streams(pids: Iterable[int]) -> list[str]:
    """Return the paths of the streams that these processes of nsys's record into."""
    found = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            for entry in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    found.add(os.fspath(entry.readlink()))
    return sorted(path for path in found if path.endswith(STREAM_SUFFIX))


def add_remaining_data(error: TraceableError, directory: Path, manifest: dict[str, Any]) -> TraceableError:
    """Return `error`, which is that a run's recording can't be read, with what is left of the run named in it."""
    return type(error)(error.code, "; ".join((error.problem, *_left(directory, manifest))), error.remedy)


def _left(directory: Path, manifest: dict[str, Any]) -> list[str]:
    sentences = []
    for path in manifest.get(STREAMS_KEY) or ():
        # Outside of the run directory, where nothing is opened because a manifest names it.
        stream = Path(path)
        if stream.suffix == STREAM_SUFFIX and untrusted.is_regular(stream):
            sentences.append(f"nsys's stream {stream} ({format_bytes(stream.lstat().st_size)}) has no end and is lost")
    found = {int(match[1]) for path in directory.glob("status.*") if (match := _OF_PROCESS.fullmatch(path.name))}
    told = [one for pid in sorted(found) if (one := _of_process(directory, pid))]
    if told:
        more = f", and {len(told) - PROCESSES_MAX} more" if len(told) > PROCESSES_MAX else ""
        sentences.append(f"what the program wrote itself is kept: {'; '.join(told[:PROCESSES_MAX])}{more}")
    return sentences


def _of_process(directory: Path, pid: int) -> str | None:
    """Return what a process told of its steps and, if Python ended in it, of its ranges; None for nothing."""
    clauses = []
    with contextlib.suppress(OSError, struct.error):
        begun, ended = struct.unpack_from("<qq", untrusted.read_file(directory / f"status.{pid}.steps", 24))
        if begun:
            clauses.append(f"took {ended} step{'s' * (ended != 1)}{' and began one more' * (begun > ended)}")
    names, distinct = _names(directory / f"status.{pid}.lives")
    if names:
        rest = f" and {distinct - NAMES_MAX} more" if distinct > NAMES_MAX else ""
        clauses.append(f"made ranges named {', '.join(names[:NAMES_MAX])}{rest}")
    return f"process {pid} {' and '.join(clauses)} (status.{pid}.*)" if clauses else None


def _names(path: Path) -> tuple[list[str], int]:
    """Return the names of the ranges that a process said at its end that it made, and how many there were."""
    names: list[str] = []
    distinct = 0
    for content in untrusted.read_json_lines(path, untrusted.PROCESS_END):
        if content["names"]:
            names, distinct = content["names"], content["distinct"]
    return names, distinct
