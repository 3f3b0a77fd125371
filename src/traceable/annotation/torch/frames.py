"""Keeping torch.compile away from our own frames, as it keeps away from torch's own `Module.__call__`.

A model with graph breaks calls its modules between compiled pieces. There torch.compile would compile our functions one
by one, once a module until its recompile limit, and a compiled model's own call would have no range. Inlining into a
graph is another matter, left as it is: inside a graph `torch.compiler.is_compiling()` is True and nothing is emitted.

The switch is torch's C level one: importing torch._dynamo for it would cost a second at start. Where a torch has
neither form of it, compiled models still run right, with more compilations.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

_Function = TypeVar("_Function", bound=Callable[..., Any])


def skip_frame(function: _Function) -> _Function:
    """Leave the frame of `function` to Python; functions that it calls may be compiled, as without it."""
    _skip(function, callees=False)
    return function


def disable_compile(function: _Function) -> _Function:
    """Leave `function`, and all functions that it calls, to Python."""
    _skip(function, callees=True)
    return function


def _skip(function: Any, callees: bool) -> None:
    frames: Any = torch._C._dynamo.eval_frame
    if hasattr(frames, "set_code_exec_strategy"):
        action = frames._FrameAction
        below = action.SKIP if callees else action.DEFAULT
        frames.set_code_exec_strategy(function.__code__, frames._FrameExecStrategy(action.SKIP, below))
    elif hasattr(frames, "skip_code"):  # before torch 2.7
        frames.skip_code(function.__code__)
