"""What reading a report's columns costs: ours, and the libraries that read SQLite, in turn on one generated file.

    python benchmarks/reader.py [--kernels 1000000] [--rounds 5] [--peers PYTHON] [--folder DIRECTORY] [--json]

Prints Markdown: the machine, then for each way of reading million rows a second, the time as a multiple of reading the
file to its end with the page cache warm, and the peak memory above what its imports take. What is read is in
_reader_worker.py; each reading is a process of its own, each round every way once, and medians are shown. `--peers` is
the interpreter that has the libraries we are compared with (default: this one); a missing one is reported.
Parquet is there for comparison: it is another format, which has to be written first.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from _reader_worker import COLUMNS, METHODS, MISSING
from analysis import drop_from_cache, ensure_generated, read

WORKER = Path(__file__).with_name("_reader_worker.py")
CONTROL, OURS, WRITE = "the file", ("ours", "ours, by sqlite3"), "write parquet"
PACKAGES = ("numpy", "apsw", "adbc-driver-sqlite", "polars", "connectorx", "duckdb", "pandas", "pyarrow")


@dataclass(frozen=True)
class Reading:
    """The median of one way's rounds. `missing`: why it was not measured; empty where it was."""

    name: str
    seconds: float = 0.0
    peak_bytes: int = 0
    missing: str = ""


def read_once(python: str, method: str, path: Path) -> dict[str, int | float] | str:
    """Read in a process of its own; return what it printed, or which library is missing.

    Raises:
        RuntimeError: it failed.
    """
    done = subprocess.run([python, str(WORKER), method, str(path)], capture_output=True, text=True, check=False)
    if done.returncode == MISSING:
        return done.stdout.strip()
    if done.returncode:
        raise RuntimeError(f"{method} ended with {done.returncode}: {done.stderr.strip()[-2000:]}")
    result: dict[str, int | float] = json.loads(done.stdout)
    return result


def measure(path: Path, rounds: int, peers: str) -> list[Reading]:
    """Measure every way in turn, after checking that all read the same.

    Raises:
        RuntimeError: a way failed, or read something else.
    """
    read_once(peers, WRITE, path)
    results: dict[str, list[dict[str, int | float]]] = {}
    missing: dict[str, str] = {}
    for _ in range(rounds):
        for method in METHODS:
            if method == WRITE or method in missing:
                continue
            print(f"reading by {method}", file=sys.stderr)
            result = read_once(sys.executable if method in OURS else peers, method, path)
            if isinstance(result, str):
                missing[method] = result
            else:
                results.setdefault(method, []).append(result)
    sums = {method: {each["sum"] for each in each_round} for method, each_round in results.items() if method != CONTROL}
    if len(set.union(*sums.values())) != 1:
        raise RuntimeError(f"not all read the same: {sums}")
    return [
        Reading(
            method,
            median(each["seconds"] for each in results[method]),
            int(median(each["peak_bytes"] for each in results[method])),
        )
        if method in results
        else Reading(method, missing=missing[method])
        for method in METHODS
        if method != WRITE
    ]


def measure_cold_s(path: Path) -> tuple[float, float | None]:
    """Return the seconds of reading the file from the disk, and the share of it that was in memory all the same."""
    share = drop_from_cache(path)
    return read(path), share


def count_rows(path: Path) -> int:
    """Return the rows of all tables that are read. In a process of its own, as all that knows SQLite."""
    counts = " + ".join(f"(SELECT count(*) FROM {table})" for table in COLUMNS)
    code = f"import sqlite3, sys; print(sqlite3.connect(sys.argv[1]).execute('SELECT {counts}').fetchone()[0])"
    return int(
        subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True).stdout
    )


def describe_machine(peers: str) -> dict[str, str]:
    """Return what the figures depend on."""
    code = (
        "import sys, json, importlib.metadata as m\nversions = {}\nfor name in sys.argv[1:]:\n"
        "    try: versions[name] = m.version(name)\n    except m.PackageNotFoundError: pass\n"
        "print(json.dumps(versions))"
    )
    versions_json = subprocess.run([peers, "-c", code, *PACKAGES], capture_output=True, text=True, check=True).stdout
    return {
        "CPUs": str(os.cpu_count()),
        "Python": platform.python_version(),
        "load average": f"{os.getloadavg()[0]:.1f}",
        **json.loads(versions_json),
    }


def render_markdown(
    facts: dict[str, str], size: int, rows: int, cold: tuple[float, float | None], readings: list[Reading]
) -> str:
    """Render everything as Markdown."""
    warm = next(each.seconds for each in readings if each.name == CONTROL)
    columns = sum(map(len, COLUMNS.values()))
    cached = "not verified" if cold[1] is None else f"{cold[1]:.0%} of it was cached"
    lines = [
        ", ".join(f"{name} {value}" for name, value in facts.items()) + ".",
        "",
        f"{rows:,} rows of {len(COLUMNS)} tables, {columns} columns of them, in {size / 1e6:.0f} MB. "
        f"Reading the file warm {warm:.3f} s, cold {cold[0]:.3f} s ({cached}).",
        "",
        "| read by | s | million rows a second | times the warm read | peak MB |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for each in readings:
        if each.missing:
            lines.append(f"| {each.name} | missing: {each.missing} | | | |")
        elif each.name != CONTROL:
            lines.append(
                f"| {each.name} | {each.seconds:.3f} | {rows / each.seconds / 1e6:.1f} | "
                f"{each.seconds / warm:.1f} | {each.peak_bytes / 1e6:.0f} |"
            )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernels", type=int, default=1_000_000, help="(default: 1000000)")
    parser.add_argument("--rounds", type=int, default=5, help="(default: 5)")
    parser.add_argument("--peers", default=sys.executable, metavar="PYTHON", help="has the libraries to compare with")
    parser.add_argument("--folder", type=Path, help="where the file is kept (default: in the temporary folder)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of Markdown")
    options = parser.parse_args()
    if options.kernels < 1 or options.rounds < 1:
        parser.error("--kernels and --rounds must be positive")
    folder = options.folder or Path(tempfile.gettempdir()) / "traceable-benchmark"
    folder.mkdir(parents=True, exist_ok=True)
    path = ensure_generated(folder, options.kernels)
    cold = measure_cold_s(path)
    facts, rows = describe_machine(options.peers), count_rows(path)
    readings = measure(path, options.rounds, options.peers)
    if options.json:
        report = {"machine": facts, "rows": rows, "cold_s": cold[0], "readings": [asdict(each) for each in readings]}
        print(json.dumps(report, indent=2))
    else:
        print(render_markdown(facts, path.stat().st_size, rows, cold, readings))
    return 0


if __name__ == "__main__":
    sys.exit(main())
