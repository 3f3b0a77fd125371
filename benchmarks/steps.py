"""What counting steps and gating them costs the program.

    python benchmarks/steps.py [--iterations 100000] [--rounds 5] [--json]

Each row is a process of its own, started in turns; a figure is the median over the rounds, less the empty loop in the
same process. The clock is the thread's CPU time, so waiting is not in it. The control is a `with` of a Python class
that does nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from traceable.collectors.base import Gating
from traceable.collectors.recorder.collector import RecorderCollector
from traceable.protocol import environment

NEVER = "1000000000:1000000001"
CONTROL = "control: Python class that does nothing"
CASES: dict[str, tuple[str, str, str]] = {
    CONTROL: ("nothing", "", ""),
    "with step(), no profiler": ("step", "", ""),
    "with step(), recorded": ("step", "recorder", ""),
    "with step(), outside of the window": ("step", "gated", NEVER),
    "with step(payload={...}), no profiler": ("payload", "", ""),
    "with step(payload={...}), recorded": ("payload", "recorder", ""),
    "with annotate('pack'), no profiler": ("pack", "", ""),
    "with annotate('pack'), recorded": ("pack", "recorder", ""),
    "with annotate('pack'), outside of the window": ("pack", "gated", NEVER),
}
"""The body of the loop, the profiler, and the requested steps."""


class Nothing:
    """The control."""

    __slots__ = ()

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_error: object) -> None:
        pass


def work(what: str, iterations: int) -> float:
    """Return the ns of CPU time of one iteration, less the empty loop."""
    import traceable

    annotate, step = traceable.annotate, traceable.step

    def nothing() -> None:
        control = Nothing()
        for _ in range(iterations):
            with control:
                pass

    def steps() -> None:
        for _ in range(iterations):
            with step():
                pass

    def payloads() -> None:
        requests = [f"request {number}" for number in range(8)]
        for _ in range(iterations):
            with step(payload={"phase": "decode", "batch": 8, "requests": requests}):
                pass

    def ranges() -> None:
        for _ in range(iterations):
            with annotate(what):
                pass

    loops: dict[str, Callable[[], None]] = {"nothing": nothing, "step": steps, "payload": payloads}
    loop = loops.get(what, ranges)
    loop()
    begin = time.thread_time_ns()
    for _ in range(iterations):
        pass
    empty = time.thread_time_ns() - begin
    begin = time.thread_time_ns()
    loop()
    return (time.thread_time_ns() - begin - empty) / iterations


def run(case: str, iterations: int) -> float:
    """Run one case in a process of its own."""
    body, listener, steps = CASES[case]
    with tempfile.TemporaryDirectory() as folder:
        variables = {name: value for name, value in os.environ.items() if not name.startswith(("TRACEABLE_", "NVTX_"))}
        if listener:
            gating = Gating(1) if listener == "gated" else None
            variables |= RecorderCollector().plan((), Path(folder), "app", gating).environment
            variables[environment.RUN_DIR] = folder
        if steps:
            variables[environment.STEPS] = steps
        command = [sys.executable, __file__, "--iterations", str(iterations), "--work", body]
        output = subprocess.run(command, env=variables, capture_output=True, text=True, check=True).stdout
        return float(output)


def main() -> int:
    """Run all cases in turns and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--iterations", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        print(work(arguments.work, arguments.iterations))
        return 0
    times: dict[str, list[float]] = {case: [] for case in CASES}
    for _ in range(arguments.rounds):
        for case, values in times.items():
            values.append(run(case, arguments.iterations))
    medians = {case: median(values) for case, values in times.items()}
    if arguments.json:
        print(json.dumps(medians))
        return 0
    print("| ns of CPU time | | / control |\n| --- | ---: | ---: |")
    for case, value in medians.items():
        print(f"| {case} | {value:,.0f} | {value / medians[CONTROL]:.1f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
