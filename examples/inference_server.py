"""An inference server: HTTP requests are batched and go through pack, h2d, forward and d2h on one worker thread.

Serve until SIGTERM or Ctrl-C, then finish what has begun and stop:

    python examples/inference_server.py --port 8000
    curl -d '{"prompt": "The next byte"}' http://127.0.0.1:8000/predict

Serve a real client, started as a process of its own, until it has its N responses; and the same with a profile:

    python examples/inference_server.py --requests 200
    python -m traceable run examples/inference_server.py --requests 200

Each batch is a step. Profile 20 of them, whenever you like, from another terminal:

    python -m traceable run --control examples/inference_server.py --port 8000
    python -m traceable control window --steps +20

Profile server and client together, over a Unix socket, and see each request with the batch that served it:

    python -m traceable serve --uds infer.sock --steps 50:150 \\
        --server 'python examples/inference_server.py --uds {uds}' \\
        --client 'python examples/client.py --uds {uds} --requests 2000'

The HTTP is the part of HTTP/1.1 that this needs: POST with a Content-Length, GET /health, kept-alive connections.
"""

from __future__ import annotations

import argparse
import asyncio
import errno
import json
import os
import queue
import re
import signal
import socket
import stat
import sys
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

import transformer

import traceable

MAX_BODY_BYTES = 65536
MAX_DISCARDED_BYTES = 1 << 20


class Job(NamedTuple):
    """One prompt on its way through the worker; the future is the waiting request's."""

    request_id: str
    prompt: bytes
    answer: asyncio.Future[dict[str, Any]]


class HttpError(Exception):
    """A response other than 200."""

    def __init__(self, status: str, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class Batcher:
    """Collects prompts into batches and computes them on a thread of its own, so that the event loop never waits."""

    def __init__(self, model: Any, max_batch: int, max_wait_s: float) -> None:
        self.batches = 0
        self.waiting = 0
        self._model = model
        self._max_batch = max_batch
        self._max_wait_s = max_wait_s
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._stopped = False
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._work, name="inference")
        self._thread.start()

    async def submit(self, request_id: str, prompt: bytes) -> dict[str, Any]:
        if self._stopped:
            raise HttpError("503 Service Unavailable", "the server is stopping")
        job = Job(request_id, prompt, self._loop.create_future())
        self._jobs.put(job)
        self.waiting += 1
        try:
            return await job.answer
        finally:
            self.waiting -= 1

    def stop(self) -> None:
        """Compute what is waiting at once, then end the thread; later requests are rejected."""
        self._stopped = True
        self._jobs.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            batch = self._fill([job])
            try:
                answers = self._compute(batch)
            except Exception as error:  # noqa: BLE001 - it belongs to the requests of this batch; the next batch is computed
                self._loop.call_soon_threadsafe(_settle, batch, error)
            else:
                self._loop.call_soon_threadsafe(_settle, batch, answers)

    def _fill(self, batch: list[Job]) -> list[Job]:
        """Wait for more prompts until the batch is full or its first prompt has waited long enough."""
        deadline = time.monotonic() + self._max_wait_s
        while len(batch) < self._max_batch:
            try:
                job = self._jobs.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                break
            if job is None:
                self._jobs.put(None)
                break
            batch.append(job)
        return batch

    def _compute(self, batch: list[Job]) -> list[dict[str, Any]]:
        self.batches += 1
        with traceable.step(payload={"batch": len(batch), "requests": [job.request_id for job in batch]}):
            with traceable.annotate("pack"):
                tokens, last = transformer.pack([job.prompt for job in batch])
            with traceable.annotate("h2d"):
                tokens, last = self._model.to_device(tokens, last)
            with traceable.annotate("forward", payload=len(batch)):
                scores = self._model.forward(tokens, last)
            with traceable.annotate("d2h"):
                scores = self._model.to_host(scores)
        return [{"token": int(row.argmax()), "score": float(row.max())} for row in scores]


def _settle(batch: list[Job], outcome: list[dict[str, Any]] | Exception) -> None:
    for index, job in enumerate(batch):
        if job.answer.done():
            continue  # canceled: its client went away
        if isinstance(outcome, Exception):
            job.answer.set_exception(outcome)
        else:
            job.answer.set_result({**outcome[index], "batch": len(batch)})


