"""A progress line on a terminal for work that takes longer than a second; erased at its end."""

from __future__ import annotations

import os
import sys
import threading
import time
from types import TracebackType

DELAY_SECONDS = 1.0
"""How long nothing is printed, and how often the line is renewed."""

_LONGEST = 70
_ERASE = "\r\x1b[K"


class Progress:
    """Call it with the current activity; use it as a context manager around the work.

    A thread prints it, so that one long step is shown too. Without a terminal on stderr, or where it can't erase a
    line, nothing is printed and no thread is made.
    """

    def __init__(self) -> None:
        self._doing = ""
        self._began = time.monotonic()
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def __call__(self, doing: str) -> None:
        """Set the current work, as half a sentence."""
        self._doing = "".join(c if c.isprintable() else "?" for c in doing)[:_LONGEST]

    def __enter__(self) -> Progress:
        if sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb":
            self._thread = threading.Thread(target=self._print_progress, name="traceable-progress", daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def _print_progress(self) -> None:
        printed = False
        try:
            while not self._over.wait(DELAY_SECONDS):
                seconds = time.monotonic() - self._began
                sys.stderr.write(f"{_ERASE}traceable: {self._doing} ({seconds:.0f} s)")
                sys.stderr.flush()
                printed = True
            if printed:
                sys.stderr.write(_ERASE)
                sys.stderr.flush()
        except (OSError, ValueError):  # the terminal was closed, or can't write this: the work continues
            return
