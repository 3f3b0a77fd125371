"""Which module's backward is running: a push/pop range for it on the thread where autograd launches its work.

Module backward hooks would put an identity function around every input and output, which changes the graph and breaks
in-place operations. Here nothing is added to the graph: the autograd nodes that made a module's outputs and inputs get
a pre-hook that returns nothing. Each node carries the sequence number of its creation, so the nodes of one call of a
module are those numbered between the call's start and its end, nested calls are nested intervals, and autograd's
scheduler runs nodes in descending order. So whenever a hooked node is about to run, its number alone determines the
calls whose backward is over (their interval does not contain it) and those now running (the chain of calls that do).

Where two hooks are apart, the work between them counts to the range that the first one opened: plain functions that a
parent runs on the side, feeding none of its modules, count to the neighboring module.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.compiler import is_compiling

from traceable.annotation.ranges import annotate
from traceable.annotation.torch.frames import disable_compile, skip_frame
from traceable.annotation.torch.tensors import get_grad_nodes
from traceable.protocol import environment

_next_number: Callable[[], int] = torch._C._autograd._get_sequence_nr
_current_task: Callable[[], int] = torch._C._current_graph_task_id


class ModuleRangePair:
    """The ranges of one module. `live` turns false when its handle is removed: graphs made before may still run."""

    __slots__ = ("backward", "forward", "live")

    def __init__(self, forward: annotate, backward: annotate | None) -> None:
        self.forward = forward
        self.backward = backward
        self.live = True


class ForwardCall:
    """One call of a module's forward, kept by the hooks on its graph. `last` is None while the call runs."""

    __slots__ = ("first", "hooked", "inputs", "last", "parent", "ranges", "size", "thread")

    def __init__(
        self, ranges: ModuleRangePair, parent: ForwardCall | None, size: int | None, inputs: list[Any]
    ) -> None:
        self.ranges = ranges
        self.parent = parent
        self.size = size
        self.inputs = inputs
        self.thread = threading.get_ident()
        self.hooked: set[int] = parent.hooked if parent is not None else set()
        self.first = _next_number()
        self.last: int | None = None

    def contains(self, number: int) -> bool:
        """Whether the node of this number was made during the call."""
        return self.first <= number and (self.last is None or number < self.last)


class _Thread(threading.local):
    """The calls and backward runs of one thread.

    `calls`: forward calls, outermost first. `open`: calls whose backward range is open; those from `base` on belong to
    the innermost backward run of this thread, whose autograd id is `task`. `runs`: backward runs this thread started.
    """

    def __init__(self) -> None:
        self.ident = threading.get_ident()
        self.calls: list[ForwardCall] = []
        self.open: list[ForwardCall] = []
        self.base = 0
        self.task: int | None = None
        self.runs = 0


_thread = _Thread()


@disable_compile
def begin_call(
    ranges: ModuleRangePair, size: int | None, args: tuple[object, ...], kwargs: dict[str, object]
) -> ForwardCall | None:
    """Note that a module's forward starts on this thread, its inputs' nodes included. None where that failed."""
    try:
        calls = _thread.calls
        # Taken now: an in-place operation of the module would leave the inputs with nodes of its own.
        inputs = get_grad_nodes((*args, *kwargs.values()) if kwargs else args)
        call = ForwardCall(ranges, calls[-1] if calls else None, size, inputs)
        calls.append(call)
    except Exception as error:  # noqa: BLE001 - the model runs without this range
        _warn_failure(error)
        return None
    return call


@disable_compile
def hook_backward(call: ForwardCall, result: object) -> None:
    """Hook the nodes by which the backward of `call` will be entered and left."""
    try:
        call.last = _next_number()
        entered = False
        for node in get_grad_nodes((result,)):
            number = node._sequence_nr()
            if call.first <= number < call.last:
                _hook(node, number, call, call)
                entered = True
        for node in call.inputs if entered else ():
            number = node._sequence_nr()
            if number < call.first:
                maker = call.parent  # becomes the innermost running call that made the node
                while maker is not None and maker.first > number:
                    maker = maker.parent
                _hook(node, number, maker, call)
    except Exception as error:  # noqa: BLE001 - the model runs without this range
        _warn_failure(error)


@disable_compile
def end_call(call: ForwardCall) -> None:
    """Note that a module's forward is over, by whatever way."""
    call.inputs = []
    if call.last is None:
        call.last = _next_number()
    calls = _thread.calls
    while calls and calls.pop() is not call:
        pass


def _hook(node: Any, number: int, inside: ForwardCall | None, call: ForwardCall) -> None:
    # A node hooked by a submodule's call opens its parents as well: one hook a node is enough.
    if number not in call.hooked:
        node.register_prehook(functools.partial(_before_node, number, call.thread, inside))
        call.hooked.add(number)


@disable_compile
def _before_node(number: int, thread: int, call: ForwardCall | None, _gradients: Sequence[Any]) -> None:
    """Autograd is about to run the node of this number, made by `thread` inside `call`."""
    if is_compiling():  # compiled autograd traces hooks
        return
    try:
        here = _thread
        task = _current_task()
        if task != here.task:
            # Another backward run than before: whatever the earlier one left open (it raised) ends here.
            _close(here, here.base)
            here.task = task
            if not here.runs:
                # In a thread of autograd (CUDA) no frame of ours is around the run: the thread that ends it calls back.
                end = functools.partial(_on_task_end, here, here.ident)
                torch.autograd.Variable._execution_engine.queue_callback(end)
        opened, base = here.open, here.base
        while len(opened) > base and not _continues(opened, base, number, thread):
            _close_last(here)
        entered = []
        while call is not None and call.last is not None and call not in opened[base:]:
            entered.append(call)
            call = call.parent
        for one in reversed(entered):
            backward = one.ranges.backward
            if one.ranges.live and backward is not None:
                (backward if one.size is None else backward._with_payload(one.size))._push()
                opened.append(one)
    except Exception as error:  # noqa: BLE001 - an exception here would fail the user's backward
        _warn_failure(error)


def _continues(opened: list[ForwardCall], base: int, number: int, thread: int) -> bool:
    """Whether the innermost open call's backward holds the node; numbers of two threads can't be compared."""
    innermost = opened[-1]
    if innermost.thread == thread:
        return innermost.contains(number)
    return all(call.thread != thread for call in opened[base:])


@disable_compile
def _on_task_end(here: _Thread, ident: int) -> None:
    if threading.get_ident() == ident:
        _close(here, here.base)
        here.task = None


def _close_last(here: _Thread) -> None:
    backward = here.open.pop().ranges.backward
    if backward is not None:
        backward._pop()


def _close(here: _Thread, base: int) -> None:
    while len(here.open) > base:
        _close_last(here)


def wrap_run_backward(run: Callable[..., Any]) -> Callable[..., Any]:
    """Return autograd's entry `run`, closing on the calling thread what the run left open, also when it raises."""

    @skip_frame
    @functools.wraps(run)
    def run_backward(*args: Any, **kwargs: Any) -> Any:
        if is_compiling():
            return run(*args, **kwargs)
        here = _thread
        base, task = here.base, here.task
        here.base, here.task = len(here.open), None
        here.runs += 1
        try:
            return run(*args, **kwargs)
        finally:
            _close(here, here.base)
            here.runs -= 1
            here.base, here.task = base, task

    return run_backward


def _warn_failure(error: Exception) -> None:
    environment.warn_once(
        "backward_not_named",
        f"a module's backward could not be named ({type(error).__name__}: {error}); the model goes on",
    )
