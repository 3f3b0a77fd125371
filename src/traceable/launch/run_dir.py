"""The run directory: made, claimed again with --force, and its manifest `run.json`.

Nothing recorded is ever deleted here. A run that stands in the way is renamed; files that are not a run's are left
where they are.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from pathlib import Path
from typing import Any

from traceable.collect import bystander
from traceable.collect.base import NSYS_LOG
from traceable.errors import TraceError, UsageError

MANIFEST = "run.json"
SCHEMA = "traceable.run/1"
PARENT = Path("traceable-runs")
"""Where run directories go when no -o is given, relative to the working directory."""


def create(asked: Path | None, name: str, *, force: bool) -> Path:
    """Make the run directory and return its absolute path.

    Args:
        asked: the directory of -o, or None for `traceable-runs/<name>-<UTC time>`.
        name: what the run is called.
        force: take a directory that is not empty. An earlier run in it is renamed to `<directory>.1`, `.2`, ...;
            a directory that holds other files is used with them in it.

    Raises:
        UsageError: the directory can't be made or written, is not empty, or holds a run that is not over.
    """
    try:
        if asked is None:
            return _create_dated(name)
        directory = asked.absolute()
        check(directory, name, force=force)
        if (directory / MANIFEST).exists():
            directory.rename(_free(directory))
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        place = error.filename or asked or PARENT
        raise UsageError(f"the run directory {place} can't be made: {error.strerror}", "name another with -o") from None
    return directory


def check(directory: Path | None, name: str, *, force: bool) -> None:
    """Refuse a directory that `create` would refuse, creating nothing.

    Raises:
        UsageError: as for `create`.
    """
    directory = (directory or PARENT).absolute()
    standing = next(place for place in (directory, *directory.parents) if place.exists() or place.is_symlink())
    if not standing.is_dir():
        raise UsageError(f"{standing} is not a directory", "name another with -o")
    if not os.access(standing, os.W_OK | os.X_OK):
        raise UsageError(f"the output directory {standing} can't be written", "name another with -o")
    if standing != directory or directory == PARENT.absolute() or not any(directory.iterdir()):
        return
    if not force:
        raise UsageError(f"{directory} is not empty", "name another directory, or add --force")
    if (directory / MANIFEST).exists():
        _check_movable(directory)
    elif ours := [entry.name for entry in directory.iterdir() if _is_ours(entry.name, name)]:
        raise UsageError(f"{directory} holds {ours[0]}, which this run would overwrite", "name another with -o")


def _check_movable(directory: Path) -> None:
    if Path.cwd().is_relative_to(directory.resolve()):
        raise UsageError(f"{directory} holds a run and is the working directory", "name another with -o")
    try:
        over = is_over(read(directory), directory)
    except TraceError:
        return
    if not over:
        raise UsageError(f"the run in {directory} is not over", "wait for it, or name another with -o")


def _is_ours(entry: str, stem: str) -> bool:
    ours = (f"{stem}.", "process.", "program.", "status.")
    return entry.startswith(ours) or entry in ("report.json", "recording", NSYS_LOG)


def dated(name: str, attempt: int = 1, at_s: float | None = None) -> Path:
    """Return `traceable-runs/<name>-<UTC time>`, with a number where that is taken; the time is now or `at_s`."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(at_s))
    return PARENT.absolute() / (f"{name}-{stamp}" if attempt == 1 else f"{name}-{stamp}-{attempt}")


def latest() -> Path:
    """Return the run directory in `traceable-runs` whose manifest was written last.

    Raises:
        UsageError: there is none.
    """
    manifests = [path for path in PARENT.glob(f"*/{MANIFEST}") if path.is_file()]
    if not manifests:
        raise UsageError(f"no run in {PARENT}/", "record one with `traceable run app.py`, or name a report")
    return max(manifests, key=lambda path: (path.stat().st_mtime_ns, path)).parent


def _create_dated(name: str) -> Path:
    PARENT.absolute().mkdir(parents=True, exist_ok=True)
    attempt = 1
    while True:
        directory = dated(name, attempt)
        with contextlib.suppress(FileExistsError):
            directory.mkdir()
            return directory
        attempt += 1


def _free(directory: Path) -> Path:
    number = 1
    while (aside := directory.with_name(f"{directory.name}.{number}")).exists():
        number += 1
    return aside


def write(path: Path, content: dict[str, Any]) -> None:
    """Write `content` as JSON to `path`, whole or not at all.

    Raises:
        OSError: the directory is gone or full.
    """
    part = path.with_name(f".{path.name}.part-{os.getpid()}")
    try:
        part.write_text(json.dumps(content, indent=2) + "\n", encoding="ascii")
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def read(directory: Path) -> dict[str, Any]:
    """Return the manifest of a run directory.

    Raises:
        TraceError: it has none, or one that is not ours.
    """
    path = directory / MANIFEST
    try:
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise TraceError(
            f"{directory} is not a run directory: {MANIFEST}: {error.strerror}",
            "give the directory that `traceable run` named, a .nsys-rep or a .sqlite file",
        ) from None
    except ValueError:
        content = None
    if not isinstance(content, dict) or not str(content.get("schema", "")).startswith("traceable.run/"):
        raise TraceError(f"{path} is not a manifest of traceable's", "give the .nsys-rep or .sqlite file in it")
    return content


def is_over(manifest: dict[str, Any], directory: Path) -> bool:
    """Whether the program of the run in `directory` has ended, as far as can be told from this machine."""
    if manifest.get("end") is not None or (directory / bystander.EXIT_FILE).exists():
        return True
    running = [manifest.get("launcher_pid"), manifest.get("pid"), _published_pid(directory)]
    here = manifest.get("host", {}).get("name") == os.uname().nodename
    return here and not any(_belongs(pid, str(manifest.get("run_dir"))) for pid in running if isinstance(pid, int))


def _published_pid(directory: Path) -> int | None:
    """The program's pid where the launcher was killed before it wrote that into the manifest."""
    try:
        return int((directory / bystander.PID_FILE).read_text())
    except (OSError, ValueError):
        return None


def _belongs(pid: int, run_dir: str) -> bool:
    """Whether `pid` lives and is of this run. Pids are used again, so its environment or command line must say so."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[0]
        words = Path(f"/proc/{pid}/environ").read_bytes() + Path(f"/proc/{pid}/cmdline").read_bytes()
    except (OSError, IndexError):
        return False
    return state != "Z" and (os.fsencode(run_dir) in words or b"traceable" in words)
