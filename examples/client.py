"""A client of the example server: N real HTTP requests over C connections, every response checked, latency printed.

python examples/client.py 127.0.0.1:8000 --requests 200 --concurrency 16
python examples/client.py --uds /tmp/server.sock

Each request has an id, which the server gets as `x-request-id`, so that a profile of both joins the two sides.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import time
from typing import Any

import traceable

PROMPTS = 32
"""So few that each is sent several times, in different batches: the response must not depend on the batch."""


def make_prompts() -> list[str]:
    """Draw the prompts: texts of 1 to 64 characters, always the same."""
    draw = random.Random(0)
    return ["".join(draw.choices("abcdefgh ", k=draw.randint(1, 64))) for _ in range(PROMPTS)]


async def connect(address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    if address.startswith("unix:"):
        return await asyncio.open_unix_connection(address.removeprefix("unix:"))
    host, _, port = address.rpartition(":")
    return await asyncio.open_connection(host, int(port))


async def post(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, prompt: str, request_id: str
) -> dict[str, Any]:
    """Request the prediction of one prompt over a kept-alive connection; raise ValueError for any status but 200."""
    body = json.dumps({"prompt": prompt}).encode()
    with traceable.annotate("send"):
        head = f"POST /predict HTTP/1.1\r\nHost: example\r\nX-Request-Id: {request_id}\r\nContent-Length: {len(body)}"
        writer.write(f"{head}\r\n\r\n".encode() + body)
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    traceable.mark("first_byte", payload={"request_id": request_id})
    length = next(line.split(":")[1] for line in head.split("\r\n") if line.lower().startswith("content-length:"))
    content = await reader.readexactly(int(length))
    if not head.startswith("HTTP/1.1 200 "):
        raise ValueError(f"{head.splitlines()[0]}: {content.decode()}")
    answer: dict[str, Any] = json.loads(content)
    return answer


async def ask(address: str, prompts: list[str], latencies_s: list[float], answers: dict[str, dict[str, Any]]) -> None:
    """Take prompts from the common list until it is empty, one request at a time on one connection."""
    reader, writer = await connect(address)
    try:
        while prompts:
            prompt = prompts.pop()
            begin = time.perf_counter()
            with traceable.request() as request:
                answer = await post(reader, writer, prompt, request.id)
            latencies_s.append(time.perf_counter() - begin)
            known = answers.setdefault(prompt, answer)
            # A batch's shape changes the order of the sums, and with it the last digits.
            if answer["token"] != known["token"] or abs(answer["score"] - known["score"]) > 1e-3:
                raise ValueError(f"{prompt!r} was answered {known} and {answer}")
    finally:
        writer.close()


async def load(address: str, requests: int, concurrency: int) -> str:
    """Send the requests and return one line about their latency."""
    pool = make_prompts()
    prompts = [pool[index % PROMPTS] for index in range(requests)]
    latencies_s: list[float] = []
    answers: dict[str, dict[str, Any]] = {}
    await asyncio.gather(*(ask(address, prompts, latencies_s, answers) for _ in range(min(concurrency, requests))))
    p50, p99 = (_quantile_ms(latencies_s, percent) for percent in (50, 99))
    return f"{len(latencies_s)} answers, latency p50 {p50:.2f} ms, p99 {p99:.2f} ms"


def _quantile_ms(values_s: list[float], percent: int) -> float:
    if len(values_s) == 1:
        return values_s[0] * 1e3
    return statistics.quantiles(values_s, n=100, method="inclusive")[percent - 1] * 1e3


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("address", nargs="?", help="HOST:PORT or unix:PATH, as the server prints it")
    parser.add_argument("--uds", metavar="PATH", help="the same as unix:PATH")
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--concurrency", type=int, default=16)
    arguments = parser.parse_args()
    if arguments.requests < 1 or arguments.concurrency < 1:
        parser.error("--requests and --concurrency must be at least 1")
    if (arguments.address is None) == (arguments.uds is None):
        parser.error("either an address or --uds is required")
    address = arguments.address or f"unix:{arguments.uds}"
    try:
        print(asyncio.run(load(address, arguments.requests, arguments.concurrency)))
    except (OSError, EOFError, ValueError) as error:
        print(f"client: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
