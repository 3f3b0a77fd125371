"""The ranges that a program expects in its own profile: recorded while it runs, evaluated after the run.

They are in the record of the process. `protocol/run_records.py` reads them, `analysis/expectations.py` evaluates them.
"""

from __future__ import annotations

import time

from traceable.annotation import engine
from traceable.protocol.process_record import record

_names: dict[str, int] = {}
"""When each name was expected first, in ns since 1970; with those of the process that forked this one."""


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
    if engine.disabled or not record.run_dir:
        return
    new = [name for name in names if name not in _names]
    for name in new:
        _names.setdefault(name, time.time_ns())
    if new:
        record.update(expect=lambda: [[wall_ns, name] for name, wall_ns in list(_names.items())])
