"""What a range costs under `run --collector torch`, while torch.profiler records and while it does not.

    python benchmarks/torch_ranges.py [--iterations 20000] [--json]

One process under the collector, with a window around the second half. In each half the variants take turns, round by
round, and a figure is the median over the rounds, less the empty loop. The clock is the thread's CPU time. The control
is a context manager in Python with slots that does nothing; the peer is torch's own `record_function`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

ROUNDS = 7
EMPTY, CONTROL, OURS, PEER = "empty loop", "Python class that does nothing", "traceable.annotate", "record_function"
IDLE, RECORDING = "idle", "recording"


class Nothing:
    """The control."""

    __slots__ = ()

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_error: object) -> None:
        pass


def make_loops(iterations: int) -> dict[str, Callable[[], None]]:
    """Return what is measured, by name."""
    import torch

    import traceable

    remaining, control = traceable.annotate("pack"), Nothing()

    def empty() -> None:
        for _ in range(iterations):
            pass

    def ours() -> None:
        for _ in range(iterations):
            with remaining:
                pass

    def nothing() -> None:
        for _ in range(iterations):
            with control:
                pass

    def peer() -> None:
        for _ in range(iterations):
            with torch.profiler.record_function("pack"):
                pass

    return {EMPTY: empty, CONTROL: nothing, OURS: ours, PEER: peer}


def measure_loops(iterations: int) -> dict[str, float]:
    """Return the ns of CPU time that one iteration of each takes, less the empty loop."""
    variants = make_loops(iterations)
    times: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(ROUNDS):
        for name, loop in variants.items():
            begin = time.thread_time_ns()
            loop()
            times[name].append((time.thread_time_ns() - begin) / iterations)
    return {name: median(values) - median(times[EMPTY]) for name, values in times.items() if name != EMPTY}


def work(iterations: int, output: Path) -> None:
    """Be the program under the collector: step 0 is not recorded, step 1 is."""
    import torch  # noqa: F401 - a window is recorded where the program has imported it

    import traceable
    from traceable.capture.torch_gate import profiler

    results = {}
    for state in traceable.steps((IDLE, RECORDING)):
        if profiler.running != (state == RECORDING):
            raise SystemExit(f"torch.profiler is not in the expected state in the step {state}")
        results[state] = measure_loops(iterations)
    output.write_text(json.dumps(results))


def main() -> int:
    """Run the program under the collector and print what it measured."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--iterations", type=int, default=20_000)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        work(arguments.iterations, arguments.work)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "measured.json"
        command = [sys.executable, "-m", "traceable", "run", "--collector", "torch", "--steps", "1:2", "-o", folder]
        program = [__file__, "--iterations", str(arguments.iterations), "--work", str(output)]
        ran = subprocess.run([*command, "--force", *program], capture_output=True, text=True, check=False)
        if not output.is_file():
            sys.stderr.write(ran.stderr)
            return 1
        results = json.loads(output.read_text())
    if arguments.json:
        print(json.dumps(results))
        return 0
    print("| ns of CPU time a range | while nothing records | / control | while torch records | / control |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for name in (CONTROL, OURS, PEER):
        cells = [
            cell
            for state in results.values()
            for cell in (f"{state[name]:,.0f}", f"{state[name] / state[CONTROL]:.1f}")
        ]
        print(f"| {name} | {' | '.join(cells)} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
