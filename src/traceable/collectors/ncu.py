"""Nsight Compute (ncu): where it is, its command line, its filters of ranges and kernels, and its error messages.

It is not a collector of recordings: it runs each of a few kernels several times over and reads hardware counters.
The program is started by `exec_shim.py`, as under nsys, and for the same reasons: ncu kills a program with SIGKILL when
it gets SIGTERM or Ctrl+C itself, and turns death by signal 15 into the exit code 15 (2022.3, 2024.1).

ncu joins several `--nvtx-include` with or. In one, `domain@NAME/` is a push/pop range, which selects launches by its
own thread only, and `domain@NAME` a start/end range, which selects those of every thread of the process; without a
domain only the default one matches. `A/*/B` is B anywhere above A on the stack; `A,B` both start/end ranges at once.
All of this, including the escapes below, was tested on the filters of ncu 2022.3 and 2024.1
(tests/collectors/test_ncu.py).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from traceable.collectors.base import Plan
from traceable.collectors.nsys.collector import EXEC_SHIM
from traceable.collectors.tools import find_tool, parse_version_numbers, quote_last_line, run_tool
from traceable.errors import CollectorError, Message
from traceable.protocol import environment

NAME = "ncu"
SUFFIX = ".ncu-rep"
LOG = "ncu.log"
"""ncu's own output, in the directory of its report."""

CLOCKS = ("base", "none")
"""Values of `--clock-control`: clocks locked to their base frequency, or unchanged."""

NO_DEPLOYMENT = {"NV_COMPUTE_PROFILER_DISABLE_STOCK_FILE_DEPLOYMENT": "1"}
"""Without it every ncu, even one that only reads a report, copies its section files into the user's ~/Documents."""

OLDEST_FOR_RANGES = (2022, 2)
"""The first version whose `--nvtx-include` takes regular expressions, as our filters are (release notes of 2022.2)."""

_INSTALL_FOLDERS = (
    "/opt/nvidia/nsight-compute/*",
    "/usr/local/cuda*/bin",
    "/usr/local/cuda*/nsight-compute*",
    "/usr/local/NVIDIA-Nsight-Compute*",
    "/usr/lib/nsight-compute",
)
"""Where NVIDIA's own packages, the CUDA toolkit and Debian put ncu when it is not on PATH."""

_VERSION = re.compile(r"^Version\s+(\S+)", re.MULTILINE)


# ---- the installed ncu


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
        """Whether its `--nvtx-include` takes regular expressions; true for a version of unknown form."""
        version = parse_version_numbers(self.version)[:2]
        return len(version) < 2 or tuple(version) >= OLDEST_FOR_RANGES


def find_ncu() -> Install:
    """Return the ncu to use: the one of TRACEABLE_NCU, else the first that works on PATH or in an install folder.

    Raises:
        CollectorError: there is none, or none that works.
    """
    remedy = f"install Nsight Compute, set {environment.NCU} to the path of ncu, or print the command with --dry-run"
    missing = CollectorError("ncu_not_installed", "ncu is not installed", remedy)
    return Install(*find_tool(NAME, environment.NCU, _INSTALL_FOLDERS, _VERSION, missing))


def export_csv(report: Path) -> str:
    """Return the CSV text of a report (`.ncu-rep`): every metric of every launch, in base units.

    Raises:
        CollectorError: ncu is missing or can't read the report; the message names the file.
    """
    install = find_ncu()
    words = [str(install.executable), "--import", str(report), "--csv", "--page", "raw", "--print-units", "base"]
    # Numbers are written in the locale's format: 1,234.5 or 1.234,5.
    result = run_tool(words, no_timeout=True, variables={**NO_DEPLOYMENT, "LC_ALL": "C"})
    if result.returncode:
        raise CollectorError(
            "ncu_import_failed",
            f"ncu {install.version} can't read {report}: {quote_last_line(result)}",
            "open it with the ncu that wrote it, or with a newer one",
        )
    return result.stdout


# ---- the command line


