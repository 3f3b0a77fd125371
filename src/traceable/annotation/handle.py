"""The handle that every function returns that changes the process until it is undone."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Self


class Handle:
    """Undoes a change by `remove()`, or by leaving a `with` block on it. A second `remove()` does nothing."""

    __slots__ = ()

    def remove(self) -> None:
        """Undo the change."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.remove()
