"""A program that only talks to a server which was started without the launcher."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tests.checks.diagnosing import diagnosed
from tests.skips import skip_unless_ci

from traceable.launch.process_watcher import SocketWatcher

SERVER = """
import socketserver
class Answer(socketserver.BaseRequestHandler):
    def handle(self):
        while self.request.recv(4096):
            self.request.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: 0\\r\\n\\r\\n")
class Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
server = Server(("127.0.0.1", 0), Answer)
print(server.server_address[1], flush=True)
server.serve_forever()
"""


@pytest.fixture
def server(start) -> tuple[int, int]:
    """Port and process id of a server."""
    process = start([sys.executable, "-c", SERVER], stdout=subprocess.PIPE)
    with process.stdout:
        return int(process.stdout.readline()), process.pid


def test_curl_is_not_without_annotations(environ, server, tmp_path: Path) -> None:
    if shutil.which("curl") is None:
        skip_unless_ci("curl is missing")
    port, pid = server
    words = [sys.executable, "-m", "traceable", "run", "--collector", "recorder", "-o", "out", "--"]
    done = subprocess.run(
        [*words, "curl", "-s", f"http://localhost:{port}/"],
        cwd=tmp_path,
        env=environ,
        capture_output=True,
        text=True,
        check=True,
    )
    (line,) = (line for line in done.stderr.splitlines() if line.endswith(" [profiled_the_client]"))
    assert line.startswith("traceable: likely: ")
    assert f" port {port}" in line and f" process {pid} (" in line
    assert "`traceable run`" in done.stderr[done.stderr.index("fix: ") :]
    assert "annotate" not in done.stderr
    (result,) = diagnosed(tmp_path / "out").findings
    assert (result.code, result.certainty) == ("profiled_the_client", "likely")


def test_a_connection_is_seen_and_a_server_is_no_client(server) -> None:
    port, pid = server
    with socket.create_connection(("127.0.0.1", port)):
        sockets = SocketWatcher()
        sockets.poll([os.getpid()])
        result = sockets.find_server(())
        assert result is not None
        assert (result["port"], result["pid"]) == (port, pid)
        with socket.create_server(("127.0.0.1", 0)):
            sockets.poll([os.getpid()])
            assert sockets.find_server((f"http://localhost:{port}",)) is None


@pytest.mark.parametrize("where", ["localhost:{}", "http://127.0.0.1:{}/a?b", "--url=http://0.0.0.0:{}", "[::1]:{}"])
def test_a_command_line_that_names_the_server(server, where: str) -> None:
    port, pid = server
    result = SocketWatcher().find_server(("client", where.format(port)))
    assert result is not None
    assert (result["port"], result["pid"]) == (port, pid)


@pytest.mark.parametrize("where", ["example.org:{}", "localhost.example.org:{}", "10.0.0.1:{}", "localhost"])
def test_a_command_line_that_names_another_machine(server, where: str) -> None:
    assert SocketWatcher().find_server(("client", where.format(server[0]))) is None
