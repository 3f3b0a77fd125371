"""What is made of a recording after the program's end, in a process of its own.

Reading back and analysis take as much memory as the recording is large. Whatever ends that process (the kernel for lack
of memory, above all), the launcher lives, and with it the program's exit code; the recording is on disk.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, NoReturn, ParamSpec, TypeVar

from traceable.collectors.tools import die_with_parent
from traceable.launch.finalize_progress import TERMINATION_SIGNALS

_LENGTH_BYTES = 8

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


class WorkerDiedError(Exception):
    """The process ended before its work was done; the text says how, as a clause with a verb."""


class Worker:
    """A process forked from this one when there is something to do. A context manager, which ends it.

    What is loaded for one piece of work is there for the next one.

    Args:
        prepare: called in that process first.
    """

    def __init__(self, prepare: Callable[[], object] | None = None) -> None:
        self._prepare = prepare
        self._pid: int | None = None
        self._requests = self._replies = -1

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def call(
        self, function: Callable[_Arguments, _Result], *args: _Arguments.args, **options: _Arguments.kwargs
    ) -> _Result:
        """Return what `function` returns in that process; function, arguments and result are pickled.

        Whatever interrupts the wait ends the process.

        Raises:
            DiedError: it was ended, could not be started, or ran out of memory.
            RuntimeError: the function raised, which it should not.
        """
        try:
            if self._pid is None:
                self._fork()
            _send(self._requests, (function, args, options))
            reply = _receive(self._replies)
        except BrokenPipeError:
            reply = None
        except OSError as error:
            raise WorkerDiedError(f"could not be started ({error.strerror})") from None
        except BaseException:
            self._end()
            raise
        if reply is None:
            raise WorkerDiedError(self._end())
        result, problem = reply
        if problem == MemoryError.__name__:
            raise WorkerDiedError("ran out of memory")
        if problem:
            raise RuntimeError(problem)
        returned: _Result = result
        return returned

    def _fork(self) -> None:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError, AttributeError):
                stream.flush()
        theirs, self._requests = os.pipe()
        self._replies, ours = os.pipe()
        parent = os.getpid()
        try:
            self._pid = os.fork()
        except OSError:
            for descriptor in (theirs, self._requests, self._replies, ours):
                os.close(descriptor)
            raise
        if self._pid == 0:
            os.close(self._requests)
            os.close(self._replies)
            _work(theirs, ours, parent, self._prepare)
        os.close(theirs)
        os.close(ours)

    def _end(self) -> str:
        """End the process, and return how it had ended."""
        if self._pid is None:
            return ""
        with contextlib.suppress(OSError):
            os.close(self._requests)
        os.close(self._replies)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        _, status = os.waitpid(self._pid, 0)
        self._pid = None
        code = os.waitstatus_to_exitcode(status)
        if code == -signal.SIGKILL:
            return "was killed (SIGKILL, mostly for lack of memory)"
        if code < 0:
            known = {one.value: one.name for one in signal.Signals}
            return f"was ended by {known.get(-code, f'signal {-code}')}"
        return f"ended with exit code {code}"


def _work(requests: int, replies: int, parent: int, prepare: Callable[[], object] | None) -> NoReturn:
    """Do what is asked for until nobody is there any more."""
    try:
        # What the terminal sends is for the launcher, which ends this process if it is to end.
        for number in TERMINATION_SIGNALS:
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, _ignore)
        die_with_parent(parent)
        _be_killed_first()
        if prepare is not None:
            prepare()
        while (request := _receive(requests)) is not None:
            function, args, options = request
            result, problem = None, ""
            try:
                result = function(*args, **options)
            except MemoryError:
                problem = MemoryError.__name__
            except Exception as error:  # noqa: BLE001 - a fault of ours, which the launcher reports
                problem = f"{type(error).__name__}: {error}"
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(OSError, ValueError, AttributeError):
                    stream.flush()
            _send(replies, (result, problem))
    finally:
        os._exit(0)


def _ignore(_number: int, _frame: FrameType | None) -> None:
    """Do nothing; unlike SIG_IGN not inherited by nsys."""


def _be_killed_first() -> None:
    """Where memory is short in a container, this process goes and not the launcher."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")


def _send(descriptor: int, what: Any) -> None:
    content = pickle.dumps(what)
    left = memoryview(len(content).to_bytes(_LENGTH_BYTES, "little") + content)
    while left:
        left = left[os.write(descriptor, left) :]


def _receive(descriptor: int) -> Any:
    """Return what was sent; None where the other side is gone."""
    length = _read(descriptor, _LENGTH_BYTES)
    content = _read(descriptor, int.from_bytes(length, "little")) if length else None
    return pickle.loads(content) if content else None  # from the launcher, or from the process that it has forked


def _read(descriptor: int, length: int) -> bytes | None:
    content = b""
    while len(content) < length:
        part = os.read(descriptor, length - len(content))
        if not part:
            return None
        content += part
    return content