class Server:
    """Reads HTTP requests from connections and responds through the batcher."""

    def __init__(self, batcher: Batcher) -> None:
        self.answered = 0
        self._batcher = batcher
        self._stopping = False
        self._idle: set[asyncio.StreamWriter] = set()
        self._connections: set[asyncio.Task[None]] = set()

    async def connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection, one after the other, until either side closes it."""
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)
        try:
            while not self._stopping:
                self._idle.add(writer)
                head = await reader.readuntil(b"\r\n\r\n")
                if not await self._request(head, reader, writer):
                    break
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError):
            pass  # the client closed the connection, or does not use HTTP
        finally:
            self._idle.discard(writer)
            writer.close()

    async def _request(self, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer one request; return whether the connection stays open."""
        with traceable.request(read_request_id(head)) as request:
            keep = True
            try:
                method, path, headers = parse_head(head)
                keep = headers.get("connection", "").lower() != "close"
                body = await read_body(reader, body_length(headers))
                self._idle.discard(writer)
                status, content = "200 OK", await self._route(method, path, body, request.id)
                self.answered += path == "/predict"
            except HttpError as error:
                # The next request can't be distinguished from the unread body.
                status, content, keep = error.status, {"error": str(error)}, False
            except (ConnectionError, asyncio.IncompleteReadError):
                raise
            except Exception as error:  # noqa: BLE001 - a fault in one batch must not end the server
                status, content = "500 Internal Server Error", {"error": repr(error)}
            keep = keep and not self._stopping
            payload = json.dumps(content).encode()
            traceable.mark("first_byte", payload={"request_id": request.id})
            writer.write(
                f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(payload)}\r\n"
                f"X-Request-Id: {request.id}\r\nConnection: {'keep-alive' if keep else 'close'}\r\n\r\n".encode()
                + payload
            )
            await writer.drain()
        return keep

    async def _route(self, method: str, path: str, body: bytes, request_id: str) -> dict[str, Any]:
        if (method, path) == ("GET", "/health"):
            return {"status": "ok", "waiting": self._batcher.waiting}
        if (method, path) != ("POST", "/predict"):
            raise HttpError("404 Not Found", f"{method} {path}: there is POST /predict and GET /health")
        try:
            prompt = json.loads(body)["prompt"].encode()
        except (ValueError, KeyError, TypeError, AttributeError):
            raise HttpError("400 Bad Request", 'the body must be JSON like {"prompt": "text"}') from None
        if not 0 < len(prompt) <= transformer.MAX_TOKENS:
            raise HttpError("400 Bad Request", f"the prompt must hold 1 to {transformer.MAX_TOKENS} bytes")
        return await self._batcher.submit(request_id, prompt)

    async def stop(self) -> None:
        """Let the requests that have begun finish, and close the connections."""
        self._stopping = True
        for writer in self._idle:
            writer.close()  # ends the read that it waits in
        await asyncio.gather(*self._connections)


def read_request_id(head: bytes) -> str | None:
    """Return the id that the client gave its request: the header x-request-id, else traceparent; None for none."""
    for name in (b"x-request-id", b"traceparent"):
        if match := re.search(rb"\r\n" + name + rb":([^\r]*)", head, re.IGNORECASE):
            return match[1].decode("latin-1")
    return None


def parse_head(head: bytes) -> tuple[str, str, dict[str, str]]:
    """Split the head of a request into method, path and headers (names in lower case)."""
    request_line, *lines = head.decode("latin-1").split("\r\n")
    try:
        method, path, version = request_line.split(" ")
        headers = {name.lower(): value.strip() for name, value in (line.split(":", 1) for line in lines if line)}
    except ValueError:
        raise HttpError("400 Bad Request", "malformed request") from None
    if version != "HTTP/1.1":
        raise HttpError("505 HTTP Version Not Supported", "this server speaks HTTP/1.1")
    return method, path, headers


def body_length(headers: dict[str, str]) -> int:
    """Return the number of bytes of the body that follows a head."""
    if "transfer-encoding" in headers:
        raise HttpError("501 Not Implemented", "send the body with a Content-Length")
    length = headers.get("content-length", "0")
    if not (length.isascii() and length.isdigit()):
        raise HttpError("400 Bad Request", f"Content-Length: {length!r} is not a number of bytes")
    return int(length)


