"""The benchmark of the analysis measures every view, and ends what takes too long."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

from traceable.report.views import VIEWS

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "analysis.py"


def test_every_view_is_measured_on_a_file_that_is_generated_once(tmp_path: Path) -> None:
    argv = [sys.executable, str(SCRIPT), "--kernels", "2000", "--rounds", "1", "--no-nsys", "--folder", str(tmp_path)]
    made = set()
    for words in (["--json"], []):
        done = subprocess.run([*argv, *words], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        if words:
            measured = json.loads(done.stdout)
            made = {(path, path.stat().st_mtime_ns) for path in tmp_path.glob("*.sqlite")}
    assert [size["kernels"] for size in measured["sizes"]] == [2000, 20000]
    for size in measured["sizes"]:
        assert list(size["views"]) == [name for name in VIEWS if name not in ("requests", "rates")]
        for run in size["views"].values():
            assert min(run["seconds"], run["cpu_seconds"], run["peak_bytes"]) > 0
        assert size["reports"] is None
    assert "| ours, gaps |" in done.stdout
    assert "| command | wall s | CPU s | peak MB | bytes a kernel |" in done.stdout
    assert "2,000 to 20,000" in done.stdout
    assert {(path, path.stat().st_mtime_ns) for path in tmp_path.glob("*.sqlite")} == made
    assert made
    # What is measured has its modules compiled, whatever the environment of the tests says.
    assert any((tmp_path / "compiled-modules").rglob("profile.*.pyc"))


def test_a_command_that_reaches_the_limit_is_ended_with_its_children(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("benchmark_of_the_analysis", SCRIPT)
    assert spec is not None and spec.loader is not None
    benchmark = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = benchmark
    spec.loader.exec_module(benchmark)
    held, never = tmp_path / "held", tmp_path / "never"
    os.mkfifo(held)
    os.mkfifo(never)
    reader = os.open(held, os.O_RDONLY | os.O_NONBLOCK)
    try:
        ended = benchmark.run(["/bin/sh", "-c", f"exec 3>{held}; cat {never} & wait"], 0.5)
        assert ended.timed_out
        # Were the child not killed as well, it would hold the pipe open, and reading would not end.
        os.set_blocking(reader, True)
        assert os.read(reader, 1) == b""
    finally:
        os.close(reader)
