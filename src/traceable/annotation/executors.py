"""Carries the innermost instance of a context into the threads of `concurrent.futures`, and so of `run_in_executor`.

`asyncio.to_thread`, anyio and trio run a function of another thread in a copy of the caller's context.
`ThreadPoolExecutor.submit` does not, and `loop.run_in_executor`, of asyncio and uvloop alike, is that. Here our own
context variable alone is set around a function that is submitted in an instance: what else its thread's context holds
is the program's. The one patch is that of `ThreadPoolExecutor.submit`, made when a coroutine or an `async with` block
is first entered in a process that is heard.
"""

from __future__ import annotations

from traceable import environment
from traceable.annotation import engine

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from contextvars import ContextVar
    from typing import Any


class _Carried:
    """A function, as it is submitted: it runs in the instance in which that was done."""

    __slots__ = ("_current", "_function", "_number")

    def __init__(self, function: Callable[..., Any], current: ContextVar[int], number: int) -> None:
        self._function = function
        self._current = current
        self._number = number

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        token = self._current.set(self._number)
        try:
            return self._function(*args, **kwargs)
        finally:
            self._current.reset(token)


def carry() -> None:
    """Patch `ThreadPoolExecutor.submit`. To be called once; what fails is said once, and nothing is carried."""
    try:
        from concurrent.futures import ThreadPoolExecutor
        from functools import update_wrapper

        original, current = ThreadPoolExecutor.submit, engine.current()

        def submit(self: Any, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
            number = current.get()
            return original(self, _Carried(fn, current, number) if number else fn, *args, **kwargs)

        update_wrapper(submit, original)  # type: ignore[arg-type]
        ThreadPoolExecutor.submit = submit  # type: ignore[method-assign]
    except Exception as error:  # noqa: BLE001 - ranges in such threads stand by themselves then
        environment.warn_once("executor_not_followed", f"ranges in the threads of an executor have no parent: {error}")
