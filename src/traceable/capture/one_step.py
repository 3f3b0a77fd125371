"""One open step and its range, and the wait before one. Which steps there are is `control`'s to say."""

from __future__ import annotations

from _thread import get_ident

from traceable import environment
from traceable.annotation import engine, resumable
from traceable.annotation.ranges import annotate

STEP = "step"
"""The name of the range that every step is; its payload is the step's index."""

WAIT = "step.wait"
"""The name of the range in which `steps` waits for the next item."""

heard = engine.emits()
"""NVTX asks for its listener once, so whether anyone hears a step is known from the start."""

_wait = annotate(WAIT)


class Step:
    """One open step."""

    __slots__ = ("as_block", "bare", "begun_ns", "index", "range", "thread")

    def __init__(self, index: int, as_block: bool, bare: bool) -> None:
        self.index = index
        self.begun_ns = 0
        self.as_block = as_block
        self.bare = bare
        self.thread = get_ident()
        self.range = annotate(STEP, None, None, None, index) if heard else None

    def open(self) -> None:
        """Open its range."""
        if self.range is None:
            return
        if self.as_block:
            resumable.open_block(self.range)
        else:
            self.range._push()

    def close(self) -> None:
        """Close its range: a push/pop range on its own thread only, where another's pop would close another range."""
        if self.range is None:
            return
        if self.as_block:
            resumable.close_block(self.range)
        elif self.thread == get_ident():
            self.range._pop()
        else:
            environment.warn_once(
                "step_thread_changed",
                "a step ended on another thread than it began on: its range stays open (traceable help windows)",
            )


class Wait:
    """A wait for the next item, whose range is open; it is closed once. Made only where it can be heard."""

    __slots__ = ("_open", "as_block", "thread")

    def __init__(self, as_block: bool) -> None:
        self.as_block = as_block
        self.thread = get_ident()
        self._open = True
        if as_block:
            resumable.open_block(_wait)
        else:
            _wait._push()

    def close(self) -> None:
        """Close its range, on the thread that opened it."""
        if not self._open:
            return
        self._open = False
        if self.as_block:
            resumable.close_block(_wait)
        elif self.thread == get_ident():
            _wait._pop()
