"""Every range of a long run is in the recording: 8 threads of 10 million ranges, then 10 000 tasks at once, recorded.

    python benchmarks/soak.py [--ranges 10000000] [--tasks 10000] [--threads 8] [--folder DIRECTORY] [--json]

The program (`_soak_program.py`) runs under the embedded recorder and samples its own memory. Then the recording is
exported, and counted by SQL: ranges by thread, whole tasks and active segments by task, closed ones alone. Ends with 1
if one is missing or too many, an event was dropped, or the program's memory grew by more than the bound.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from traceable.collectors.recorder.collector import RecorderCollector
from traceable.protocol import environment

PROGRAM = Path(__file__).with_name("_soak_program.py")
RECORDED_BYTES = 32
EXPORTED_BYTES = 80
"""Of a range in the recording (a push, its color, a pop), and at most in the export."""

GROWTH_BYTES = 16 << 20
"""Bound on the growth of the program's memory from a tenth of the run on. Each thread maps up to 1 MiB of its file."""


def estimate_bytes(ranges: int, tasks: int) -> tuple[int, int]:
    """Return what the recording may take, and what it takes with its export."""
    recording = ranges * RECORDED_BYTES * 11 // 10 + tasks * 1024 + (256 << 20)
    return recording, recording + ranges * EXPORTED_BYTES + tasks * 1024


