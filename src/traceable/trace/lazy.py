"""What is read of a file when it is first needed, and not with the rest."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from traceable.errors import TraceError

_Value = TypeVar("_Value")


class Lazy(Generic[_Value]):
    """A value that is made when it is first needed.

    Args:
        make: makes it.
    """

    def __init__(self, make: Callable[[], _Value]) -> None:
        self._make: Callable[[], _Value] | None = make
        self._value: _Value | None = None

    def get(self) -> _Value:
        """Return the value. Raises what making it raises, each time anew."""
        make = self._make
        if make is not None:
            self._value, self._make = make(), None
        return self._value  # type: ignore[return-value]  # made above, if not by an earlier call

    def map(self, change: Callable[[_Value], _Value]) -> Lazy[_Value]:
        """Return a lazy `change(value)`."""
        return Lazy(lambda: change(self.get()))


def read_later(path: Path, read: Callable[[], _Value]) -> Lazy[_Value]:
    """Return what `read` returns, for a file that was read just now.

    The value's `get` raises a TraceError where the file has changed since, so that nothing is joined with what was read
    of another one; `read` raises one where it is gone.

    Args:
        path: the file.
        read: reads it.
    """
    state = _get_state(path)

    def check_and_read() -> _Value:
        if _get_state(path) not in (None, state):
            raise TraceError("changed_since_read", f"{path} has changed since it was read", "read the report again")
        return read()

    return Lazy(check_and_read)


def _get_state(path: Path) -> tuple[int, int, int] | None:
    """Return values that change when the file is written to or replaced; None where it is gone."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns
