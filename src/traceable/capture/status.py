"""The status of a process, its steps and windows, for the launcher: two files in the run directory, for each process.

`status.<pid>.json` is written atomically, when a window opens or closes and when Python ends. `status.<pid>.steps`
holds three little-endian int64, the numbers of steps begun, of steps ended, and of completed requests, in a memory map:
they are correct however the process ends, `kill -9` included. Nothing here raises into the program.
"""

from __future__ import annotations

import os

from traceable.capture import process
from traceable.protocol import environment
from traceable.protocol.json_text import to_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from traceable.annotation.request_counter import Count

SCHEMA = "traceable.status/1"
_COUNTER_BYTES = 24


def _open_no_follow(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)


class StatusWriter:
    """The files of this process.

    Args:
        run_dir: the run directory; empty for a process without a launcher, which writes nothing.
    """

    __slots__ = ("_counter", "_map", "_path")

    def __init__(self, run_dir: str) -> None:
        self._path = f"{run_dir}/status.{os.getpid()}" if run_dir else ""
        self._map: Any = None
        self._counter: Any = None
        if self._path:
            self._open_counter()

    def count(self, begun: int, ended: int) -> None:
        """Record how many steps have begun and ended."""
        if self._counter is not None:
            self._counter[0] = begun
            self._counter[1] = ended

    def keep_requests(self, count: Count) -> None:
        """Record the number of requests in the same file."""
        if self._counter is not None:
            count.keep_in(self._counter[2:])

    def write(self, content: dict[str, Any]) -> None:
        """Write the JSON file."""
        if not self._path:
            return
        try:
            part = f"{os.path.dirname(self._path)}/.{os.path.basename(self._path)}.part"  # noqa: PTH119, PTH120
            with open(part, "w", encoding="ascii", opener=_open_no_follow) as file:
                file.write(to_json({"schema": SCHEMA, "process": process.describe_process(), **content}))
            os.replace(part, f"{self._path}.json")  # noqa: PTH105
        except Exception as error:  # noqa: BLE001 - a full disk, a directory that is gone: the program goes on
            environment.warn_once("status_not_written", f"the status of this process is not written: {error}")

    def _open_counter(self) -> None:
        try:
            import mmap

            # No link is followed: in a directory that others can write, it could point to any file of this user.
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_TRUNC | os.O_NOFOLLOW
            descriptor = os.open(f"{self._path}.steps", flags, 0o666)
            try:
                # Written and not only extended: a store into a hole on a full disk raises SIGBUS.
                os.write(descriptor, bytes(_COUNTER_BYTES))
                self._map = mmap.mmap(descriptor, _COUNTER_BYTES)
            finally:
                os.close(descriptor)
            self._counter = memoryview(self._map).cast("q")
        except Exception as error:  # noqa: BLE001 - as above
            environment.warn_once("status_not_written", f"the status of this process is not written: {error}")
