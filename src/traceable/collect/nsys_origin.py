"""What a database in nsys's schema says of its own origin: the machine, the program, who wrote it and when.

The events are written in `nsys_schema`.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone

from traceable.collect import recording as rec

SCHEMA_VERSION = "3.16.1"
"""The schema whose tables are written; that of nsys 2024.6."""

COMPLETE = "TRACEABLE_RECORDING_COMPLETE"
"""Row of META_DATA_EXPORT: `true` if every recorded process had ended when the file was written."""


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
