"""The cost of the flight recorder: of a range, compared with the plain recorder, and of a dump.

    python benchmarks/flight_recorder.py [--quick] [--memory DIR] [--json]

A range is a push and a pop of a registered message, called from C, in CPU time of the thread with the kernel's part:
the median over processes, which take turns. `--memory` adds a folder in memory (/dev/shm) to the temporary folder
on disk, so that what a ring on either costs is in one table. A dump is made by one thread while another enters ranges;
its tail is compared with that of the same program without a dump.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from statistics import median
from typing import Any

import _floor

from traceable.collectors.recorder.collector import RecorderCollector
from traceable.protocol import environment

LIMITS = {"plain recorder": None, "last 5 s": "5000000000ns", "last 64 MB": "64000000B", "last 1 MB": "1000000B"}
MOST_BYTES = "3000000000"
FORKING_THREADS = 4


def run(code: str, folder: Path, limit: str | None, **more: str) -> tuple[dict[str, Any], int]:
    """Run `code` of this module under the recorder; return what it printed, and the bytes that were recorded."""
    with tempfile.TemporaryDirectory(dir=folder, prefix="traceable-bench-") as place:
        plan = RecorderCollector().plan([sys.executable, __file__, "--work", code], Path(place), "bench")
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("TRACEABLE_", "NVTX_"))}
        variables = {
            environment.RUN_DIR: place,
            environment.RECORDING_MAX_BYTES: MOST_BYTES,
            **plan.environment,
            **more,
        }
        if limit is not None:
            variables[environment.FLIGHT_RECORDER] = limit
        done = subprocess.run(plan.argv, env={**inherited, **variables}, capture_output=True, text=True, check=True)
        measured: dict[str, Any] = json.loads(done.stdout)
        return measured, sum(path.stat().st_size for path in Path(place, "recording").rglob("*") if path.is_file())


def time_ranges() -> dict[str, float]:
    """Return ns a range, over `BENCH_RANGES` of them."""
    (path,) = Path(os.environ["BENCH_FLOOR"]).glob("_floor*.so")
    spec = importlib.util.spec_from_file_location("_floor", path)
    assert spec is not None
    assert spec.loader is not None
    floor = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(floor)
    count = int(os.environ["BENCH_RANGES"])
    floor.push_pop(1000)
    return {"ns": floor.push_pop(count) / count}


def time_dumps() -> dict[str, Any]:
    """Return how long each dump took, and the longest ranges of another thread while they were made and while not."""
    import traceable

    times: dict[bool, list[int]] = {True: [], False: []}
    state = {"dumping": False, "over": False}

    def enter_ranges() -> None:
        clock = time.perf_counter_ns
        while not state["over"]:
            begun = clock()
            with traceable.annotate("entered"):
                pass
            times[state["dumping"]].append(clock() - begun)

    thread = threading.Thread(target=enter_ranges)
    thread.start()
    took = []
    for _ in range(int(os.environ["BENCH_DUMPS"])):
        time.sleep(0.3)
        state["dumping"] = True
        begun = time.perf_counter_ns()
        directory = traceable.dump()
        took.append(time.perf_counter_ns() - begun)
        state["dumping"] = False
        assert directory is not None
    state["over"] = True
    thread.join()
    ring = next(Path(directory).rglob("ring")).stat().st_size
    tails = {str(dumping): _take_tail(values) for dumping, values in times.items()}
    return {"took_ns": median(took), "bytes": ring, "tails": tails}


def time_forks() -> dict[str, float]:
    """Return ns from a fork to the child's end, while threads enter ranges; the child enters one."""
    import traceable

    state = {"over": False}

    def enter_ranges() -> None:
        while not state["over"]:
            with traceable.annotate("entered"):
                pass

    with traceable.annotate("entered"):  # what the first range imports is not to be forked amidst
        pass
    threads = [threading.Thread(target=enter_ranges) for _ in range(FORKING_THREADS)]
    for thread in threads:
        thread.start()
    count = int(os.environ["BENCH_FORKS"])
    begun = time.perf_counter_ns()
    for _ in range(count):
        child = os.fork()
        if not child:
            with traceable.annotate("entered"):
                pass
            os._exit(0)
        os.waitpid(child, 0)
    took = time.perf_counter_ns() - begun
    state["over"] = True
    for thread in threads:
        thread.join()
    return {"ns": took / count}


