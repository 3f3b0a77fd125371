"""`POST /start_profile`, `/stop_profile` and `/dump_profile` for ASGI and WSGI applications: over their own HTTP.

Off unless a token is given: then every request goes to the application as without it. A request must bear the token as
`Authorization: Bearer TOKEN`. It reaches the worker process that happens to take it, and no other one; `traceable
control` reaches all of a run. Nothing here waits for a step of the program.

With `run --after-request` it also counts the requests that it hands on, token or none: each is over when the
application has returned.
"""

from __future__ import annotations

import hmac
import json
import os
import sys

from traceable.annotation import engine
from traceable.capture import flight
from traceable.capture.control import WindowRequest, session
from traceable.errors import Message
from traceable.protocol import environment

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from traceable.annotation.request_counter import Count

START, STOP, DUMP = "/start_profile", "/stop_profile", "/dump_profile"
SCHEMA = "traceable.profile/1"
_STEPS_MAX = 10**15


class _Answer(Exception):  # noqa: N818 - the answer that is given, whatever it says
    """An HTTP answer."""

    def __init__(self, status: str, **content: Any) -> None:
        super().__init__(status)
        self.status = status
        self.body = json.dumps({"schema": SCHEMA, "pid": os.getpid(), **content}).encode() + b"\n"
        self.headers = [("Content-Type", "application/json"), ("Content-Length", str(len(self.body)))]
        if status.startswith("405"):
            self.headers.append(("Allow", "POST"))
        if status.startswith("401"):
            self.headers.append(("WWW-Authenticate", "Bearer"))


def _refusal(status: str, why: Message, **content: Any) -> _Answer:
    return _Answer(status, error=why, code=why.code, **content)


def _secret(token: str | None) -> bytes:
    """Return the token; empty for none.

    It closes no gate: a run that records everything goes on doing so until a request opens a window.
    """
    return (os.environ.get(environment.CONTROL_TOKEN, "") if token is None else token).strip().encode()


def _count() -> Count | None:
    """Return what counts the requests that are handed on; None where nobody asks how many there are."""
    if engine.requests is None:
        return None
    count: Count = engine.requests.count
    count.by_http = True
    return count


def _check(secret: bytes, method: str, authorization: bytes) -> None:
    """Let a request pass that may ask.

    Raises:
        _Answer: it may not.
    """
    if method != "POST":
        raise _refusal("405 Method Not Allowed", Message("post_required", "send POST"))
    scheme, _, given = authorization.strip().partition(b" ")
    # Compared whole, so that the time it takes says nothing of how much of it is right.
    if not hmac.compare_digest(given.strip(), secret) or scheme.lower() != b"bearer":
        what = "send `Authorization: Bearer TOKEN` with the token of this server"
        raise _refusal("401 Unauthorized", Message("token_required", what))


def _dump() -> _Answer:
    try:
        return _Answer("200 OK", dump=flight.write_dump(f"POST {DUMP}"))
    except flight.DumpError as error:
        return _refusal("409 Conflict", error.message)


def _refuse_windows() -> None:
    if flight.is_active():
        raise _refusal("409 Conflict", Message(flight.NO_WINDOWS.code, f"{flight.NO_WINDOWS}, POST {DUMP}"))


def _start(query: str) -> _Answer:
    _refuse_windows()
    steps = _steps(query)
    refused = session.request_window(WindowRequest(steps, f"POST {START}"))
    if refused:
        return _refusal("409 Conflict", refused, state=session.state)
    return _Answer("202 Accepted", requested_steps=steps, opens="when the next step begins", state=session.state)


def _stop() -> _Answer:
    _refuse_windows()
    window = session.stop()
    if window is None:
        return _Answer("200 OK", window=None, state=session.state)
    if window["closed"] is None:
        return _Answer("202 Accepted", window=window, closes="when the step ends", state=session.state)
    return _Answer("200 OK", window=window, run_dir=os.environ.get(environment.RUN_DIR), state=session.state)


def _steps(query: str) -> int | None:
    from urllib.parse import parse_qs

    named = parse_qs(query, keep_blank_values=True)
    given = named.get("steps", [])
    if set(named) - {"steps"} or len(given) > 1:
        raise _refusal("400 Bad Request", Message("parameter_unknown", "the only parameter is steps, as in ?steps=20"))
    if not given:
        return None
    text = given[0]
    if not (text.isascii() and text.isdigit()) or len(text) > 16 or not 0 < int(text) <= _STEPS_MAX:
        what = f"steps={text[:40]!r} is no number of steps from 1 on"
        raise _refusal("400 Bad Request", Message("number_invalid", what))
    return int(text)


class ASGIMiddleware:
    """Around an ASGI application.

    Args:
        app: the application.
        token: what a request must bear; by default the value of `TRACEABLE_CONTROL_TOKEN`. Empty turns it off.
    """

    def __init__(self, app: Any, token: str | None = None) -> None:
        self.app = app
        self._token = _secret(token)
        self._count = _count()

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if not self._token or scope["type"] != "http" or scope["path"] not in (START, STOP, DUMP):
            try:
                await self.app(scope, receive, send)
            finally:
                if self._count is not None and scope["type"] == "http":
                    self._count.add()
            return
        try:
            given = [value for name, value in scope["headers"] if name.lower() == b"authorization"]
            _check(self._token, scope["method"], given[0] if len(given) == 1 else b"")
            if scope["path"] == START:
                answer = _start(scope["query_string"].decode("latin-1"))
            else:
                # To stop a profiler may take a second, and no other request of this server is to wait for that.
                answer = await _elsewhere(_stop if scope["path"] == STOP else _dump)
        except _Answer as refused:
            answer = refused
        headers = [(name.lower().encode(), value.encode()) for name, value in answer.headers]
        await send({"type": "http.response.start", "status": int(answer.status[:3]), "headers": headers})
        await send({"type": "http.response.body", "body": answer.body})


async def _elsewhere(function: Callable[[], _Answer]) -> _Answer:
    """Call a function on a thread, under whichever library runs this server."""
    trio: Any = sys.modules.get("trio")
    if trio is not None and _under_trio(trio):
        answer: _Answer = await trio.to_thread.run_sync(function)
        return answer
    import asyncio

    return await asyncio.get_running_loop().run_in_executor(None, function)


def _under_trio(trio: Any) -> bool:
    try:
        trio.lowlevel.current_task()
    except RuntimeError:
        return False
    return True


class WSGIMiddleware:
    """Around a WSGI application. Arguments as `ASGIMiddleware`'s."""

    def __init__(self, app: Any, token: str | None = None) -> None:
        self.app = app
        self._token = _secret(token)
        self._count = _count()

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        path = environ.get("SCRIPT_NAME", "") + environ.get("PATH_INFO", "")
        if not self._token or path not in (START, STOP, DUMP):
            try:
                answered: Iterable[bytes] = self.app(environ, start_response)
            finally:
                if self._count is not None:
                    self._count.add()
            return answered
        try:
            _check(
                self._token,
                environ["REQUEST_METHOD"],
                environ.get("HTTP_AUTHORIZATION", "").encode("latin-1", "replace"),
            )
            if path == DUMP:
                raise _dump()
            answer = _start(environ.get("QUERY_STRING", "")) if path == START else _stop()
        except _Answer as refused:
            answer = refused
        start_response(answer.status, answer.headers)
        return [answer.body]
