"""The warm-up of a client: after its first requests it creates a file, with which the windows of its server begin.

`TRACEABLE_WARMUP_REQUESTS` is the number of requests, `TRACEABLE_WARMUP_FILE` the file; the server waits for it as
`TRACEABLE_START_FILE` (`protocol/start_conditions.py`). Requests are counted as they end, failed ones too, but not
requests within another. All processes of a run count together, in a file of the run directory, of one byte for each
request. Without a run directory each process counts its own, so that windows may begin later, but never earlier.
"""

from __future__ import annotations

import os
from contextvars import ContextVar
from itertools import count

from traceable.errors import UsageError
from traceable.protocol import environment
from traceable.protocol.start_conditions import parse_count

COUNT_FILE = "warmup.count"
"""The name of the file in the run directory."""


class OpenRequest:
    """A request that counts. Another context may end it, so that its own learns of that only through this object."""

    __slots__ = ("is_open",)

    def __init__(self) -> None:
        self.is_open = True


_outer: ContextVar[OpenRequest | None] = ContextVar("traceable_warmup_request", default=None)


class Warmup:
    """The warm-up of this process and, in a run, of all its processes.

    Args:
        requests: how many requests it lasts.
        path: of the file to create after them.
        count_path: of the file in which they are counted; None to count in this process alone.
    """

    def __init__(self, requests: int, path: str, count_path: str | None) -> None:
        self._requests = requests
        self._path = path
        self._count_path = count_path
        self._next = count(1).__next__
        self._is_over = False
        if not requests:
            self._finish()

    def begin_request(self) -> OpenRequest | None:
        """Return the request that begins in this context, for `end_request`; None if it does not count."""
        outer = _outer.get()
        if self._is_over or (outer is not None and outer.is_open):
            return None
        request = OpenRequest()
        _outer.set(request)
        return request

    def end_request(self, request: OpenRequest) -> None:
        """Count a request, from any context, and create the file after the last one of the warm-up."""
        request.is_open = False
        try:
            if not self._is_over and self._add_request() >= self._requests:
                self._finish()
        except OSError as error:
            self._is_over = True
            environment.warn_once("warmup_not_counted", f"warm-up requests are not counted: {error}")

    def _add_request(self) -> int:
        """Return the number of requests that have ended, with this one."""
        if self._count_path is None:
            return self._next()
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(self._count_path, flags, 0o600)
        try:
            os.write(descriptor, b".")
            return os.fstat(descriptor).st_size
        finally:
            os.close(descriptor)

    def _finish(self) -> None:
        self._is_over = True
        try:
            os.close(os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644))
        except OSError as error:
            environment.warn_once("warmup_file_not_created", f"the file after the warm-up is not created: {error}")


def make_warmup() -> Warmup | None:
    """Return the warm-up that the environment requests. A malformed variable is reported once and requests none."""
    text, path = (os.environ.get(name) for name in (environment.WARMUP_REQUESTS, environment.WARMUP_FILE))
    if not text or not path:
        return None
    try:
        requests = parse_count(environment.WARMUP_REQUESTS, text)
    except UsageError as error:
        message = f"{environment.WARMUP_REQUESTS} is ignored: {error.message}"
        environment.warn_once("variable_invalid", message, key=environment.WARMUP_REQUESTS)
        return None
    run_dir = os.environ.get(environment.RUN_DIR)
    return Warmup(requests, os.path.abspath(path), f"{run_dir}/{COUNT_FILE}" if run_dir else None)  # noqa: PTH100
