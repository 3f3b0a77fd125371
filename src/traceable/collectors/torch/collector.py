"""torch.profiler as a collector: the environment that makes the program start it, and the traces that it leaves.

The recording happens in the program (`capture/torch_gate.py`), by the torch that the program imports. What it leaves is
Kineto's JSON, which `trace.kineto` reads as it is: nothing is made of it here.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from traceable.collectors.base import Availability, CollectorResult, Gating, Plan
from traceable.errors import CollectorError, Message
from traceable.protocol import environment, untrusted

DIRECTORY = "torch"
"""Name of the directory with the traces, within the run directory."""

SUFFIX = ".pt.trace.json.gz"

_BOOTSTRAP = Path(__file__).parents[2] / "annotation" / "bootstrap"
"""The folder of the `sitecustomize` that sees the import of torch; `annotation.bootstrap.DIRECTORY`."""

_LOG_LEVEL = "KINETO_LOG_LEVEL"
_SILENT = "99"
"""Kineto writes two lines to the program's stderr for each recording, at every level below (torch 2.13)."""

_NSYS = ("NSYS_PROFILING_SESSION_ID",)
_INJECTIONS = (environment.NVTX_INJECTION, "CUDA_INJECTION64_PATH")
_OF_NSYS = ("ToolsInjection", "nsight")
"""By what a process is known to run under nsys: a variable of its own, or the libraries that it injects."""


class TorchCollector:
    """Satisfies `base.Collector`. Needs torch in the program; sees GPU work where torch sees a GPU."""

    name = "torch"

    def availability(self) -> Availability:
        """Always works as far as the launcher can know: which torch the program imports is seen there.

        Raises:
            CollectorError: this is a session of nsys's already.
        """
        reject_under_nsys()
        return Availability(True, "torch.profiler in the program")

    def plan(
        self,
        command: Sequence[str],
        run_dir: Path,
        stem: str,  # noqa: ARG002 - of the interface
        gating: Gating | None = None,
    ) -> Plan:
        """Return `command` unchanged with the environment that makes torch.profiler record it, and its children."""
        directory = str((run_dir / DIRECTORY).absolute())
        ours = {environment.TORCH_DIR: directory, environment.GATE: "torch"}
        return Plan(tuple(command), {**make_torch_environment(gating), **ours})

    def finalize(self, run_dir: Path, stem: str, into: Path | None = None) -> CollectorResult:  # noqa: ARG002 - of the interface
        """Return the trace, or the directory where there are several: of processes, or of windows.

        Raises:
            CollectorError: one of them is a link, or a device.
        """
        directory = run_dir / DIRECTORY
        entries = sorted(directory.iterdir()) if untrusted.is_directory(directory) else []
        traces = [entry for entry in entries if entry.name.endswith(SUFFIX) and not entry.name.startswith(".")]
        if strange := [entry for entry in traces if not untrusted.is_regular(entry)]:
            found = f"{strange[0]} is not a regular file"
            raise CollectorError("not_a_regular_file", found, "remove it, or name the trace that is to be read")
        lost = sum(entry.name.startswith(".") for entry in entries)
        notes = []
        if lost:
            said = f"{lost} traces of torch.profiler are not whole: the process died while it wrote"
            notes.append(Message("torch_trace_not_whole", said))
        if not traces:
            said = (
                "torch.profiler left nothing: the program did not import torch, recorded no window, or ended without "
                "Python's own end (a signal without a handler, os._exit)"
            )
            notes.append(Message("no_torch_trace", said))
            return CollectorResult(None, (), tuple(notes))
        return CollectorResult(traces[0] if len(traces) == 1 else directory, tuple(traces), tuple(notes))


def make_torch_environment(gating: Gating | None) -> dict[str, str]:
    """Return what is set for a program in which torch is to record: when, and by which `sitecustomize`."""
    found = {environment.TORCH: "whole" if gating is None else "windows"}
    if _LOG_LEVEL not in os.environ:
        found[_LOG_LEVEL] = _SILENT
    entries = [str(_BOOTSTRAP), os.environ.get("PYTHONPATH", "")]
    found["PYTHONPATH"] = os.pathsep.join(entry for entry in entries if entry)
    return found


def reject_under_nsys() -> None:
    """Refuse to have torch record where nsys does already.

    Raises:
        CollectorError: this is a session of nsys's.
    """
    found = _nsys_around()
    if found is not None:
        raise CollectorError(
            "inside_nsys",
            f"this runs under nsys ({found} is set), and torch.profiler would get nothing from the GPU: "
            "CUPTI serves one profiler at a time",
            "run it without nsys around it, or with --collector none",
        )


def _nsys_around() -> str | None:
    """Return the variable by which nsys is known to be around this process; None where it is not."""
    for name in _NSYS:
        if os.environ.get(name):
            return name
    for name in _INJECTIONS:
        if any(word in os.environ.get(name, "") for word in _OF_NSYS):
            return name
    return None
