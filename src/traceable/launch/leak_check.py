"""What a recording tells of the environment it was made in: for whoever is about to pass it on.

It only reads. What is kept out of a recording, and how, is in docs/secrets.md.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from traceable.collectors.nsys import privacy
from traceable.collectors.nsys.collector import REPORT_SUFFIXES
from traceable.errors import Message, TraceError
from traceable.launch import reports, run_dir
from traceable.protocol import redact, untrusted

NAMES_SHOWN = 8


@dataclass(frozen=True)
class Leak:
    """Something of the environment in a recording.

    Attributes:
        file: where it lies: the file that was named, or one in the run directory that was.
        description: what it is, as the begin of a sentence, with its code.
        names: the variables whose values are there, those that have the name of a secret first; empty where it is no
            environment.
        secret_count: how many of them have such a name.
    """

    file: Path
    description: Message
    names: tuple[str, ...] = ()
    secret_count: int = 0

    @property
    def message(self) -> Message:
        """The same as a sentence."""
        said = f"{self.file.name}: {self.description}"
        if self.names:
            shown = ", ".join(self.names[:NAMES_SHOWN])
            more = f" and {len(self.names) - NAMES_SHOWN} more" if len(self.names) > NAMES_SHOWN else ""
            said += f", with the values of {shown}{more}"
        return Message(self.description.code, said)


def find_leaks(path: Path) -> list[Leak]:
    """Return what there is of the environment in a recording, what has the names of secrets first.

    Args:
        path: a run directory, a `.nsys-rep` or a `.sqlite` file.

    Raises:
        TraceError: it can't be read as a recording.
        CollectorError: nsys is missing or can't read the report.
    """
    found = list(_of_run(path) if path.is_dir() else _of_file(path))
    return sorted(found, key=lambda one: -one.secret_count)


def _of_run(directory: Path) -> Iterator[Leak]:
    yield from _of_manifest(directory, run_dir.load_manifest(directory))
    for one in _reports(directory, ".sqlite"):
        yield from _of_file(one)


def _reports(directory: Path, *more: str) -> list[Path]:
    found = sorted(entry for entry in directory.rglob("*") if entry.suffix in (*REPORT_SUFFIXES, *more))
    return [one for one in found if one.name[0] != "." and untrusted.is_regular(one) and one.stat().st_size]


def _of_manifest(directory: Path, manifest: Mapping[str, Any]) -> Iterator[Leak]:
    """Command lines that an older version wrote as they were, and those that nsys did."""
    for key, holder in (("argv", manifest), ("command", manifest.get("target")), ("argv", manifest.get("plan"))):
        words = (holder or {}).get(key) or []
        if redact.redact_command(words) != words:
            what = Message("secret_in_manifest", f"a command line with the value of a secret ({key})")
            yield Leak(directory / run_dir.MANIFEST, what, secret_count=1)
    hidden = any(redact.REDACTED in word for word in (manifest.get("plan") or {}).get("argv") or ())
    if hidden and (manifest.get("collector") or {}).get("name") == "nsys":
        for report in _reports(directory):
            what = Message("secret_on_command_line", "the command line, with a value that run.json leaves out")
            yield Leak(report, what, secret_count=1)


def _of_file(path: Path) -> Iterator[Leak]:
    with reports.open_report(path) as database:
        try:
            with closing(untrusted.open_database(database)) as connection:
                found = privacy.find_environments(connection)
                printed = _printed(connection)
        except untrusted.SQLITE_ERRORS as error:
            what = f"{path} can't be read ({untrusted.format_sqlite_error(error)})"
            raise TraceError("file_unreadable", what, "give a report of nsys's") from None
    strangers = [one for one in found if not one.is_from_launcher]
    of_processes = Message("environment_stored", f"the environment of {_counted(len(strangers))}")
    if leak := _leak(path, of_processes, strangers):
        yield leak
    of_nsys = Message("nsys_environment_stored", "nsys's own environment")
    if leak := _leak(path, of_nsys, [one for one in found if one.is_from_launcher]):
        yield leak
    if len(strangers) > 1 and path.suffix != ".sqlite":
        what = "the command lines of the processes of the machine, which nsys's tables do not show"
        yield Leak(path, Message("command_lines_stored", what))
    if printed:
        yield Leak(path, Message("output_stored", f"what the program printed ({printed} characters)"))


def _leak(path: Path, what: Message, found: Iterable[privacy.StoredEnvironment]) -> Leak | None:
    names = {name for one in found for name, value in one.variables.items() if name and value}
    secret = sorted(name for name in names if redact.is_secret(name))
    if not names:
        return None
    return Leak(path, what, (*secret, *sorted(names - set(secret))), len(secret))


def _counted(number: int) -> str:
    return f"{number} processes" if number > 1 else "a process"


def _printed(connection: sqlite3.Connection) -> int:
    """How many characters of the program's output are in a report."""
    try:
        rows = connection.execute("SELECT sum(length(value)) FROM ProcessStreams JOIN StringIds ON id = contentId")
        return rows.fetchone()[0] or 0
    except sqlite3.OperationalError:  # no such table
        return 0
