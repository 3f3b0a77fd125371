"""The requests of an ASGI or WSGI application: a range each, with its id, and the mark at its first byte.

The id is that of the header `x-request-id`, else of `traceparent`, else a new one; the response has it as
`x-request-id`, unless the application set that header itself. The range is open until the last chunk of the body has
been sent, however long that streams. What the application does and sends is otherwise unchanged, and so are errors and
cancellations, which end the range.
"""

from __future__ import annotations

from traceable.capture.requests import Request, choose_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

_HEADER = "x-request-id"
_HEADER_BYTES = _HEADER.encode()


async def run_asgi_request(app: Any, scope: dict[str, Any], receive: Any, send: Any) -> None:
    """Call an ASGI application with the scope of an HTTP request, inside a range."""
    headers = {name.lower(): value.decode("latin-1") for name, value in scope.get("headers", ())}
    request = Request(choose_id(headers.get(_HEADER_BYTES), headers.get(b"traceparent")))
    has_body = False

    async def send_in_request(message: dict[str, Any]) -> None:
        nonlocal has_body
        kind = message["type"]
        is_file = kind == "http.response.pathsend"
        if kind == "http.response.start":
            own = [*message.get("headers", ())]  # any iterable, which may be one that is read once
            if not any(name.lower() == _HEADER_BYTES for name, _ in own):
                own.append((_HEADER_BYTES, request.id.encode()))
            message = {**message, "headers": own}
        elif not has_body and (is_file or (kind == "http.response.body" and message.get("body"))):
            has_body = True
            request.mark_first_byte()
        await send(message)
        if is_file or (kind == "http.response.body" and not message.get("more_body")):
            request.end()

    request.start()
    try:
        await app(scope, receive, send_in_request)
    finally:
        request.end()
        request.leave_context()


def run_wsgi_request(app: Any, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    """Call a WSGI application inside a range, which the body that is returned ends."""
    request = Request(choose_id(environ.get("HTTP_X_REQUEST_ID"), environ.get("HTTP_TRACEPARENT")))
    response = _WSGIResponse(request, start_response)
    request.start()
    try:
        body = app(environ, response.start)
    except BaseException:
        request.end()
        raise
    finally:
        request.leave_context()
    return (_SizedBody if hasattr(type(body), "__len__") else _Body)(body, response)


class _WSGIResponse:
    """The response of a WSGI application on its way to the server."""

    __slots__ = ("_has_body", "_start_response", "request")

    def __init__(self, request: Request, start_response: Callable[..., Any]) -> None:
        self.request = request
        self._start_response = start_response
        self._has_body = False

    def start(
        self, status: str, headers: list[tuple[str, str]], *error: Any, **named: Any
    ) -> Callable[[bytes], object]:
        """Begin the response, as `start_response`."""
        if not any(name.lower() == _HEADER for name, _ in headers):
            headers = [*headers, (_HEADER, self.request.id)]
        write: Callable[[bytes], object] = self._start_response(status, headers, *error, **named)

        def write_in_request(chunk: bytes) -> object:
            self.note_chunk(chunk)
            return write(chunk)

        return write_in_request

    def note_chunk(self, chunk: bytes) -> None:
        """Mark the first chunk that is not empty."""
        if chunk and not self._has_body:
            self._has_body = True
            self.request.mark_first_byte()


class _Body:
    """The body of a WSGI response: its end, or `close`, ends the request."""

    __slots__ = ("_body", "_chunks", "_response")

    def __init__(self, body: Iterable[bytes], response: _WSGIResponse) -> None:
        self._body = body
        self._response = response
        self._chunks: Iterator[bytes] | None = None

    def __iter__(self) -> Iterator[bytes]:
        self._chunks = iter(self._body)
        return self

    def __next__(self) -> bytes:
        if self._chunks is None:
            self._chunks = iter(self._body)
        request = self._response.request
        request.enter_context()
        try:
            chunk = next(self._chunks)
        except BaseException:  # the end of the body too
            request.end()
            raise
        finally:
            request.leave_context()
        self._response.note_chunk(chunk)
        return chunk

    def close(self) -> None:
        """Close the application's body, as the server does in any case."""
        try:
            if hasattr(self._body, "close"):
                self._body.close()
        finally:
            self._response.request.end()


class _SizedBody(_Body):
    """One of a known number of chunks, from which servers take the Content-Length."""

    __slots__ = ()

    def __len__(self) -> int:
        return len(self._body)  # type: ignore[arg-type]
