"""Traces that GPUs made elsewhere, put into a run of the recorder's as if its process had made them."""

from __future__ import annotations

import gzip
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

from tests.trace.sample_kineto import as_json

from traceable.capture import gpu_gate
from traceable.collectors.recorder.recording import ProcessRecording
from traceable.protocol import gpu_files

Document = dict[str, Any]
BASE_NS = 1_790_000_000_000_000_000


def read(path: Path) -> Document:
    """Read a trace of Kineto's; times stay exact."""
    content = path.read_bytes()
    content = gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content
    return dict(json.loads(content, parse_float=Decimal))


def write(document: Document, run_dir: Path, pid: int, number: int = 1) -> Path:
    """Write it where the process of a run has its own."""
    directory = run_dir / "gpu"
    directory.mkdir(exist_ok=True)
    path = directory / f"{pid}-{number}.pt.trace.json.gz"
    path.write_bytes(gzip.compress(as_json(document).encode(), 1))
    return path


def say(run_dir: Path, pid: int, state: str, detail: str = "") -> None:
    """Write what a process says of itself."""
    directory = run_dir / "gpu"
    directory.mkdir(exist_ok=True)
    (directory / f".{pid}.json").write_text(json.dumps({"pid": pid, "state": state, "detail": detail}))


def half(pthread: int) -> int:
    """Return what CUPTI calls a thread."""
    return int.from_bytes((pthread & 0xFFFFFFFF).to_bytes(4, "little"), "little", signed=True)


def placed(
    document: Document,
    process: ProcessRecording,
    begin_ns: int,
    threads: dict[int, int],
    *,
    drift: Decimal = Decimal(0),
    gpus: dict[str, str] | None = None,
    markers: bool = True,
) -> Document:
    """Return a trace as the process would have recorded it, whose first launch is at `begin_ns` of its CLOCK_MONOTONIC.

    Args:
        document: the trace of another process.
        process: the recording of this one.
        begin_ns: CLOCK_MONOTONIC.
        threads: by the trace's numbers of its threads, as what Kineto calls them in this process.
        drift: by how much the clock of Kineto's runs faster.
        gpus: UUIDs of the devices.
        markers: write the annotations by which clocks are matched.
    """
    events = [event for event in document["traceEvents"] if event.get("ph") == "X"]
    calls = [event for event in events if event.get("cat") == "cuda_runtime"]
    origin = min(ns(event["ts"]) for event in calls)

    def move_event(event: dict[str, Any]) -> dict[str, Any]:
        event = dict(event, ts=_kineto(begin_ns + ns(event["ts"]) - origin, begin_ns, drift))
        if event.get("cat") in ("cuda_runtime", "cpu_op", "user_annotation"):
            event |= {"pid": process.pid, "tid": threads.get(event["tid"], event["tid"])}
        return event

    selected = [move_event(event) for event in events if str(event.get("cat")) in KEPT]
    end_ns = begin_ns + max(ns(event["ts"]) + ns(event["dur"]) for event in events) - origin
    clock = []
    for number in range(2 * gpu_gate.MARKERS):
        at = (begin_ns if number < gpu_gate.MARKERS else end_ns) + 10_000 * number
        clock.append((number, at - 800, at + 800))
        if markers:
            name = f"{gpu_files.MARKER} {number}"
            where = {"pid": process.pid, "tid": process.pid, "args": {}}
            selected.append(
                {
                    "ph": "X",
                    "cat": "user_annotation",
                    "name": name,
                    "ts": _kineto(at, begin_ns, drift),
                    "dur": 1,
                    **where,
                }
            )
    real = process.realtime_ns + end_ns - process.monotonic_ns
    metadata = {"monotonic_ns": end_ns, "realtime_ns": real, "markers": clock, "gpus": gpus or {}}
    properties = document.get("deviceProperties", [])
    return {
        "schemaVersion": 1,
        "deviceProperties": properties,
        gpu_files.METADATA: metadata,
        "baseTimeNanoseconds": process.realtime_ns - process.monotonic_ns,
        "traceEvents": selected,
    }


KEPT = ("cuda_runtime", "cuda_driver", "kernel", "gpu_memcpy", "gpu_memset", "cuda_sync", "overhead")
"""Categories that Kineto records with --gpu, beside annotations."""


def ns(microseconds: Any) -> int:
    return int(Decimal(microseconds) * 1000)


def _kineto(monotonic_ns: int, begin_ns: int, drift: Decimal) -> Decimal:
    """Return what Kineto's clock says at a CLOCK_MONOTONIC: with that as its base, 5 us behind, and drifting."""
    return (monotonic_ns + (monotonic_ns - begin_ns) * drift - 5000) / 1000
