"""What the recorder costs a server under load: requests per second compared with the same server alone, and its memory.

    python benchmarks/server_load.py [--seconds 600] [--block 5] [--concurrency 16] [--control] [--json]

Starts `examples/inference_server.py` twice, alone and under `traceable run --collector recorder`, and sends HTTP over
loopback to one of them at a time, in short blocks by turns (plain, recorded, recorded, plain, ...), until the recorded
one has had `--seconds` of load. The servers share one CPU and the client has another, so that a server is measured
where it is busy: each microsecond that recording takes is a microsecond of throughput. `--control` starts a second
plain server, which shows by how much two equal ones differ.

Ends with 1 where a request failed, throughput fell by more than 1 %, memory grew by more than the bound, a server did
not end well, or a request that was answered is not in the recording.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import platform
import random
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import linear_regression, mean, median, quantiles
from typing import Any

from _load_client import Block, Client, make_questions
from _load_server import Ended, Memory, Server, ranges

from traceable.collectors.recorder.collector import RecorderCollector

PLAIN, RECORDED, CONTROL = "plain", "recorded", "plain again"

LEAST_RATIO = 0.99
GROWTH_BYTES = 16 << 20
"""Bound on the growth of the recorded server's memory from a tenth of the run on, as in `soak.py`."""

RECORDED_BYTES_PER_REQUEST = 1024
MOST_REQUESTS_PER_SECOND = 5_000
"""More than a request takes in the recording and its export with its share of the batch, and than there will be."""

RESAMPLES = 10_000


@dataclass
class Measured:
    """One server, its client, and what was noted of each of its blocks."""

    server: Server
    client: Client
    blocks: list[Block] = field(default_factory=list)
    cpu_us_per_request: list[float] = field(default_factory=list)
    memory: list[Memory] = field(default_factory=list)
    cpu_ns: int = 0
    waited_ns: int = 0
    """Over all blocks together: what the server's threads had of the CPU, and how long they waited for it."""

    async def measure(self, seconds: float) -> None:
        before = self.server.used()
        block = await self.client.load(seconds)
        self.server.must_run()
        after = self.server.used()
        self.blocks.append(block)
        self.cpu_us_per_request.append((after.cpu_ns - before.cpu_ns) / 1e3 / max(block.answered, 1))
        self.cpu_ns += after.cpu_ns - before.cpu_ns
        self.waited_ns += after.waited_ns - before.waited_ns
        self.memory.append(self.server.memory(self.client.answered))


def cpus() -> tuple[set[int], set[int]]:
    """Return the CPUs of the servers and of the client: one each, or whatever there is."""
    allowed = sorted(os.sched_getaffinity(0))
    return ({allowed[0]}, {allowed[1]}) if len(allowed) > 1 else (set(allowed), set(allowed))


def start(options: argparse.Namespace, folder: Path) -> dict[str, Measured]:
    """Start the servers on their CPU, and leave this process on the client's."""
    words = ["--backend", options.backend, *(("--max-batch", "1") if options.small else ())]
    questions = make_questions(one_byte=options.small)
    of_servers, of_client = cpus()
    measured: dict[str, Measured] = {}
    os.sched_setaffinity(0, of_servers)
    try:
        for name in (PLAIN, RECORDED, CONTROL) if options.control else (PLAIN, RECORDED):
            errors = folder / f"{name}.stderr"
            server = Server(words, errors, folder / "run" if name == RECORDED else None)
            measured[name] = Measured(server, Client(server.address, options.concurrency, questions))
    except BaseException:
        kill(measured)
        raise
    os.sched_setaffinity(0, of_client)
    return measured


def kill(measured: dict[str, Measured]) -> None:
    for one in measured.values():
        one.server.kill()


async def load(options: argparse.Namespace, measured: dict[str, Measured]) -> None:
    """Warm each server up with one block, then measure rounds of one block each, in every order by turns."""
    for one in measured.values():
        await one.client.load(options.block, measured=False)
        one.server.must_run()
    orders = itertools.cycle(itertools.permutations(measured.values()))
    for order in itertools.islice(orders, round(options.seconds / options.block)):
        for one in order:
            await one.measure(options.block)
    for one in measured.values():
        one.client.close()


