"""What is handed to the program past a collector that stands between: stdio, environment, signals, permission.

The other end is `collect/bystander.py`; what passes is described in one JSON variable (`environment.HANDOVER`). The
descriptors lie in a socket that the collector inherits, and so it holds none of them: a reader of the user's stdout
must see its end when the program has ended, even where the launcher was killed and the collector lives on.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TextIO

from traceable import confidential, environment

FIRST_DESCRIPTOR = 10
"""The handed descriptor is this or above: shells and programs use the ones below for themselves."""

GIVEN = frozenset(
    {"PATH", "HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "TZ", "TMPDIR", "TMP", "TEMP", "LD_LIBRARY_PATH"}
    | {"LD_PRELOAD", "DISPLAY", "XAUTHORITY", "XDG_RUNTIME_DIR"}
)
GIVEN_PREFIXES = ("LC_", "CUDA_", "NVIDIA_", "NSYS_", "QUADD_")
"""What of the user's environment the collector itself may see: it writes all it sees into the report."""


def given(full: Mapping[str, str], planned: Mapping[str, str]) -> dict[str, str]:
    """Return the small environment for the collector: what it needs of `full`, and what is `planned` for it."""
    needed = {name: value for name, value in full.items() if name in GIVEN or name.startswith(GIVEN_PREFIXES)}
    needed = {name: value for name, value in needed.items() if not confidential.is_secret(name)}
    return {**needed, **planned}


class Handover:
    """The descriptors of one start. Close it when the program has started or never will."""

    def __init__(
        self,
        run_dir: Path,
        full: Mapping[str, str],
        given: Mapping[str, str],
        blocked: Iterable[int],
        own: Mapping[str, str] | None = None,
    ) -> None:
        """Duplicate stdio and lay the environment and the permission ready.

        Args:
            run_dir: where the bystander publishes the program's pid and how it ended.
            full: the program's environment, before what the collector adds.
            given: the collector's own environment.
            blocked: the signals that were blocked when the launcher itself was started.
            own: what the collector has beyond that, as `Plan.own_environment`.
        """
        own = dict(own or {})
        preload = own.pop("LD_PRELOAD", None)
        given = {**given, **own}
        self._own: list[int] = []
        telling, told = os.pipe()
        permission, grant = os.pipe()
        os.set_blocking(telling, False)
        os.set_blocking(permission, False)
        os.write(grant, b"1")
        os.close(grant)
        self._telling, self._permission = telling, permission
        self._said = b""
        self._own += [telling, permission, told]
        descriptors = {
            "environment": self._file({"full": dict(full), "given": given}),
            "permission": permission,
            "told": told,
            # One that was closed when we were started may by now be the number of a file of ours.
            **{name: number for number, (name, stream) in enumerate(_standard_streams()) if stream is not None},
        }
        content: dict[str, Any] = {
            "run_dir": str(run_dir),
            "socket": self._sent(list(descriptors.values())),
            "descriptors": list(descriptors),
            "preload": preload,
            "ignored": _ignored(),
            "blocked": sorted(int(number) for number in blocked),
            "umask": _umask(),
        }
        preloads = [library for library in (preload, given.get("LD_PRELOAD")) if library]
        self.environment = {
            **given,
            **({"LD_PRELOAD": ":".join(preloads)} if preloads else {}),
            environment.HANDOVER: json.dumps(content),
        }

    def program_pid(self) -> int | None:
        """Return the program's pid once it has been started."""
        return self._line(0)

    def wait_status(self) -> int | None:
        """Return how the program ended, as `os.waitpid` says it, once it has."""
        return self._line(1)

    def silent(self) -> bool:
        """Whether the bystander is gone and tells nothing any more. True only after `release`."""
        try:
            while chunk := os.read(self._telling, 64):
                self._said += chunk
        except BlockingIOError:
            return False
        return True

    def _line(self, number: int) -> int | None:
        self.silent()
        lines = self._said.split(b"\n")[:-1]
        return int(lines[number]) if number < len(lines) else None

    def withdraw(self) -> bool:
        """Take the permission to start back. True: the program has not been started and never will be."""
        try:
            return bool(os.read(self._permission, 1))
        except BlockingIOError:
            return False

    def release(self) -> None:
        """Close the copies made for the other side: a pipe of the user's must not be held open by the launcher."""
        for descriptor in self._own[2:]:
            os.close(descriptor)
        del self._own[2:]

    def close(self) -> None:
        """Close everything."""
        self.release()
        while self._own:
            os.close(self._own.pop())

    def _sent(self, descriptors: list[int]) -> int:
        """Send them into a socket and return the end that they can be received from, which the collector inherits."""
        sender, receiver = socket.socketpair()
        with sender, receiver:
            socket.send_fds(sender, [b"1"], descriptors)
            copy = fcntl.fcntl(receiver.fileno(), fcntl.F_DUPFD, FIRST_DESCRIPTOR)
        self._own.append(copy)
        return copy

    def _file(self, content: dict[str, Any]) -> int:
        """A file without a name, so that no value of the environment reaches a disk."""
        descriptor = os.memfd_create("traceable-environment")
        self._own.append(descriptor)
        with os.fdopen(descriptor, "wb", closefd=False) as file:
            file.write(json.dumps(content).encode("ascii"))
        os.lseek(descriptor, 0, os.SEEK_SET)
        return descriptor


def _standard_streams() -> tuple[tuple[str, TextIO | None], ...]:
    return ("stdin", sys.__stdin__), ("stdout", sys.__stdout__), ("stderr", sys.__stderr__)


def _ignored() -> list[int]:
    """The signals that this process ignores because it was started so (`nohup`)."""
    own = {signal.SIGPIPE, signal.SIGXFSZ}  # Python ignores these itself
    return [int(n) for n in signal.valid_signals() - own if signal.getsignal(n) is signal.SIG_IGN]


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