@dataclass(frozen=True)
class Selection:
    """The launches to profile, and the data to collect of each.

    Attributes:
        includes: values of `--nvtx-include`; empty for the whole program.
        kernels: value of `--kernel-name`; None for every kernel.
        base: the form of the name that it matches: `function`, `demangled` or `mangled`.
        skip, count: the numbers of matching launches to skip first, and to profile after them.
        metrics: names of the metrics to collect.
        clocks: one of CLOCKS.
        section_set: name of a set of ncu's sections to collect in addition to the metrics; None for none.
    """

    includes: tuple[str, ...]
    kernels: str | None
    base: str
    skip: int
    count: int
    metrics: tuple[str, ...]
    clocks: str = CLOCKS[0]
    section_set: str | None = None


def make_plan(executable: str, selection: Selection, command: Sequence[str], run_dir: Path, stem: str) -> Plan:
    """Return how to start `command` under ncu, its report being `<stem>.ncu-rep` in `run_dir` (absolute)."""
    words = [executable, "--target-processes", "all", "--nvtx"]
    for value in selection.includes:
        words += ["--nvtx-include", value]
    if selection.kernels is not None:
        words += ["--kernel-name-base", selection.base, "--kernel-name", selection.kernels]
    if selection.skip:
        words += ["--launch-skip", str(selection.skip)]
    words += ["--launch-count", str(selection.count), "--clock-control", selection.clocks]
    # With --metrics alone ncu collects no sections.
    if selection.section_set is not None:
        words += ["--set", selection.section_set]
    # `%` starts ncu's own substitutions in the name of the report.
    words += ["--metrics", ",".join(selection.metrics), "--export", str(run_dir / stem).replace("%", "%%")]
    return Plan(
        argv=(*words, sys.executable, "-I", "-S", str(EXEC_SHIM), *command),
        environment={**NO_DEPLOYMENT, environment.RUN_DIR: str(run_dir), environment.COLLECTOR: NAME},
        detached=True,
        log=LOG,
    )


# ---- filters of ranges and kernels

_META = frozenset(".^$|()[]{}*+?\\")
"""Special characters of ncu's regular expressions (Boost's). Nothing else may be escaped: `\\<` begins a word."""

_RANGE_META = _META | frozenset("@,/")
"""Those and the special characters of the grammar of ranges."""


@dataclass(frozen=True)
class RangePath:
    """One interpretation of the value of `--range`.

    Attributes:
        names: of the enclosing ranges, the outermost first, and of the range itself.
        domain: its domain; None for any.
    """

    names: tuple[str, ...]
    domain: str | None = None


def parse_range_option(text: str) -> tuple[RangePath, ...]:
    """Return the possible meanings of `--range`, a range of exactly this name first.

    Examples:
        >>> [path.names for path in parse_range_option("outer/inner")]
        [('outer/inner',), ('outer', 'inner')]
        >>> parse_range_option("server:forward")[1]
        RangePath(names=('forward',), domain='server')
    """
    domain, colon, name = text.partition(":")
    paths = []
    for path in (RangePath((text,)), *([RangePath((name,), domain)] if colon and domain and name else [])):
        paths.append(path)
        parts = tuple(path.names[0].split("/"))
        if len(parts) > 1 and all(parts):
            paths.append(RangePath(parts, path.domain))
    return tuple(paths)


def format_nvtx_includes(paths: Iterable[RangePath]) -> list[str]:
    """Return the values of `--nvtx-include` for launches inside any of these ranges, push/pop or start/end."""
    values = []
    for path in paths:
        domain = ".*" if path.domain is None else _match_whole(path.domain)
        names = [_match_whole(name) for name in path.names]
        values.append(f"regex:{domain}@{'/*/'.join(names)}{'/' if len(names) == 1 else ''}")
        values.append(f"regex:{domain}@{','.join(names)}")
    return list(dict.fromkeys(values))


def _match_whole(name: str) -> str:
    return f"^{_escape(name, _RANGE_META)}$"


