"""What a run's processes have written while it goes on: the run directory before and after, compared."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable
from pathlib import Path

from traceable import untrusted
from traceable.collect import recorder
from traceable.errors import Message
from traceable.launch import run_dir

Files = dict[str, tuple[int, int]]
"""Size in bytes and time of change in ns of each file, by its path relative to the run directory."""

_NOT_RECORDED = re.compile(
    r"(status|control|process|program|expect|annotate)\..*|nsys\.log|run\.json|report\.json|\..*"
)


def files(directory: Path) -> Files:
    """What lies in the run directory that is a recording, with its size and time, the recorder's own left out."""
    found = {}
    with contextlib.suppress(OSError):
        entries = [entry for entry in directory.iterdir() if not _NOT_RECORDED.fullmatch(entry.name)]
        folders = [entry for entry in entries if untrusted.is_directory(entry) and entry.name != recorder.DIRECTORY]
        for entry in (*entries, *(inner for folder in folders for inner in folder.iterdir() if inner.name[0] != ".")):
            if untrusted.is_regular(entry):
                facts = entry.lstat()
                found[str(entry.relative_to(directory))] = (facts.st_size, facts.st_mtime_ns)
    return found


def to_come(directory: Path, found: list[str]) -> Message | None:
    """Return what is not written yet, or why nothing is: a sentence."""
    manifest = run_dir.read(directory)
    name = (manifest.get("collector") or {}).get("name")
    if name == "none":
        return Message("collector_none", "nothing is recorded: the run has --collector none")
    if name == "recorder":
        words = f"the recording becomes {manifest.get('stem')}.sqlite when the program ends"
        return Message("recording_at_end", words)
    if name == "nsys" and not found:
        # 2022.4 keeps each capture in its temporary directory until the program ends.
        words = "nsys has not written its report yet: it does when the program ends at the latest"
        return Message("report_at_end", words)
    return None


def written(directory: Path, before: Files, pids: Iterable[int]) -> list[str]:
    """Return the files that are new or changed, and the recorder's directories of the processes that opened a window.

    The recorder writes through a memory map, whose stores change neither size nor time of its files.
    """
    found = [name for name, facts in sorted(files(directory).items()) if before.get(name) != facts]
    recording, named = directory / recorder.DIRECTORY, {str(pid) for pid in pids}
    with contextlib.suppress(OSError):
        found += sorted(
            f"{recorder.DIRECTORY}/{entry.name}"
            for entry in recording.iterdir()
            if entry.name.partition("-")[0] in named
        )
    return found
