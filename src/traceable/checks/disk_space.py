"""The folders that `traceable doctor` judges by what can be written there: temporary files, runs, /dev/shm.

Nothing is written to find out. What it means is said in `doctor_checks.py`.
"""

from __future__ import annotations

import os
import resource
import sys
from dataclasses import dataclass
from pathlib import Path

from traceable.analysis.units import format_bytes
from traceable.collectors.nsys import privacy
from traceable.errors import Message

SPACE_BYTES = 10**9
"""Below this a warning: nsys's reports take hundreds of MB a minute in a busy program."""

TEMPORARY_BYTES = 4 << 20
SHARED_BYTES = 2 << 20
"""Below these nsys does not start the program: 2022.4.2 needs 3 MB for temporary files, and 2 MB of /dev/shm."""

OUTPUT_BYTES = 1 << 20
"""Below this not even an empty run fits."""


@dataclass(frozen=True)
class Folder:
    """A folder to be written to, which may not be there yet.

    Attributes:
        path: the folder.
        nearest_existing: the nearest one above it that is there; the same where it is there itself.
        exists: whether `standing` is there; it is not where the folder itself must be.
        is_directory: whether `standing` is a folder.
        writable: whether this process may write there.
        noexec: whether it is mounted so that nothing in it can be executed.
        free_bytes, free_files: what this user may still write there.
    """

    path: Path
    nearest_existing: Path
    exists: bool
    is_directory: bool
    writable: bool
    noexec: bool
    free_bytes: int
    free_files: int

    @property
    def free_text(self) -> str:
        """How much is free, to be read."""
        return f"{format_bytes(self.free_bytes)} free"

    def find_problem(self, least_bytes: int) -> Message | None:
        """Return why nothing can be recorded into it, as the end of a sentence; None where it can."""
        if not self.exists:
            return Message("folder_missing", "is not there")
        if not self.is_directory:
            return Message("not_a_directory", "is not a folder")
        if not self.writable:
            return Message("folder_not_writable", "can't be written")
        if self.free_bytes < least_bytes:
            return Message("no_space", f"has {self.free_text}")
        return Message("no_inodes", "has no room for another file") if not self.free_files else None


@dataclass(frozen=True)
class Space:
    """Where recordings and what they need on the way are written.

    Attributes:
        temporary: where nsys keeps what it records until the program ends.
        temporary_variable: the variable that names it; None for the system's own.
        fallback: the folder that `traceable run` has nsys use in its place; None where it will do or no other would.
        output: where run directories go.
        shared: /dev/shm.
        file_limit_bytes: RLIMIT_FSIZE; None for no limit.
    """

    temporary: Folder
    temporary_variable: str | None
    output: Folder
    shared: Folder
    file_limit_bytes: int | None
    fallback: Path | None = None

    @property
    def shortages(self) -> dict[str, bool]:
        """Whether nsys can't record for want of space, by the name of the check that says so."""
        return {
            "temporary": self.temporary.find_problem(TEMPORARY_BYTES) is not None,
            "shared memory": self.shared.find_problem(SHARED_BYTES) is not None,
            "output": self.file_limit_bytes is not None and self.file_limit_bytes < SPACE_BYTES,
        }


def probe_space(output: Path) -> Space:
    """Return the facts of the folders that are written to.

    Args:
        output: where run directories are to go.
    """
    named = next((name for name in ("TMPDIR", "TMP", "TEMP") if os.environ.get(name)), None)
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    usual = Path(os.environ[named] if named else "/tmp")
    return Space(
        probe_folder(usual, will_be_created=False),
        named,
        probe_folder(output, will_be_created=True),
        probe_folder(Path("/dev/shm"), will_be_created=False),
        None if limit == resource.RLIM_INFINITY else limit,
        privacy.find_temporary_folder(usual, output.absolute()),
    )


def probe_folder(path: Path, *, will_be_created: bool) -> Folder:
    """Return the facts of a folder.

    Args:
        path: the folder.
        will_be_created: it will be made where it is not there; else it must be there.
    """
    path = path.absolute()
    standing = next(one for one in (path, *path.parents) if os.path.lexists(one)) if will_be_created else path
    try:
        found = os.statvfs(standing)
    except OSError:
        return Folder(path, standing, os.path.lexists(standing), False, False, False, 0, 0)
    return Folder(
        path,
        standing,
        True,
        standing.is_dir(),
        os.access(standing, os.W_OK | os.X_OK) and not found.f_flag & os.ST_RDONLY,
        bool(found.f_flag & os.ST_NOEXEC),
        found.f_bavail * found.f_frsize,
        # Some file systems (btrfs, overlay on it) don't count files and say 0 of 0.
        found.f_favail if found.f_files else sys.maxsize,
    )
