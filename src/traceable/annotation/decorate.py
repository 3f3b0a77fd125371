"""What `annotate(...)` does to the thing it decorates: which wrapper, which name, and what it keeps of the original.

How coroutines and generators are followed through their suspensions is `resumable`.
"""

from __future__ import annotations

import sys

from traceable.annotation import engine, resumable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from traceable.annotation.ranges import annotate

_GENERATOR, _COROUTINE, _ITERABLE_COROUTINE, _ASYNC_GENERATOR = 0x20, 0x80, 0x100, 0x200  # inspect.CO_*
_RESUMABLE = _GENERATOR | _COROUTINE | _ASYNC_GENERATOR

# From 3.14 on annotations are evaluated when they are asked for, and may name what is not defined yet.
_ANNOTATIONS = "__annotate__" if sys.version_info >= (3, 14) else "__annotations__"
_CARRIED = ("__module__", "__name__", "__qualname__", "__doc__", _ANNOTATIONS, "__type_params__")

_function = type(lambda: None)
_method = type((lambda _self: None).__get__(object()))


def decorate(range_: annotate, target: Any) -> Any:
    """Return `target` annotated with `range_`, or `target` itself where no one can listen.

    Raises:
        TypeError: `target` is nothing that can be called or bound.
    """
    if isinstance(target, type):
        return _class(range_, target)
    if isinstance(target, staticmethod | classmethod):
        return type(target)(decorate(range_, target.__func__))
    if isinstance(target, property):
        return _property(range_, target)
    if _is_cached_property(target):
        return type(target)(decorate(range_, target.func))
    if not callable(target):
        raise TypeError(
            f"annotate() decorates functions, methods, properties, callables and classes, not {type(target).__name__}; "
            "a message must be a string"
        )
    # NVTX asks for its listener once, at its first call. Without one the function itself is the cheapest wrapper.
    # Below the level nothing is emitted either.
    if (range_._silent or not engine.emits()) and not (engine.requests and engine.requests.is_counted(range_)):
        engine.unheard = engine.unheard or not engine.emits()
        return target
    return _callable(_named(range_, target), target)


def _class(range_: annotate, target: type) -> type:
    """Annotate the public methods that the class itself defines, in place; a message becomes their prefix."""
    message = range_._arguments[0]
    for name, member in list(vars(target).items()):
        if name.startswith("_") or not isinstance(member, _function | staticmethod | classmethod):
            continue
        own = range_ if message is None else _renamed(range_, f"{message}.{name}")
        setattr(target, name, decorate(own, member))
    return target


def _property(range_: annotate, target: property) -> property:
    """Annotate getter, setter and deleter. A subclass of property stays what it is."""
    if target.fget is not None:
        target = target.getter(decorate(range_, target.fget))
    if target.fset is not None:
        target = target.setter(decorate(range_, target.fset))
    if target.fdel is not None:
        target = target.deleter(decorate(range_, target.fdel))
    return target


def _is_cached_property(target: Any) -> bool:
    functools = sys.modules.get("functools")  # where it is not imported, nothing of it can be here
    return functools is not None and isinstance(target, functools.cached_property)


def _renamed(range_: annotate, message: str) -> annotate:
    _message, *rest = range_._arguments
    return type(range_)(message, *rest, level=range_._level)


def _named(range_: annotate, target: Any) -> annotate:
    """Return `range_`, named after `target` if it has no name of its own."""
    if range_._arguments[0] is not None:
        return range_
    inner = _innermost(target)
    name = getattr(inner, "__qualname__", None)
    return _renamed(range_, name if isinstance(name, str) else type(inner).__qualname__)


def _innermost(target: Any) -> Any:
    """Look through functools.partial and bound methods, as inspect does."""
    functools = sys.modules.get("functools")
    while True:
        if functools is not None and isinstance(target, functools.partial):
            target = target.func
        elif isinstance(target, _method):
            target = target.__func__
        else:
            return target


def _kind(target: Any) -> int:
    """Return the code flags that say whether calling `target` makes a coroutine or generator, 0 for neither."""
    inner = _innermost(target)
    code = getattr(inner, "__code__", None)
    if code is None and not isinstance(inner, _function):
        code = getattr(getattr(type(inner), "__call__", None), "__code__", None)  # noqa: B004 - its code, not whether
    flags = getattr(code, "co_flags", 0)
    if not isinstance(flags, int):
        return 0
    inspect = sys.modules.get("inspect")  # inspect.markcoroutinefunction (3.12) sets no flag
    if inspect is not None and not flags & _RESUMABLE and inspect.iscoroutinefunction(inner):
        return _COROUTINE
    return flags & (_RESUMABLE | _ITERABLE_COROUTINE)


def is_coroutine_function(target: Any) -> bool:
    """Whether calling `target` makes a coroutine."""
    return bool(_kind(target) & _COROUTINE)


def _callable(range_: annotate, target: Any) -> Any:
    kind = _kind(target)
    if not kind & _RESUMABLE:
        return carry(target, engine.wrap(target, range_))
    if kind & _COROUTINE:
        return carry(target, resumable.coroutine(target, range_))
    if kind & _ASYNC_GENERATOR:
        return carry(target, resumable.async_generator(target, range_))
    return carry(target, resumable.generator(target, range_, awaitable=bool(kind & _ITERABLE_COROUTINE)))


def carry(target: Any, wrapper: Any) -> Any:
    """Give the wrapper what `functools.wraps` gives; functools itself is not imported for it."""
    for name in _CARRIED:
        try:
            setattr(wrapper, name, getattr(target, name))
        except (AttributeError, TypeError):  # noqa: PERF203 - a partial has none of them, a mock odd ones
            continue
    wrapper.__dict__.update(getattr(target, "__dict__", {}))
    wrapper.__wrapped__ = target
    wrapper._torchdynamo_inline = target  # what torch.compile traces in its place: see torch_compile
    return wrapper
