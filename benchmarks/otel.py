"""What OpenTelemetry and traceable cost together: a span, a range, a request and a step, with each option.

    python benchmarks/otel.py [--iterations 20000] [--rounds 7] [--json]

Each row is a process of its own, started in turns; a figure is the median over the rounds, less the empty loop in the
same process. The clock is the thread's CPU time, so waiting is not in it. The control of each group is its first row:
the same without the other library. Rows marked "off" request nothing, and are to cost what their control costs. The SDK
has no exporter: what an exporter costs is not in it.
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
from typing import Any

from traceable.collectors.recorder.collector import RecorderCollector
from traceable.protocol import environment

SPANS = {environment.SPANS: "*"}
OTEL = {environment.OTEL: "1"}

Case = tuple[str, str, bool, dict[str, str]]
CASES: dict[str, dict[str, Case]] = {
    "span of the SDK": {
        "without traceable": ("span", "sdk", False, {}),
        "off": ("span", "traceable sdk", False, {}),
        "off, under the recorder": ("span", "traceable sdk", True, {}),
        "record_spans, no profiler": ("span", "traceable sdk", False, SPANS),
        "record_spans, recorded": ("span", "traceable sdk", True, SPANS),
        "record_spans of other names, recorded": (
            "span",
            "traceable sdk",
            True,
            {environment.SPANS: "GET *"},
        ),
    },
    "span of the API alone": {
        "without traceable": ("span", "api", False, {}),
        "off": ("span", "traceable api", False, {}),
        "record_spans, no profiler": ("span", "traceable api", False, SPANS),
        "record_spans, recorded": ("span", "traceable api", True, SPANS),
    },
    "range, no profiler": {
        "without OpenTelemetry": ("range", "traceable", False, {}),
        "off": ("range", "traceable sdk", False, {}),
        "record_spans": ("range", "traceable sdk", False, SPANS),
        "otel=True, API alone": ("spanned range", "traceable api", False, {}),
        "otel=True, SDK": ("spanned range", "traceable sdk", False, {}),
        "TRACEABLE_OTEL=1, SDK": ("range", "traceable sdk", False, OTEL),
    },
    "range, recorded": {
        "without OpenTelemetry": ("range", "traceable", True, {}),
        "off": ("range", "traceable sdk", True, {}),
        "record_spans": ("range", "traceable sdk", True, SPANS),
        "otel=True, SDK": ("spanned range", "traceable sdk", True, {}),
        "otel=True, SDK, and record_spans": ("spanned range", "traceable sdk", True, SPANS),
    },
    "range built at each use, recorded": {
        "without OpenTelemetry": ("built range", "traceable", True, {}),
        "off": ("built range", "traceable sdk", True, {}),
        "TRACEABLE_OTEL=1, SDK": ("built range", "traceable sdk", True, OTEL),
    },
    "call of a coroutine, recorded": {
        "without OpenTelemetry": ("coroutine", "traceable", True, {}),
        "off": ("coroutine", "traceable sdk", True, {}),
        "otel=True, SDK": ("spanned coroutine", "traceable sdk", True, {}),
    },
    "request, recorded": {
        "without OpenTelemetry": ("request", "traceable", True, {}),
        "off: no current span": ("request", "traceable sdk", True, {}),
        "in a span": ("request in a span", "traceable sdk", True, {}),
        "TRACEABLE_OTEL=1, SDK": ("request", "traceable sdk", True, OTEL),
    },
    "step, recorded": {
        "without OpenTelemetry": ("step", "traceable", True, {}),
        "off: no current span": ("step", "traceable sdk", True, {}),
        "in a span": ("step in a span", "traceable sdk", True, {}),
        "TRACEABLE_OTEL=1, SDK": ("step", "traceable sdk", True, OTEL),
    },
}
"""By group and row: the body of the loop, what the process imports, whether it is recorded, and variables."""

BODIES = {
    "span": "with start('pack'): pass",
    "range": "with kept: pass",
    "spanned range": "with spanned: pass",
    "built range": "with annotate('pack'): pass",
    "coroutine": "drive(called())",
    "spanned coroutine": "drive(spanned_called())",
    "request": "with request('r'): pass",
    "request in a span": "with request('r'): pass",
    "step": "with step(): pass",
    "step in a span": "with step(): pass",
}
LOOP = """
def loop(n):
    begin = clock()
    for _ in repeat(None, n):
        {body}
    return clock() - begin
