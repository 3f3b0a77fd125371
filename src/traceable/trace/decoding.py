"""Several tables of a file decoded at once, and each prepared as soon as it is there.

Knows threads, and neither SQLite nor nsys: what a table is stands in pages.py.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TypeAlias

from traceable.trace.pages import Layout, Pages
from traceable.trace.rows import Rows, Wanted

Prepare: TypeAlias = Callable[[str, Rows], Rows]
"""What is done with the rows of a table, by its name, as soon as they are read."""

Begun: TypeAlias = Callable[[Sequence[str]], None]
"""Hears which tables are being read, each time one is begun."""

_BEGUN, _ENDED = object(), object()


class Decoding:
    """Some tables to be decoded, in threads of their own: the decoder lets go of the interpreter, and so does numpy.

    Args:
        pages: of the file.
        tables: how each lies there, and what is wanted of it.
        prepare: may be called in two threads at once, each time with another table.

    Attributes:
        failed: the table at which `run` raised.
    """

    def __init__(self, pages: Pages, tables: Mapping[str, tuple[Layout, Wanted]], prepare: Prepare) -> None:
        self._pages = pages
        self._prepare = prepare
        self._waiting = list(tables.items())[::-1]
        self._heard: queue.SimpleQueue[tuple[str, object]] = queue.SimpleQueue()
        self.failed = ""

    def run(self, threads: int, begun: Begun) -> dict[str, Rows]:
        """Return what became of the tables that can be decoded.

        Args:
            threads: how many are made; 0 for the work to be done in this one.
            begun: is called in this thread only.

        Raises:
            DamagedPagesError, OSError, MemoryError: decoding or preparing a table raised it.
        """
        workers: list[threading.Thread] = []
        try:
            for _ in range(threads):
                worker = threading.Thread(target=self._work, name="traceable-reader")
                with suppress(RuntimeError):  # The system allows no more threads.
                    worker.start()
                    workers.append(worker)
            if not workers:
                self._work()
            return self._found(max(len(workers), 1), begun)
        except BaseException:
            # Also where the user presses Ctrl-C: nobody reads on in a file that is about to be closed.
            self._pages.stop()
            raise
        finally:
            for worker in workers:
                worker.join()

    def _work(self) -> None:
        """Decode tables until none waits; say of each that it begins, then what came of it."""
        while True:
            try:
                name, (layout, wanted) = self._waiting.pop()
            except IndexError:
                break
            self._heard.put((name, _BEGUN))
            try:
                rows = self._pages.rows(layout, wanted)
                self._heard.put((name, None if rows is None else self._prepare(name, rows)))
            except Exception as error:  # noqa: BLE001 - raised where it is heard
                self._heard.put((name, error))
                break
        self._heard.put(("", _ENDED))

    def _found(self, working: int, begun: Begun) -> dict[str, Rows]:
        """Hear what becomes of each table until nobody works any more."""
        found: dict[str, Rows] = {}
        now: dict[str, None] = {}
        while working:
            name, outcome = self._heard.get()
            if outcome is _ENDED:
                working -= 1
            elif outcome is _BEGUN:
                now[name] = None
                begun(tuple(now))
            elif isinstance(outcome, Exception):
                self.failed = name
                raise outcome
            else:
                del now[name]
                if isinstance(outcome, Rows):
                    found[name] = outcome
        return found
