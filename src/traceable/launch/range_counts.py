"""What the processes of a run counted of their ranges: read from the run directory, kept in the database of the run.

The writing side within the process is `annotation/range_counts.py`, the comparison `analysis/completeness.py`. The database
has it too, so that a report that was copied without its run directory can still be judged.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from traceable.annotation.range_counts import ENTRIES_MAX, ENTRY_BYTES, MAGIC, OTHER_ENTRY, make_entry_key
from traceable.collectors.recorder import loss_table
from traceable.errors import Message
from traceable.protocol import environment, untrusted

if TYPE_CHECKING:
    from traceable.analysis.completeness import CollectorLoss, Completeness, EmittedCounts
    from traceable.collectors.base import CollectorResult
    from traceable.trace.model import Trace

_FILES = "status.*.emitted"
_ENTRY = struct.Struct("<QQH")
_WINDOWS = environment.WINDOW_DOMAIN.encode() + b"\0"

FLIGHT_RECORDER = "flight_recorder"
OWN_OPTIONS = "nsys_options"
NVTX_NOT_TRACED = "nvtx_not_traced"
"""Why counts are not compared: only what came last is kept; the user's own options for nsys say what is recorded; NVTX
was not among that."""

_LIMITS = {"-y", "--delay", "-d", "--duration", "-Y", "--start-later", "--nvtx-domain-include", "--nvtx-domain-exclude"}
_TRACES = {"-t", "--trace"}
_RANGES = {"-c": "-c", "--capture-range": "-c", "-p": "-p", "--nvtx-capture": "-p"}


def read_range_counts(directory: Path) -> list[EmittedCounts]:
    """Return what the processes of the run in `directory` counted. A file that is none of ours is passed over."""
    from traceable.analysis.completeness import EmittedCounts

    found: list[EmittedCounts] = []
    for path in sorted(directory.glob(_FILES)):
        if (content := _content(path)) is None:
            continue
        names: dict[bytes, int] = {}
        rest = other = 0
        for number, (certain, besides, text) in enumerate(_entries(content), OTHER_ENTRY):
            if number == OTHER_ENTRY:
                rest, other = certain, besides
            elif not text.startswith(_WINDOWS):
                names[text] = certain
                other += besides
        found.append(EmittedCounts(int.from_bytes(content[8:16], "little"), names, rest, other))
    return found


def _content(path: Path) -> bytes | None:
    try:
        content = untrusted.read_file(path, ENTRIES_MAX * ENTRY_BYTES)
    except OSError:
        return None
    whole = content[: len(MAGIC)] == MAGIC and int.from_bytes(content[8:16], "little") < 1 << 31
    return content if whole else None


def _entries(content: bytes) -> list[tuple[int, int, bytes]]:
    found = []
    for at in range(ENTRY_BYTES, len(content) - ENTRY_BYTES + 1, ENTRY_BYTES):
        certain, besides, length = _ENTRY.unpack_from(content, at)
        if not length or length > ENTRY_BYTES - _ENTRY.size or max(certain, besides) >= 1 << 62:
            break
        found.append((certain, besides, content[at + _ENTRY.size : at + _ENTRY.size + length]))
    return found


def evaluate_completeness(
    directory: Path | None, manifest: Mapping[str, Any] | None, trace: Trace | None, databases: Sequence[Path] = ()
) -> Completeness:
    """Return whether a recording holds what was emitted.

    Args:
        directory: the run directory; None where only the recording is there.
        manifest: of the run; None for not known.
        trace: all of what was recorded, its names as recorded; None for nothing.
        databases: from which the trace was read, where it was.
    """
    from traceable.analysis.completeness import check_completeness

    kept = [loss_table.read_rows(path) for path in databases if path.is_file()]
    rows = [row for of_file in kept for row in of_file]
    lost = [one for kind, pid, content in rows if kind == loss_table.LOST and (one := _lost(pid, content))]
    if directory is not None and manifest is not None:
        return check_completeness(
            trace, read_range_counts(directory), lost, make_entry_key, get_incomparable_reason(manifest)
        )
    # A report of one window of several does not know what is in the others: none has what was emitted.
    kept_counts = (_emitted(pid, content) for kind, pid, content in rows if kind == loss_table.EMITTED)
    emitted = [one for one in kept_counts if one is not None]
    return check_completeness(trace, emitted if len(kept) == 1 else [], lost, make_entry_key)


def _lost(pid: int, content: dict[str, Any]) -> CollectorLoss | None:
    from traceable.analysis.completeness import CollectorLoss

    try:
        codes = {str(code): int(number) for code, number in content["codes"].items()}
        reason = content["reason"]
        return CollectorLoss(pid, Message.parse(str(content["text"])), codes, None if reason is None else str(reason))
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def _emitted(pid: int, content: dict[str, Any]) -> EmittedCounts | None:
    from traceable.analysis.completeness import EmittedCounts

    try:
        names = {str(name).encode(): int(number) for name, number in content["names"].items()}
        return EmittedCounts(pid, names, int(content["rest"]), int(content["other"]))
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def get_incomparable_reason(manifest: Mapping[str, Any]) -> str | None:
    """Return why what the processes counted says nothing of the recording of a run; None where it does."""
    if isinstance(manifest.get("flight_recorder"), dict):
        return FLIGHT_RECORDER
    if (manifest.get("collector") or {}).get("name") != "nsys":
        return None
    argv = tuple(map(str, ((manifest.get("plan") or {}).get("argv")) or ()))
    captured = dict[str, str]()
    for name, value in _options(argv):
        if name in _LIMITS:
            return OWN_OPTIONS
        if name in _TRACES and "nvtx" not in value.split(","):
            return NVTX_NOT_TRACED
        if name in _RANGES:
            captured[_RANGES[name]] = value
    ours = f"{environment.CAPTURE_RANGE}@{environment.WINDOW_DOMAIN}"
    begins = captured.get("-c", "none")
    return OWN_OPTIONS if begins != "none" and (begins != "nvtx" or captured.get("-p") != ours) else None


def _options(argv: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the options of nsys with their values: `--name value`, `--name=value`, `-n value` or `-nvalue`."""
    for word, after in pairwise((*argv, "")):
        name, equals, value = word.partition("=")
        if name.endswith("exec_shim.py"):
            return  # what follows is the program's
        if word.startswith("-") and not word.startswith("--") and len(word) > 2:
            yield word[:2], word[2:].removeprefix("=")
        else:
            yield name, value if equals else after


def store_range_counts(directory: Path, manifest: Mapping[str, Any], recorded: CollectorResult | None) -> None:
    """Write what the processes counted into the database of a run, once. Where it has several, none would be right."""
    database = recorded.database if recorded is not None else None
    if (
        database is None
        or recorded is None
        or recorded.more_databases
        or not database.is_file()
        or get_incomparable_reason(manifest)
    ):
        return
    if any(kind == loss_table.EMITTED for kind, _, _ in loss_table.read_rows(database)):
        return
    rows = [
        (
            one.pid,
            {
                "names": {text.decode(): number for text, number in one.names.items()},
                "rest": one.rest,
                "other": one.other,
            },
        )
        for one in read_range_counts(directory)
    ]
    if rows:
        loss_table.replace_rows(database, loss_table.EMITTED, rows)
