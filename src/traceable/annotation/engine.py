"""How this process emits: the native core, the `nvtx` package, torch.profiler, or not at all. Decided once, at import.

`Range`, `Run`, `wrap`, `identify` and `current` come from whichever it is; nothing else in `annotation` asks.
"""

from __future__ import annotations

import os

from traceable.protocol import environment

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from contextvars import ContextVar
    from typing import Any

    from traceable._native._core import Range as Range
    from traceable._native._core import Run as Run

disabled = environment.flag(environment.DISABLE) or bool(os.environ.get("NVTX_DISABLE"))
"""Whether everything is a no-op: by our variable, or by the `nvtx` package's own."""

level = environment.digit(environment.LEVEL, 2)
"""Ranges of a higher level are no-ops."""

debug = not disabled and environment.flag(environment.DEBUG)
"""Whether ranges are watched for being unbalanced, crossed, or held over an `await`."""

core: Any = None
"""The native core, or None where it is not built or not wanted."""

wrap: Callable[[Any, Any], Any]
identify: Callable[[], int]

_into_torch = not disabled and environment.torch_records()

if not environment.flag(environment.PURE) and not _into_torch:
    try:
        from traceable._native import _core as core
    except ImportError:
        core = None

if core is not None:
    Range, Run, wrap, identify = core.Range, core.Run, core.wrap, core.identify  # type: ignore[misc]
    core.record_up_to(level)
    if disabled:
        core.silence()
elif _into_torch:
    from traceable.annotation import nvtx_backend
    from traceable.annotation.torch import records

    nvtx_backend.emit_through(records)
    nvtx_backend.record_up_to = level
    Range, Run, wrap, identify = nvtx_backend.Range, nvtx_backend.Run, nvtx_backend.wrap, nvtx_backend.identify  # type: ignore[misc,assignment]
elif disabled or not environment.listener_possible():
    # Without a listener the nvtx package could only cost: it imports numpy.
    from traceable.annotation import null_backend

    Range, Run, wrap, identify = null_backend.Range, null_backend.Run, null_backend.wrap, null_backend.identify  # type: ignore[misc,assignment]
else:
    from traceable.annotation import null_backend, nvtx_backend

    if nvtx_backend.available():
        Range, Run, wrap, identify = nvtx_backend.Range, nvtx_backend.Run, nvtx_backend.wrap, nvtx_backend.identify  # type: ignore[misc,assignment]
        nvtx_backend.record_up_to = level
    else:
        environment.warn_once(
            "nvtx_missing", "no range is emitted: there is neither the native core nor nvtx >= 0.2.12"
        )
        Range, Run, wrap = null_backend.Range, null_backend.Run, null_backend.wrap  # type: ignore[misc,assignment]
        identify = null_backend.identify


counts: Any = None
"""Counts the ranges that are emitted (`annotation/counts.py`), or None where no launcher wants to know."""

if not disabled and os.environ.get(environment.RUN_DIR) and Range.__module__ != "traceable.annotation.null_backend":
    from traceable.annotation import counts as _counts

    if _counts.wanted():
        counts = _counts.Counts(os.environ[environment.RUN_DIR], core)
        if core is None:
            nvtx_backend.counts = counts
        if _into_torch:
            records.counts = counts

if debug:
    from traceable.annotation import nvtx_backend, range_checker

    Range = range_checker.watched(Range)  # type: ignore[misc]

    def wrap(function: Any, range_: Any) -> Any:
        """Return a callable that runs `function` inside `range_`, which is watched."""
        return nvtx_backend.wrap(function, range_, range_checker.wrapper)


requests: Any = None
"""Counts the requests that are over (`annotation/request_counter.py`), or None where nobody asks for it."""

if not disabled and os.environ.get(environment.AFTER_REQUEST):
    from traceable.annotation import request_counter

    requests = request_counter
    Range = requests.counted(Range)  # type: ignore[misc]
    Run = requests.running(Run)  # type: ignore[misc]
    if not debug:  # there the range counts itself
        wrap = requests.wrapping(wrap)


def current() -> ContextVar[int]:
    """Return the context variable that holds the number of the innermost instance, 0 outside of all."""
    if core is not None:
        variable: ContextVar[int] = core.current
        return variable
    from traceable.annotation import nvtx_backend

    return nvtx_backend.current


def kept() -> list[tuple[Any, ...]]:
    """Return type, message, color, domain, category and level, as given, of each range that is kept for ever.

    That is every distinct one, up to the limit of what is kept.
    """
    if core is not None:
        found: list[tuple[Any, ...]] = core.kept()
        return found
    from traceable.annotation import null_backend

    return null_backend.kept()


def when_annotated(heard: Callable[[], object]) -> None:
    """Call `heard` once, on the thread that emits its first range or mark from now on, before that is emitted.

    Where nothing is emitted it is never called. What was waited for before is not called any more.
    """
    if core is not None:
        core.when_annotated(heard)
    elif emits():
        from traceable.annotation import nvtx_backend

        nvtx_backend.when_annotated(heard)


def plain_run() -> Any:
    """Return `Run` as it is where no requests are counted."""
    if core is not None:
        return core.Run
    from traceable.annotation import nvtx_backend

    return nvtx_backend.Run


def watch_greenlets(watch: Callable[[], None], push: Callable[[Any], bool], pop: Callable[[Any], bool]) -> None:
    """Call `watch` once on each thread that pushes a range; the pure form asks `push` and `pop` from here on."""
    if core is not None:
        core.watch_greenlets(watch)
    else:
        follow_greenlets(push, pop)


def follow_greenlets(push: Callable[[Any], bool], pop: Callable[[Any], bool]) -> None:
    """Ask `push` and `pop` with each range that is pushed and popped, and do nothing where they return True."""
    if core is not None:
        core.follow_greenlets(push, pop)
    else:
        from traceable.annotation import nvtx_backend

        nvtx_backend.follow_greenlets(push, pop)


unheard = False
"""Whether a function was decorated, or a domain made, while no one could listen: it stays silent."""

tracked: Callable[[Any], tuple[Callable[[], object], Callable[[], object]]] | None = None
"""Returns what resumes and suspends a run, where greenlets switch in between; None where there are none."""


def emits() -> bool:
    """Whether a range of this process can be heard by anyone."""
    return not disabled and environment.listener_possible()
