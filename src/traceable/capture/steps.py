"""The public verbs of this room: `steps`, `step` and `window`.

A step is one iteration of the loop that matters: a training step, a decode iteration, a batch served. They are counted
from 0 in every process. Each is a range `step` whose payload is its index, and the boundaries between them are where a
profiler is started and stopped (docs/windows.md).
"""

from __future__ import annotations

from traceable.capture.control import session
from traceable.errors import UsageError
from traceable.protocol.window_spec import Spec, Window

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from types import TracebackType
    from typing import Any

    from typing_extensions import Self

    from traceable.capture.control import Step


def steps(iterable: Any, *, payload: Callable[[Any], Any] | None = None) -> Steps:
    """Return an iterable of the same items in which the work on each is a step.

    A step begins when the loop has its item and ends when it asks for the next one, or is left. What the iterable
    itself takes lies between two steps, in a range `step.wait` of its own. In `async for` over an asynchronous iterable
    both are ranges that other tasks can't cross.

    Args:
        iterable: anything to loop over.
        payload: makes of an item what the conditions of `capture_when` are shown. It is not recorded.

    Example:
        >>> for batch in steps([1, 2]):
        ...     print(batch)
        1
        2
    """
    return Steps(iterable, payload)


class Steps:
    """What `steps` returns. It may be looped over as often as what it was made of."""

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
    # What is yielded leaves this frame first: it must not keep a batch alive that the loop has let go.
    hand: list[Any] = []
    while True:
        wait = session.begin_wait()
        try:
            hand.append(next(iterator))
        except StopIteration:
            return
        finally:
            session.end_wait(wait)
        open_ = session.begin(payload=_shown(payload, hand))
        try:
            yield hand.pop()
        finally:
            session.end(open_)


async def _stepping_async(iterator: AsyncIterator[Any], payload: Callable[[Any], Any] | None) -> AsyncIterator[Any]:
    hand: list[Any] = []
    while True:
        wait = session.begin_wait(as_block=True)
        try:
            hand.append(await anext(iterator))
        except StopAsyncIteration:
            return
        finally:
            session.end_wait(wait)
        open_ = session.begin(as_block=True, payload=_shown(payload, hand))
        try:
            yield hand.pop()
        finally:
            session.end(open_)


def _shown(payload: Callable[[Any], Any] | None, hand: list[Any]) -> Any:
    # Asked only where somebody looks: it may cost.
    return payload(hand[0]) if payload is not None and session.trigger_set is not None else None


def step(*, payload: Any = None) -> OneStep:
    """Mark one step, in one of two ways.

    `with traceable.step():` (or `async with`, for what other tasks must not cross) is a step from its first line to its
    last. `traceable.step()` alone, at the end of an iteration, ends the current step and begins the next: the first
    call ends step 0, whose beginning nobody saw, so step 0 has no range of its own and a window that begins with it is
    opened one step late. The step after the last call stays open; it is not counted as whole.

    Don't keep what the bare call returns: it is told from `with` by being let go.

    Args:
        payload: what the conditions of `capture_when` are shown of the step that begins here, most often a mapping as
            in `step(payload={"batch": 64})`. It is not recorded.
    """
    return OneStep(payload)


class OneStep:
    """What `step` returns."""

    __slots__ = ("_entered", "_payload", "_step")

    def __init__(self, payload: Any = None) -> None:
        self._payload = payload
        self._entered = False
        self._step: Step | None = None

    def __enter__(self) -> Self:
        self._entered = True
        self._step = session.begin(payload=self._payload)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        session.end(self._step)

    async def __aenter__(self) -> Self:
        self._entered = True
        self._step = session.begin(as_block=True, payload=self._payload)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        session.end(self._step)

    def __del__(self) -> None:
        try:
            if not getattr(self, "_entered", True):  # torch.compile makes one without `__init__`, to look at it
                session.next_step(self._payload)
        except Exception:  # noqa: BLE001 - let go when nothing of the interpreter is left: Python would print it
            return


def window(start: int, stop: int, *, synchronize: bool = False) -> None:
    """Ask for a recording of the steps from `start` until before `stop`. May be called several times.

    What the launcher asks for (`traceable run --steps`, `TRACEABLE_STEPS`) counts instead, where it asks for anything.
    The recorder is gated from here on. nsys has to be told when it is started: `traceable run --steps` and `--control`
    do, as does `nsys profile -c nvtx -p capture@traceable.window`. Under `run --collector nsys` without either all is
    recorded; that is said, and the call does nothing.

    Args:
        start, stop: numbers of steps, from 0 on.
        synchronize: wait for the GPU before the window is opened and before it is closed.

    Raises:
        TypeError: a number is no int.
        ValueError: the window holds no step, begins before step 0 or overlaps another.
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
    session.plan(Window(start, stop), synchronize)
