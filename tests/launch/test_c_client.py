"""A client in C and a server in Python in one run: the ids of requests are the same on both sides."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.c_programs import compile_program
from tests.launch.test_windows import recording  # noqa: F401 - a fixture

import traceable
from traceable.trace import Trace, load

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
REQUESTS, WARMUP_REQUESTS, CONNECTIONS = 40, 8, 2


@pytest.fixture(scope="module")
def c_client(tmp_path_factory: pytest.TempPathFactory) -> str:
    return compile_program(EXAMPLES / "client.c", tmp_path_factory.mktemp("c_client"))


def read_fields(trace: Trace, name: str) -> list[dict[str, Any]]:
    """The fields of all ranges of a name."""
    texts = trace.ranges.fields[trace.ranges.name == trace.name_index(name)].tolist()
    return [json.loads(trace.names[text]) for text in texts]


def test_the_ids_of_a_c_client_are_those_of_the_steps(
    recording: str,  # noqa: F811
    c_client: str,
    tmp_path: Path,
    environ: dict[str, str],
) -> None:
    server = f"{sys.executable} {EXAMPLES / 'inference_server.py'} --backend numpy --uds {{uds}}"
    client = f"{c_client} --uds {{uds}} --requests {REQUESTS} --concurrency {CONNECTIONS}"
    command = [sys.executable, "-m", "traceable", "serve", "--collector", recording, "-o", "out", "--uds", "s"]
    command += ["--steps", "2:6", "--warmup-requests", str(WARMUP_REQUESTS), "--server", server, "--client", client]
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    assert f"{REQUESTS} answers" in done.stdout

    sides = {name: load(tmp_path / "out" / name / f"{name}.sqlite") for name in ("server", "client")}
    requests = read_fields(sides["client"], "request")
    numbers = sorted(int(fields["request_id"].rpartition("-")[2]) for fields in requests)
    assert numbers == list(range(REQUESTS))
    marks = sides["client"].marks
    assert len(marks) == REQUESTS
    assert {json.loads(sides["client"].names[text])["request_id"] for text in marks.fields.tolist()} == {
        fields["request_id"] for fields in requests
    }
    assert len(sides["client"].ranges) == 2 * REQUESTS  # with `send`

    steps = read_fields(sides["server"], "step")
    assert len(steps) == 4
    served = [one for fields in steps for one in fields["requests"]]
    assert [fields["batch"] for fields in steps] == [len(fields["requests"]) for fields in steps]
    assert len(set(served)) == len(served) >= 4
    assert {"request_id": served[0]} in requests
    # The first ones began before the window.
    assert {"request_id": served[-1]} in read_fields(sides["server"], "request")
    # The warm-up had ended before the steps were counted, of which each served two requests at most.
    windows = traceable.load(tmp_path / "out" / "server").windows
    assert windows is not None
    (window,) = windows.outcomes
    assert window.counted_from is not None
    assert window.counted_from >= WARMUP_REQUESTS / CONNECTIONS
