"""Results of earlier reports, kept by the content of the recordings that they are of.

An entry is named after the hash of everything that it depends on: the content of the recording, the options, and this
program. The hash of a file is kept by the place, size and times of the file, so that a second look reads no recording.
Entries are believed only in a directory that nobody else can write, and only whole (`profile_files`).
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import traceable
from traceable.errors import CauseError
from traceable.protocol import run_dir, untrusted

LIMIT_BYTES = 4 << 30
"""How much the cache may take. Entries that were not used for the longest time are removed first."""

_FILES_MAX = 10_000
"""How many files a run directory may have to be cached."""

_SETTLED_NS = 2 * 10**9
"""A file that was changed less than this ago may be changed again without another time."""

_SUFFIX = ".profile"
_DIGEST_SUFFIX = ".digest"
_PACKAGE = Path(traceable.__file__).parent
_ROOMS = ("analysis", "fleet", "trace", "collectors")


def find_cache_directory() -> Path:
    """Return where results are kept, which need not exist: `traceable/fleet` in $XDG_CACHE_HOME, or in ~/.cache."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if Path(base).is_absolute() else Path.home() / ".cache") / "traceable" / "fleet"


@dataclass(frozen=True)
class Stamp:
    """What tells that a recording has not changed, without reading it: place, size and times of its files."""

    files: tuple[tuple[str, int, int, int, int, int], ...]


def stamp_recording(path: Path) -> Stamp:
    """Return the stamp of a file or run directory.

    Raises:
        OSError: it can't be read, or has too many files.
    """
    if not path.is_dir():
        return Stamp((_stamp_file("", path),))
    files = []
    for one in sorted(path.rglob("*")):
        if untrusted.is_regular(one):
            files.append(_stamp_file(str(one.relative_to(path)), one))
        if len(files) > _FILES_MAX:
            raise OSError("too many files")
    return Stamp(tuple(files))


def _stamp_file(name: str, path: Path) -> tuple[str, int, int, int, int, int]:
    status = path.stat()
    return name, status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


class Cache:
    """Rank profiles by the content of recordings.

    Args:
        directory: where; it is made.

    Raises:
        CauseError: it can't be made, or others can write it.
    """

    def __init__(self, directory: Path) -> None:
        try:
            directory.mkdir(0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise CauseError("cache_not_made", f"{directory} can't be made: {error.strerror}") from None
        if not run_dir.is_private(directory):
            raise CauseError("cache_not_private", f"{directory} is not this user's alone, or not writable")
        self._directory = directory

    def find_entry(self, path: Path, stamp: Stamp, options: str) -> Path:
        """Return the file for the rank profiles of a recording, which need not exist.

        Args:
            path: the recording.
            stamp: of it.
            options: everything else that the profiles depend on.

        Raises:
            OSError: the recording can't be read.
        """
        digest = self._hash_recording(path, stamp)
        return self._directory / f"{_hash_texts((_describe_program(), digest, options))}{_SUFFIX}"

    def _hash_recording(self, path: Path, stamp: Stamp) -> str:
        known = self._directory / f"{_hash_texts([json.dumps(stamp.files)])}{_DIGEST_SUFFIX}"
        with contextlib.suppress(OSError, ValueError):
            text = untrusted.read_file(known, 1 << 10).decode("ascii")
            if len(text) == hashlib.blake2b(digest_size=32).digest_size * 2 and int(text, 16) >= 0:
                os.utime(known)
                return text
        parts = []
        for name, *_ in stamp.files:
            with untrusted.open_regular(path / name if name else path, follow=not name) as file:
                parts += [name, _hash_file(file)]
        digest = _hash_texts(parts)
        newest = max((max(one[4:]) for one in stamp.files), default=0)
        if newest + _SETTLED_NS < time.time_ns() and stamp_recording(path) == stamp:
            with contextlib.suppress(OSError):
                _write_whole(known, digest.encode())
        return digest

    def add(self, entry: Path, output: Path) -> None:
        """Have the content of a file of rank profiles as this entry.

        Raises:
            OSError: it can't be written.
        """
        _write_whole(entry, output.read_bytes())

    def mark_used(self, entry: Path) -> None:
        """Have an entry removed later than those that were not used."""
        with contextlib.suppress(OSError):
            os.utime(entry)

    def remove_oldest(self, limit_bytes: int = LIMIT_BYTES) -> None:
        """Remove what was not used for the longest time, until the rest takes no more than this."""
        with contextlib.suppress(OSError):
            files = [(one, one.lstat()) for one in self._directory.iterdir()]
            total = sum(status.st_size for _, status in files)
            for one, status in sorted(files, key=lambda file: file[1].st_mtime_ns):
                if total <= limit_bytes:
                    return
                if one.suffix in (_SUFFIX, _DIGEST_SUFFIX):
                    one.unlink(missing_ok=True)
                    total -= status.st_size


@functools.cache
def _describe_program() -> str:
    """Return what changes with this program: its version, and when its files last changed."""
    files = [_PACKAGE / "recording.py", *(file for room in _ROOMS for file in (_PACKAGE / room).rglob("*.py"))]
    return f"{traceable.__version__} {max(file.stat().st_mtime_ns for file in files)}"


def _hash_file(file: BinaryIO) -> str:
    digest = hashlib.blake2b(digest_size=32)
    while part := file.read(1 << 20):
        digest.update(part)
    return digest.hexdigest()


def _hash_texts(texts: Iterable[str]) -> str:
    return hashlib.blake2b(json.dumps(list(texts)).encode(), digest_size=32).hexdigest()


def _write_whole(path: Path, content: bytes) -> None:
    part = path.with_name(f".{path.name}.part-{os.getpid()}")
    try:
        part.write_bytes(content)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
