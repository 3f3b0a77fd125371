"""What nsys must not see, where it may write, and what it has stored all the same.

nsys (measured with 2022.4.2 and 2023.4.4) stores in its report the environment and the command line of each process of
the machine that its user may read. Newer ones have an option against it (`--discard-environment`); into one without,
`_native/hide_proc_environ.c` is loaded, and then it reads neither. What it is started with itself is what
`launch/supervisor.py` gives it.

Where environments lie in an exported report depends on the version: 2022.4 has those of processes as texts with zeros
in them (`StringIds`) and its own as `DeviceEnvironment`; 2023.4 has rows `PROCESS_0:ENVIRONMENT_VARIABLE` in
`META_DATA_CAPTURE`. They are taken out of the export; the `.nsys-rep` itself is compressed in part and is not changed.

Whether all of that held, with any version, is looked at in each new report and its export, and said.
"""

from __future__ import annotations

import json
import mmap
import os
import re
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from traceable._native import find_hide_proc_environ_library
from traceable.collectors.nsys.user_options import Options
from traceable.errors import Message
from traceable.protocol import environment, redact

DISCARD_OPTION = "--discard-environment"

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

_SYSTEM, _CAPTURE, _TEXTS = "TARGET_INFO_SYSTEM_ENV", "META_DATA_CAPTURE", "StringIds"
_OWN = "DeviceEnvironment"

_REFERENCE = re.compile(r"^\s*(\w+)\s+INTEGER.*REFERENCES StringIds\(id\)", re.MULTILINE)
"""A column with the numbers of texts, as nsys declares it: in a comment."""

_STREAMS = "ProcessStreams"
"""What the program printed: of all texts the only ones besides environments that may have a zero in them."""

_VARIABLE = re.compile(rb"[^=\s]+=")

Variables = dict[str, bytes]
_Text = tuple[int, int, bytes]

MIN_SECRET_CHARACTERS = 8
"""Characters of a value that is looked for: shorter ones, such as `none`, are found everywhere."""

MAX_SCAN_BYTES = 256 << 20
"""How much of a file is looked through, from its begin: half a second a secret. nsys reads environments first."""

NAMES_SHOWN = 8


def list_privacy_options(known: Options) -> tuple[tuple[str, str], ...]:
    """Return the options that keep environments out of the report, as far as this nsys has them."""
    return ((DISCARD_OPTION, "true"),) if DISCARD_OPTION in known else ()


def prepare_environment(run_dir: Path, known: Options) -> tuple[Mapping[str, str], tuple[Message, ...]]:
    """Return the variables for nsys alone, and a note for each thing that the user should know of them.

    Args:
        run_dir: where a folder for temporary files may be made, if nowhere else is one that serves.
        known: what this nsys offers.
    """
    variables: dict[str, str] = {}
    notes: list[Message] = []
    if DISCARD_OPTION not in known:
        library = find_hide_proc_environ_library()
        # The loader splits LD_PRELOAD at both, and there is no quoting.
        if library is not None and not {":", " "} & set(str(library)):
            variables["LD_PRELOAD"] = str(library)
        else:
            notes.append(NOT_PREVENTED)
    usual = Path(os.environ.get("TMPDIR") or "/tmp")
    if (why := explain_unfit_folder(usual)) and (folder := find_temporary_folder(usual, run_dir)):
        variables["TMPDIR"] = str(folder)
        found = f"{usual} {why}: nsys keeps its temporary files in {folder}"
        notes.append(Message("temporary_folder_replaced", found))
    return variables, tuple(notes)


def find_temporary_folder(folder: Path, run_dir: Path) -> Path | None:
    """Return where nsys is to keep temporary files and not in `folder`; None where that will do, or no other would."""
    if not explain_unfit_folder(folder):
        return None
    return next((one for one in _folders(run_dir) if not explain_unfit_folder(one)), None)


def check_command_line(words: Sequence[str]) -> tuple[Message, ...]:
    """Return a note where a command line, which nsys stores as it is, has the value of a secret."""
    if redact.redact_command(words) == list(words):
        return ()
    found = (
        "the command line holds the value of a secret, and nsys writes it into its report: see `traceable help secrets`"
    )
    return (Message("secret_on_command_line", found),)


def explain_unfit_folder(folder: Path) -> str | None:
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


@dataclass(frozen=True)
class StoredEnvironment:
    """One environment in a report.

    Attributes:
        table: where it lies.
        parts: the number of each of its rows there, and the names and values in it.
    """

    table: str
    parts: tuple[tuple[int, Variables], ...]

    @property
    def variables(self) -> Variables:
        """Names and values."""
        return {name: value for _, variables in self.parts for name, value in variables.items()}

    @property
    def is_from_launcher(self) -> bool:
        """Whether it is the small environment that the launcher gave to nsys (`launch/supervisor.py`)."""
        return self.table == _SYSTEM or environment.HANDOVER in self.variables


