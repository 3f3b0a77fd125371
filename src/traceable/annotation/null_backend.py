"""Ranges that emit nothing, for a process without a profiler, and the code they share with the nvtx back end.

Used without the native core; arguments are checked too, so that a wrong one is an error without a profiler.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from traceable.annotation.arguments import log_lost_range, normalize_arguments, normalize_payload, normalize_value

if TYPE_CHECKING:
    from typing_extensions import Self

    Arguments = tuple[Any, Any, Any, Any, Any]
    _R = TypeVar("_R")

INTERNED_MAX = 4096
"""Distinct ranges kept for ever, as in the native core. Later ones are built at each use."""

_interned: dict[tuple[Any, ...], Range] = {}


def _is_decorated(message: object) -> bool:
    """Whether `@annotate` is used without brackets, so that its message is the decorated thing."""
    return message is not None and not isinstance(message, str) and (callable(message) or hasattr(message, "__get__"))


class Range:
    """One message, color, domain, category and payload; `with` on it does nothing. Interned by its arguments."""

    __slots__ = ("_arguments", "_category_id", "_fields", "_level", "_silent")
    _arguments: Arguments
    _category_id: int
    _fields: str | None
    _level: int
    _silent: bool

    def __new__(
        cls,
        message: Any = None,
        color: Any = None,
        domain: Any = None,
        category: Any = None,
        payload: Any = None,
        *,
        level: Any = None,
    ) -> Self:
        if _interned is None:  # the interpreter has cleared this module; a finalizer of the program still runs
            return cls._unmade()
        key = (cls, message, color, domain, category, level)
        try:
            range_ = _interned.get(key)
        except TypeError:  # unhashable, so not an argument that NVTX takes: the check reports which
            range_ = None
        if range_ is None:
            if payload is None and _is_decorated(message) and (color, domain, category, level) == (None,) * 4:
                return cls()(message)  # type: ignore[operator,no-any-return]  # annotate, the subclass, can be called
            try:
                range_ = cls._built(key)
            except MemoryError:
                log_lost_range()
                return cls._unmade()  # type: ignore[return-value]
        if payload is not None:
            range_ = range_._with_payload(payload)
            range_._arguments = (message, color, domain, category, payload)
        return range_  # type: ignore[return-value]

    @classmethod
    def _built(cls, key: tuple[Any, ...]) -> Range:
        """Return the range of a key of those that are interned, which has none so far."""
        _class, message, color, domain, category, level = key
        text, argb, scope, kind, _payload, number = normalize_arguments(message, color, domain, category, None, level)
        built = object.__new__(cls)
        built._arguments = (message, color, domain, category, None)
        built._level = number
        built._fields = None
        built._prepare(text, argb, scope, kind)
        return _interned.setdefault(key, built) if len(_interned) < INTERNED_MAX else built

    @classmethod
    def _unmade(cls) -> Range:
        """Return the fallback for a range that can't be made: it emits nothing."""
        unmade = object.__new__(cls)
        unmade._arguments = (None,) * 5
        unmade._level = 1
        unmade._category_id = 0
        unmade._fields = None
        unmade._silent = True
        return unmade

    def _prepare(self, message: Any, argb: int, domain: Any, category: Any) -> None:  # noqa: ARG002
        self._category_id = category if isinstance(category, int) else 0
        self._silent = True

    @property
    def _is_recordable(self) -> bool:
        """Whether what it emits can reach a tool."""
        return not self._silent

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        pass

    def _with_payload(self, payload: Any) -> Self:
        """Return the same range with this payload of the user's."""
        copy = object.__new__(type(self))
        copy._arguments = self._arguments
        copy._category_id = self._category_id
        copy._level = self._level
        copy._silent = self._silent
        value = normalize_payload(payload)
        copy._fields = value if isinstance(value, str) else None
        return copy

    def _push(self) -> None:
        pass

    def _pop(self) -> None:
        pass

    def _start(self) -> int:
        return 0

    def _start_as(self, identity: int) -> int:  # noqa: ARG002
        """Open a start/end range that has this identity."""
        return 0

    def _end(self, range_id: int) -> None:
        pass

    def _mark(self) -> None:
        pass

    def _sample(self, value: Any) -> None:
        """Emit a mark with this number as payload."""
        normalize_value(value)


class ResumableRange:
    """One run of code that can be suspended, without a profiler."""

    def __init__(self, whole: Range, segment: Range) -> None: ...

    def resume(self) -> None:
        """Do nothing."""

    def suspend(self) -> None:
        """Do nothing."""

    def end(self) -> None:
        """Do nothing."""


def wrap(function: Callable[..., _R], range_: Range) -> Callable[..., _R]:  # noqa: ARG001
    """Return `function`: there is nothing to emit around it."""
    return function


def list_interned_ranges() -> list[tuple[Any, ...]]:
    """Return type, message, color, domain, category and level of each interned range."""
    return list(_interned)


def identify() -> int:
    """Return 0: nothing that is not recorded has an identity."""
    return 0
