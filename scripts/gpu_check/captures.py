"""Captures from a check's recordings: small files without private data of the machine.

Databases keep the tables of the program's own events, but no environment, output, scheduler, network or call chain.
In texts host, user, folders and UUIDs of GPUs are replaced.
"""

from __future__ import annotations

import getpass
import gzip
import os
import platform
import re
import socket
import sqlite3
import sys
import tempfile
from contextlib import closing
from functools import cache
from pathlib import Path

from gpu_check.harness import Bench, Failed
from traceable.protocol import redact

REPOSITORY = Path(__file__).resolve().parents[2]

LARGEST_BYTES = 16 << 20
_NAME = re.compile(r"[A-Za-z0-9._-]+")
_SHORTEST = 3
"""Minimum length of a host's or user's name to replace: shorter ones occur in other words."""

_KEPT_TABLES = re.compile(
    r"StringIds|NVTX_EVENTS|CUPTI_\w+|ENUM_\w+|PROCESSES|ThreadNames|PROFILER_OVERHEAD|CUDA_GRAPH\w*"
    r"|CUDA_GPU_MEMORY\w*|TARGET_INFO_(GPU|CUDA_\w+|SESSION_START_TIME)|ANALYSIS_DETAILS|DIAGNOSTIC_EVENT"
    r"|META_DATA_(EXPORT|CAPTURE)|TRACEABLE_(GPU_FILES|THREADS)"
)
_EXCLUDED_TABLES = re.compile(r".*CALLCHAIN.*")
_PUBLIC = ("/usr", "/usr/local", "/root", "/tmp", "root", "localhost")
"""Folders and names that most machines have."""

_UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_NO_UUID = "00000000-0000-0000-0000-000000000000"


@cache
def _list_private_texts() -> tuple[tuple[re.Pattern[str], str], ...]:
    """Return the patterns of private texts with their replacements, the longest first."""
    folders = {
        str(REPOSITORY): "/repository",
        sys.prefix: "/python",
        sys.base_prefix: "/python",
        str(Path.cwd()): "/repository",
        str(Path.home()): "/home/user",
        tempfile.gettempdir(): "/tmp",
    }
    names = {socket.gethostname(): "host", platform.node(): "host", socket.getfqdn(): "host", _find_user_name(): "user"}
    secrets = {
        value: redact.REDACTED for name, value in os.environ.items() if redact.is_secret(name) and len(value) >= 8
    }
    replacements: list[tuple[str, str, str]] = []
    for text, by in {**folders, **secrets}.items():
        if len(text) > 1 and text not in _PUBLIC:
            replacements.append((text, re.escape(text), by))
    for text, by in names.items():
        if len(text) >= _SHORTEST and text not in _PUBLIC:
            replacements.append((text, rf"(?<![A-Za-z0-9_]){re.escape(text)}(?![A-Za-z0-9_])", by))
    replacements.sort(key=lambda one: -len(one[0]))
    return tuple((re.compile(pattern), by) for _, pattern, by in replacements)


def _find_user_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user id without a name
        return ""


def clean(text: str) -> str:
    """Return a text without private data of this machine."""
    for pattern, by in _list_private_texts():
        text = pattern.sub(by, text)
    return _UUID.sub(_NO_UUID, text)


def keep(bench: Bench, source: Path, name: str, what: str) -> None:
    """Keep a database in nsys's schema (`.sqlite`), a Kineto trace (`.json.gz`) or a text.

    Args:
        bench: of the check.
        source: the file; it is only read.
        name: of the kept file.
        what: its content, in a sentence.

    Raises:
        Failed: it is too large, or still has private data.
    """
    if not _NAME.fullmatch(name.removeprefix("gpu/")):
        raise ValueError(f"{name!r} is not a plain file name")
    target = bench.captures / name
    target.parent.mkdir(exist_ok=True)
    part = target.with_name(f".{target.name}.part")
    try:
        if source.suffix == ".sqlite":
            _copy_database(source, part)
        elif source.suffix == ".gz":
            text = gzip.decompress(source.read_bytes()).decode("utf-8", "replace")
            part.write_bytes(gzip.compress(clean(text).encode(), 6, mtime=0))
        else:
            part.write_text(clean(source.read_text(encoding="utf-8", errors="replace")), encoding="utf-8")
        size = part.stat().st_size
        if size > LARGEST_BYTES:
            raise Failed(f"{name} has {size:,} bytes; the limit is {LARGEST_BYTES:,}")
        content = part.read_bytes()
        content = gzip.decompress(content) if source.suffix == ".gz" else content
        left = content.decode("utf-8", "replace")
        if any(pattern.search(left) for pattern, _ in _list_private_texts()):
            raise Failed(f"{name} still has private data of this machine and is not kept")
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
    bench.kept.append({"file": name, "what": what, "bytes": size})
    if source.suffix == ".sqlite":
        for file in _list_gpu_files(source):
            keep(bench, file, f"gpu/{file.name}", f"GPU activity of {name}")


def _list_gpu_files(database: Path) -> list[Path]:
    """Return the files with the GPU activity of the recorder's database."""
    with closing(sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro", uri=True)) as connection:
        tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master")}
        rows = connection.execute("SELECT name FROM TRACEABLE_GPU_FILES") if "TRACEABLE_GPU_FILES" in tables else ()
        return [database.parent / "gpu" / name for (name,) in rows]


def _copy_database(source: Path, target: Path) -> None:
    target.unlink(missing_ok=True)
    with closing(sqlite3.connect(target)) as database:
        with closing(sqlite3.connect(f"{source.absolute().as_uri()}?mode=ro", uri=True)) as original:
            original.backup(database)
        names = [row[0] for row in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for name in names:
            if not _KEPT_TABLES.fullmatch(name) or _EXCLUDED_TABLES.fullmatch(name):
                database.execute(f'DROP TABLE "{name}"')
            else:
                _clean_table(database, name)
        if "META_DATA_CAPTURE" in names:
            database.execute("DELETE FROM META_DATA_CAPTURE WHERE name LIKE '%ENVIRONMENT%'")
        database.commit()
        database.execute("VACUUM")


def _clean_table(database: sqlite3.Connection, table: str) -> None:
    for _, column, kind, *_ in database.execute(f'PRAGMA table_info("{table}")').fetchall():
        if kind.upper() not in ("TEXT", ""):
            continue
        where = f"typeof(\"{column}\") = 'text'"
        texts = [row[0] for row in database.execute(f'SELECT DISTINCT "{column}" FROM "{table}" WHERE {where}')]
        changed = [(clean(text), text) for text in texts if clean(text) != text]
        database.executemany(f'UPDATE "{table}" SET "{column}" = ? WHERE "{column}" = ?', changed)
