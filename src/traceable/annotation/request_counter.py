"""Counts the requests that are over, where `run --after-request` asks for it; nothing here is loaded otherwise.

A request is a range of the name `request` that has ended, in whichever domain and however it was opened, or an HTTP
request that `capture/middleware.py` handed on: where there is such a middleware the ranges are not counted, so that no
request counts twice. What is made of the number is `capture/schedule.py`'s.

Ranges of that one name are of a class of their own, chosen when they are made, so the others cost what they always do
once they are there; to make one costs more, as `with annotate(...)` does each time (`benchmarks/steps.py`).
"""

from __future__ import annotations

import os
from _thread import _local, allocate_lock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, MutableSequence
    from types import TracebackType
    from typing import Any

    from typing_extensions import Self

NAME = "request"


class Count:
    """The requests of this process that are over."""

    def __init__(self) -> None:
        self._restart()
        self.by_http = False
        os.register_at_fork(after_in_child=self._restart)

    def _restart(self) -> None:
        self._lock = allocate_lock()
        self._over: MutableSequence[int] = [0]
        self._heard: tuple[int, Callable[[], None]] | None = None

    @property
    def over(self) -> int:
        """How many."""
        return self._over[0]

    def keep_in(self, place: MutableSequence[int]) -> None:
        """Keep the number in `place[0]` from here on, which may outlive the process."""
        with self._lock:
            place[0] = self._over[0]
            self._over = place

    def when(self, number: int, heard: Callable[[], None]) -> None:
        """Call `heard` once as many are over, on the thread that ended the last of them; at once where they are."""
        with self._lock:
            self._heard = number, heard
        self._look()

    def range_ended(self) -> None:
        """Count a range."""
        if not self.by_http:
            self.add()

    def add(self) -> None:
        """Count one request."""
        with self._lock:
            self._over[0] += 1
        if self._heard is not None:
            self._look()

    def _look(self) -> None:
        with self._lock:
            if self._heard is None or self._over[0] < self._heard[0]:
                return
            heard, self._heard = self._heard[1], None
        heard()


count = Count()
"""The one of this process."""

_pushed = _local()


class _Started(tuple[int, "str | None"]):
    """What `start_range` returned of a request: outside of windows the recorder gives ranges no number."""

    __slots__ = ()


class _Counted:
    """What makes of a class of ranges one whose ends are counted."""

    __slots__ = ()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await super().__aexit__(kind, error, traceback)  # type: ignore[misc]
        count.range_ended()

    def __reduce__(self) -> tuple[Any, ...]:
        made: Any = super().__reduce__()
        make, arguments = made
        if make is type(self):
            return _plain[make], arguments
        return make, (_plain[arguments[0]], *arguments[1:])


class _CountedWith(_Counted):
    """The same for `with`."""

    __slots__ = ()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, traceback)  # type: ignore[misc]
        count.range_ended()


class _CountedWatched(_Counted):
    """The same for `with` in debug mode (`balance`), which looks at the frame that called it."""

    __slots__ = ()

    def _close(self, *where: Any) -> None:
        super()._close(*where)  # type: ignore[misc]
        count.range_ended()


_of: dict[type, type] = {}
_plain: dict[type, type] = {}


def _counted_class(cls: type) -> type:
    found = _of.get(cls)
    if found is None:
        kind = _CountedWatched if hasattr(cls, "_close") else _CountedWith
        found = type(cls.__name__, (kind, cls), {"__slots__": (), "__module__": cls.__module__})
        _plain[found] = cls
        _of[cls] = found
    return found


def counted(base: Any) -> Any:
    """Return the class of ranges `base`, which makes those of the name `request` such as are counted."""

    class Range(base):  # type: ignore[misc]
        __slots__ = ()

        def __new__(cls, message: Any = None, *arguments: Any, **named: Any) -> Self:
            kind: Any = _plain.get(cls, cls)
            if type(message) is str:
                if message == NAME:
                    kind = _counted_class(kind)
            elif not arguments and not named and (callable(message) or hasattr(message, "__get__")):
                return kind()(message)  # type: ignore[no-any-return]  # `@annotate` without brackets
            made: Self = base.__new__(kind, message, *arguments, **named)
            return made

    return Range


def is_counted(range_: object) -> bool:
    """Whether the end of `range_` is counted."""
    return isinstance(range_, _Counted)


def running(base: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return `engine.Run`, whose runs of a request are counted when they end."""

    def run(whole: Any, stretch: Any) -> Any:
        made = base(whole, stretch)
        return _Run(made) if isinstance(whole, _Counted) else made

    return run


class _Run:
    __slots__ = ("_run", "resume", "suspend")

    def __init__(self, run: Any) -> None:
        self._run = run
        self.resume = run.resume
        self.suspend = run.suspend

    def end(self) -> None:
        self._run.end()
        count.range_ended()


def wrapping(base: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return `engine.wrap`, whose wrappers count what runs in a request."""
    from traceable.annotation import nvtx_backend

    def wrap(function: Any, range_: Any) -> Any:
        if not isinstance(range_, _Counted):
            return base(function, range_)
        return nvtx_backend.wrap(function, range_, _wrapper)  # type: ignore[arg-type]

    return wrap


def _wrapper(function: Callable[..., Any], range_: Any) -> Callable[..., Any]:
    def annotated(*args: Any, **kwargs: Any) -> Any:
        with range_:
            return function(*args, **kwargs)

    return annotated


# ---- ranges that are opened and closed by two calls


def pushed(range_: object, domain: str | None) -> None:
    """Note what `push_range` opened on this thread."""
    if not hasattr(_pushed, "open"):
        _pushed.open = {}
    _pushed.open.setdefault(domain, []).append(isinstance(range_, _Counted))


def popped(domain: str | None) -> None:
    """Count what `pop_range` closed on this thread."""
    open_ = getattr(_pushed, "open", {}).get(domain)
    if open_ and open_.pop():
        count.range_ended()


def started(range_: object, range_id: tuple[int, str | None]) -> tuple[int, str | None]:
    """Return what `start_range` returns."""
    return _Started(range_id) if isinstance(range_, _Counted) else range_id


def ended(range_id: object) -> None:
    """Count what `end_range` closed."""
    if type(range_id) is _Started:
        count.range_ended()
