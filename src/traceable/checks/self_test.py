"""The canary of `traceable doctor`: a real `traceable run` of a tiny program, whose ranges are counted when read back.

It goes the way of every run: a process of its own, the collector, the export, the reader. All that it and nsys write
lies in one folder below the user's own folder for temporary files, and is gone when it returns.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from traceable.errors import CollectorError, Message, TraceableError
from traceable.launch import target
from traceable.protocol import environment

TYPE_CHECKING = False
if TYPE_CHECKING:
    from traceable.trace.model import Trace

RANGES = 20
SECONDS = 11.0
"""How long it may take. Under nsys it takes 2 to 4 s."""

START_SECONDS = "8"
"""How long nsys may take to start the program; the launcher then says so, in time for us to hear it."""

_KEPT = frozenset({environment.NSYS, environment.PURE})
"""What is ours in the user's environment and says which nsys and which core to use. The rest would change what the
canary records, and is judged by itself."""

_DOMAIN, _NAME, _OF_NVTX = "traceable.doctor", "canary", "canary of nvtx"

_PROGRAM = f"""
import json
import traceable
from traceable.annotation import engine
for number in range({RANGES}):
    with traceable.annotate({_NAME!r}, domain={_DOMAIN!r}, payload=number):
        pass
try:
    import nvtx
except ImportError:
    emitted = 0
else:
    emitted = {RANGES}
    for number in range(emitted):
        with nvtx.annotate({_OF_NVTX!r}, domain={_DOMAIN!r}, payload=number):
            pass
print(json.dumps({{"core": engine.core is not None, "nvtx": emitted}}))
"""


@dataclass(frozen=True)
class SelfTest:
    """What became of it.

    Attributes:
        collector: `nsys` or `recorder`.
        error: why there was nothing to read, with the code of the launcher where it said why; None where there was.
        native_core: whether the program emitted through the native core.
        emitted, read: ranges of traceable's, and those of them that came back with their payload.
        nvtx_emitted, nvtx_read: the same of the `nvtx` package, 0 where it can't be imported.
        imported: nsys left a stream, which traceable had to import.
        seconds: how long it took.
    """

    collector: str
    error: Message | None
    native_core: bool = True
    emitted: int = RANGES
    read: int = 0
    nvtx_emitted: int = 0
    nvtx_read: int = 0
    imported: bool = False
    seconds: float = 0.0


def run_self_test(collector: str, temporary: Path) -> SelfTest:
    """Record the canary with a collector, read it back, and leave nothing behind.

    Args:
        collector: `nsys` or `recorder`.
        temporary: the user's folder for temporary files.

    Raises:
        CollectorError: nothing can be written there.
    """
    began = time.monotonic()
    folder = None
    try:
        folder = Path(tempfile.mkdtemp(prefix="traceable-doctor-", dir=temporary))
        (folder / "tmp").mkdir()
        found = _recorded(collector, folder)
    except OSError as error:
        what = f"nothing can be written to {temporary}: {error.strerror}"
        raise CollectorError("temporary_not_writable", what, "see `temporary`") from None
    finally:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
    return replace(found, seconds=time.monotonic() - began)


def _recorded(collector: str, folder: Path) -> SelfTest:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TRACEABLE_") or name in _KEPT}
    words = ["-m", "traceable", "run", "--collector", collector, "-o", str(folder / "run"), "-c", _PROGRAM]
    # Into files, and no pipes: nsys keeps what it is given open, and would be waited for after the launcher's end.
    with (folder / "output").open("w+") as output, (folder / "said").open("w+") as said:
        process = subprocess.Popen(
            [sys.executable, *target.get_interpreter_flags(), *words],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=said,
            env={**kept, "TMPDIR": str(folder / "tmp"), environment.START_SECONDS: START_SECONDS},
            start_new_session=True,  # a Ctrl+C ends us, who then end it
        )
        try:
            process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            return SelfTest(collector, Message("capture_timed_out", f"it did not end within {SECONDS:g} s"))
        finally:
            _end(process, folder)
    printed = (folder / "output").read_text(errors="replace")
    said_last = _last_words((folder / "said").read_text(errors="replace"), folder)
    try:
        told = json.loads(printed.strip().rpartition("\n")[2])
        begun = SelfTest(collector, None, native_core=bool(told["core"]), nvtx_emitted=int(told["nvtx"]))
    except (ValueError, KeyError, TypeError):
        return SelfTest(collector, said_last or Message("program_did_not_run", "the program did not run"))
    found = _read_back(begun, folder / "run")
    return replace(found, error=said_last or found.error) if found.error else found


def _read_back(begun: SelfTest, directory: Path) -> SelfTest:
    databases = sorted(directory.rglob("*.sqlite"))
    if not databases:
        return replace(begun, error=Message("no_report", "it left no report"))
    try:
        from traceable.trace import load

        trace = load(databases[0])
    except ImportError as error:
        found = f"it can't be read: {error.name or type(error).__name__} can't be imported"
        return replace(begun, error=Message("package_not_importable", found))
    except TraceableError as error:
        return replace(begun, error=error.cause)
    read, of_nvtx = _came_back(trace, _NAME), _came_back(trace, _OF_NVTX)
    return replace(begun, read=read, nvtx_read=of_nvtx, imported=any(directory.rglob("*.qdstrm")))


def _came_back(trace: Trace, name: str) -> int:
    """Return how many of the ranges of one name are there, each known by its payload."""
    if name not in trace.names or _DOMAIN not in trace.names:
        return 0
    ranges = trace.ranges
    ours = (ranges.name == trace.names.index(name)) & (ranges.domain == trace.names.index(_DOMAIN)) & ranges.has_payload
    return len(set(ranges.payload[ours].tolist()) & set(range(RANGES)))


_HINTS = ("next: ", "collector ", "certain: ", "likely: ", "possible: ", "fix: ")
"""How lines begin that are no error; the last four are the diagnosis of the run, which a doctor has for itself."""


def _last_words(said: str, folder: Path) -> Message | None:
    """Return the last thing that the launcher said, without hints of what to type next and places that are gone."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    ours = [line.removeprefix("traceable: ") for line in lines if line.startswith("traceable: ")]
    ours = [line for line in ours if not line.lstrip().startswith(_HINTS)]
    if not lines:
        return None
    last = Message.parse(ours[-1]) if ours else Message("launcher_failed", lines[-1])
    text = last.partition("; see ")[0].replace(f"{folder}/run/", "").replace(f"{folder}/tmp/", "")
    return Message(last.code, text)


def _end(process: subprocess.Popen[bytes], folder: Path) -> None:
    """Kill the launcher if it runs, and what it left: all that has our folder in its environment."""
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    process.wait()
    for pid in _processes_of(folder):
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)


def _processes_of(folder: Path) -> Iterator[int]:
    ours = b"=" + os.fsencode(folder) + b"/"
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                if ours in (entry / "environ").read_bytes():
                    yield int(entry.name)
