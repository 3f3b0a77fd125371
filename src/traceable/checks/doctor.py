"""Before the first run: what `traceable run` needs is looked at, tried, and judged.

`run_checks` gathers the facts, what takes time beside each other, and has each check judge its own. Whatever fails or does
not answer in time becomes a line of the answer. It prints nothing; `cli/doctor.py` does. What a check is for, and when
it is a warning or a problem, stands in docs/doctor.md.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NoAnswerError
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from traceable.checks import disk_space, machine_checks, machine_facts, probes, self_test
from traceable.checks.machine_findings import CheckResult, Finding, warning
from traceable.errors import TraceableError
from traceable.launch import provenance, run_dir

SECONDS = 13.0
"""How long answers are waited for, so that the whole is over in 15 s."""

NSYS_SECONDS = 5.0
"""How long nsys may take to say its version and options. It takes 0.2 s."""

GRACE_SECONDS = 1.5
"""How long what is given up may take to clear up."""

POLL_SECONDS = 0.05

CheckFunction = Callable[..., CheckResult | Sequence[CheckResult] | None]

CHECKS: tuple[tuple[str, CheckFunction, tuple[str, ...]], ...] = (
    ("python", machine_checks.check_python, ("python",)),
    ("traceable", machine_checks.check_extensions, ("parts",)),
    ("packages", machine_checks.check_packages, ("packages",)),
    ("nvtx", machine_checks.check_nvtx, ("nvtx", "recorder canary", "nsys canary", "cuda")),
    ("recorder", machine_checks.check_recorder, ("nsys", "packages", "recorder canary")),
    ("nsys", machine_checks.check_nsys, ("nsys", "driver")),
    ("nsys importer", machine_checks.check_importer, ("nsys",)),
    ("nsys capture", machine_checks.check_nsys_capture, ("nsys", "space", "packages", "nsys canary")),
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
"""Each check: its name, what judges, and the facts that it is given, in that order."""


def run_checks(output: Path | None = None) -> list[Finding]:
    """Look at everything and return a line for each check, in the order of `CHECKS`.

    A check that does not apply here has no line, and one that finds several things has several. Takes 15 s at most.

    Args:
        output: where runs are to go, or None for `traceable-runs`.
    """
    known = _Facts()
    try:
        _gather(known, output or run_dir.PARENT)
        return [Finding(name, said) for name, judge, needs in CHECKS for said in _judged(judge, needs, known)]
    finally:
        known.give_up()


@dataclass
class _Facts:
    """The facts by their names, as far as they are known; each is asked for once, in a thread of its own."""

    deadline: float = field(default_factory=lambda: time.monotonic() + SECONDS)
    futures: dict[str, Future[Any]] = field(default_factory=dict)
    threads: list[threading.Thread] = field(default_factory=list)

    def ask(self, name: str, question: Callable[[], Any]) -> None:
        """Have a question answered beside the others."""
        self.futures[name] = Future()
        # Not an executor's: Python would wait for its threads before it ends.
        thread = threading.Thread(target=self._answer, args=(name, question), name=f"traceable-{name}", daemon=True)
        self.threads.append(thread)
        thread.start()

    def get(self, name: str) -> Any:
        """Return a fact.

        Raises:
            NoAnswerError: there is no answer.
            Exception: what the question raised.
        """
        return self.futures[name].result(timeout=max(0.0, self.deadline - time.monotonic()))

    def give_up(self) -> None:
        """End the processes that questions without an answer wait for, and have those clear up after themselves."""
        until = time.monotonic() + GRACE_SECONDS
        for thread in self.threads:
            # More than once: it may be about to start another one.
            while thread.is_alive() and time.monotonic() < until:
                for pid in _children(thread):
                    with contextlib.suppress(OSError):
                        os.kill(pid, signal.SIGKILL)
                thread.join(POLL_SECONDS)

    def _answer(self, name: str, question: Callable[[], Any]) -> None:
        try:
            self.futures[name].set_result(question())
        except Exception as error:  # noqa: BLE001 - whatever it is, it becomes a line of the answer
            self.futures[name].set_exception(error)


def _gather(known: _Facts, output: Path) -> None:
    known.ask("running", machine_facts.find_running_profilers)
    known.ask("space", lambda: disk_space.probe_space(output))
    known.ask("parts", machine_facts.inspect_extensions)
    known.ask("nsys itself", probes.probe_nsys)
    known.ask("nsys", lambda: _nsys(known))
    known.ask("cuda", probes.probe_cuda)
    known.ask("ncu", probes.probe_ncu)
    known.ask("python", machine_facts.inspect_python)
    known.ask("packages", machine_facts.inspect_packages)
    known.ask("machine", machine_facts.inspect_machine)
    known.ask("torch", machine_facts.inspect_torch)
    known.ask("driver", machine_facts.inspect_driver)
    known.ask("variables", machine_facts.inspect_environment)
    known.ask("nvtx", lambda: provenance.get_package_version("nvtx"))
    known.ask("nsys canary", lambda: _canary("nsys", known) if known.get("nsys").found else None)
    known.ask("recorder canary", lambda: _canary("recorder", known) if known.get("parts").recorder else None)


def _nsys(known: _Facts) -> probes.Nsys:
    """Return what nsys answers; of one that hangs, that: most checks want to know whether there is one that answers."""
    try:
        answer: probes.Nsys = known.futures["nsys itself"].result(NSYS_SECONDS)
    except NoAnswerError:
        return probes.describe_unresponsive_nsys(NSYS_SECONDS)
    return answer


def _canary(collector: str, known: _Facts) -> self_test.SelfTest:
    known.get("running")  # what runs is looked at before we run something ourselves
    return self_test.run_self_test(collector, known.get("space").temporary.path)


def _judged(judge: CheckFunction, needs: Sequence[str], known: _Facts) -> Sequence[CheckResult]:
    try:
        said = judge(*[known.get(need) for need in needs])
    except TraceableError as error:
        said = warning(error.code, f"could not be checked: {error.problem}", error.remedy)
    except NoAnswerError:
        found = f"could not be checked: no answer within {SECONDS:g} s"
        said = warning("check_timed_out", found, "try again when the machine is idle")
    except Exception as error:  # noqa: BLE001 - a fault of ours must not hide what the other checks found
        found = f"could not be checked: {type(error).__name__}: {error}"
        said = warning("check_failed", found, "report this to traceable's authors")
    return [said] if isinstance(said, CheckResult) else said or []


def _children(thread: threading.Thread) -> list[int]:
    try:
        listed = Path(f"/proc/self/task/{thread.native_id}/children").read_text(encoding="ascii")
    except OSError:
        return []
    return [int(pid) for pid in listed.split()]
