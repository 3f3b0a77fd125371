"""Makes, from what stands under a name, the same thing annotated, fit to stand in its place.

`annotate` itself does most of it; here is what differs when a thing is replaced after its class was made, and when
its users hold on to what it is besides a function. Putting the result in place, and back, is `patching`'s.
"""

from __future__ import annotations

import sys
import types

from traceable.errors import CauseError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from traceable.annotation.patterns import Target

_BIND_AS_METHODS = (types.FunctionType, types.MethodDescriptorType, types.WrapperDescriptorType)
"""What a class turns into a bound method, as it does the wrapper that `annotate` returns."""


def annotated(value: Any, target: Target, name: str, in_class: bool) -> Any:
    """Return `value` annotated as `target` says, under the range name `name` unless the target has its own.

    Args:
        value: what the owner's namespace holds.
        in_class: whether the owner is a class, so that binding matters.

    Raises:
        CauseError: `value` can't be annotated; its text is a clause that says why.
    """
    from traceable.annotation.ranges import annotate

    name = target.name or name
    decorate: Callable[[Any], Any] = annotate(name, domain=target.domain, level=target.level)
    return _annotated(value, decorate if target.payload is None else _with_payload(decorate, target, name), in_class)


def _with_payload(plain: Callable[[Any], Any], target: Target, name: str) -> Callable[[Any], Any]:
    """Return what annotates a function so that the range of each call has its own payload; other things as `plain`."""
    from traceable.annotation.ranges import annotate, carry, is_coroutine_function

    payload_of: list[Callable[..., Any]] = []

    def payload(args: Any, kwargs: Any) -> Any:
        try:
            if not payload_of:
                module, _, function = str(target.payload).partition(":")
                __import__(module)
                found: Any = sys.modules[module]
                for part in function.split("."):
                    found = getattr(found, part)
                payload_of.append(found)
            return payload_of[0](*args, **kwargs) or None
        except Exception as error:  # noqa: BLE001 - the call goes on, its range without a payload
            from traceable import environment

            environment.warn_once(
                "payload_failed",
                f"{name} has no payload: {target.payload} raises {type(error).__name__}: {error}",
                key=str(target.payload),
            )
            return None

    def decorate(function: Any) -> Any:
        if isinstance(function, type | property) or plain(function) is function:
            return plain(function)

        def annotated(args: Any, kwargs: Any) -> Any:
            try:
                range_ = annotate(name, domain=target.domain, level=target.level, payload=payload(args, kwargs))
            except (TypeError, ValueError) as error:
                from traceable import environment

                environment.warn_once("payload_invalid", f"{name} has no payload: {error}", key=str(target.payload))
                return plain(function)
            return range_(function)

        async def awaited(*args: Any, **kwargs: Any) -> Any:
            return await annotated(args, kwargs)(*args, **kwargs)

        def called(*args: Any, **kwargs: Any) -> Any:
            return annotated(args, kwargs)(*args, **kwargs)

        return carry(function, awaited if is_coroutine_function(function) else called)

    return decorate


def _annotated(value: Any, decorate: Callable[[Any], Any], in_class: bool) -> Any:
    kind = type(value)
    if issubclass(kind, (staticmethod, classmethod)):
        inner = _annotated(value.__func__, decorate, in_class=False)
        return value if inner is value.__func__ else _with_attributes_of(value, kind(inner))
    functools = sys.modules.get("functools")  # where it is not imported, nothing of it can be here
    if functools is not None and issubclass(kind, functools.cached_property):
        return _cached_property(value, decorate)
    if issubclass(kind, property):
        return decorate(value)
    if issubclass(kind, _BIND_AS_METHODS if in_class else (*_BIND_AS_METHODS, types.BuiltinFunctionType)):
        return decorate(value)
    if callable(value):
        # wrapt takes 85 ms to import (2.5.2), so only what needs a proxy pays for it.
        from traceable.annotation.proxy import proxied

        return proxied(value, decorate)
    raise CauseError("not_a_function", f"is no function but of type {kind.__name__}")


def _cached_property(value: Any, decorate: Callable[[Any], Any]) -> Any:
    """Annotate a copy: a new one would not know its name, which it learns only while its class is made."""
    import copy

    other = copy.copy(value)
    other.func = _annotated(value.func, decorate, in_class=True)
    return other


def _with_attributes_of(original: Any, new: Any) -> Any:
    for name, value in vars(original).items():
        vars(new).setdefault(name, value)
    return new