def find_environments(connection: sqlite3.Connection) -> list[StoredEnvironment]:
    """Return the environments in an exported report.

    Raises:
        sqlite3.Error: it can't be read.
    """
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    asked = {
        _TEXTS: "SELECT id, id, CAST(value AS BLOB) FROM StringIds WHERE instr(CAST(value AS BLOB), x'3D')",
        _SYSTEM: f"SELECT rowid, rowid, CAST(value AS BLOB) FROM {_SYSTEM} WHERE name = '{_OWN}'",
        # A row for each variable.
        _CAPTURE: f"SELECT name, rowid, CAST(value AS BLOB) FROM {_CAPTURE} WHERE name LIKE '%ENVIRONMENT_VARIABLE%'",
    }
    found: dict[tuple[str, object], list[tuple[int, Variables]]] = {}
    for table, question in asked.items():
        rows = connection.execute(question).fetchall() if table in tables else []
        for process, row, text in rows if table != _TEXTS else _environments(connection, rows):
            variables = _variables(text or b"")
            if variables:
                found.setdefault((table, process), []).append((row, variables))
    return [StoredEnvironment(table, tuple(parts)) for (table, _), parts in found.items()]


def scrub_environments(database: Path) -> list[StoredEnvironment]:
    """Empty the values in an exported report: of every environment of a process, and in nsys's own of what has the name
    of a secret. Returns the environments that were changed, as they were. Old pages may still have them: `rewrite_database`.

    Raises:
        sqlite3.Error: it can't be read or written.
    """
    with closing(sqlite3.connect(database)) as connection, connection:
        # Without it the old text stays in the file, in a page that is free.
        connection.execute("PRAGMA secure_delete = ON")
        found = find_environments(connection)
        changed = [one for one in found if any(_kept(one.table, part) != part for _, part in one.parts)]
        for one in changed:
            for row, part in one.parts:
                text = b"\0".join(name.encode() + b"=" + value for name, value in _kept(one.table, part).items())
                connection.execute(f"UPDATE {one.table} SET value = CAST(? AS TEXT) WHERE rowid = ?", (text, row))
    return changed


def rewrite_database(database: Path) -> None:
    """Write an exported report anew, whole or not at all, without what its tables do not hold any more.

    nsys writes it without `secure_delete`: where a page of it was split, the unused part still has the old text.

    Raises:
        sqlite3.Error: it can't be read, or there is no room for a second one.
        OSError: it can't be replaced.
    """
    anew = database.with_name(database.name + ".anew")
    journal = anew.with_name(anew.name + "-journal")
    anew.unlink(missing_ok=True)
    try:
        with closing(sqlite3.connect(database)) as connection:
            connection.execute("VACUUM INTO ?", (os.fspath(anew),))
        anew.replace(database)
    finally:
        for one in (anew, journal):
            one.unlink(missing_ok=True)


def _kept(table: str, variables: Variables) -> Variables:
    if table == _SYSTEM:
        return {name: b"" if redact.is_secret(name) else value for name, value in variables.items()}
    return dict.fromkeys(variables, b"")


def _variables(text: bytes) -> Variables:
    """Return the variables in `NAME=value` with a zero between two. Of a variable that is empty nsys keeps no `=`."""
    found: Variables = {}
    for part in filter(None, text.split(b"\0")):
        name, _, value = part.partition(b"=")
        found[name.decode("utf-8", "replace")] = value
    return found


def _environments(connection: sqlite3.Connection, texts: list[_Text]) -> list[_Text]:
    """Return those of `texts` that are environments: nothing refers to them, as to no environment that nsys keeps.

    A text with zeros in it is no name of anything, since those are C strings. One without may be the environment of a
    process that was given one variable, or the name of a range such as `step=5`.
    """
    several = {number for number, _, text in texts if b"\0" in text}
    single = {number for number, _, text in texts if number not in several and _VARIABLE.match(text)}
    columns = _references(connection)
    several -= _referred_to(connection, several, [(table, column) for table, column in columns if table == _STREAMS])
    single -= _referred_to(connection, single, columns) if columns else single
    return [text for text in texts if text[0] in several | single]


def _references(connection: sqlite3.Connection) -> list[tuple[str, str]]:
    """Return the tables and columns that hold numbers of texts; none where the file is not as nsys made it."""
    tables = connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'").fetchall()
    return [(table, column) for table, declared in tables for column in _REFERENCE.findall(declared or "")]


def _referred_to(connection: sqlite3.Connection, texts: set[int], columns: Iterable[tuple[str, str]]) -> set[int]:
    found: set[int] = set()
    for table, column in columns:
        missing = texts - found
        if not missing:
            break
        question = f"SELECT {column} FROM {table} WHERE {column} IN (SELECT value FROM json_each(?))"
        found.update(number for (number,) in connection.execute(question, (json.dumps(list(missing)),)))
    return found


def check_report_for_secrets(report: Path, database: Path, stored: Sequence[StoredEnvironment]) -> tuple[Message, ...]:
    """Return a note where a report holds what nsys was not to see; nothing where it does not.

    Args:
        report: as nsys wrote it.
        database: its export, from which the environments were taken out.
        stored: these environments.
    """
    strangers = [one for one in stored if not one.is_from_launcher]
    known = {name for one in stored for name, value in one.variables.items() if value and redact.is_secret(name)}
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
            return {name for name, value in values.items() if content.find(value, 0, MAX_SCAN_BYTES) >= 0}
    except (OSError, ValueError):  # not readable, or empty
        return set()


def _secrets(variables: Iterable[tuple[bytes, bytes]]) -> Iterable[tuple[str, bytes]]:
    for raw, value in variables:
        name = os.fsdecode(raw)
        # A path is where a secret lies and none itself: GOOGLE_APPLICATION_CREDENTIALS.
        if redact.is_secret(name) and len(value) >= MIN_SECRET_CHARACTERS and not value.startswith(b"/"):
            yield name, value


def _counted(number: int) -> str:
    return f"{number} processes" if number > 1 else "a process"
