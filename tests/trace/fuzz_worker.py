"""One process of the fuzz: damages files, reads each both ways, and says what was wrong.

    python -m tests.trace.fuzz_worker FOLDER FIRST STOP STEP

FOLDER holds the files to damage. For each number its first line is said before it is tried, so that the last one is
known where a crash or a hang ends the process; a hang ends it after a minute.
"""

from __future__ import annotations

import faulthandler
import random
import sys
import traceback
from collections import Counter
from pathlib import Path

from tests.trace.equality import differences
from tests.trace.mutations import mutate

from traceable.errors import TraceableError, TraceError
from traceable.recording import Recording
from traceable.trace import Trace, load

LARGE_BYTES = 100_000
ONE_LARGE_IN = 60
ONE_ASKED_IN = 40
QUESTIONS = ("ranges", "kernels", "api", "memory", "sync", "gaps", "steps", "streams", "counters")
HANGS_AFTER_S = 60


def main(folder: Path, first: int, stop: int, step: int) -> None:
    whole = {path.name: path.read_bytes() for path in sorted(folder.glob("*.sqlite"))}
    large = [name for name, data in whole.items() if len(data) > LARGE_BYTES]
    little = [name for name in whole if name not in large]
    seen: Counter[str] = Counter()
    damaged = folder / f"damaged-{first}.file"
    for number in range(first, stop, step):
        random_ = random.Random(number)
        name = random_.choice(large if large and number % ONE_LARGE_IN == 0 else little)
        print(f"trying {number} {name}", flush=True)
        faulthandler.dump_traceback_later(HANGS_AFTER_S, exit=True)
        damaged.write_bytes(mutate(whole[name], random_))
        outcome = _try_file(damaged, ask=number % ONE_ASKED_IN == 0)
        seen[outcome.split(":")[0]] += 1
        if outcome.startswith("wrong"):
            print(f"{outcome} ({number} {name})", flush=True)
    faulthandler.cancel_dump_traceback_later()
    print("seen", *(f"{outcome}={count}" for outcome, count in seen.items()))


def _try_file(path: Path, ask: bool) -> str:
    """Return `read`, `refused`, or what is wrong."""
    try:
        trace = _read(path, True)
        if not isinstance(trace, Trace):
            return _describe_rejection(path, trace)
        other = _read(path, False)
        if not isinstance(other, Trace):
            return f"wrong: SQLite refuses it: {other}"
        different = differences(trace, other)
        if different:
            return f"wrong: {different[0]}"
        if ask:
            _ask(trace)
    except Exception as error:  # noqa: BLE001 - any is a finding
        place = traceback.extract_tb(error.__traceback__)[-1]
        return f"wrong: {type(error).__name__} at {place.filename}:{place.lineno}: {str(error)[:200]}"
    return "read"


def _read(path: Path, decode: bool) -> Trace | str:
    try:
        trace = load(path, decode)
        trace.lazy_cpu_activity.get()  # The other tables of the file.
        return trace
    except TraceError as error:
        return str(error)


def _describe_rejection(path: Path, why: str) -> str:
    one_line = "\n" not in why and why.startswith(str(path))
    return "refused" if one_line else f"wrong: not one line about the file: {why}"


def _ask(trace: Trace) -> None:
    """Ask every question, for tables or for one line why not."""
    for question in QUESTIONS:
        try:
            list(getattr(Recording(trace), question)().rows())
        except TraceableError as error:  # noqa: PERF203
            assert "\n" not in str(error)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *(int(argument) for argument in sys.argv[2:5]))