def _take_tail(values: list[int]) -> dict[str, float]:
    values.sort()
    return {"p50": values[len(values) // 2], "p99": values[len(values) * 99 // 100], "count": len(values)}


def measure(options: argparse.Namespace, floor: Path) -> dict[str, Any]:
    places = {"disk": Path(tempfile.gettempdir())} | ({"memory": options.memory} if options.memory else {})
    results: dict[tuple[str, str], list[float]] = {(name, place): [] for place in places for name in LIMITS}
    sizes: dict[tuple[str, str], int] = {}
    for _ in range(options.processes):
        for name, place in results:
            work, size = run(
                "ranges", places[place], LIMITS[name], BENCH_FLOOR=str(floor), BENCH_RANGES=str(options.ranges)
            )
            results[name, place].append(work["ns"])
            sizes[name, place] = size
    rows = [
        {
            "name": name,
            "place": place,
            "ns": median(values),
            "lowest_ns": min(values),
            "highest_ns": max(values),
            "of_plain": median(a / b for a, b in zip(values, results["plain recorder", place], strict=True)),
            "bytes": sizes[name, place],
        }
        for (name, place), values in results.items()
    ]
    forked: dict[str, list[float]] = {"plain recorder": [], "last 64 MB": []}
    for _ in range(options.processes):
        for name, values in forked.items():
            # The control socket, and its thread, are there as `traceable run --flight-recorder` has them.
            control = {environment.CONTROL: "1"} if LIMITS[name] is not None else {}
            work, _ = run("forks", places["disk"], LIMITS[name], BENCH_FORKS=str(options.forks), **control)
            values.append(work["ns"])
    plain, ring = forked.values()
    dump, _ = run("dumps", places["disk"], "64000000B", BENCH_DUMPS=str(options.dumps))
    return {
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
        "load_average": os.getloadavg(),
        "processes": options.processes,
        "ranges": options.ranges,
        "rows": rows,
        "dumps": options.dumps,
        "dump": dump,
        "forks": options.forks,
        "fork": {
            "plain_ns": median(plain),
            "ring_ns": median(ring),
            "of_plain": median(b / a for a, b in zip(plain, ring, strict=True)),
        },
    }


def render_markdown(results: dict[str, Any]) -> str:
    lines = [
        f"Python {results['python']}, {results['cpus']} CPUs, load average {results['load_average'][0]:.1f}; "
        f"{results['processes']} processes of {results['ranges']:,} ranges each.",
        "",
        "| | folder | ns a range | lowest to highest | / plain | MB recorded |",
        "| --- | --- | ---: | ---: | ---: | ---: |",
    ]
    lines += [
        f"| {row['name']} | {row['place']} | {row['ns']:.1f} | {row['lowest_ns']:.1f} to {row['highest_ns']:.1f} "
        f"| {row['of_plain']:.2f} | {row['bytes'] / 1e6:.1f} |"
        for row in results["rows"]
    ]
    dump = results["dump"]
    lines += [
        "",
        f"{results['dumps']} dumps of {dump['bytes'] / 1e6:.1f} MB: {dump['took_ns'] / 1e6:.1f} ms each (median).",
        "",
        "| ranges of another thread | p50, ns | p99, ns | ranges |",
        "| --- | ---: | ---: | ---: |",
    ]
    for key, name in (("False", "without a dump"), ("True", "during dumps")):
        tail = dump["tails"][key]
        lines.append(f"| {name} | {tail['p50']:,.0f} | {tail['p99']:,.0f} | {tail['count']:,} |")
    fork = results["fork"]
    lines += [
        "",
        f"{results['forks']} forks next to {FORKING_THREADS} busy threads: {fork['ring_ns'] / 1e6:.1f} ms each with a "
        f"ring of 64 MB, {fork['plain_ns'] / 1e6:.1f} ms with the plain recorder; {fork['of_plain']:.2f} times.",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=7, help="for each row (default: 7)")
    parser.add_argument("--ranges", type=int, default=5_000_000, help="in each process (default: 5 million)")
    parser.add_argument("--dumps", type=int, default=10)
    parser.add_argument("--forks", type=int, default=50, help="in each process (default: 50)")
    parser.add_argument("--memory", type=Path, help="a folder in memory, to compare with")
    parser.add_argument("--quick", action="store_true", help="few and short: for a look, not for a record")
    parser.add_argument("--json", action="store_true", help="print JSON instead of Markdown")
    parser.add_argument("--work", choices=["ranges", "dumps", "forks"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        print(json.dumps({"ranges": time_ranges, "dumps": time_dumps, "forks": time_forks}[options.work]()))
        return
    if options.quick:
        options.processes, options.ranges, options.dumps, options.forks = 2, 500_000, 3, 10
    with tempfile.TemporaryDirectory(prefix="traceable-bench-") as folder:
        _floor.build(Path(folder))
        results = measure(options, Path(folder))
    print(json.dumps(results, indent=2) if options.json else render_markdown(results))


if __name__ == "__main__":
    main()
