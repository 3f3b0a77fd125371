"""Before the first run: probe and check everything that `traceable run` needs.

`run_checks` gathers the facts, slow ones in parallel, and passes each check the facts it needs. A probe that fails or
times out becomes a line of the result. Nothing is printed here; `cli/doctor.py` does that. docs/doctor.md explains what
each check is for, and when it is a warning or a problem.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as ProbeTimeoutError
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from traceable.checks import disk_space, machine, machine_checks, probes, self_test
from traceable.checks.finding import CheckResult, Finding, warning
from traceable.errors import TraceableError
from traceable.launch import provenance, run_dir

SECONDS = 13.0
"""How long to wait for the probes, so that everything is over in 15 s."""

NSYS_SECONDS = 5.0
"""How long nsys may take to print its version and options. It takes 0.2 s."""

GRACE_SECONDS = 1.5
"""How long abandoned probes may take to clean up."""

POLL_SECONDS = 0.05

CheckFunction = Callable[..., CheckResult | Sequence[CheckResult] | None]

CHECKS: tuple[tuple[str, CheckFunction, tuple[str, ...]], ...] = (
    ("python", machine_checks.check_python, ("python",)),
    ("traceable", machine_checks.check_extensions, ("extensions",)),
    ("packages", machine_checks.check_packages, ("packages",)),
    ("nvtx", machine_checks.check_nvtx, ("nvtx", "recorder self-test", "nsys self-test", "cuda")),
    ("recorder", machine_checks.check_recorder, ("nsys", "packages", "recorder self-test")),
    ("nsys", machine_checks.check_nsys, ("nsys", "driver")),
    ("nsys importer", machine_checks.check_importer, ("nsys",)),
    ("nsys capture", machine_checks.check_nsys_capture, ("nsys", "space", "packages", "nsys self-test")),
    ("ncu", machine_checks.check_ncu, ("ncu", "driver")),
    ("cuda driver", machine_checks.check_cuda_driver, ("driver", "machine", "cuda")),
    ("gpus", machine_checks.check_gpus, ("cuda", "nsys", "running")),
    ("gpu counters", machine_checks.check_gpu_counters, ("driver", "machine", "cuda")),
    ("cpu samples", machine_checks.check_cpu_samples, ("machine", "nsys")),
    ("system", machine_checks.check_system, ("machine",)),
    ("temporary", machine_checks.check_temporary_folder, ("space", "nsys")),
    ("output", machine_checks.check_output_folder, ("space",)),
    ("shared memory", machine_checks.check_shared_memory, ("space", "nsys")),
    ("torch", machine_checks.check_torch, ("torch", "cuda")),
    ("environment", machine_checks.check_environment, ("variables",)),
    ("other profilers", machine_checks.check_other_profilers, ("running", "driver")),
)
"""Each check: its name, its function, and the facts that the function takes, in that order."""


def run_checks(output: Path | None = None) -> list[Finding]:
    """Run all checks and return a line for each, in the order of `CHECKS`.

    A check that does not apply here has no line; one with several results has several. Takes 15 s at most.

    Args:
        output: the output directory of runs, or None for `traceable-runs`.
    """
    facts = _Facts()
    try:
        _gather(facts, output or run_dir.PARENT)
        return [Finding(name, result) for name, check, needs in CHECKS for result in _run_check(check, needs, facts)]
    finally:
        facts.abandon_probes()


@dataclass
class _Facts:
    """The facts by name; each is probed once, in its own thread."""

    deadline: float = field(default_factory=lambda: time.monotonic() + SECONDS)
    futures: dict[str, Future[Any]] = field(default_factory=dict)
    threads: list[threading.Thread] = field(default_factory=list)

    def probe(self, name: str, function: Callable[[], Any]) -> None:
        """Start a probe in parallel to the others."""
        self.futures[name] = Future()
        # Not an executor's: Python would wait for its threads before it exits.
        thread = threading.Thread(target=self._run_probe, args=(name, function), name=f"traceable-{name}", daemon=True)
        self.threads.append(thread)
        thread.start()

    def get(self, name: str) -> Any:
        """Return a fact.

        Raises:
            ProbeTimeoutError: the probe is not finished in time.
            Exception: raised by the probe.
        """
        return self.futures[name].result(timeout=max(0.0, self.deadline - time.monotonic()))

    def abandon_probes(self) -> None:
        """Kill the processes that unfinished probes wait for, and let these probes clean up."""
        until = time.monotonic() + GRACE_SECONDS
        for thread in self.threads:
            # More than once: it may be about to start another one.
            while thread.is_alive() and time.monotonic() < until:
                for pid in _children(thread):
                    with contextlib.suppress(OSError):
                        os.kill(pid, signal.SIGKILL)
                thread.join(POLL_SECONDS)

    def _run_probe(self, name: str, function: Callable[[], Any]) -> None:
        try:
            self.futures[name].set_result(function())
        except Exception as error:  # noqa: BLE001 - whatever it is, it becomes a line of the result
            self.futures[name].set_exception(error)


def _gather(facts: _Facts, output: Path) -> None:
    facts.probe("running", machine.find_running_profilers)
    facts.probe("space", lambda: disk_space.probe_space(output))
    facts.probe("extensions", machine.inspect_extensions)
    facts.probe("nsys itself", probes.probe_nsys)
    facts.probe("nsys", lambda: _probe_nsys(facts))
    facts.probe("cuda", probes.probe_cuda)
    facts.probe("ncu", probes.probe_ncu)
    facts.probe("python", machine.inspect_python)
    facts.probe("packages", machine.inspect_packages)
    facts.probe("machine", machine.inspect_machine)
    facts.probe("torch", machine.inspect_torch)
    facts.probe("driver", machine.inspect_driver)
    facts.probe("variables", machine.inspect_environment)
    facts.probe("nvtx", lambda: provenance.get_package_version("nvtx"))
    facts.probe("nsys self-test", lambda: _run_self_test("nsys", facts) if facts.get("nsys").usable else None)
    facts.probe(
        "recorder self-test",
        lambda: _run_self_test("recorder", facts) if facts.get("extensions").has_recorder else None,
    )


def _probe_nsys(facts: _Facts) -> probes.Nsys:
    """Return the facts of nsys, also of one that hangs: most checks need to know whether there is a usable one."""
    try:
        nsys: probes.Nsys = facts.futures["nsys itself"].result(NSYS_SECONDS)
    except ProbeTimeoutError:
        return probes.describe_unresponsive_nsys(NSYS_SECONDS)
    return nsys


def _run_self_test(collector: str, facts: _Facts) -> self_test.SelfTest:
    facts.get("running")  # other profilers are listed before we start one ourselves
    return self_test.run_self_test(collector, facts.get("space").temporary.path)


def _run_check(check: CheckFunction, needs: Sequence[str], facts: _Facts) -> Sequence[CheckResult]:
    try:
        results = check(*[facts.get(need) for need in needs])
    except TraceableError as error:
        results = warning(error.code, f"check failed: {error.problem}", error.remedy)
    except ProbeTimeoutError:
        message = f"check timed out after {SECONDS:g} s"
        results = warning("check_timed_out", message, "try again when the machine is idle")
    except Exception as error:  # noqa: BLE001 - a fault of ours must not hide the results of other checks
        message = f"check failed: {type(error).__name__}: {error}"
        results = warning("check_failed", message, "report this to traceable's authors")
    return [results] if isinstance(results, CheckResult) else results or []


def _children(thread: threading.Thread) -> list[int]:
    try:
        pids = Path(f"/proc/self/task/{thread.native_id}/children").read_text(encoding="ascii")
    except OSError:
        return []
    return [int(pid) for pid in pids.split()]
