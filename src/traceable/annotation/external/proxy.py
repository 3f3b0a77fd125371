"""A callable that is not a function (`lru_cache`, `partial`, a ufunc, an instance), annotated through a wrapt proxy.

The proxy keeps what only the object has: its attributes (`cache_info`), its type to `isinstance`, the way it
binds in a class. Imported only when such a callable is patched.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import wrapt


class AnnotatedCallable(wrapt.FunctionWrapper):  # type: ignore[misc, type-arg, unused-ignore]
    """The proxy; pickled and copied as the callable itself is (wrapt's own rejects both)."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.__wrapped__.__reduce_ex__(protocol)

    def __copy__(self) -> Any:
        made = copy.copy(self.__wrapped__)
        return self if made is self.__wrapped__ else made

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        made = copy.deepcopy(self.__wrapped__, memo)
        return self if made is self.__wrapped__ else made


def wrap_callable(value: Any, decorate: Callable[[Any], Any]) -> Any:
    """Return a proxy of the callable `value` whose calls run in the range that `decorate` puts on a function.

    `value` itself where no profiler can attach. A call of the object that `value` binds to (an `lru_cache` in a class)
    is taken as a plain call, also where it returns a coroutine: the range ends when it returns.
    """
    call = decorate(value)
    if call is value:
        return value
    call_bound = decorate(_call)

    def enter(wrapped: Any, instance: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ARG001
        return call(*args, **kwargs) if wrapped is value else call_bound(wrapped, args, kwargs)

    return AnnotatedCallable(value, enter)


def _call(wrapped: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return wrapped(*args, **kwargs)
