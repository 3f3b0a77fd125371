"""The client of `server_load.py`: blocks of load on one server over persistent connections, every response checked.

The expected responses are computed here, by the example's own model on numpy, not taken from either server.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
import time
from array import array
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
sys.path.insert(0, str(EXAMPLES))

import client  # noqa: E402 - found by the line above
import transformer  # noqa: E402

TOLERANCE = 1e-3
"""Of a score. The order of a sum changes with the shape of the batch, and with it the last digits."""

RESPONSE_TIMEOUT_SECONDS = 30
"""How long to wait for a response after the end of a block."""

MAX_REASONS = 5

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass(frozen=True)
class Request:
    """A prompt, and the byte and the score that the model gives for it."""

    prompt: str
    token: int
    score: float


@dataclass(frozen=True)
class Block:
    """The result of one block, which lasts from the first request sent until the last response read."""

    seconds: float
    completed: int

    @property
    def per_second(self) -> float:
        return self.completed / self.seconds


def make_requests(one_byte: bool) -> list[Request]:
    """Return the example client's prompts, or their first bytes, with the expected responses."""
    prompts = [prompt[:1] if one_byte else prompt for prompt in client.make_prompts()]
    model = transformer.NumpyModel()
    rows = [model.forward(*transformer.pack([prompt.encode()]))[0] for prompt in prompts]
    return [Request(prompt, int(row.argmax()), float(row.max())) for prompt, row in zip(prompts, rows, strict=True)]


def check_response(request: Request, response: dict[str, Any]) -> None:
    """Raise ValueError for a response that is not the model's."""
    if response["token"] != request.token or abs(response["score"] - request.score) > TOLERANCE:
        raise ValueError(f"{request.prompt!r} returned {response}, not {request.token} and {request.score}")


@dataclass
class Client:
    """`concurrency` connections to one server. Each sends a request as soon as it has the response to its last one."""

    address: str
    concurrency: int
    requests: list[Request]
    completed: int = 0
    failed: int = 0
    reasons: list[str] = field(default_factory=list)
    latencies_s: array[float] = field(default_factory=lambda: array("d"))
    _connections: list[Connection] = field(default_factory=list)

    async def load(self, seconds: float, measured: bool = True) -> Block:
        """Send requests for `seconds`, and wait for the last responses. `measured`: keep the latencies.

        A connection with a request that failed is closed; the next block opens another one.
        """
        await self._connect()
        before, begin = self.completed, time.perf_counter()
        tasks = [
            asyncio.ensure_future(self._send_requests(connection, index, begin + seconds, measured))
            for index, connection in enumerate(self._connections)
        ]
        if tasks:
            await asyncio.wait(tasks, timeout=seconds + RESPONSE_TIMEOUT_SECONDS)
        block = Block(time.perf_counter() - begin, self.completed - before)
        self._connections = [
            connection for connection, task in zip(self._connections, tasks, strict=True) if self._is_reusable(task)
        ]
        return block

    async def _connect(self) -> None:
        try:
            while len(self._connections) < self.concurrency:
                self._connections.append(await client.connect(self.address))
        except OSError as error:
            self._fail(f"no connection: {error}")

    async def _send_requests(self, connection: Connection, index: int, until: float, measured: bool) -> None:
        """Send one request after the other on one connection, the same ones in each block; raise if one fails."""
        try:
            start = index * len(self.requests) // self.concurrency
            for request in itertools.islice(itertools.cycle(self.requests), start, None):
                begin = time.perf_counter()
                if begin >= until:
                    return
                check_response(request, await client.post(*connection, request.prompt, f"{index}-{self.completed}"))
                self.completed += 1
                if measured:
                    self.latencies_s.append(time.perf_counter() - begin)
        except BaseException:
            connection[1].close()
            raise

    def _is_reusable(self, task: asyncio.Future[None]) -> bool:
        """Count a failure of a connection's requests; return whether it can be used again."""
        if not task.done():
            task.cancel()
            self._fail(f"no response within {RESPONSE_TIMEOUT_SECONDS} s")
        elif error := task.exception():
            self._fail(repr(error))
        else:
            return True
        return False

    def _fail(self, reason: str) -> None:
        self.failed += 1
        if len(self.reasons) < MAX_REASONS:
            self.reasons.append(reason)

    def close(self) -> None:
        for _, writer in self._connections:
            writer.close()
