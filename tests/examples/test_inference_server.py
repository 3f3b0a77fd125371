"""The example server answers real requests right, in the batches it says, and stops when it is told to."""

from __future__ import annotations

import http.client
import http.server
import json
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.conftest import run_nsys_profile

TIMEOUT_S = 120


class UnixConnection(http.client.HTTPConnection):
    """The standard library's HTTP client over a Unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("server", timeout=TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)

    def __enter__(self) -> UnixConnection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def ask(connection: http.client.HTTPConnection, method: str, path: str, body: Any = None) -> tuple[int, dict[str, Any]]:
    connection.request(method, path, body if isinstance(body, (bytes, type(None))) else json.dumps(body))
    response = connection.getresponse()
    return response.status, json.loads(response.read())


def predict(path: str, prompt: str) -> dict[str, Any]:
    with UnixConnection(path) as connection:
        status, answer = ask(connection, "POST", "/predict", {"prompt": prompt})
    assert status == 200, answer
    return answer


def end(process: subprocess.Popen[str], signum: int = signal.SIGTERM) -> tuple[int, str, str]:
    process.send_signal(signum)
    out, err = process.communicate(timeout=TIMEOUT_S)
    return process.returncode, out, err


def parse_served(out: str) -> tuple[int, int]:
    match = re.search(r"^served (\d+) requests in (\d+) batches$", out, re.MULTILINE)
    assert match, out
    return int(match[1]), int(match[2])


def test_serves_the_requests_of_a_client_of_its_own_and_stops(example: Any, backend: str) -> None:
    done = example("inference_server", "--requests", "60", "--concurrency", "5", "--backend", backend)
    assert (done.returncode, done.stderr) == (0, "")
    requests, batches = parse_served(done.stdout)
    assert requests == 60
    assert 60 / 5 <= batches <= 60  # five connections ask for five answers at once at most
    assert re.search(r"^60 answers, latency p50 \d+\.\d\d ms, p99 \d+\.\d\d ms$", done.stdout, re.MULTILINE)


def test_an_answer_is_that_of_the_prompt_alone_whatever_batch_it_was_in(serve: Any, load: Any) -> None:
    transformer = load("transformer")
    weights = transformer.make_weights()
    process, path = serve("--max-batch", "4", "--max-wait-ms", "20")
    prompts = [chr(ord("a") + index) * (1 + 7 * index % 100) for index in range(24)]
    with ThreadPoolExecutor(8) as clients:
        answers = list(clients.map(lambda prompt: predict(path, prompt), prompts))
    for prompt, answer in zip(prompts, answers, strict=True):
        alone = transformer.logits(np, weights, *transformer.pack([prompt.encode()]))[0]
        assert answer["token"] == alone.argmax()
        assert answer["score"] == pytest.approx(alone.max(), abs=1e-3)
        assert 1 <= answer["batch"] <= 4
    code, out, err = end(process)
    assert (code, err) == (0, "")
    # Each of the b prompts of a batch was told b: their shares add up to the number of batches.
    assert parse_served(out) == (24, sum(Fraction(1, answer["batch"]) for answer in answers))


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_the_waiting_request_finish(serve: Any, signum: int) -> None:
    # The batch would wait ten minutes for its second prompt.
    process, path = serve("--max-batch", "2", "--max-wait-ms", "600000")
    with ThreadPoolExecutor(1) as client, UnixConnection(path) as health:
        answer = client.submit(predict, path, "wait")
        while ask(health, "GET", "/health") != (200, {"status": "ok", "waiting": 1}):
            pass
        code, out, err = end(process, signum)
        assert answer.result(TIMEOUT_S)["batch"] == 1
    assert (code, err) == (0, "")
    assert parse_served(out) == (1, 1)
    assert not Path(path).exists()


def test_a_connection_is_kept_for_the_next_request(serve: Any) -> None:
    _, path = serve()
    with UnixConnection(path) as connection:
        connection.connect()
        remaining = connection.sock
        assert [ask(connection, "POST", "/predict", {"prompt": "again"})[0] for _ in range(3)] == [200] * 3
        assert connection.sock is remaining


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "says"),
    [
        ("GET", "/", None, 404, "POST /predict"),
        ("GET", "/predict", None, 404, "POST /predict"),
        ("POST", "/predict", b"{", 400, "must be JSON"),
        ("POST", "/predict", [1], 400, "must be JSON"),
        ("POST", "/predict", {"prompt": 1}, 400, "must be JSON"),
        ("POST", "/predict", {"prompt": ""}, 400, "1 to 128 bytes"),
        ("POST", "/predict", {"prompt": "x" * 129}, 400, "1 to 128 bytes"),
        ("POST", "/predict", b"x" * 65537, 413, "65536 bytes"),
    ],
)
def test_a_bad_request_is_refused_and_the_next_one_served(
    serve: Any, method: str, path: str, body: Any, status: int, says: str
) -> None:
    process, address = serve()
    with UnixConnection(address) as connection:
        refused = ask(connection, method, path, body)
    assert refused[0] == status
    assert says in refused[1]["error"]
    assert predict(address, "next")["batch"] == 1
    assert parse_served(end(process)[1]) == (1, 1)


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"nonsense\r\n\r\n", b"400"),
        (b"GET /health HTTP/1.0\r\n\r\n", b"505"),
        (b"POST /predict HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", b"501"),
        (b"POST /predict HTTP/1.1\r\nContent-Length: -1\r\n\r\n", b"400"),
        (b"POST /predict HTTP/1.1\r\nno colon\r\n\r\n", b"400"),
    ],
)
def test_what_is_not_its_http_is_refused_and_the_connection_closed(serve: Any, head: bytes, status: bytes) -> None:
    _, path = serve()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(TIMEOUT_S)
        connection.connect(path)
        connection.sendall(head)
        answer = b"".join(iter(lambda: connection.recv(4096), b""))
    assert answer.startswith(b"HTTP/1.1 " + status)


def test_a_client_that_leaves_in_the_middle_of_a_request_harms_nobody(serve: Any) -> None:
    process, path = serve()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        connection.sendall(b"POST /predict HTTP/1.1\r\nContent-Length: 100\r\n\r\n{")
    assert predict(path, "next")["batch"] == 1
    code, out, err = end(process)
    assert (code, err) == (0, "")
    assert parse_served(out) == (1, 1)


def test_a_port_in_use_is_said_in_one_line(example: Any) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = example("inference_server", "--backend", "numpy", "--port", str(taken.getsockname()[1]))
    assert done.returncode == 1
    assert re.fullmatch(r"inference_server: .*address already in use.*\n", done.stderr)


class Fickle(http.server.BaseHTTPRequestHandler):
    """Answers each request with another token."""

    protocol_version = "HTTP/1.1"
    asked = 0

    def do_POST(self) -> None:
        type(self).asked += 1
        self.rfile.read(int(self.headers["Content-Length"]))
        body = json.dumps({"token": self.asked, "score": 0.0}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *words: Any) -> None:
        pass


def test_the_client_fails_where_the_same_prompt_gets_two_answers(example: Any) -> None:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Fickle) as server:
        threading.Thread(target=server.serve_forever).start()
        done = example("client", f"127.0.0.1:{server.server_port}", "--requests", "40", "--concurrency", "1")
        server.shutdown()
    assert done.returncode == 1
    assert re.fullmatch(r"client: .* was answered .*\n", done.stderr)


def test_the_client_fails_where_nobody_listens(example: Any, tmp_path: Path) -> None:
    done = example("client", f"unix:{tmp_path}/none.sock")
    assert done.returncode == 1
    assert done.stderr.startswith("client: ")


def test_under_nsys_each_batch_is_one_range_of_each_stage(nsys: str, examples: Path, tmp_path: Path) -> None:
    command = [sys.executable, str(examples / "inference_server.py"), "--backend", "numpy", "--requests", "40"]
    profile = [nsys, "profile", "--trace=nvtx", "--sample=none", "--cpuctxsw=none", f"--output={tmp_path}/server"]
    done = run_nsys_profile([*profile, *command])
    subprocess.run(
        [nsys, "export", "--type=sqlite", f"--output={tmp_path}/server.sqlite", f"{tmp_path}/server.nsys-rep"],
        capture_output=True,
        timeout=TIMEOUT_S,
        check=True,
    )
    query = """SELECT coalesce(text, value) FROM NVTX_EVENTS LEFT JOIN StringIds ON StringIds.id = textId
               WHERE eventType IN (59, 60)"""
    counts = Counter(name for (name,) in sqlite3.connect(f"{tmp_path}/server.sqlite").execute(query))
    requests, batches = parse_served(done.stdout)
    assert requests == 40
    assert {name: counts[name] for name in ("pack", "h2d", "forward", "d2h")} == dict.fromkeys(
        ("pack", "h2d", "forward", "d2h"), batches
    )
    assert counts["request"] == 40


TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.mark.parametrize(
    ("headers", "request_id"),
    [
        ({"X-Request-Id": "mine", "traceparent": TRACEPARENT}, "mine"),
        ({"Traceparent": TRACEPARENT}, TRACEPARENT[3:52]),
        ({}, None),
    ],
)
def test_a_response_has_the_id_of_its_request(serve: Any, headers: dict[str, str], request_id: str | None) -> None:
    _, path = serve()
    with UnixConnection(path) as connection:
        connection.request("GET", "/health", headers=headers)
        answer = connection.getresponse().headers["x-request-id"]
    assert answer == request_id if request_id else re.fullmatch("[0-9a-f]{32}", answer)


def test_a_socket_left_behind_is_replaced(serve: Any, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as abandoned:
        abandoned.bind(str(tmp_path / "server.sock"))
    process, path = serve()
    assert predict(path, "next")["batch"] == 1
    assert end(process)[0] == 0
    assert not Path(path).exists()


def test_a_socket_in_use_and_a_file_are_left_alone(serve: Any, example: Any, tmp_path: Path) -> None:
    process, path = serve()
    file = tmp_path / "file"
    file.write_text("theirs")
    for taken in (path, str(file)):
        done = example("inference_server", "--backend", "numpy", "--uds", taken)
        assert done.returncode == 1
        assert re.fullmatch(r"inference_server: .*address already in use.*\n", done.stderr, re.IGNORECASE)
    assert file.read_text() == "theirs"
    assert predict(path, "next")["batch"] == 1
    assert end(process)[0] == 0


def test_the_client_takes_one_address(example: Any, serve: Any) -> None:
    _, path = serve()
    assert example("client", "--uds", path, "--requests", "3").stdout.startswith("3 answers")
    assert example("client", "--uds", path, "127.0.0.1:1").returncode == example("client").returncode == 2
