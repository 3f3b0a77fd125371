"""The benchmark of a server under load: every request is checked and in the recording, and failures are counted."""

from __future__ import annotations

import asyncio
import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
MODULES = ("_load_client", "client", "transformer")
VERDICTS = ("none_failed", "fast_enough", "memory_flat", "ended_well", "reported", "complete")


def run(*words: str) -> subprocess.CompletedProcess[str]:
    script = str(BENCHMARKS / "server_load.py")
    return subprocess.run([sys.executable, script, *words], capture_output=True, text=True, check=False)


@pytest.fixture
def load_client(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The benchmark's client, and nothing of it left in this process afterwards."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield importlib.import_module("_load_client")
    for name in MODULES:
        sys.modules.pop(name, None)


def test_both_servers_respond_to_everything_and_the_recording_holds_it(tmp_path: Path) -> None:
    done = run("--seconds", "1", "--block", "0.5", "--concurrency", "4", "--json", "--folder", str(tmp_path))
    assert done.stdout, done.stderr
    report = json.loads(done.stdout)
    # Which of the two was faster is chance in a second; the exit code agrees with the report.
    assert done.returncode == (0 if all(report[verdict] for verdict in VERDICTS) else 1)
    assert {verdict for verdict in VERDICTS if not report[verdict]} <= {"fast_enough"}, done.stdout
    assert list(report["servers"]) == ["plain", "recorded"]
    for server in report["servers"].values():
        assert server["served"] == server["completed"] > 0
        assert server["failed"] == server["exit_code"] == 0
        assert server["memory"]["samples"] == report["rounds"] == 2
        assert 0 < server["p50_ms"] <= server["p99_ms"]
        assert server["cpu_us_per_request"] > 0
    ratio = report["ratio"]["recorded"]
    assert len(ratio["each"]) == 2
    assert ratio["low"] <= ratio["median"] <= ratio["high"]
    assert report["recorded"]["request"] == report["servers"]["recorded"]["completed"]
    assert report["recorded"]["forward"] == report["recorded"]["step"] > 0
    assert not list(tmp_path.iterdir())


def test_the_table_has_the_control_and_each_verdict(tmp_path: Path) -> None:
    words = ("--seconds", "0.4", "--block", "0.4", "--small", "--control", "--folder", str(tmp_path))
    done = run(*words)
    assert "| | plain | recorded | plain again |" in done.stdout, done.stderr
    assert "| every request and batch is in the recording, once | yes |" in done.stdout
    assert "| no request failed | yes |" in done.stdout


def test_options_that_make_no_block_are_rejected() -> None:
    done = run("--seconds", "1", "--block", "2")
    assert done.returncode == 2
    assert "--seconds at least one block" in done.stderr


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 2\r\n\r\n{}", "500 Internal Server Error"),
        (b'HTTP/1.1 200 OK\r\nContent-Length: 27\r\n\r\n{"token": -1, "score": 0.0}', "returned"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", "KeyError"),
        (b"HTTP/1.1 200 OK\r\n\r\n", "StopIteration"),
        (b"", "IncompleteReadError"),
    ],
    ids=["another status", "another response", "empty response", "no length", "closed"],
)
def test_a_response_that_is_not_the_models_counts_as_failed(
    load_client: ModuleType, content: bytes, reason: str
) -> None:
    connections = []

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(content)
        await writer.drain()
        writer.close()

    async def two_blocks() -> None:
        server = await asyncio.start_server(respond, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        client.address = f"{host}:{port}"
        for _ in range(2):
            await client.load(30)  # over as soon as every connection has failed
        server.close()
        await server.wait_closed()

    client = load_client.Client("", 3, load_client.make_requests(one_byte=False))
    asyncio.run(two_blocks())
    assert (client.completed, client.failed, len(connections)) == (0, 6, 6)
    assert all(reason in text for text in client.reasons)


def test_a_server_that_is_not_there_fails_each_block(load_client: ModuleType) -> None:
    client = load_client.Client("127.0.0.1:1", 3, load_client.make_requests(one_byte=False))
    asyncio.run(client.load(30))
    assert (client.completed, client.failed) == (0, 1)
    assert client.reasons[0].startswith("no connection: ")
