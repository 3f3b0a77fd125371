"""A window that is asked for while the program runs: by a controller, a signal, a condition in the code."""

from __future__ import annotations

from traceable.capture.spec import Window

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

UNTIL_STOPPED = 1 << 62
"""The last step of a window that has no number of steps."""


class Request:
    """One window to open when the next step begins.

    Attributes:
        steps: how many steps it is to hold; None until it is stopped.
        by: who asks, as the end of "by ...".
        entry: what the status file says of the window; None until it is opened.
        withdrawn: whether it was taken back before that.
    """

    __slots__ = ("by", "entry", "steps", "withdrawn")

    def __init__(self, steps: int | None, by: str) -> None:
        self.steps = steps
        self.by = by
        self.entry: dict[str, Any] | None = None
        self.withdrawn = False

    def window(self, index: int) -> Window:
        """Return the window that begins with step `index`."""
        return Window(index, index + self.steps if self.steps else UNTIL_STOPPED)
