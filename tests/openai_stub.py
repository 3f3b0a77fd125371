"""A server with OpenAI's HTTP interface that answers at once, without a model, and keeps what it was sent.

It runs on threads of the test, so that a test can hold responses back until the requests that it waits for are there.
"""

from __future__ import annotations

import contextlib
import http.server
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

TIMEOUT_S = 60


class Received(NamedTuple):
    """A request that came in."""

    path: str
    request_id: str
    traceparent: str
    body: dict[str, Any]


class Stub(http.server.ThreadingHTTPServer):
    """The server.

    Attributes:
        received: the completion requests, in the order of their arrival.
        respond: called in the thread of each; by default `respond_well`.
        most_in_flight: requests at the same time.
    """

    daemon_threads = True
    request_queue_size = 256

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.received: list[Received] = []
        self.respond: Callable[[Handler, int, Received], None] = respond_well
        self.in_flight = self.most_in_flight = 0
        self.changed = threading.Condition()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def wait_for_received(self, number: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.received) >= number, TIMEOUT_S)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that has gone is not worth a traceback."""


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Stub

    def do_GET(self) -> None:
        self.send_json(200, {"data": [{"id": "stub"}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        request = Received(self.path, self.headers["x-request-id"], self.headers.get("traceparent", ""), body)
        with self.server.changed:
            self.server.received.append(request)
            number = len(self.server.received)
            self.server.in_flight += 1
            self.server.most_in_flight = max(self.server.most_in_flight, self.server.in_flight)
            self.server.changed.notify_all()
        try:
            self.server.respond(self, number, request)
        finally:
            with self.server.changed:
                self.server.in_flight -= 1

    def send_json(self, status: int, content: Any) -> None:
        data = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def begin_stream(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def send_event(self, data: str) -> None:
        event = f"data: {data}\n\n".encode()
        self.wfile.write(b"%x\r\n%b\r\n" % (len(event), event))

    def end_stream(self) -> None:
        self.send_event("[DONE]")
        self.wfile.write(b"0\r\n\r\n")

    def cut(self) -> None:
        """Close the connection in the middle of a response."""
        self.close_connection = True

    def log_message(self, *words: Any) -> None:
        pass


def count_prompt(body: dict[str, Any]) -> int:
    text = body["prompt"] if "prompt" in body else " ".join(message["content"] for message in body["messages"])
    return len((text if isinstance(text, str) else text[0]).split())


def make_choice(path: str, text: str, *, is_last: bool, is_chunk: bool) -> dict[str, Any]:
    reason = "length" if is_last else None
    if path == "/v1/completions":
        return {"index": 0, "text": text, "finish_reason": reason}
    return {"index": 0, "delta" if is_chunk else "message": {"content": text}, "finish_reason": reason}


def respond_well(handler: Handler, number: int, request: Received) -> None:
    """Respond with as many words as the request asks for."""
    body = request.body
    tokens = body.get("max_tokens") or body["max_completion_tokens"]
    prompt = count_prompt(body)
    usage = {"prompt_tokens": prompt, "completion_tokens": tokens, "total_tokens": prompt + tokens}
    common = {"id": request.request_id, "created": 0, "model": "stub"}
    if not body.get("stream"):
        choice = make_choice(request.path, " the" * tokens, is_last=True, is_chunk=False)
        handler.send_json(200, {**common, "object": "text_completion", "choices": [choice], "usage": usage})
        return
    handler.begin_stream()
    kind = "text_completion" if request.path == "/v1/completions" else "chat.completion.chunk"
    if kind != "text_completion":
        role = {"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
        handler.send_event(json.dumps({**common, "object": kind, "choices": [role]}))
    for index in range(tokens):
        choice = make_choice(request.path, " the", is_last=index == tokens - 1, is_chunk=True)
        handler.send_event(json.dumps({**common, "object": kind, "choices": [choice]}))
    if (body.get("stream_options") or {}).get("include_usage"):
        handler.send_event(json.dumps({**common, "object": kind, "choices": [], "usage": usage}))
    handler.end_stream()


@contextlib.contextmanager
def run_stub() -> Iterator[Stub]:
    """Run a server on a free port of the loopback interface."""
    with Stub() as stub:
        thread = threading.Thread(target=stub.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield stub
        finally:
            stub.shutdown()
            thread.join()
