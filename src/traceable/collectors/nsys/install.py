"""The nsys that is installed here: where it is, which version, what it can do, and its importer and exporter.

Nothing here starts a program under nsys; `nsys.py` says how.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from traceable.collectors import tools
from traceable.collectors.nsys import user_options
from traceable.collectors.nsys.tables import check_replaceable
from traceable.collectors.nsys.user_options import UserOption
from traceable.collectors.tools import (
    extract_first_line,
    find_folders,
    parse_version_numbers,
    quote_last_line,
    run_tool,
)
from traceable.errors import CollectorError, Message, UsageError
from traceable.protocol import environment, untrusted

INSTALL_FOLDERS = (
    "/opt/nvidia/nsight-systems*/*/bin",
    "/opt/nvidia/nsight-systems*/*/target-linux-*",
    "/opt/nvidia/nsight-systems*/bin",
    "/opt/nvidia/nsight-systems*/target-linux-*",
    "/opt/nvidia/nsight-compute/*/host/target-linux-*",
    "/usr/local/cuda*/bin",
    "/usr/lib/nsight-systems*/target-linux-*",
    "/usr/lib/*/nsight-systems*/target-linux-*",
    "/usr/lib/nsight-systems*",
)
"""Where NVIDIA's own packages, the CUDA toolkit and Debian put nsys when it is not on PATH."""

_VERSION = re.compile(r"version\s+(\S+)")

IMPORTER = "QdstrmImporter"
IMPORTER_FOLDERS = (
    "/opt/nvidia/nsight-systems*/*/host-linux-*",
    "/opt/nvidia/nsight-systems*/host-linux-*",
    "/usr/lib/nsight-systems*/host-linux-*",
    "/usr/lib/*/nsight-systems*/host-linux-*",
    "/usr/lib/*/nsight-systems*",
    "/usr/lib/nsight-systems*",
    "/usr/local/cuda*/nsight-systems*/host-linux-*",
)


@dataclass(frozen=True)
class Install:
    """One nsys executable that answered.

    Attributes:
        executable: its path as it was found, links not resolved.
        version: as nsys prints it, e.g. `2022.4.2.50-32196742v0`.
    """

    executable: Path
    version: str

    @property
    def short_version(self) -> str:
        """`2022.4.2` of `2022.4.2.50-32196742v0`; the whole text where it has no such form."""
        match = re.match(r"\d+\.\d+\.\d+", self.version)
        return match.group() if match else self.version

    @cached_property
    def options(self) -> user_options.Options:
        """What `nsys profile --help` offers, asked once (40 ms).

        Nothing where it says nothing, and then no option that an nsys may lack is used.
        """
        try:
            answer = run_tool([str(self.executable), "profile", "--help"])
        except CollectorError:
            return user_options.parse_help("")
        return user_options.parse_help(answer.stdout + answer.stderr)

    def validate_user_options(self, given: Sequence[UserOption]) -> None:
        """Have nsys itself read the user's options: it takes more than its help lists, and knows what may be repeated.

        Raises:
            UsageError: it refuses one.
        """
        words = [word for one in given for word in one.words]
        answer = run_tool([str(self.executable), "profile", *words, "--help"])
        if not answer.returncode:
            return
        for one in given:
            if not one.known:
                name = one.words[0].partition("=")[0]
                near = self.options.find_nearest(name)
                raise UsageError(
                    "no_such_nsys_option",
                    f"nsys {self.short_version} has no option {name}",
                    f"did you mean {near}?" if near else "type `nsys profile --help`",
                )
        found = f"nsys {self.short_version} refuses --nsys-args: {extract_first_line(answer)}"
        raise UsageError("nsys_args_refused", found, "correct it")

    @property
    def sampling_hang_reason(self) -> Message | None:
        """Why recording samples or thread states of the CPU may never end; None where that is not known of this nsys.

        2022.4.2 on Linux 6.18: the agent spins for ever on perf descriptors that have hung up, in 5 of 12 recordings
        of `sleep 1`. Which kernel began it is not known.
        """
        kernel = os.uname().release
        if parse_version_numbers(self.version)[:1] >= [2023] or parse_version_numbers(kernel)[:1] < [6]:
            return None
        found = f"nsys {self.short_version} may never end with them on Linux {'.'.join(kernel.split('.')[:2])}"
        return Message("samples_hang_nsys", found)

    def explain_no_sampling(self) -> Message | None:
        """Return why the CPU is not to be sampled under this nsys, here; None where it can be."""
        if hangs := self.sampling_hang_reason:
            return hangs
        try:
            answer = run_tool([str(self.executable), "status", "--environment"])
        except CollectorError as error:
            return error.cause
        if re.search(r"\(process-tree\): OK", answer.stdout):
            return None
        return Message("samples_not_permitted", "not permitted here, see `nsys status --environment`")

    def select_gpu_metrics_devices(self, option: str) -> tuple[str | None, str]:
        """Return the value of `option` that selects the GPUs whose counters can be sampled, or None and why not."""
        try:
            answer = run_tool([str(self.executable), "profile", f"{option}=help"])
        except CollectorError as error:
            return None, error.problem
        lines = [line.strip() for line in (answer.stdout + answer.stderr).splitlines() if line.strip()]
        # `0: NVIDIA ...` for each GPU, `all: ...` with newer ones; the GPUs that can't are listed below, in a part of
        # its own, or with a word behind.
        cut = next((place for place, line in enumerate(lines) if line.startswith("Some GPUs")), len(lines))
        named = dict(line.split(": ", 1) for line in lines[:cut] if re.match(r"(\d+|all): ", line))
        numbers = [one for one, name in named.items() if one.isdigit() and "not supported" not in name]
        if numbers:
            return ("all" if "all" in named else ",".join(numbers)), ""
        return None, next((line for line in lines if not line.startswith("Possible")), "nsys lists no GPU")[:120]


