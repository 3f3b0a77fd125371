"""The ncu (Nsight Compute's command line) that is installed here: where it is, which version, and its exporter.

Nothing here starts a program under ncu; `ncu.py` says how.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from traceable import environment
from traceable.errors import CollectorError

ANSWER_SECONDS = 30
"""How long `ncu --version` may take. It answers in well under a second; a broken install hangs."""

INSTALL_FOLDERS = (
    "/opt/nvidia/nsight-compute/*",
    "/usr/local/cuda*/bin",
    "/usr/local/cuda*/nsight-compute*",
    "/usr/local/NVIDIA-Nsight-Compute*",
    "/usr/lib/nsight-compute",
)
"""Where NVIDIA's own packages, the CUDA toolkit and Debian put ncu when it is not on PATH."""

OLDEST_FOR_RANGES = (2022, 2)
"""From this version on `--nvtx-include` takes regular expressions, which our filters are (release notes of 2022.2)."""

NO_DEPLOYMENT = {"NV_COMPUTE_PROFILER_DISABLE_STOCK_FILE_DEPLOYMENT": "1"}
"""Without it every ncu, even one that only reads a report, copies its section files into the user's ~/Documents."""


@dataclass(frozen=True)
class Install:
    """One ncu executable that answered.

    Attributes:
        executable: its path as it was found, links not resolved.
        version: as ncu prints it, e.g. `2024.1.1.0`.
    """

    executable: Path
    version: str

    @property
    def filters_ranges(self) -> bool:
        """Whether its `--nvtx-include` takes what `ncu_filter` writes; a version of no known form is given a try."""
        numbers = _numbers(self.version)[:2]
        return len(numbers) < 2 or tuple(numbers) >= OLDEST_FOR_RANGES


def find() -> Install:
    """Return the ncu to use: the one of TRACEABLE_NCU, else the first that answers on PATH or in an install folder.

    Raises:
        CollectorError: there is none, or none that answers.
    """
    named = os.environ.get(environment.NCU)
    if named:
        if not os.access(named, os.X_OK) or Path(named).is_dir():
            raise CollectorError(f"{environment.NCU}={named} is not an executable file", "correct it or unset it")
        return Install(Path(named).absolute(), _version(named))
    failure: CollectorError | None = None
    for executable in _candidates():
        try:
            return Install(executable, _version(str(executable)))
        except CollectorError as error:  # noqa: PERF203 - one broken install must not hide the next
            failure = failure or error
    raise failure or CollectorError(
        "ncu (Nsight Compute) is not installed",
        f"install it, name it in {environment.NCU}, or see with --dry-run what would be run",
    )


def export(report: Path) -> str:
    """Return the CSV text of a report (`.ncu-rep`): every metric of every launch, in base units.

    Raises:
        CollectorError: ncu is missing or can't read the report; the message names the file.
    """
    install = find()
    words = [str(install.executable), "--import", str(report), "--csv", "--page", "raw", "--print-units", "base"]
    answer = _ask(words, seconds=None)
    if answer.returncode:
        raise CollectorError(
            f"ncu {install.version} can't read {report}: {_last_words(answer)}",
            "open it with the ncu that wrote it, or with a newer one",
        )
    return answer.stdout


def _candidates() -> Iterator[Path]:
    on_path = shutil.which("ncu")
    if on_path:
        yield Path(on_path).absolute()
    for pattern in INSTALL_FOLDERS:
        # The newest version of each first.
        for folder in sorted(Path("/").glob(pattern.lstrip("/")), key=lambda path: _numbers(str(path)), reverse=True):
            if os.access(folder / "ncu", os.X_OK) and (folder / "ncu").is_file():
                yield folder / "ncu"


def _numbers(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", text)]


def _version(executable: str) -> str:
    answer = _ask([executable, "--version"], ANSWER_SECONDS)
    match = re.search(r"^Version\s+(\S+)", answer.stdout, re.MULTILINE)
    if answer.returncode or match is None:
        raise CollectorError(
            f"{executable} --version ends with {answer.returncode} and says {_last_words(answer)}", "reinstall it"
        )
    return match.group(1)


def _ask(words: Sequence[str], seconds: float | None) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            encoding="utf-8",
            errors="replace",
            timeout=seconds,
            check=False,
            # Numbers are written as the locale has them: 1,234.5 or 1.234,5.
            env={**os.environ, **NO_DEPLOYMENT, "LC_ALL": "C"},
        )
    except subprocess.TimeoutExpired:
        raise CollectorError(f"{words[0]} does not answer within {seconds} s", "reinstall it") from None
    except OSError as error:
        raise CollectorError(f"{words[0]} can't be executed: {error.strerror}", "reinstall it") from None


def _last_words(answer: subprocess.CompletedProcess[str]) -> str:
    """The last line that says something, for a message of one line."""
    lines = [line.strip() for line in (answer.stdout + "\n" + answer.stderr).splitlines() if line.strip()]
    return repr(lines[-1][:300]) if lines else "nothing"
