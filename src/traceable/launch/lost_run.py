"""The data that remains of a run whose recording is lost: the records of its processes, and nsys's stream.

It is not a recording: the number of steps and the names of ranges, without times. It is not used where there is a
report.
"""

from __future__ import annotations

import contextlib
import os
import re
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from traceable.errors import TraceableError
from traceable.protocol import untrusted
from traceable.units import format_bytes

STREAM_SUFFIX = ".qdstrm"
STREAMS_KEY = "streams"
"""Key of the files that nsys records into, in the manifest; nsys deletes them when its report is written."""

NAMES_MAX = 6
PROCESSES_MAX = 4

_OF_PROCESS = re.compile(r"status\.(\d+)\.(steps|lives)")


def find_streams(pids: Iterable[int]) -> list[str]:
    """Return the paths of the streams that these nsys processes record into."""
    paths = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            for entry in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    paths.add(os.fspath(entry.readlink()))
    return sorted(path for path in paths if path.endswith(STREAM_SUFFIX))


def add_remaining_data(error: TraceableError, directory: Path, manifest: dict[str, Any]) -> TraceableError:
    """Return `error`, about an unreadable recording, with the remaining data of the run added to its text."""
    return type(error)(
        error.code, "; ".join((error.problem, *_describe_remaining_data(directory, manifest))), error.remedy
    )


def _describe_remaining_data(directory: Path, manifest: dict[str, Any]) -> list[str]:
    sentences = []
    for path in manifest.get(STREAMS_KEY) or ():
        # A path outside the run directory, from a manifest that is not trusted: the file is not opened.
        stream = Path(path)
        if stream.suffix == STREAM_SUFFIX and untrusted.is_regular(stream):
            sentences.append(
                f"nsys's stream {stream} ({format_bytes(stream.lstat().st_size)}) is incomplete and can't be read"
            )
    pids = {int(match[1]) for path in directory.glob("status.*") if (match := _OF_PROCESS.fullmatch(path.name))}
    records = [one for pid in sorted(pids) if (one := _describe_process(directory, pid))]
    if records:
        more = f", and {len(records) - PROCESSES_MAX} more" if len(records) > PROCESSES_MAX else ""
        sentences.append(f"records of the program's processes remain: {'; '.join(records[:PROCESSES_MAX])}{more}")
    return sentences


def _describe_process(directory: Path, pid: int) -> str | None:
    """Return the number of steps of a process and, if Python ended in it, its ranges; None for nothing."""
    clauses = []
    with contextlib.suppress(OSError, struct.error):
        begun, ended = struct.unpack_from("<qq", untrusted.read_file(directory / f"status.{pid}.steps", 16))
        if begun:
            clauses.append(f"took {ended} step{'s' * (ended != 1)}{' and began one more' * (begun > ended)}")
    names, distinct = _read_range_names(directory / f"status.{pid}.lives")
    if names:
        rest = f" and {distinct - NAMES_MAX} more" if distinct > NAMES_MAX else ""
        clauses.append(f"made ranges named {', '.join(names[:NAMES_MAX])}{rest}")
    return f"process {pid} {' and '.join(clauses)} (status.{pid}.*)" if clauses else None


def _read_range_names(path: Path) -> tuple[list[str], int]:
    """Return the names of the ranges that a process recorded at its end, and how many distinct ones there were."""
    names: list[str] = []
    distinct = 0
    for content in untrusted.read_json_lines(path, untrusted.PROCESS_END):
        if content["names"]:
            names, distinct = content["names"], content["distinct"]
    return names, distinct
