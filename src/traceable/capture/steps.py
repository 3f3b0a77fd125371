"""The public functions of this package: `steps`, `step`, `step_boundary` and `window`.

A step is one iteration of the loop that matters: a training step, a decode iteration, a batch served. They are counted
from 0 in every process. Each is a range `step` whose payload is its index. Profilers are started and stopped at the
boundaries between them (docs/windows.md).
"""

from __future__ import annotations

from _thread import _local

from traceable.capture.control import counter, windows
from traceable.errors import UsageError
from traceable.protocol import environment
from traceable.protocol.windows import Spec, Window

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from types import TracebackType
    from typing import Any

    from typing_extensions import Self

    from traceable.capture.counter import Step


def steps(iterable: Any, *, payload: Callable[[Any], Any] | None = None) -> Steps:
    """Return an iterable of the same items in which the work on each item is a step.

    A step begins when the loop has its item and ends when the loop requests the next one, or exits. The time that the
    iterable itself takes lies between two steps, in a range `step.wait`. In `async for` over an asynchronous iterable
    both are ranges that other tasks can't cross.

    Args:
        iterable: anything to loop over.
        payload: a function from an item to the payload for the conditions of `capture_when`. It is not recorded.

    Example:
        >>> for batch in steps([1, 2]):
        ...     print(batch)
        1
        2
    """
    return Steps(iterable, payload)


class Steps:
    """The iterable that `steps` returns. It can be iterated as often as the original one."""

    __slots__ = ("_iterable", "_payload")

    def __init__(self, iterable: Any, payload: Callable[[Any], Any] | None = None) -> None:
        self._iterable = iterable
        self._payload = payload

    def __len__(self) -> int:
        return len(self._iterable)

    def __iter__(self) -> Iterator[Any]:
        return _stepping(iter(self._iterable), self._payload)

    def __aiter__(self) -> AsyncIterator[Any]:
        return _stepping_async(aiter(self._iterable), self._payload)


def _stepping(iterator: Iterator[Any], payload: Callable[[Any], Any] | None) -> Iterator[Any]:
    # The item leaves this frame before it is yielded: the frame must not keep a batch alive that the loop has released.
    items: list[Any] = []
    while True:
        wait = counter.begin_wait()
        try:
            items.append(next(iterator))
        except StopIteration:
            return
        finally:
            counter.end_wait(wait)
        open_ = counter.begin(payload=_make_payload(payload, items))
        try:
            yield items.pop()
        finally:
            counter.end(open_)


async def _stepping_async(iterator: AsyncIterator[Any], payload: Callable[[Any], Any] | None) -> AsyncIterator[Any]:
    items: list[Any] = []
    while True:
        wait = counter.begin_wait(as_block=True)
        try:
            items.append(await anext(iterator))
        except StopAsyncIteration:
            return
        finally:
            counter.end_wait(wait)
        open_ = counter.begin(as_block=True, payload=_make_payload(payload, items))
        try:
            yield items.pop()
        finally:
            counter.end(open_)


def _make_payload(payload: Callable[[Any], Any] | None, items: list[Any]) -> Any:
    # Called only if there are conditions: it may be expensive.
    return payload(items[0]) if payload is not None and counter.trigger_set is not None else None


def step(*, payload: Any = None) -> OneStep:
    """Return a context manager whose block is one step: `with traceable.step():`.

    `async with` makes a step that other tasks can't cross. A call without `with` counts nothing; `step_boundary` is the
    function for loops whose body can't be indented.

    Args:
        payload: the payload of this step for the conditions of `capture_when`, most often a mapping as in
            `step(payload={"batch": 64})`. It is not recorded.
    """
    if getattr(_unentered, "exists", False):
        message = "step() without `with` counts no step; call traceable.step_boundary() at the end of each iteration"
        environment.warn_once("step_not_entered", message)
    _unentered.exists = True
    return OneStep(payload)


_unentered = _local()
"""`exists`: whether this thread has called `step` and not entered a block since. The second such call is reported."""


class OneStep:
    """The context manager that `step` returns."""

    __slots__ = ("_payload", "_step")

    def __init__(self, payload: Any = None) -> None:
        self._payload = payload
        self._step: Step | None = None

    def __enter__(self) -> Self:
        _unentered.exists = False
        self._step = counter.begin(payload=self._payload)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        counter.end(self._step)

    async def __aenter__(self) -> Self:
        _unentered.exists = False
        self._step = counter.begin(as_block=True, payload=self._payload)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        counter.end(self._step)


def step_boundary(*, payload: Any = None) -> None:
    """End the current step and begin the next: for a loop whose body can't be indented, at the end of an iteration.

    The first call ends step 0, whose begin was not recorded: it has no range, and a window that begins with it is
    opened one step late. The step after the last call stays open and is not counted as complete.

    Args:
        payload: the payload of the step that begins, as in `step`.
    """
    counter.pass_boundary(payload)


def window(start: int, stop: int, *, synchronize: bool = False) -> None:
    """Record the steps from `start` until before `stop`. May be called several times.

    A request of the launcher (`traceable run --steps`, `TRACEABLE_STEPS`) overrides this. From now on the recorder
    records windows only. nsys needs an option at its start: `traceable run --steps` or `--control`, or
    `nsys profile -c nvtx -p capture@traceable.window`. Under `run --collector nsys` without one of them everything is
    recorded; the call prints a warning and does nothing.

    Args:
        start, stop: step indices, from 0.
        synchronize: wait for the GPU before the window is opened and before it is closed.

    Raises:
        TypeError: a number is not an int.
        ValueError: the window contains no step, begins before step 0 or overlaps another.
    """
    for name, value in (("start", start), ("stop", stop)):
        if not isinstance(value, int) or isinstance(value, bool):
            raise TypeError(f"{name} must be an int, not {type(value).__name__}")
    if start < 0:
        raise ValueError(f"start must be at least 0, not {start}")
    try:
        Spec([Window(start, stop)])
    except UsageError as error:
        raise ValueError(error.message) from None
    windows.plan(Window(start, stop), synchronize)
