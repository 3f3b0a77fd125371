"""Each call of one function is a step, without a line in the program: `run --step-function 'engine:Engine.step'`.

How the function is found, replaced and put back is `annotation/patching.py`, as for `--annotate`; here is what stands
in its place. Its result, its exception and what it is to `inspect` stay as they are.
"""

from __future__ import annotations

import os
import sys
import types

from traceable.annotation import engine, patching
from traceable.annotation.patterns import parse_step_function
from traceable.errors import CauseError
from traceable.protocol import environment

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from traceable.annotation.patterns import Target

_BIND_AS_METHODS = (types.FunctionType, types.MethodDescriptorType, types.WrapperDescriptorType)
"""What a class turns into a bound method, as it does the function that stands in its place."""

_begun = False


def patch_step_function() -> None:
    """Take the function of `TRACEABLE_STEP_FUNCTION`, once. A malformed value is said and counts as unset."""
    global _begun
    text = os.environ.get(environment.STEP_FUNCTION, "")
    if _begun or not text or engine.disabled:
        return
    _begun = True
    try:
        patching.replace_targets(parse_step_function(text), make=wrap_as_step)
    except ValueError as error:
        message = f"{environment.STEP_FUNCTION} is ignored: {error}"
        environment.warn_once("variable_invalid", message, key=environment.STEP_FUNCTION)


def wrap_as_step(value: Any, target: Target, name: str, in_class: bool) -> Any:
    """Return what stands in the place of `value`, and makes of each call a step.

    Raises:
        CauseError: there is no telling where a step of it begins and ends; its text is a clause that says why.
    """
    if isinstance(value, (staticmethod, classmethod)):
        return type(value)(wrap_as_step(value.__func__, target, name, in_class=False))
    functools = sys.modules.get("functools")
    if isinstance(value, property) or (functools is not None and isinstance(value, functools.cached_property)):
        raise CauseError("step_is_property", "is a property: a step is a call of a function")
    if isinstance(value, _BIND_AS_METHODS if in_class else (*_BIND_AS_METHODS, types.BuiltinFunctionType)):
        return _function(value)
    if callable(value):
        from traceable.annotation.proxy import wrap_callable

        return wrap_callable(value, _function)
    raise CauseError("not_a_function", f"is no function but of type {type(value).__name__}")


def _function(function: Any) -> Callable[..., Any]:
    import functools
    import inspect

    from traceable.capture.control import session

    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        why = "is a generator: its call runs nothing yet; name what it calls for one step"
        raise CauseError("step_is_generator", why)
    if inspect.iscoroutinefunction(function):

        async def call_async(*args: Any, **kwargs: Any) -> Any:
            step = session.begin(as_block=True)
            try:
                return await function(*args, **kwargs)
            finally:
                session.end(step)

        return functools.wraps(function)(call_async)

    def call(*args: Any, **kwargs: Any) -> Any:
        step = session.begin()
        try:
            return function(*args, **kwargs)
        finally:
            session.end(step)

    return functools.wraps(function)(call)
