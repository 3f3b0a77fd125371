"""Detect a program that is only a client of a local server which was started without the launcher, such as curl.

Its connections are read while it runs, in the network namespace of the launcher. A program that ends before the
launcher polls is recognized by its command line, if that has an address of this machine.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

_LISTEN = "LISTEN"
_ADDRESS = re.compile(r"(?:(https?)://)?(?:localhost|127(?:\.\d+){3}|0\.0\.0\.0|\[::1\])(?::(\d{1,5}))?(?![\w.])")


class SocketWatcher:
    """The sockets of a program and of its descendants, as of all polls."""

    def __init__(self) -> None:
        self._serves = False
        self._ports: dict[int, None] = {}

    def poll(self, pids: Iterable[int]) -> None:
        """Read the sockets of these processes."""
        if self._serves:
            return
        for pid in pids:
            for one in _list_connections(pid):
                self._serves = self._serves or one.status == _LISTEN
                if one.raddr and _is_local(one):
                    self._ports[one.raddr.port] = None

    def find_server(self, command: Sequence[str]) -> dict[str, Any] | None:
        """Return `port`, `pid` and `name` of the server if it still listens; the last two are None where unknown."""
        ports = list(self._ports) or list(_parse_local_ports(command))
        if self._serves or not ports:
            return None  # reading the sockets of all processes takes a while
        listeners = {one.laddr.port: one.pid for one in _list_connections() if one.status == _LISTEN}
        port = next((one for one in ports if one in listeners), None)
        if port is None:
            return None
        pid = listeners[port]
        return {"port": port, "pid": pid, "name": None if pid is None else _read_name(pid)}


def _parse_local_ports(command: Sequence[str]) -> Iterator[int]:
    """Yield the ports of local addresses in a command line."""
    for word in command:
        for scheme, port in _ADDRESS.findall(word):
            if port or scheme:
                yield int(port) if port else 443 if scheme == "https" else 80


def _list_connections(pid: int | None = None) -> list[Any]:
    """Return the TCP sockets of a process, or of all; none where they can't be read."""
    import psutil

    try:
        return psutil.net_connections("tcp") if pid is None else psutil.Process(pid).net_connections("tcp")
    except (psutil.Error, OSError, RuntimeError, ValueError, IndexError):  # its files are missing, or unknown to psutil
        return []


def _is_local(connection: Any) -> bool:
    """Whether the other end of a connection is on this machine."""
    address: str = connection.raddr.ip
    return address in (connection.laddr.ip, "::1") or address.startswith(("127.", "::ffff:127."))


def _read_name(pid: int) -> str | None:
    import psutil

    try:
        return psutil.Process(pid).name() or None
    except (psutil.Error, OSError):
        return None
