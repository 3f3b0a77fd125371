"""The ranges that a program expects in its own profile: passed to the launcher in files, evaluated after the run.

Each call leaves one file `expect.<pid>.<number>.json` in the run directory; nothing is ever read or changed here, so
threads, forked children and a pid that is used again can't spoil each other's. The reading side is
`launch/expectations.py`, the result `analysis/expectations.py`.
"""

from __future__ import annotations

import itertools
import os
import time

from traceable.annotation import engine
from traceable.protocol import environment
from traceable.protocol.json_text import to_json

SCHEMA = "traceable.expect/1"

_number = itertools.count(1).__next__
_written: set[tuple[int, str]] = set()


def expect(*names: str) -> None:
    """Declare the ranges of this run. After it, `traceable run` and `report` check that each was entered.

    Without a launcher, and under `TRACEABLE_DISABLE=1`, this does nothing beyond checking its arguments. It may be
    called at any time, before or after the ranges, in any thread or process of the run; a repeated name counts once.

    Args:
        names: names of ranges, in any domain. `domain:name` names one domain's, as nsys writes it.

    Raises:
        TypeError: no name, or one that is not a string.
        ValueError: an empty name.
    """
    if not names:
        raise TypeError("names: expect takes at least one")
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"names must be strings, not {type(name).__name__}")
        if not name.strip():
            raise ValueError(f"names must not be empty: {name!r}")
    run_dir = os.environ.get(environment.RUN_DIR)
    if not run_dir or engine.disabled:
        return
    pid = os.getpid()
    new = [name for name in dict.fromkeys(names) if (pid, name) not in _written]
    if new:
        _written.update((pid, name) for name in new)
        _write(run_dir, pid, new)


def _write(run_dir: str, pid: int, names: list[str]) -> None:
    """Leave one file, whole or not at all."""
    try:
        # The clock distinguishes two processes that had the same pid.
        file_name = f"expect.{pid}.{time.time_ns()}-{_number()}.json"
        part = f"{run_dir}/.{file_name}.part"
        with open(part, "w", encoding="ascii") as file:  # noqa: PTH123 - pathlib takes 10 ms to import
            file.write(to_json({"schema": SCHEMA, "pid": pid, "names": names}))
        os.replace(part, f"{run_dir}/{file_name}")  # noqa: PTH105
    except Exception as error:  # noqa: BLE001 - a full disk, a directory that is gone: the program goes on
        environment.warn_once("expectation_not_written", f"the expected ranges are not recorded: {error}")
