"""What nsys must not see, and where it may write: the environment that is nsys's own and not the program's.

nsys (measured with 2022.4.2 and 2023.4.4) stores in its report the environment and the command line of each process of
the machine that its user may read. Newer ones have an option against it (`--discard-environment`); into one without,
`_native/discreet.c` is loaded, and then it reads neither. What it is started with itself is what
`launch/supervisor.py` gives it. Whether all of that held is looked at in each report: `nsys_seen.py`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from traceable import confidential
from traceable._native import discreet_library
from traceable.collect.nsys_options import Options
from traceable.errors import Message

OPTION = "--discard-environment"

ROOM_BYTES = 64 << 20
"""A folder for temporary files with less than this is passed over for a roomier one. 2022.4.2 keeps all that it records
there until the program ends, and starts nothing below 3 MB."""

SOCKET_CHARACTERS = 60
"""nsys makes sockets below its folder for temporary files, and the name of a socket has 107 characters at most."""

NOT_PREVENTED = Message(
    "environments_not_hidden",
    "nsys stores the environment of every process that it may read in its report, and what prevents that was not "
    "built: see `traceable help secrets`",
)


def options(known: Options) -> tuple[tuple[str, str], ...]:
    """Return the options that keep environments out of the report, as far as this nsys has them."""
    return ((OPTION, "true"),) if OPTION in known else ()


def environment_and_notes(run_dir: Path, known: Options) -> tuple[Mapping[str, str], tuple[Message, ...]]:
    """Return the variables for nsys alone, and a note for each thing that the user should know of them.

    Args:
        run_dir: where a folder for temporary files may be made, if nowhere else is one that serves.
        known: what this nsys offers.
    """
    variables: dict[str, str] = {}
    notes: list[Message] = []
    if OPTION not in known:
        library = discreet_library()
        # The loader splits LD_PRELOAD at both, and there is no quoting.
        if library is not None and not {":", " "} & set(str(library)):
            variables["LD_PRELOAD"] = str(library)
        else:
            notes.append(NOT_PREVENTED)
    usual = Path(os.environ.get("TMPDIR") or "/tmp")
    if (why := unfit(usual)) and (folder := instead_of(usual, run_dir)):
        variables["TMPDIR"] = str(folder)
        found = f"{usual} {why}: nsys keeps its temporary files in {folder}"
        notes.append(Message("temporary_folder_replaced", found))
    return variables, tuple(notes)


def instead_of(folder: Path, run_dir: Path) -> Path | None:
    """Return where nsys is to keep temporary files and not in `folder`; None where that will do, or no other would."""
    if not unfit(folder):
        return None
    return next((one for one in _folders(run_dir) if not unfit(one)), None)


def of_command(words: Sequence[str]) -> tuple[Message, ...]:
    """Return a note where a command line, which nsys stores as it is, has the value of a secret."""
    if confidential.without_values(words) == list(words):
        return ()
    found = (
        "the command line holds the value of a secret, and nsys writes it into its report: see `traceable help secrets`"
    )
    return (Message("secret_on_command_line", found),)


def unfit(folder: Path) -> str | None:
    """Return why nsys had better not keep temporary files in `folder`, as the end of a sentence; None for no reason."""
    try:
        found = os.statvfs(folder)
    except OSError as error:
        return f"can't be used ({error.strerror})"
    if found.f_flag & os.ST_NOEXEC:
        return "is mounted noexec"
    if found.f_bavail * found.f_frsize < ROOM_BYTES:
        return f"has {found.f_bavail * found.f_frsize / 1e6:.0f} MB free"
    return None if os.access(folder, os.W_OK | os.X_OK) else "can't be written"


def _folders(run_dir: Path) -> list[Path]:
    """Where else temporary files may go: the usual places, then beside the run, where its name is short enough."""
    usual = [Path("/tmp"), Path("/var/tmp")]
    return [*usual, *(one for one in (run_dir, run_dir.parent) if len(str(one)) <= SOCKET_CHARACTERS)]
