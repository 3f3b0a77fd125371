"""The folders that `traceable doctor` checks: for temporary files, for runs, and /dev/shm.

Nothing is written to probe them. `machine_checks.py` decides what the facts mean.
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
"""Less than this is a warning: nsys writes hundreds of MB a minute for a busy program."""

TEMPORARY_BYTES = 4 << 20
SHARED_BYTES = 2 << 20
"""With less, nsys does not start the program: 2022.4.2 needs 3 MB for temporary files, and 2 MB of /dev/shm."""

OUTPUT_BYTES = 1 << 20
"""With less, not even an empty run fits."""


@dataclass(frozen=True)
class Folder:
    """A folder to write to, which may not exist yet.

    Attributes:
        path: the folder.
        nearest_existing: the folder itself, or its nearest parent that exists.
        exists: whether `nearest_existing` exists; False if the folder itself must exist and does not.
        is_directory: whether `nearest_existing` is a folder.
        writable: whether this process may write there.
        noexec: whether it is mounted noexec.
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
        """How much is free, as text."""
        return f"{format_bytes(self.free_bytes)} free"

    def find_problem(self, least_bytes: int) -> Message | None:
        """Return why it can't be used for recordings, as the end of a sentence; None if it can."""
        if not self.exists:
            return Message("folder_missing", "does not exist")
        if not self.is_directory:
            return Message("not_a_directory", "is not a folder")
        if not self.writable:
            return Message("folder_not_writable", "is not writable")
        if self.free_bytes < least_bytes:
            return Message("no_space", f"has {self.free_text}")
        return Message("no_inodes", "has no free inodes") if not self.free_files else None


@dataclass(frozen=True)
class Space:
    """Where recordings and temporary files are written.

    Attributes:
        temporary: where nsys stores its data until the program ends.
        temporary_variable: the variable that names it; None for the system default.
        fallback: the folder that `traceable run` makes nsys use instead; None if none is needed or available.
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
        """Whether nsys can't record for lack of space, by the name of the check."""
        return {
            "temporary": self.temporary.find_problem(TEMPORARY_BYTES) is not None,
            "shared memory": self.shared.find_problem(SHARED_BYTES) is not None,
            "output": self.file_limit_bytes is not None and self.file_limit_bytes < SPACE_BYTES,
        }


def probe_space(output: Path) -> Space:
    """Return the facts of the folders that are written to.

    Args:
        output: the output directory of runs.
    """
    variable = next((name for name in ("TMPDIR", "TMP", "TEMP") if os.environ.get(name)), None)
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    usual = Path(os.environ[variable] if variable else "/tmp")
    return Space(
        probe_folder(usual, will_be_created=False),
        variable,
        probe_folder(output, will_be_created=True),
        probe_folder(Path("/dev/shm"), will_be_created=False),
        None if limit == resource.RLIM_INFINITY else limit,
        privacy.find_temporary_folder(usual, output.absolute()),
    )


def probe_folder(path: Path, *, will_be_created: bool) -> Folder:
    """Return the facts of a folder.

    Args:
        path: the folder.
        will_be_created: it is created if it does not exist; otherwise it must exist.
    """
    path = path.absolute()
    existing = next(one for one in (path, *path.parents) if os.path.lexists(one)) if will_be_created else path
    try:
        stats = os.statvfs(existing)
    except OSError:
        return Folder(path, existing, os.path.lexists(existing), False, False, False, 0, 0)
    return Folder(
        path,
        existing,
        True,
        existing.is_dir(),
        os.access(existing, os.W_OK | os.X_OK) and not stats.f_flag & os.ST_RDONLY,
        bool(stats.f_flag & os.ST_NOEXEC),
        stats.f_bavail * stats.f_frsize,
        # Some file systems (btrfs, overlay on it) don't count files and report 0 of 0.
        stats.f_favail if stats.f_files else sys.maxsize,
    )