def ratios(values: list[float], to: list[float]) -> dict[str, Any]:
    """Return the ratios of blocks that stood side by side, and the interval of 95 % of their median (bootstrap)."""
    each = [value / other if other else 0.0 for value, other in zip(values, to, strict=True)]
    draw = random.Random(0)
    medians = sorted(median(draw.choices(each, k=len(each))) for _ in range(RESAMPLES))
    low, high = medians[RESAMPLES // 40], medians[-RESAMPLES // 40 - 1]
    return {"median": median(each), "mean": mean(each), "low": low, "high": high, "each": each}


def grown(samples: list[Memory]) -> dict[str, Any]:
    """Return what a server's memory was at a tenth of its blocks and at most after that, in bytes."""
    later = samples[len(samples) // 10 :]
    slope = 0.0
    if later[-1].answered > later[0].answered:
        slope = linear_regression([one.answered for one in later], [one.anonymous for one in later]).slope
    return {
        "samples": len(later),
        "settled_bytes": later[0].resident,
        "growth_bytes": max(one.resident for one in later) - later[0].resident,
        "proportional_growth_bytes": max(one.proportional for one in later) - later[0].proportional,
        "anonymous_settled_bytes": later[0].anonymous,
        "anonymous_growth_bytes": max(one.anonymous for one in later) - later[0].anonymous,
        "anonymous_bytes_per_request": slope,
    }


def of_server(one: Measured, ended: Ended) -> dict[str, Any]:
    """Return the row of one server."""
    seconds = sum(block.seconds for block in one.blocks)
    of_client = one.client.latencies_s
    latencies_s = quantiles(of_client, n=100, method="inclusive") if len(of_client) > 1 else [0.0] * 99
    return {
        "answered": one.client.answered,
        "failed": one.client.failed,
        "reasons": one.client.reasons,
        "load_seconds": seconds,
        "per_second": sum(block.answered for block in one.blocks) / seconds,
        "p50_ms": latencies_s[49] * 1e3,
        "p99_ms": latencies_s[98] * 1e3,
        "cpu_us_per_request": median(one.cpu_us_per_request),
        "busy_share": one.cpu_ns / 1e9 / seconds,
        "waited_share": one.waited_ns / 1e9 / seconds,
        "memory": grown(one.memory),
        "exit_code": ended.exit_code,
        "served": ended.served,
        "said": ended.said,
    }


def benchmark(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Start, load, end and count; return the report."""
    load_average = os.getloadavg()[0]
    measured = start(options, folder)
    try:
        asyncio.run(load(options, measured))
        ended = {name: one.server.end() for name, one in measured.items()}
    finally:
        kill(measured)
    servers = {name: of_server(one, ended[name]) for name, one in measured.items()}
    run_dir = folder / "run"
    database = next(run_dir.glob("*.sqlite"), None)
    answered, batches = servers[RECORDED]["answered"], ended[RECORDED].batches
    found = ranges(database) if database else {}
    throughput = {name: [block.per_second for block in one.blocks] for name, one in measured.items()}
    cpu_us = {name: one.cpu_us_per_request for name, one in measured.items()}
    ratio = {name: ratios(throughput[name], throughput[PLAIN]) for name in measured if name != PLAIN}
    cpu_ratio = {name: ratios(cpu_us[name], cpu_us[PLAIN]) for name in ratio}
    expected = {"request": answered, **dict.fromkeys(("step", "pack", "h2d", "forward", "d2h"), batches)}
    return {
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
        "load_average": [load_average, os.getloadavg()[0]],
        "backend": options.backend,
        "small": options.small,
        "concurrency": options.concurrency,
        "block_seconds": options.block,
        "rounds": len(throughput[PLAIN]),
        "servers": servers,
        "ratio": ratio,
        "cpu_ratio": cpu_ratio,
        "found": found,
        "expected": expected,
        "ranges_per_second": sum(found.values()) / answered * servers[RECORDED]["per_second"] if answered else 0.0,
        "none_failed": all(one["answered"] and not one["failed"] for one in servers.values()),
        "fast_enough": ratio[RECORDED]["median"] >= LEAST_RATIO,
        "memory_flat": servers[RECORDED]["memory"]["growth_bytes"] <= GROWTH_BYTES,
        "ended_well": all(one["exit_code"] == 0 and one["served"] == one["answered"] for one in servers.values()),
        "reported": (run_dir / "report.json").is_file(),
        "complete": found == expected,
    }


def markdown(report: dict[str, Any]) -> str:
    names = list(report["servers"])
    head = (
        f"Python {report['python']}, {report['cpus']} CPUs, load average {report['load_average'][0]:.1f} before and "
        f"{report['load_average'][1]:.1f} after; {report['rounds']} blocks of {report['block_seconds']:g} s each, "
        f"{report['concurrency']} connections, {report['backend']}."
    )
    lines = [head, "", "| | " + " | ".join(names) + " |", "| --- |" + " ---: |" * len(names)]
    lines += [
        f"| {label} | " + " | ".join(show(report["servers"][name]) for name in names) + " |" for label, show in ROWS
    ]
    lines += [
        "",
        "| compared with plain, round by round | median | 95 % between | mean |",
        "| --- | ---: | ---: | ---: |",
    ]
    lines += [
        f"| {name}: {what} | {found['median']:.4f} | {found['low']:.4f} to {found['high']:.4f} | {found['mean']:.4f} |"
        for key, what in (("ratio", "requests a second"), ("cpu_ratio", "CPU time a request"))
        for name, found in report[key].items()
    ]
    counted = ", ".join(f"{name} {number:,}" for name, number in sorted(report["found"].items()))
    verdicts = {
        "no request failed": "none_failed",
        f"throughput at least {LEAST_RATIO} of plain": "fast_enough",
        f"memory flat (growth at most {GROWTH_BYTES / MIB:.0f} MiB)": "memory_flat",
        "every server ended with 0, and reported as many requests as were answered": "ended_well",
        "report written": "reported",
        "every request and batch is in the recording, once": "complete",
    }
    lines += ["", "| | |", "| --- | --- |", f"| ranges recorded | {counted} |"]
    lines += [f"| ranges a second | {report['ranges_per_second']:,.0f} |"]
    lines += [f"| {label} | {'yes' if report[key] else '**no**'} |" for label, key in verdicts.items()]
    return "\n".join(lines)


MIB = float(1 << 20)

ROWS: list[tuple[str, Callable[[dict[str, Any]], str]]] = [
    ("requests answered, the warm-up's too", lambda one: f"{one['answered']:,}"),
    ("requests failed", lambda one: "; ".join([str(one["failed"]), *one["reasons"]])),
    ("requests a second", lambda one: f"{one['per_second']:,.1f}"),
    ("latency p50, ms", lambda one: f"{one['p50_ms']:.2f}"),
    ("latency p99, ms", lambda one: f"{one['p99_ms']:.2f}"),
    ("CPU time a request, us (median block)", lambda one: f"{one['cpu_us_per_request']:.1f}"),
    ("ran, of the time under load", lambda one: f"{one['busy_share']:.1%}"),
    ("waited for a CPU, of its threads together", lambda one: f"{one['waited_share']:.1%}"),
    ("memory at a tenth of the run, MiB", lambda one: f"{one['memory']['settled_bytes'] / MIB:.1f}"),
    ("its growth at most, MiB", lambda one: f"{one['memory']['growth_bytes'] / MIB:.2f}"),
    ("the same, proportional (PSS)", lambda one: f"{one['memory']['proportional_growth_bytes'] / MIB:.2f}"),
    ("the same, without files", lambda one: f"{one['memory']['anonymous_growth_bytes'] / MIB:.2f}"),
    ("without files, slope, bytes a request", lambda one: f"{one['memory']['anonymous_bytes_per_request']:.2f}"),
    ("exit code", lambda one: str(one["exit_code"])),
]


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600, help="of load on the recorded server (default: 600)")
    parser.add_argument("--block", type=float, default=5, help="seconds of load on one server in a turn (default: 5)")
    parser.add_argument("--concurrency", type=int, default=16, help="connections (default: 16)")
    parser.add_argument("--backend", choices=("numpy", "torch"), default="numpy")
    parser.add_argument("--small", action="store_true", help="prompts of one byte, batches of one: the most ranges")
    parser.add_argument("--control", action="store_true", help="a second plain server: by how much equal ones differ")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()), help="where there is room")
    parser.add_argument("--json", action="store_true", help="print JSON instead of Markdown")
    options = parser.parse_args()
    if options.block <= 0 or options.seconds < options.block or options.concurrency < 1:
        parser.error("--block must be positive, --seconds at least one block, --concurrency at least 1")
    if not RecorderCollector().availability().available:
        parser.error(RecorderCollector().availability().reason)
    needed = int(options.seconds * MOST_REQUESTS_PER_SECOND * RECORDED_BYTES_PER_REQUEST)
    free = shutil.disk_usage(options.folder).free
    if free < needed:
        parser.error(f"{options.folder} has {free / 1e9:.1f} GB free and {needed / 1e9:.1f} GB may be needed")
    return options


def main() -> None:
    options = parsed()
    with tempfile.TemporaryDirectory(prefix="traceable-load-", dir=options.folder) as folder:
        report = benchmark(options, Path(folder))
    print(json.dumps(report, indent=2) if options.json else markdown(report))
    held = ("none_failed", "fast_enough", "memory_flat", "ended_well", "reported", "complete")
    raise SystemExit(0 if all(report[key] for key in held) else 1)


if __name__ == "__main__":
    main()
