"""What nsys has seen although it should not: looked for in each new report, and said.

What is kept from nsys, and how, is in `nsys_private.py`. That was measured with two versions of nsys; by this it is
known of any other. Reports are compressed in part, so their exports are looked through as well. It takes nothing out of
either.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from traceable import confidential
from traceable.collect.nsys_environments import Stored
from traceable.errors import Message

SHORTEST = 8
"""Characters of a value that is looked for: shorter ones, such as `none`, are found everywhere."""

LOOKED_THROUGH_BYTES = 256 << 20
"""How much of a file is looked through, from its begin: half a second a secret. nsys reads environments first."""

NAMES_SHOWN = 8


def notes(report: Path, database: Path, stored: Sequence[Stored]) -> tuple[Message, ...]:
    """Return a note where a report holds what nsys was not to see; nothing where it does not.

    Args:
        report: as nsys wrote it.
        database: its export, from which the environments were taken out.
        stored: these environments.
    """
    strangers = [one for one in stored if not one.planned]
    known = {name for one in stored for name, value in one.variables.items() if value and confidential.is_secret(name)}
    names = sorted(known | _found(report) | _found(database))
    if not strangers and not names:
        return ()
    what = [f"the environment of {_counted(len(strangers))}"] if strangers else []
    shown = ", ".join(names[:NAMES_SHOWN]) + (f" and {len(names) - NAMES_SHOWN} more" if names[NAMES_SHOWN:] else "")
    what += [f"the values of {shown}"] if names else []
    found = (
        f"{report.name} holds {' and '.join(what)}: "
        "don't share it with anyone who may not know them (traceable help secrets)"
    )
    return (Message("report_holds_secrets", found),)


def _found(file: Path) -> set[str]:
    """Return the names of this process's secrets whose values are in `file`."""
    values = dict(_secrets(os.environb.items()))
    try:
        with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return {name for name, value in values.items() if content.find(value, 0, LOOKED_THROUGH_BYTES) >= 0}
    except (OSError, ValueError):  # not readable, or empty
        return set()


def _secrets(variables: Iterable[tuple[bytes, bytes]]) -> Iterable[tuple[str, bytes]]:
    for raw, value in variables:
        name = os.fsdecode(raw)
        # A path is where a secret lies and none itself: GOOGLE_APPLICATION_CREDENTIALS.
        if confidential.is_secret(name) and len(value) >= SHORTEST and not value.startswith(b"/"):
            yield name, value


def _counted(number: int) -> str:
    return f"{number} processes" if number > 1 else "a process"