async def read_body(reader: asyncio.StreamReader, length: int) -> bytes:
    """Read the body of a request. One that is too long is read and dropped, up to a limit, before it is rejected.

    A client that still writes when the connection is closed gets a broken pipe, and may never read the response.
    """
    if length <= MAX_BODY_BYTES:
        return await reader.readexactly(length)
    left = min(length, MAX_DISCARDED_BYTES)
    while left and (dropped := await reader.read(min(left, MAX_BODY_BYTES))):
        left -= len(dropped)
    raise HttpError("413 Content Too Large", f"the body may hold {MAX_BODY_BYTES} bytes")


async def run_client(address: str, requests: int, concurrency: int, stop: asyncio.Event) -> int:
    """Run the example client against this server, as a process of its own, and return its exit code.

    It records nothing: a profile of this program is one of the server.
    """
    client = await asyncio.create_subprocess_exec(
        *(sys.executable, str(Path(__file__).with_name("client.py")), address),
        *("--requests", str(requests), "--concurrency", str(concurrency)),
        env={**os.environ, "TRACEABLE_LEVEL": "0"},
    )
    done, stopped = asyncio.ensure_future(client.wait()), asyncio.ensure_future(stop.wait())
    await asyncio.wait((done, stopped), return_when=asyncio.FIRST_COMPLETED)
    if not done.done():
        client.terminate()
    stopped.cancel()
    return await done


def bind_socket(path: str) -> socket.socket:
    """Return a Unix socket at this path. One that a server left behind is removed, one that a server uses is not."""
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(path)
            raise OSError(errno.EADDRINUSE, "address already in use", path)
        except FileNotFoundError:
            pass
        except ConnectionRefusedError:
            if stat.S_ISSOCK(os.lstat(path).st_mode):
                Path(path).unlink()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    return listener


async def serve(arguments: argparse.Namespace, model: Any) -> int:
    """Serve until a signal comes or the client is done; print what was served; return the exit code."""
    stop = asyncio.Event()
    for signum in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(signum, stop.set)
    batcher = Batcher(model, arguments.max_batch, arguments.max_wait_ms / 1e3)
    server = Server(batcher)
    exit_code = 0
    inode = None
    try:
        if arguments.socket:
            unix_socket = bind_socket(arguments.socket)
            inode = Path(arguments.socket).stat().st_ino
            listener = await asyncio.start_unix_server(server.connection, sock=unix_socket)
            address = f"unix:{arguments.socket}"
        else:
            listener = await asyncio.start_server(server.connection, arguments.host, arguments.port)
            host, port = listener.sockets[0].getsockname()[:2]
            address = f"{host}:{port}"
        print(f"listening on {address} ({model.name})", flush=True)
        if arguments.requests:
            exit_code = await run_client(address, arguments.requests, arguments.concurrency, stop)
        else:
            await stop.wait()
        listener.close()
    finally:
        batcher.stop()
        await server.stop()
        if inode is not None and Path(arguments.socket).exists() and Path(arguments.socket).stat().st_ino == inode:
            Path(arguments.socket).unlink()
    print(f"served {server.answered} requests in {batcher.batches} batches", flush=True)
    return exit_code


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="default: any free one; it is printed")
    parser.add_argument("--socket", "--uds", metavar="PATH", help="listen on this Unix socket instead of TCP")
    parser.add_argument("--requests", type=int, default=0, metavar="N", help="start a client for N requests, then stop")
    parser.add_argument("--concurrency", type=int, default=16, help="connections of that client (default: 16)")
    parser.add_argument("--max-batch", type=int, default=8, help="prompts in a batch at most (default: 8)")
    parser.add_argument("--max-wait-ms", type=float, default=2.0, help="a prompt's wait for others (default: 2)")
    parser.add_argument("--backend", choices=("auto", "numpy", "torch"), default="auto")
    parser.add_argument("--device", default="auto", help="cpu, cuda, cuda:1 (default: a GPU where torch finds one)")
    arguments = parser.parse_args()
    try:
        model = transformer.load(arguments.backend, arguments.device)
        return asyncio.run(serve(arguments, model))
    except (ImportError, OSError, ValueError) as error:
        print(f"inference_server: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