def find_nsys() -> Install:
    """Return the nsys to use: the one of TRACEABLE_NSYS, else the first that answers on PATH or in an install folder.

    Raises:
        CollectorError: there is none, or none that answers.
    """
    remedy = f"install it or name it in {environment.NSYS}"
    missing = CollectorError("nsys_not_installed", "nsys is not installed", remedy)
    return Install(*tools.find_tool("nsys", environment.NSYS, INSTALL_FOLDERS, _VERSION, missing))


def export_sqlite(report: Path, database: Path, scrub: Callable[[Path], object] | None = None) -> None:
    """Write the SQLite form of `report` (`.nsys-rep`, `.qdrep` or `.qdstrm`) to `database`, whole or not at all.

    Args:
        report: what nsys wrote.
        database: where its SQLite form goes.
        scrub: called with that before it is in its place.

    Raises:
        CollectorError: nsys is missing or can't read the report, or something else is in the place of `database`; the
            message names the file.
    """
    install = find_nsys()
    check_replaceable(database)
    with _folder_beside(database) as folder:
        # nsys 2022.4 keeps a file name's own suffix only if it is the one it would have given.
        part = folder / f"{database.stem}.sqlite"
        if report.suffix == ".qdstrm":
            report = import_stream(report, part.with_suffix(".nsys-rep"), install)
        words = [str(install.executable), "export", "--type", "sqlite", "--force-overwrite", "true"]
        answer = run_tool([*words, "--output", str(part), str(report)], no_timeout=True)
        if answer.returncode or not part.is_file() or not part.stat().st_size:
            raise CollectorError(
                "nsys_export_failed",
                f"nsys {install.short_version} can't export {report}: {quote_last_line(answer)}",
                "open it with the nsys that wrote it, or record again",
            )
        if scrub is not None:
            scrub(part)
        part.replace(database)


@contextlib.contextmanager
def _folder_beside(path: Path) -> Iterator[Path]:
    """Yield a new folder on the file system of `path`, in which nobody has put a link under a name that we take.

    Raises:
        CollectorError: it can't be made.
    """
    try:
        folder = tempfile.TemporaryDirectory(prefix=".traceable-", dir=path.parent, ignore_cleanup_errors=True)
    except OSError as error:
        found = f"{path} can't be written ({error.strerror})"
        raise CollectorError("file_not_written", found, "make room or choose another place") from None
    with folder as name:
        yield Path(name)


def import_stream(stream: Path, report: Path, install: Install | None = None) -> Path:
    """Turn a `.qdstrm`, which an nsys without its importer leaves, into `report` and return that.

    Raises:
        CollectorError: the importer is nowhere to be found, or the stream is incomplete.
    """
    importer = find_importer(install)
    if importer is None:
        raise CollectorError(
            "importer_missing",
            f"{stream} was left by an nsys without its importer",
            f"install the nsys package that holds {IMPORTER}",
        )
    with _folder_beside(report) as folder:
        part = folder / f"{report.stem}.nsys-rep"
        answer = run_tool([str(importer), "-i", str(stream), "-o", str(part)], no_timeout=True)
        if answer.returncode or not part.is_file():
            raise CollectorError(
                "nsys_import_failed",
                f"{importer} can't import {stream}: {quote_last_line(answer)}",
                "use the importer of the nsys version that wrote it; an interrupted stream is lost",
            )
        if untrusted.exists(report):
            found = f"{report} is in the place of the report of {stream}"
            raise CollectorError("file_in_the_way", found, "move it away")
        part.replace(report)
    return report


def find_importer(install: Install | None = None) -> Path | None:
    """Return the importer: beside the nsys in use (the versions must match), on PATH, or in an install folder."""
    for folder in _importer_folders(install):
        if os.access(folder / IMPORTER, os.X_OK):
            return folder / IMPORTER
    return None


def _importer_folders(install: Install | None) -> Iterator[Path]:
    if install is not None:
        for home in (install.executable.parent, install.executable.resolve().parent):
            yield home
            yield from sorted(home.parent.glob("host-linux-*"))
    yield from (Path(folder) for folder in os.get_exec_path())
    yield from find_folders(IMPORTER_FOLDERS)