"""


def drive(coroutine: Any) -> None:
    try:
        coroutine.send(None)
    except StopIteration:
        return


async def call() -> None:
    pass


def import_subjects(imports: str) -> dict[str, Any]:
    """Import what the process is to have, and return what the bodies use of it."""
    names: dict[str, Any] = {"drive": drive}
    if "traceable" in imports:
        import traceable

        annotate = traceable.annotate
        names |= {"annotate": annotate, "kept": annotate("pack"), "spanned": annotate("pack", otel=True)}
        names |= {"called": annotate("pack")(call), "spanned_called": annotate("pack", otel=True)(call)}
        names |= {"request": traceable.request, "step": traceable.step}
    if "sdk" in imports or "api" in imports:
        from opentelemetry import trace

        if "sdk" in imports:
            from opentelemetry.sdk.trace import TracerProvider

            trace.set_tracer_provider(TracerProvider())
        names["start"] = trace.get_tracer("bench").start_as_current_span
    return names


def work(what: str, imports: str, iterations: int) -> float:
    """Return the ns of CPU time of one iteration, less the empty loop."""
    from itertools import repeat

    names = {**import_subjects(imports), "repeat": repeat, "clock": time.thread_time_ns}

    def make_loop(body: str) -> Callable[[int], int]:
        namespace = dict(names)
        exec(LOOP.format(body=body), namespace)
        return namespace["loop"]  # type: ignore[no-any-return]

    empty, loop = make_loop("pass"), make_loop(BODIES[what])

    def run() -> float:
        loop(iterations // 10)
        return (loop(iterations) - empty(iterations)) / iterations

    if not what.endswith("in a span"):
        return run()
    with names["start"]("around"):
        return run()


def run_case(case: Case, iterations: int, folder: Path) -> float:
    """Run one case in a process of its own and return the ns of an iteration."""
    what, imports, is_recorded, variables = case
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("TRACEABLE_", "NVTX_"))}
    if is_recorded:
        environ |= RecorderCollector().plan(("program",), Path(tempfile.mkdtemp(dir=folder)), "bench").environment
    words = [sys.executable, __file__, "--work", what, "--imports", imports, "--iterations", str(iterations)]
    done = subprocess.run(words, env={**environ, **variables}, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{what} ({imports}) failed:\n{done.stderr}")
    return float(done.stdout)


def measure(iterations: int, rounds: int) -> dict[str, dict[str, list[float]]]:
    """Return by group and row the ns of each round."""
    times: dict[str, dict[str, list[float]]] = {group: {row: [] for row in rows} for group, rows in CASES.items()}
    for _ in range(rounds):
        for group, rows in CASES.items():
            for row, case in rows.items():
                with tempfile.TemporaryDirectory(prefix="traceable-bench-") as folder:
                    times[group][row].append(run_case(case, iterations, Path(folder)))
    return times


def summarize(times: dict[str, dict[str, list[float]]]) -> list[dict[str, Any]]:
    """Return a row for each case; its ratio is the median of those of the rounds."""
    table = []
    for group, rows in times.items():
        control = next(iter(rows.values()))
        for row, values in rows.items():
            ratios = sorted(value / base for value, base in zip(values, control, strict=True))
            table.append(
                {
                    "group": group,
                    "row": row,
                    "p50_ns": median(values),
                    "ratio_to_control": median(ratios),
                    "ratio_low": ratios[0],
                    "ratio_high": ratios[-1],
                }
            )
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--iterations", type=int, default=20_000, help="of a loop (default: 20000)")
    parser.add_argument("--rounds", type=int, default=7, help="processes of each row (default: 7)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of Markdown")
    parser.add_argument("--work", choices=list(BODIES), help=argparse.SUPPRESS)
    parser.add_argument("--imports", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        print(work(options.work, options.imports, options.iterations))
        return
    table = summarize(measure(options.iterations, options.rounds))
    if options.json:
        print(json.dumps(table, indent=2))
        return
    print("| | ns | ratio to the first row | rounds |\n| --- | ---: | ---: | ---: |")
    group = None
    for row in table:
        if row["group"] != group:
            group = row["group"]
            print(f"| **{group}** | | | |")
        spread = f"{row['ratio_low']:.2f} to {row['ratio_high']:.2f}"
        print(f"| {row['row']} | {row['p50_ns']:,.0f} | {row['ratio_to_control']:.2f} | {spread} |")


if __name__ == "__main__":
    main()
