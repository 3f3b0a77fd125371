"""Nsight Compute: its command line, and the meaning of its error messages.

It is not a collector of recordings: it runs each of a few kernels several times over and reads hardware counters.
The program is started by `exec_shim.py`, as under nsys, and for the same reasons: ncu kills a program with SIGKILL when
it gets SIGTERM or Ctrl+C itself, and turns death by signal 15 into the exit code 15 (2022.3, 2024.1).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from traceable.collectors.base import Plan
from traceable.collectors.ncu import install as ncu_install
from traceable.collectors.nsys.collector import EXEC_SHIM
from traceable.errors import CollectorError, Message
from traceable.protocol import environment

NAME = "ncu"
SUFFIX = ".ncu-rep"
LOG = "ncu.log"
"""ncu's own output, in the directory of its report."""

CLOCKS = ("base", "none")
"""Values of `--clock-control`: clocks locked to their base frequency, or unchanged."""


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
        sections: name of an additional set of ncu's sections to collect; None for none.
    """

    includes: tuple[str, ...]
    kernels: str | None
    base: str
    skip: int
    count: int
    metrics: tuple[str, ...]
    clocks: str = CLOCKS[0]
    sections: str | None = None


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
    if selection.sections is not None:
        words += ["--set", selection.sections]
    # `%` starts ncu's own substitutions in the name of the report.
    words += ["--metrics", ",".join(selection.metrics), "--export", str(run_dir / stem).replace("%", "%%")]
    ours = {environment.RUN_DIR: str(run_dir), environment.COLLECTOR: NAME}
    return Plan(
        argv=(*words, sys.executable, "-I", "-S", str(EXEC_SHIM), *command),
        environment={**ncu_install.NO_DEPLOYMENT, **ours},
        detached=True,
        log=LOG,
    )


def find_report(run_dir: Path, stem: str) -> Path | None:
    """Return the report that ncu left, or None."""
    report = run_dir / f"{stem}{SUFFIX}"
    return report if report.is_file() and report.stat().st_size else None


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
        Message("ncu_no_such_metric", "this ncu does not have the metric for this GPU"),
        "use a newer ncu",
    ),
)
"""ncu's error texts, their meaning and fix. The first one that matches is the cause: the others follow from it."""


def explain_failure(output: str, where: str) -> CollectorError:
    """Return the reason why ncu left no report, from its output.

    Args:
        output: of ncu.
        where: the launches that were selected, as a clause: `inside range forward`.
    """
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    for pattern, cause, remedy in _CAUSES:
        if any(pattern in line for line in lines):
            return CollectorError(cause.code, cause, remedy)
    errors = [line for line in lines if line.startswith("==ERROR==") and "returned an error code" not in line]
    if errors:
        first = errors[0].removeprefix("==ERROR==").strip()[:300]
        return CollectorError("ncu_failed", f"ncu failed: {first}", "see ncu.log")
    if any("No kernels were profiled" in line for line in lines):
        return CollectorError(
            "ncu_no_kernel",
            f"ncu profiled no kernel: no matching kernel was launched {where}",
            "list the kernels of each range with `traceable report RUN --view kernels --by range`; in a push/pop range "
            "ncu sees only launches by the thread that opened it",
        )
    last = f" (last line of its log: {lines[-1][:300]!r})" if lines else ""
    return CollectorError("ncu_no_report", f"ncu left no report{last}", "run it again")
