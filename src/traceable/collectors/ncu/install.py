"""The ncu (Nsight Compute's command line) that is installed here: where it is, which version, and its exporter.

Nothing here starts a program under ncu; see `collector.py`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from traceable.collectors import tools
from traceable.collectors.tools import parse_version_numbers, quote_last_line, run_tool
from traceable.errors import CollectorError
from traceable.protocol import environment

INSTALL_FOLDERS = (
    "/opt/nvidia/nsight-compute/*",
    "/usr/local/cuda*/bin",
    "/usr/local/cuda*/nsight-compute*",
    "/usr/local/NVIDIA-Nsight-Compute*",
    "/usr/lib/nsight-compute",
)
"""Where NVIDIA's own packages, the CUDA toolkit and Debian put ncu when it is not on PATH."""

_VERSION = re.compile(r"^Version\s+(\S+)", re.MULTILINE)

OLDEST_FOR_RANGES = (2022, 2)
"""The first version whose `--nvtx-include` takes regular expressions, as our filters are (release notes of 2022.2)."""

NO_DEPLOYMENT = {"NV_COMPUTE_PROFILER_DISABLE_STOCK_FILE_DEPLOYMENT": "1"}
"""Without it every ncu, even one that only reads a report, copies its section files into the user's ~/Documents."""


@dataclass(frozen=True)
class Install:
    """One ncu executable that works.

    Attributes:
        executable: its path, links not resolved.
        version: as ncu prints it, e.g. `2024.1.1.0`.
    """

    executable: Path
    version: str

    @property
    def can_filter_ranges(self) -> bool:
        """Whether its `--nvtx-include` takes the filters of `filter.py`; true for a version of unknown form."""
        version = parse_version_numbers(self.version)[:2]
        return len(version) < 2 or tuple(version) >= OLDEST_FOR_RANGES


def find_ncu() -> Install:
    """Return the ncu to use: the one of TRACEABLE_NCU, else the first that works on PATH or in an install folder.

    Raises:
        CollectorError: there is none, or none that works.
    """
    remedy = f"install Nsight Compute, set {environment.NCU} to the path of ncu, or print the command with --dry-run"
    missing = CollectorError("ncu_not_installed", "ncu is not installed", remedy)
    return Install(*tools.find_tool("ncu", environment.NCU, INSTALL_FOLDERS, _VERSION, missing))


def export_csv(report: Path) -> str:
    """Return the CSV text of a report (`.ncu-rep`): every metric of every launch, in base units.

    Raises:
        CollectorError: ncu is missing or can't read the report; the message names the file.
    """
    install = find_ncu()
    words = [str(install.executable), "--import", str(report), "--csv", "--page", "raw", "--print-units", "base"]
    # Numbers are written in the locale's format: 1,234.5 or 1.234,5.
    answer = run_tool(words, no_timeout=True, variables={**NO_DEPLOYMENT, "LC_ALL": "C"})
    if answer.returncode:
        raise CollectorError(
            "ncu_import_failed",
            f"ncu {install.version} can't read {report}: {quote_last_line(answer)}",
            "open it with the ncu that wrote it, or with a newer one",
        )
    return answer.stdout
