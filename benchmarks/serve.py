"""What `traceable serve` takes more than its parts: the same server and client under two `traceable run` by hand.

    python benchmarks/serve.py [--rounds 10] [--collector recorder] [--json]

Server and client are trivial: one request over a Unix socket. By hand, the server is started, its socket is awaited,
the client is run to its end, and the server gets SIGTERM; by then there are two reports. `serve` makes one of both
sides. Both are run by turns; the medians are compared.

Ends with 1 where `serve` takes more than 0.3 s longer.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median, quantiles

MOST_SECONDS = 0.3

SERVER = """
import signal, socket, sys
import traceable
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
listener.listen()
def stop(*_):
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
while True:
    connection, _ = listener.accept()
    with connection:
        while request := connection.recv(100):
            with traceable.step():
                connection.sendall(request)
"""

CLIENT = """
import socket, sys
import traceable
with socket.socket(socket.AF_UNIX) as connection:
    connection.connect(sys.argv[1])
    with traceable.annotate("request"):
        connection.sendall(b"x")
        connection.recv(1)
"""


def main() -> int:
    """Measure both by turns, print them, and return whether `serve` takes too long."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--collector", default="recorder")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    ways: dict[str, Callable[[Path, str], None]] = {"by hand": run_by_hand, "serve": run_serve}
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for index in range(arguments.rounds + 1):
        for way, run in ways.items():
            with tempfile.TemporaryDirectory(prefix="serve-benchmark-") as folder:
                start = time.perf_counter()
                run(Path(folder), arguments.collector)
                if index:  # the first round compiles modules and fills caches
                    seconds[way].append(time.perf_counter() - start)
    medians = {way: median(values) for way, values in seconds.items()}
    difference = medians["serve"] - medians["by hand"]
    ratio = medians["serve"] / medians["by hand"]
    if arguments.json:
        print(json.dumps({"seconds": seconds, "difference_s": difference, "ratio": ratio}))
    else:
        print(f"| collector {arguments.collector} | median s | quartiles s |\n| --- | ---: | ---: |")
        for way, values in seconds.items():
            low, _, high = quantiles(values, n=4, method="inclusive")
            print(f"| {way} | {medians[way]:.3f} | {low:.3f} to {high:.3f} |")
        print(f"\nserve takes {difference:+.3f} s, {ratio:.2f} of its parts; at most {MOST_SECONDS:+.1f} s is allowed")
    return int(difference > MOST_SECONDS)


def run_by_hand(folder: Path, collector: str) -> None:
    """Run server and client under a launcher each, as a script does."""
    path = folder / "server.sock"
    with start_run(folder, "server", collector, SERVER, path) as server:
        while not is_accepting(path):
            time.sleep(0.01)
        with start_run(folder, "client", collector, CLIENT, path) as client:
            check(client.wait())
        server.terminate()
        check(server.wait())


def start_run(folder: Path, name: str, collector: str, code: str, path: Path) -> subprocess.Popen[bytes]:
    """Start one side under `traceable run`."""
    words = ["--quiet", "--collector", collector, "-o", str(folder / name), "--name", name]
    return subprocess.Popen([*make_traceable_command("run"), *words, "--", sys.executable, "-c", code, str(path)])


def run_serve(folder: Path, collector: str) -> None:
    """Run both under `traceable serve`."""
    words = ["--quiet", "--collector", collector, "-o", str(folder / "out"), "--uds", str(folder / "server.sock")]
    for side, code in (("server", SERVER), ("client", CLIENT)):
        words += [f"--{side}", shlex.join([sys.executable, "-c", code, "{uds}"])]
    check(subprocess.run([*make_traceable_command("serve"), *words], check=False).returncode)


def make_traceable_command(command: str) -> list[str]:
    """Return the beginning of a command line of traceable."""
    return [sys.executable, "-m", "traceable", command]


def is_accepting(path: Path) -> bool:
    """Whether a server listens on this Unix socket."""
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(os.fspath(path)) == 0


def check(exit_code: int) -> None:
    """End the benchmark where a run failed: its time would be that of another thing."""
    if exit_code != 0:
        sys.exit(f"a run ended with {exit_code}")


if __name__ == "__main__":
    sys.exit(main())
