"""What long work says on a terminal, and that short work, and work without a terminal, says nothing."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import sys, traceable.cli.progress as progress
progress.DELAY_SECONDS = float(sys.argv[1])
with progress.Progress() as tell:
    tell("reading \\x1b[31mx.sqlite")
    if sys.argv[2] == "wait":
        sys.stdin.readline()
print("done")
"""


def run(patience: float, mode: str, term: str = "xterm") -> bytes:
    """What a terminal on stderr got. The program waits until we have seen the first line, and goes on then."""
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(patience), mode],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=follower,
        env={**os.environ, "TERM": term},
    )
    os.close(follower)
    assert process.stdin is not None
    seen = b""
    try:
        while chunk := os.read(leader, 4096):
            seen += chunk
            process.stdin.close()
    except OSError:  # Linux: the other end is closed
        pass
    os.close(leader)
    with process:
        assert process.stdout is not None
        assert process.stdout.read() == b"done\n"
    assert process.returncode == 0
    return seen


def test_long_work_says_what_it_is_doing_and_erases_it() -> None:
    seen = run(0.01, "wait").decode()
    assert re.match(r"\r\x1b\[Ktraceable: reading \?\[31mx\.sqlite \(0 s\)", seen)
    assert seen.endswith("\r\x1b[K")


@pytest.mark.parametrize(("patience", "term"), [(60.0, "xterm"), (0.001, "dumb")])
def test_short_work_and_a_terminal_that_cannot_erase_hear_nothing(patience: float, term: str) -> None:
    assert run(patience, "go", term) == b""


def test_without_a_terminal_nothing_is_said(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, "0.001", "wait"], input="\n", capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == ("done\n", "")
