"""A client creates a file when its warm-up requests have ended: never before, whichever processes send them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from traceable.protocol import environment

REQUESTS = """
import asyncio, os, traceable
path = os.environ["TRACEABLE_WARMUP_FILE"]
def send(number):
    try:
        with traceable.request(number):
            with traceable.request("within"): pass
            raise KeyError
    except KeyError: return os.path.exists(path)
"""


@pytest.fixture
def client(tmp_path: Path) -> Callable[..., str]:
    """Run a client with a warm-up of five requests, in a run or not; returns what it prints."""

    def call(code: str, *, in_run: bool, messages: int = 0, **variables: str) -> str:
        run_dir = {environment.RUN_DIR: str(tmp_path / "run")} if in_run else {}
        (tmp_path / "run").mkdir(exist_ok=True)
        warmup = {environment.WARMUP_REQUESTS: "5", environment.WARMUP_FILE: str(tmp_path / "ready")}
        done = subprocess.run(
            [sys.executable, "-c", REQUESTS + code],
            env={**warmup, **run_dir, **variables},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        assert done.stderr.count("traceable: ") == messages, done.stderr
        return done.stdout

    return call


@pytest.mark.parametrize("in_run", [True, False])
def test_the_file_is_there_when_the_last_warm_up_request_has_ended(client: Callable[..., str], in_run: bool) -> None:
    assert client("print([send(number) for number in range(8)])", in_run=in_run) == f"{[False] * 4 + [True] * 4}\n"


def test_tasks_count_the_requests_that_have_ended(client: Callable[..., str]) -> None:
    code = """
async def send_late(number):
    async with traceable.request(number):
        await asyncio.sleep(0)
        seen.append(os.path.exists(path))
seen = []
async def main(): await asyncio.gather(*(send_late(number) for number in range(5)))
asyncio.run(main())
print(seen, os.path.exists(path))
"""
    assert client(code, in_run=True) == f"{[False] * 5} True\n"


def test_requests_that_other_threads_end_are_counted(client: Callable[..., str]) -> None:
    """Those that begin in the context after them are not within them; what is begun within an open one is."""
    code = """
import threading
def end(one):
    thread = threading.Thread(target=one.__exit__, args=[None, None, None])
    thread.start(); thread.join()
for number in range(5):
    one = traceable.request(number).__enter__()
    with traceable.request("within"): pass
    print(os.path.exists(path))
    end(one)
print(os.path.exists(path))
"""
    assert client(code, in_run=False) == "False\n" * 5 + "True\n"


WORKERS = """
children = []
for worker in range(3):
    child = os.fork()
    if child == 0:
        os._exit(sum(send(number) for number in range(3)))
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.parametrize(("in_run", "seen"), [(True, [0, 2, 3]), (False, [0, 0, 0])])
def test_processes_of_a_run_count_together(client: Callable[..., str], in_run: bool, seen: list[int]) -> None:
    """Without a run each counts its own, for a file that comes late loses nothing and one that comes early does."""

    assert list(map(int, client(WORKERS, in_run=in_run).split())) == seen


def test_a_file_that_can_not_be_created_ends_nothing(client: Callable[..., str]) -> None:
    variables = {environment.WARMUP_FILE: "/nowhere/ready"}
    assert client("print(*(send(number) for number in range(6)))", in_run=True, messages=1, **variables)


@pytest.mark.parametrize("number", ["many", "-1"])
def test_a_malformed_number_requests_no_warm_up(client: Callable[..., str], number: str) -> None:
    code = "print(*(send(number) for number in range(9)))"
    output = client(code, in_run=True, messages=1, **{environment.WARMUP_REQUESTS: number})
    assert "True" not in output
