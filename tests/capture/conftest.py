"""Programs that step, each in its own process: steps are counted once per process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from traceable.collectors.recorder.collector import RecorderCollector
from traceable.protocol import environment
from traceable.trace import Trace, load


@dataclass(frozen=True)
class Ran:
    """The results of a program: its exit code and output, its status files and its recording."""

    done: subprocess.CompletedProcess[str]
    run_dir: Path

    @property
    def messages(self) -> list[str]:
        """traceable's lines on stderr."""
        return [line for line in self.done.stderr.splitlines() if line.startswith("traceable: ")]

    @property
    def statuses(self) -> list[dict[str, Any]]:
        return [json.loads(path.read_text()) for path in sorted(self.run_dir.glob("status.*.json"))]

    @property
    def status(self) -> dict[str, Any]:
        (status,) = self.statuses
        return status

    @property
    def counter(self) -> tuple[int, ...]:
        (path,) = self.run_dir.glob("status.*.steps")
        content = path.read_bytes()
        return tuple(int.from_bytes(content[at : at + 8], "little") for at in (0, 8))

    @property
    def trace(self) -> Trace:
        recorded = RecorderCollector().finalize(self.run_dir, "app")
        assert recorded.database is not None, recorded.notes
        return load(recorded.database)

    @property
    def steps(self) -> list[int]:
        """The indices of the recorded steps, whole ones and cut ones, by start."""
        return steps_of(self.trace)


def steps_of(trace: Trace) -> list[int]:
    """The payloads of the ranges `step` of the default domain."""
    ranges = trace.ranges
    name = trace.names.index("step") if "step" in trace.names else -2
    mine = (ranges.name == name) & (ranges.domain == -1)
    assert ranges.has_payload[mine].all()
    return list(ranges.payload[mine].tolist())


def names_of(trace: Trace) -> list[str]:
    """The names of all ranges, by start, but for the waits between steps."""
    return [name for name in all_names_of(trace) if name != "step.wait"]


def all_names_of(trace: Trace) -> list[str]:
    """The names of all ranges, by start."""
    return [trace.names[name] for name in trace.ranges.name.tolist()]


@pytest.fixture
def program(tmp_path: Path) -> Callable[..., Ran]:
    """Run Python code under the recorder, with TRACEABLE variables as given; `gated` as the launcher would."""
    collector = RecorderCollector()
    if not (availability := collector.availability()).available:
        pytest.skip(availability.reason)

    def run(code: str, *, gated: bool = False, python: tuple[str, ...] = (), **variables: str) -> Ran:
        run_dir = tmp_path / "run"
        run_dir.mkdir()
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("TRACEABLE_")}
        planned = dict(collector.plan(("program",), run_dir, "app").environment)
        planned |= {environment.RUN_DIR: str(run_dir), environment.COLLECTOR: "recorder", environment.GATE: "recorder"}
        planned |= {environment.RECORDING_GATED: "1"} if gated else {}
        done = subprocess.run(
            [sys.executable, *python, "-c", code],
            env={**inherited, **planned, **variables},
            capture_output=True,
            text=True,
            timeout=120,
        )
        return Ran(done, run_dir)

    return run
