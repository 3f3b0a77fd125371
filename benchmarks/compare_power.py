"""How often a comparison calls two runs of the same program different, and how often it finds a change that is there.

    python benchmarks/compare_power.py [--pairs 200] [--changed-pairs 30] [--steps 100] [--quick] [--json]

Each run is `_compare_program.py` under `traceable run --collector recorder`, and each pair is one run a side, compared
as `traceable compare` does: all ranges and the steps, with the verdicts of all rows judged together. How long the
program waited for a CPU is printed with the results: it decides what single runs can show.

- A/A: pairs of runs of the same program, one after the other, two pairs at a time, while one process a core (`--load`)
  works and rests in turns of random length. Called different is a pair with any row that is slower or faster.
- A/B: of a baseline and runs in which `forward` has 3, 5 and 10 % more work; without load processes of ours. Detected
  is a pair in which `forward` is slower. That another row, around which nothing changed, is slower or faster is counted
  apart.

The control is an ordinary bootstrap on the same samples (each instance drawn by itself, a normal approximation of the
spread of the resampled quantiles, Holm over the rows).
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import numpy as np

import traceable
from traceable.analysis.compare import QUANTILES, compare_snapshots
from traceable.analysis.samples import FASTER, LEVEL, SLOWER, is_enough
from traceable.analysis.snapshot import SampleKey, Snapshot, take_snapshot
from traceable.conditions import read_conditions

PROGRAM = Path(__file__).with_name("_compare_program.py")
CHANGES = (3, 5, 10)
"""Percent."""

CHANGED = "forward"
AROUND = ("step",)
"""Rows that a change of `forward` concerns too."""

RESAMPLINGS = 100

AT_A_TIME = 2
"""How many pairs of runs of the same program are recorded at a time."""


def work(seed: int) -> None:
    """Be a load: work and rest in turns, until the process that started this one has ended."""
    turns = random.Random(seed)
    parent = os.getppid()
    while os.getppid() == parent:
        end = time.monotonic() + turns.expovariate(2.0)
        while time.monotonic() < end:
            sum(number * number for number in range(10_000))
        time.sleep(turns.expovariate(8.0))


@contextmanager
def keep_busy(processes: int) -> Iterator[None]:
    """Run so many load processes meanwhile."""
    started = [
        subprocess.Popen([sys.executable, __file__, "--work", str(number), "--pairs", "0"])
        for number in range(processes)
    ]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def record(folder: Path, steps: int, percent: int, seed: int) -> Snapshot:
    """Run the program once under the recorder; return what a comparison needs of it."""
    output = folder / str(seed)
    command = [sys.executable, "-m", "traceable", "run", "--collector", "recorder", "--no-profile", "-o", str(output)]
    variables = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    program = [str(PROGRAM), str(steps), str(percent), str(seed)]
    subprocess.run([*command, *program], env=variables, capture_output=True, check=True)
    recording = traceable.load(output)
    conditions = read_conditions(recording, output)
    return take_snapshot(recording.context, label=str(seed), facts={"conditions": conditions})


def find_changed_rows(baseline: Snapshot, candidate: Snapshot) -> dict[str, str]:
    """Return the verdict on each row (range name or `step`) that is called slower or faster."""
    changed: dict[str, str] = {}
    for table in compare_snapshots([baseline], [candidate]).tables.values():
        names = table.column("name") if "name" in table.columns else [AROUND[0]] * len(table)
        for column in (column for column in table.columns if column.endswith("_verdict")):
            verdicts = zip(names, table.column(column), strict=True)
            changed |= {name: verdict for name, verdict in verdicts if verdict in (SLOWER, FASTER)}
    return changed


def is_called_different_plainly(baseline: Snapshot, candidate: Snapshot, seed: int) -> bool:
    """Return whether an ordinary bootstrap of the same samples calls any row different."""
    generator = np.random.default_rng(seed)
    p_values = []
    for key in baseline.samples.keys() & candidate.samples.keys():
        sides = [snapshot.samples[key] for snapshot in (baseline, candidate)]
        for quantile in QUANTILES.values():
            if all(is_enough(len(side), quantile) for side in sides):
                drawn = [
                    np.quantile(side[generator.integers(0, len(side), (RESAMPLINGS, len(side)))], quantile, axis=1)
                    for side in sides
                ]
                error = math.hypot(*(float(side.std()) for side in drawn))
                difference = abs(float(np.quantile(sides[1], quantile) - np.quantile(sides[0], quantile)))
                p_values.append(math.erfc(difference / error / math.sqrt(2)) if error else float(not difference))
    # With Holm's method some row is called different where the least p-value passes Bonferroni's threshold.
    return bool(p_values) and min(p_values) * len(p_values) <= LEVEL


def measure_same(folder: Path, pairs: int, steps: int) -> dict[str, float]:
    """Compare runs of the same program."""

    def compare_pair(pair: int) -> tuple[float, bool, bool, float, list[Snapshot]]:
        runs = [record(folder, steps, 0, 1_000_000 + 2 * pair + side) for side in range(2)]
        spread = abs(_get_median(runs[1]) / _get_median(runs[0]) - 1)
        plain = is_called_different_plainly(*runs, pair)
        return os.getloadavg()[0], bool(find_changed_rows(*runs)), plain, spread, runs

    with ThreadPoolExecutor(AT_A_TIME) as pool:
        loads, different, plain, spreads, runs = zip(*pool.map(compare_pair, range(pairs)), strict=True)
    return {
        "pairs": pairs,
        "load": median(loads),
        **_describe_waits([run for pair in runs for run in pair]),
        "different_share": sum(different) / pairs,
        "plain_bootstrap_different_share": sum(plain) / pairs,
        "forward_p50_difference_p50_share": median(spreads),
        "forward_p50_difference_p90_share": float(np.quantile(spreads, 0.9)),
    }


def measure_changed(folder: Path, pairs: int, steps: int) -> list[dict[str, float]]:
    """Compare a baseline with runs in which one range does more."""
    results = [{"percent": percent, "pairs": pairs, "detected": 0, "other_rows": 0} for percent in CHANGES]
    loads, runs = [], []
    for pair in range(pairs):
        seed = 2_000_000 + 10 * pair
        baseline = record(folder, steps, 0, seed)
        runs.append(baseline)
        for number, result in enumerate(results, 1):
            runs.append(record(folder, steps, result["percent"], seed + number))
            changed = find_changed_rows(baseline, runs[-1])
            result["detected"] += changed.get(CHANGED) == SLOWER
            result["other_rows"] += bool(changed.keys() - {CHANGED, *AROUND})
        loads.append(os.getloadavg()[0])
    return [
        {
            "percent": result["percent"],
            "pairs": pairs,
            "load": median(loads),
            **_describe_waits(runs),
            "detected_share": result["detected"] / pairs,
            "other_rows_share": result["other_rows"] / pairs,
        }
        for result in results
    ]


def _describe_waits(runs: Sequence[Snapshot]) -> dict[str, float]:
    """Return for which part of the time the runs waited for a CPU; 1 for one of which that is not known."""
    shares = [run.facts["conditions"]["cpu_wait_share"] for run in runs]
    known = [1.0 if share is None else share for share in shares]
    return {"cpu_wait_p50_share": median(known), "cpu_wait_p90_share": float(np.quantile(known, 0.9))}


def _get_median(snapshot: Snapshot) -> float:
    return float(np.median(snapshot.samples[SampleKey(("step", CHANGED), None, "push_pop", "cpu")]))


def _format_conditions(result: Mapping[str, float]) -> str:
    waits = f"{result['cpu_wait_p50_share']:.1%} (p50) and {result['cpu_wait_p90_share']:.1%} (p90)"
    return f"load average {result['load']:.1f}, waits for a CPU {waits} of the time"


def main() -> int:
    """Run both and print two tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--pairs", type=int, default=200, help="pairs of runs of the same program")
    parser.add_argument("--changed-pairs", type=int, default=30, help="pairs for each size of a change")
    parser.add_argument("--steps", type=int, default=100, help="of each run")
    parser.add_argument("--load", type=int, default=os.cpu_count(), help="load processes during A/A (one a core)")
    parser.add_argument("--quick", action="store_true", help="8 pairs and 4 of each size")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--work", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work is not None:
        work(arguments.work)
        return 0
    if arguments.quick:
        arguments.pairs, arguments.changed_pairs = 8, 4
    result: dict[str, object] = {"steps": arguments.steps, "load_processes": arguments.load}
    with tempfile.TemporaryDirectory() as name:
        if arguments.pairs:
            with keep_busy(arguments.load):
                result["same"] = measure_same(Path(name), arguments.pairs, arguments.steps)
        if arguments.changed_pairs:
            result["changed"] = measure_changed(Path(name), arguments.changed_pairs, arguments.steps)
    if arguments.json:
        print(json.dumps(result))
        return 0
    if same := result.get("same"):
        print(f"{same['pairs']} pairs of the same program, {_format_conditions(same)}; the medians of `{CHANGED}`")
        print(f"differ by {same['forward_p50_difference_p50_share']:.1%} (median pair), ", end="")
        print(f"{same['forward_p50_difference_p90_share']:.1%} (p90)\n\n| called different | |\n| --- | ---: |")
        print(f"| compare | {same['different_share']:.1%} |")
        print(f"| control: ordinary bootstrap | {same['plain_bootstrap_different_share']:.1%} |\n")
    if changed := result.get("changed"):
        print(f"{arguments.changed_pairs} pairs of each size, {_format_conditions(changed[0])}\n")
        print(f"| more work in `{CHANGED}` | detected | another row called different |\n| ---: | ---: | ---: |")
        for row in changed:
            print(f"| {row['percent']} % | {row['detected_share']:.1%} | {row['other_rows_share']:.1%} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