def record(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Run the program under the recorder; return its own measurements."""
    output = folder / "program.json"
    words = [str(options.threads), str(options.ranges), str(options.tasks), str(options.suspensions), str(output)]
    plan = RecorderCollector().plan([sys.executable, str(PROGRAM), *words], folder, "soak")
    limit, _ = estimate_bytes(options.threads * options.ranges, options.tasks)
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("TRACEABLE_", "NVTX_"))}
    variables = {**inherited, **plan.environment, environment.RECORDING_MAX_BYTES: str(limit)}
    subprocess.run(plan.argv, env=variables, check=True)
    measured: dict[str, Any] = json.loads(output.read_text())
    return measured


def count(database: Path) -> dict[str, Any]:
    """Return the closed ranges by the thread in their name, and the tasks by the number of their active segments."""
    texts = "NVTX_EVENTS e JOIN StringIds s ON s.id = e.textId WHERE e.end IS NOT NULL AND"
    with closing(sqlite3.connect(database)) as connection:
        rows = connection.execute(
            f"SELECT s.value, e.globalTid & 0xFFFFFF, COUNT(*) FROM {texts} e.eventType = 59"
            " AND s.value GLOB 'thread-*' GROUP BY e.textId, e.globalTid"
        ).fetchall()
        segments = connection.execute(
            f"SELECT each, COUNT(*) FROM (SELECT COUNT(*) AS each FROM {texts} e.eventType = 59 AND s.value = 'task'"
            " GROUP BY e.int64Value) GROUP BY each"
        ).fetchall()
        wholes = connection.execute(
            f"SELECT COUNT(*), COUNT(DISTINCT e.int64Value) FROM {texts} e.eventType = 60 AND s.value = 'task'"
        ).fetchone()
        unclosed = connection.execute("SELECT COUNT(*) FROM NVTX_EVENTS WHERE eventType IN (59, 60) AND end IS NULL")
        return {
            "ranges_by_thread": {f"{name} {tid}": number for name, tid, number in sorted(rows)},
            "tasks_by_segments": {str(each): number for each, number in segments},
            "tasks": wholes[0],
            "distinct_tasks": wholes[1],
            "unclosed": unclosed.fetchone()[0],
        }


def make_expected_counts(options: argparse.Namespace, measured: dict[str, Any]) -> dict[str, Any]:
    """Return the expected result of `count`. A task that suspends n times runs in n + 1 segments."""
    return {
        "ranges_by_thread": {f"thread-{i} {tid}": options.ranges for i, tid in enumerate(measured["thread_ids"])},
        "tasks_by_segments": {str(options.suspensions + 1): options.tasks},
        "tasks": options.tasks,
        "distinct_tasks": options.tasks,
        "unclosed": 0,
    }


def summarize_memory(samples: list[list[float]]) -> dict[str, Any]:
    """Return the resident memory in bytes: at a tenth of the run, at its highest after that, and the growth."""
    begin, end = samples[0][0], samples[-1][0]
    later = [int(resident) for when, resident in samples if when >= begin + (end - begin) / 10]
    return {
        "samples": len(samples),
        "settled_bytes": later[0],
        "highest_bytes": max(later),
        "last_bytes": later[-1],
    } | {"growth_bytes": max(later) - later[0]}


def run_soak(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Run, export, count; return the report."""
    measured = record(options, folder)
    recording = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    begin = time.perf_counter()
    finalized = RecorderCollector().finalize(folder, "soak")
    seconds = time.perf_counter() - begin
    if finalized.database is None:
        raise SystemExit(f"nothing was recorded: {'; '.join(finalized.notes)}")
    recorded, expected_ranges = count(finalized.database), make_expected_counts(options, measured)
    growth = {kind: summarize_memory(measured[kind]) for kind in ("threads_memory", "tasks_memory")}
    return {
        "ranges": options.threads * options.ranges,
        "record_seconds": measured["threads_seconds"],
        "ns_per_range": measured["threads_seconds"] * 1e9 / (options.threads * options.ranges),
        "tasks_seconds": measured["tasks_seconds"],
        "recording_bytes": recording,
        "finalize_seconds": seconds,
        "database_bytes": finalized.database.stat().st_size,
        "load_average": os.getloadavg(),
        "recorded": recorded,
        "expected": expected_ranges,
        "notes": finalized.notes,
        **growth,
        "complete": recorded == expected_ranges and not finalized.notes,
        "memory_flat": growth["threads_memory"]["growth_bytes"] <= GROWTH_BYTES,
    }


def render_markdown(report: dict[str, Any]) -> str:
    recorded, threads, tasks = report["recorded"], report["threads_memory"], report["tasks_memory"]
    mib = float(1 << 20)
    of_threads = sum(recorded["ranges_by_thread"].values())
    on_disk = report["recording_bytes"] / 1e9, report["database_bytes"] / 1e9
    flat = "yes" if report["memory_flat"] else "**no**"
    return "\n".join(
        [
            "| | |",
            "| --- | --- |",
            f"| ranges of the threads | {of_threads:,} of {report['ranges']:,} recorded, closed |",
            f"| tasks | {recorded['distinct_tasks']:,} of {report['expected']['tasks']:,} recorded; by segments: "
            f"{recorded['tasks_by_segments']} |",
            f"| every thread and task exact, nothing dropped | {'yes' if report['complete'] else '**no**'} |",
            f"| recording the threads | {report['record_seconds']:.1f} s, {report['ns_per_range']:.0f} ns a range |",
            f"| recording, export | {on_disk[0]:.2f} GB, {on_disk[1]:.2f} GB |",
            f"| finalize | {report['finalize_seconds']:.1f} s |",
            f"| memory of the program, threads | {threads['settled_bytes'] / mib:.1f} MiB, at most "
            f"{threads['growth_bytes'] / mib:.1f} MiB more ({threads['samples']} samples) |",
            f"| memory of the program, tasks | at most {tasks['highest_bytes'] / mib:.1f} MiB with all tasks open |",
            f"| memory flat (growth at most {GROWTH_BYTES / mib:.0f} MiB) | {flat} |",
            f"| load average at the end | {report['load_average'][0]:.1f} |",
            *(f"| note | {note} |" for note in report["notes"]),
        ]
    )


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranges", type=int, default=10_000_000, help="of each thread (default: 10 000 000)")
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--tasks", type=int, default=10_000, help="open at the same time (default: 10 000)")
    parser.add_argument("--suspensions", type=int, default=3, help="of each task (default: 3)")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()), help="where there is room")
    parser.add_argument("--json", action="store_true", help="print JSON instead of Markdown")
    options = parser.parse_args()
    if min(options.ranges, options.threads, options.tasks, options.suspensions) < 1:
        parser.error("ranges, threads, tasks and suspensions must be at least 1")
    if not RecorderCollector().check_availability().available:
        parser.error(RecorderCollector().check_availability().reason)
    _, needed = estimate_bytes(options.ranges * options.threads, options.tasks)
    free = shutil.disk_usage(options.folder).free
    if free < needed:
        parser.error(f"{options.folder} has {free / 1e9:.1f} GB free and {needed / 1e9:.1f} GB may be needed")
    return options


def main() -> None:
    options = parse_options()
    with tempfile.TemporaryDirectory(prefix="traceable-soak-", dir=options.folder) as folder:
        report = run_soak(options, Path(folder))
    print(json.dumps(report, indent=2) if options.json else render_markdown(report))
    raise SystemExit(0 if report["complete"] and report["memory_flat"] else 1)


if __name__ == "__main__":
    main()
