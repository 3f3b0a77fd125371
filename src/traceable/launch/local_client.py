"""Detect a program that is only a client of a local server which was started without the launcher, such as curl.

Its sockets are compared with the listening sockets in its network namespace (/proc/PID/net/tcp). A program that ends
before the launcher polls is recognized by its command line, if that has an address of this machine.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_PROC = Path("/proc")
_LISTEN = "0A"
_LOOPBACK = re.compile(r"(0{24}01000000|0{16}FFFF0000.{6}7F|.{6}7F)")
"""Addresses as the kernel prints them: ::1, ::ffff:127.x.x.x, 127.x.x.x."""

_ADDRESS = re.compile(r"(?:(https?)://)?(?:localhost|127(?:\.\d+){3}|0\.0\.0\.0|\[::1\])(?::(\d{1,5}))?(?![\w.])")


@dataclass(frozen=True)
class _Socket:
    port: int
    state: str
    inode: str
    local: bool
    remote_port: int


class SocketWatcher:
    """The sockets of a program and of its descendants, as of all polls."""

    def __init__(self) -> None:
        self._serves = False
        self._port: int | None = None

    def poll(self, pids: Sequence[int]) -> None:
        """Read the sockets of these processes."""
        if self._serves:
            return
        own = {inode for pid in pids for inode in _list_socket_inodes(pid)}
        if not own:
            return
        sockets = list(_read_sockets(pids[0]))
        self._serves = any(one.state == _LISTEN and one.inode in own for one in sockets)
        listening = {one.port for one in sockets if one.state == _LISTEN}
        for one in sockets:
            if one.inode in own and one.state != _LISTEN and one.local and one.remote_port in listening:
                self._port = one.remote_port

    def find_server(self, command: Sequence[str]) -> dict[str, Any] | None:
        """Return `port`, `pid` and `name` of the server if it still listens; the last two are None where unknown."""
        ports = list(_parse_local_ports(command)) if self._port is None else [self._port]
        if self._serves or not ports:
            return None  # reading the sockets of a busy machine takes a while
        listening = {one.port: one.inode for one in _read_sockets(None) if one.state == _LISTEN}
        port = next((one for one in ports if one in listening), None)
        if port is None:
            return None
        pid = _find_socket_owner(listening[port])
        return {"port": port, "pid": pid, "name": _read(_PROC / str(pid) / "comm").strip() or None if pid else None}


def _parse_local_ports(command: Sequence[str]) -> Iterator[int]:
    """Yield the ports of local addresses in a command line."""
    for word in command:
        for scheme, port in _ADDRESS.findall(word):
            if port or scheme:
                yield int(port) if port else 443 if scheme == "https" else 80


def _list_socket_inodes(pid: int) -> Iterator[str]:
    with contextlib.suppress(OSError):
        for entry in (_PROC / str(pid) / "fd").iterdir():
            with contextlib.suppress(OSError):
                target = str(entry.readlink())
                if target.startswith("socket:["):
                    yield target[8:-1]


def _read_sockets(pid: int | None) -> Iterator[_Socket]:
    """Yield the TCP sockets of the network namespace of a process; None for this one."""
    for name in ("tcp", "tcp6"):
        for line in _read(_PROC / (str(pid) if pid else "self") / "net" / name).splitlines()[1:]:
            words = line.split()
            (own, port), (remote, remote_port) = (word.split(":") for word in words[1:3])
            local = remote == own or bool(_LOOPBACK.fullmatch(remote))
            yield _Socket(int(port, 16), words[3], words[9], local, int(remote_port, 16))


def _find_socket_owner(inode: str) -> int | None:
    pids: Iterable[int] = (int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit())
    return next((pid for pid in pids if inode in _list_socket_inodes(pid)), None)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
