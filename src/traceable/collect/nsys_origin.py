"""What a database in nsys's schema says of its own origin: the machine, the program, who wrote it and when.

The events are written in `nsys_schema`.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import datetime, timezone
from pathlib import Path

from traceable import untrusted
from traceable.collect import recording as rec
from traceable.errors import CollectorError

SCHEMA_VERSION = "3.16.1"
"""The schema whose tables are written; that of nsys 2024.6."""

COMPLETE = "TRACEABLE_RECORDING_COMPLETE"
"""Row of META_DATA_EXPORT: `true` if every recorded process had ended when the file was written."""


_MAKERS = ("traceable", "NVIDIA")
"""How the name of the product begins that made an export of which another one may take the place."""

_EXPORTS = ("META_DATA_EXPORT", "EXPORT_META_DATA")
"""Where an export says what made it; the second until 2023."""


def check_replaceable(database: Path) -> None:
    """Refuse to put an export in the place of a file that is none: nothing but what was made from a recording is ever
    overwritten or deleted when that is read.

    Raises:
        CollectorError: it is a link, or something that neither traceable nor nsys has made.
    """
    if not untrusted.exists(database) or (untrusted.is_regular(database) and not database.stat().st_size):
        return
    if untrusted.is_regular(database) and _maker(database).startswith(_MAKERS):
        return
    raise CollectorError(
        "file_in_the_way",
        f"{database} is in the place of what would be made of the recording, and is no export of one",
        "move it away; nothing was changed",
    )


def _maker(database: Path) -> str:
    """Return which product has made an export; empty for a file that is none."""
    try:
        with closing(untrusted.connect(database)) as connection:
            there = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            table = next((name for name in _EXPORTS if name in there), None)
            if table is None:
                return ""
            row = connection.execute(f"SELECT value FROM {table} WHERE name = 'EXPORT_PRODUCT_NAME'").fetchone()
            return str(row[0]) if row else ""
    except (OSError, *untrusted.SQLITE_ERRORS):
        return ""


def machine() -> list[tuple[str, int, str]]:
    """Return the machine's properties with nsys's numbers for them. Environment variables are not among them."""
    return [
        ("CpuCores", 1, str(os.cpu_count() or 0)),
        ("CpuArchitecture", 3, platform.machine()),
        ("SoftwareReleaseVersion", 618, platform.release()),
        ("Hostname", 619, platform.node()),
    ]


def capture(processes: Sequence[rec.ProcessRecording]) -> Iterator[tuple[str, str]]:
    """Yield what nsys says of a recording, of the first process with the command line as it was recorded."""
    yield "DEVICE_ID", "Local (traceable)"
    yield "CAPTURE_EVENT_TYPE", "NvtxEvents"
    if processes:
        command, *arguments = processes[0].command
        yield "PROCESS_0:COMMAND", command
        yield from ((f"PROCESS_0:ARGUMENT_{number}", argument) for number, argument in enumerate(arguments))
        yield "PROCESS_0:PID", str(processes[0].pid)
        yield "PROCESS_0:COLLECT_NVTX_TRACE", "true"


def export(complete: bool) -> list[tuple[str, str]]:
    """Return what nsys says of an export: by whom, when, in which schema; and whether all of the recording is there."""
    now = datetime.now(timezone.utc)
    major, minor, micro = SCHEMA_VERSION.split(".")
    try:
        version = importlib.metadata.version("traceable")
    except importlib.metadata.PackageNotFoundError:
        version = ""  # run from a source tree that was never installed
    return [
        ("EXPORT_PRODUCT_NAME", "traceable embedded recorder"),
        ("EXPORT_PRODUCT_VERSION", version),
        ("EXPORT_SCHEMA_VERSION", SCHEMA_VERSION),
        ("EXPORT_SCHEMA_VERSION_MAJOR", major),
        ("EXPORT_SCHEMA_VERSION_MINOR", minor),
        ("EXPORT_SCHEMA_VERSION_MICRO", micro),
        ("EXPORT_PLATFORM", "linux-desktop"),
        ("EXPORT_ARCH", {"x86_64": "x64"}.get(platform.machine(), platform.machine())),
        ("EXPORT_TIME_UTC", f"{now:%Y-%m-%dT%H:%M:%S}"),
        ("EXPORT_TIME_LOCAL", f"{now.astimezone():%Y-%m-%dT%H:%M:%S}"),
        (COMPLETE, str(complete).lower()),
    ]
