"""The client of `server_load.py`: blocks of load on one server, over connections that stay open, every answer checked.

What an answer has to be is computed here, by the example's own model on numpy: neither server is the other's measure.
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

PATIENCE_SECONDS = 30
"""For an answer, after a block's end."""

KEPT_REASONS = 5

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass(frozen=True)
class Question:
    """A prompt, and the byte and the score that the model gives for it."""

    prompt: str
    token: int
    score: float


@dataclass(frozen=True)
class Block:
    """What came of one block. It lasts from the first request sent until the last answer read."""

    seconds: float
    answered: int

    @property
    def per_second(self) -> float:
        return self.answered / self.seconds


def make_questions(one_byte: bool) -> list[Question]:
    """Return the example client's prompts, or their first bytes, with their answers."""
    prompts = [prompt[:1] if one_byte else prompt for prompt in client.make_prompts()]
    model = transformer.NumpyModel()
    rows = [model.forward(*transformer.pack([prompt.encode()]))[0] for prompt in prompts]
    return [Question(prompt, int(row.argmax()), float(row.max())) for prompt, row in zip(prompts, rows, strict=True)]


def check(question: Question, answer: dict[str, Any]) -> None:
    """Raise ValueError for an answer that is not the model's."""
    if answer["token"] != question.token or abs(answer["score"] - question.score) > TOLERANCE:
        raise ValueError(f"{question.prompt!r} was answered {answer}, not {question.token} and {question.score}")


@dataclass
class Client:
    """So many connections to one server. Each sends a request as soon as its last one is answered."""

    address: str
    concurrency: int
    questions: list[Question]
    answered: int = 0
    failed: int = 0
    reasons: list[str] = field(default_factory=list)
    latencies_s: array[float] = field(default_factory=lambda: array("d"))
    _connections: list[Connection] = field(default_factory=list)

    async def load(self, seconds: float, measured: bool = True) -> Block:
        """Send requests for so long, and wait for the last answers. `measured`: keep the latencies.

        A connection with a request that failed is closed; the next block opens another one.
        """
        await self._connect()
        before, begin = self.answered, time.perf_counter()
        asking = [
            asyncio.ensure_future(self._ask(connection, index, begin + seconds, measured))
            for index, connection in enumerate(self._connections)
        ]
        if asking:
            await asyncio.wait(asking, timeout=seconds + PATIENCE_SECONDS)
        block = Block(time.perf_counter() - begin, self.answered - before)
        self._connections = [
            connection for connection, asked in zip(self._connections, asking, strict=True) if self._kept(asked)
        ]
        return block

    async def _connect(self) -> None:
        try:
            while len(self._connections) < self.concurrency:
                self._connections.append(await client.connect(self.address))
        except OSError as error:
            self._fail(f"no connection: {error}")

    async def _ask(self, connection: Connection, index: int, until: float, measured: bool) -> None:
        """Ask one question after the other on one connection, each block the same ones; raise where one fails."""
        try:
            start = index * len(self.questions) // self.concurrency
            for question in itertools.islice(itertools.cycle(self.questions), start, None):
                begin = time.perf_counter()
                if begin >= until:
                    return
                check(question, await client.post(*connection, question.prompt))
                self.answered += 1
                if measured:
                    self.latencies_s.append(time.perf_counter() - begin)
        except BaseException:
            connection[1].close()
            raise

    def _kept(self, asked: asyncio.Future[None]) -> bool:
        """Count what became of a connection's requests; return whether it can be used again."""
        if not asked.done():
            asked.cancel()
            self._fail(f"no answer within {PATIENCE_SECONDS} s")
        elif error := asked.exception():
            self._fail(repr(error))
        else:
            return True
        return False

    def _fail(self, reason: str) -> None:
        self.failed += 1
        if len(self.reasons) < KEPT_REASONS:
            self.reasons.append(reason)

    def close(self) -> None:
        for _, writer in self._connections:
            writer.close()