def make_kernel_regex(expressions: Sequence[str]) -> str:
    """Return the value of `--kernel-name` for names that wholly match one of these regular expressions."""
    return f"regex:^({'|'.join(dict.fromkeys(expressions))})$"


def escape_regex(name: str) -> str:
    r"""Return the regular expression that matches exactly this name.

    Examples:
        >>> print(escape_regex("f<(int)4>(char *)"))
        f<\(int\)4>\(char \*\)
    """
    return _escape(name, _META)


def _escape(name: str, special: frozenset[str]) -> str:
    return "".join(f"\\{c}" if c in special else c for c in name)


def convert_glob(glob: str) -> tuple[str, str]:
    """Return the regular expression for a glob of `*` and `?`, and the form of the name that it matches.

    A glob of a function matches it in any namespace; one with `<`, `(`, `:` or a space matches demangled names.

    Examples:
        >>> convert_glob("rms_norm*")
        ('(?:.*::)?rms_norm.*', 'function')
        >>> convert_glob("ns::f<4>*")
        ('ns::f<4>.*', 'demangled')
    """
    expression = "".join({"*": ".*", "?": "."}.get(c) or escape_regex(c) for c in glob)
    return (
        (expression, "demangled") if any(mark in glob for mark in "<(: ") else (match_function(expression), "function")
    )


def match_function(expression: str) -> str:
    """Return the regular expression for a function in any namespace."""
    return f"(?:.*::)?{expression}"


# ---- error messages

_ERROR = "==ERROR=="
"""How the lines of its log begin that are errors."""

_CAUSES = (
    (
        "ERR_NVGPUCTRPERM",
        Message(
            "counters_not_permitted", "ncu is not permitted to read the GPU's performance counters (ERR_NVGPUCTRPERM)"
        ),
        "run it as root, give the container the capability SYS_ADMIN, or load the driver with "
        "NVreg_RestrictProfilingToAdminUsers=0",
    ),
    (
        "driver resource was unavailable",
        Message("counters_taken", "another tool is using the GPU's performance counters"),
        "stop it: DCGM (`dcgmi profile --pause`), another ncu, nsys or torch.profiler",
    ),
    (
        "lock file",
        Message("ncu_lock_file", "ncu can't use its lock file"),
        "set TMPDIR to a folder of your own, or wait for the other ncu",
    ),
    (
        "not compatible with Nsight Compute",
        Message("ncu_driver_mismatch", "the CUDA driver does not match this ncu"),
        "update the older of the two",
    ),
    (
        "Failed to find metric",
        Message("ncu_no_such_metric", "this ncu does not have a metric for this GPU"),
        "list those it has with `ncu --query-metrics`, or use a newer ncu",
    ),
)
"""ncu's error texts, their meaning and fix. The first one that matches is the cause: the others follow from it."""


def explain_failure(log: str, scope: str) -> CollectorError:
    """Return the reason why ncu left no report.

    Args:
        log: the output of ncu.
        scope: the launches that were selected, as a clause: `inside range forward`.
    """
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    for pattern, cause, remedy in _CAUSES:
        if line := next((line for line in lines if pattern in line), None):
            return CollectorError(cause.code, f"{cause}: {_quote(line)}", remedy)
    errors = [line for line in lines if line.startswith(_ERROR) and "returned an error code" not in line]
    if errors:
        return CollectorError("ncu_failed", f"ncu failed: {_quote(errors[0])}", "see ncu.log")
    if any("No kernels were profiled" in line for line in lines):
        return CollectorError(
            "ncu_no_kernel",
            f"ncu profiled no kernel: no matching kernel was launched {scope}",
            "list the kernels of each range with `traceable report RUN --view kernels --by range`; in a push/pop range "
            "ncu sees only launches by the thread that opened it",
        )
    last = f" (last line of its log: {lines[-1][:300]!r})" if lines else ""
    return CollectorError("ncu_no_report", f"ncu left no report{last}", "run it again")


def _quote(line: str) -> str:
    return line.removeprefix(_ERROR).strip(" .")[:300]
