"""A signal to the launcher reaches the program, once, and what the program makes of it is the end of both."""

from __future__ import annotations

import os
import pty
import signal
import sys
from pathlib import Path

import pytest

# `signal.pause` misses a signal that comes just before it; a wakeup descriptor does not.
WAIT = """
import os, select, signal, sys
woken, wake = os.pipe()
os.set_blocking(wake, False)
signal.set_wakeup_fd(wake)
def wait():
    while True:
        select.select([woken], [], [])
        os.read(woken, 64)
"""

COUNTS = """
seen = []
signal.signal(signal.SIGINT, lambda *_: seen.append(1))
signal.signal(signal.SIGUSR1, lambda *_: sys.exit(len(seen)))
with open("ready", "w") as ready:
    ready.write("ready")
wait()
"""


@pytest.fixture
def ready(tmp_path: Path) -> Path:
    """A FIFO by which the program says that its handlers stand: `read_text` returns when it has."""
    os.mkfifo(tmp_path / "ready")
    return tmp_path / "ready"


def test_keyboard_interrupt_ends_a_program_as_without_us(collector, command, start, ready):
    code = "open('ready', 'w').close(); wait()"
    process = start(command(collector, "-c", WAIT + code))
    assert ready.read_text() == ""
    process.send_signal(signal.SIGINT)
    assert process.wait() == -signal.SIGINT


def test_ctrl_c_at_the_terminal_arrives_once(collector, command, start, ready):
    """The terminal sends it to the whole foreground group; a launcher that also forwards it would send it twice."""
    leader, follower = pty.openpty()
    session = (
        "import fcntl, os, sys, termios; os.setsid(); fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
        "os.execv(sys.argv[1], sys.argv[1:])"
    )
    with os.fdopen(follower, "rb") as terminal:
        process = start(
            [sys.executable, "-c", session, *command(collector, "-c", WAIT + COUNTS)],
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
        )
    assert ready.read_text() == "ready"
    os.write(leader, b"\x03")
    # The echo of ^C says that the terminal has sent its signal; only then may the program count.
    shown = b""
    while b"^C" not in shown:
        shown += os.read(leader, 4096)
    process.send_signal(signal.SIGUSR1)
    try:
        while chunk := os.read(leader, 4096):
            shown += chunk
    except OSError:  # EIO: nobody holds the terminal any more
        pass
    os.close(leader)
    assert process.wait() == 1, shown


def test_a_program_that_ignores_sigterm_goes_on(collector, command, start, ready, tmp_path):
    code = (
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "signal.signal(signal.SIGUSR1, lambda *_: sys.exit(4))\n"
        "open('ready', 'w').close()\n"
        "wait()\n"
    )
    process = start(command(collector, "-c", WAIT + code))
    assert ready.read_text() == ""
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGUSR1)
    assert process.wait() == 4
