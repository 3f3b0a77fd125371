"""The self-test of `traceable doctor`: a real `traceable run` of a tiny program, whose recorded ranges are counted.

It takes the same path as every run: a process of its own, the collector, the export, the reader. All its files are in
one folder below the user's own folder for temporary files, which is deleted at the end.
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
"""How long nsys may take to start the program; short enough for the launcher to report it before SECONDS are over."""

_PASSED_VARIABLES = frozenset({environment.NSYS, environment.PURE})
"""The variables of traceable that select nsys and the core. The others would change what is recorded; a check of
its own covers them."""

_DOMAIN, _NAME, _NVTX_NAME = "traceable.doctor", "self-test", "self-test of nvtx"

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
        with nvtx.annotate({_NVTX_NAME!r}, domain={_DOMAIN!r}, payload=number):
            pass
print(json.dumps({{"core": engine.core is not None, "nvtx": emitted}}))
"""


@dataclass(frozen=True)
class SelfTest:
    """The result of a self-test.

    Attributes:
        collector: `nsys` or `recorder`.
        error: why nothing could be read, with the code of the launcher if it reported one; None if it could.
        native_core: whether the program emitted through the native core.
        emitted, read: traceable's ranges, and how many of them were read back with their payload.
        nvtx_emitted, nvtx_read: the same for the `nvtx` package, 0 if it can't be imported.
        imported: nsys left a stream that traceable had to import.
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
    """Record the test program with a collector, read it back, and delete all files.

    Args:
        collector: `nsys` or `recorder`.
        temporary: the user's folder for temporary files.

    Raises:
        CollectorError: that folder is not writable.
    """
    began = time.monotonic()
    folder = None
    try:
        folder = Path(tempfile.mkdtemp(prefix="traceable-doctor-", dir=temporary))
        (folder / "tmp").mkdir()
        result = _record(collector, folder)
    except OSError as error:
        message = f"can't write to {temporary}: {error.strerror}"
        raise CollectorError("temporary_not_writable", message, "see `temporary`") from None
    finally:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
    return replace(result, seconds=time.monotonic() - began)


def _record(collector: str, folder: Path) -> SelfTest:
    passed = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("TRACEABLE_") or name in _PASSED_VARIABLES
    }
    words = ["-m", "traceable", "run", "--collector", collector, "-o", str(folder / "run"), "-c", _PROGRAM]
    # Files, not pipes: nsys keeps inherited pipes open, and reading them would outlast the launcher.
    with (folder / "output").open("w+") as output, (folder / "errors").open("w+") as errors:
        process = subprocess.Popen(
            [sys.executable, *target.get_interpreter_flags(), *words],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
            env={**passed, "TMPDIR": str(folder / "tmp"), environment.START_SECONDS: START_SECONDS},
            start_new_session=True,  # Ctrl+C ends this process, which then ends the launcher
        )
        try:
            process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            return SelfTest(collector, Message("capture_timed_out", f"timed out after {SECONDS:g} s"))
        finally:
            _end(process, folder)
    printed = (folder / "output").read_text(errors="replace")
    last_error = _find_last_error((folder / "errors").read_text(errors="replace"), folder)
    try:
        report = json.loads(printed.strip().rpartition("\n")[2])
        started = SelfTest(collector, None, native_core=bool(report["core"]), nvtx_emitted=int(report["nvtx"]))
    except (ValueError, KeyError, TypeError):
        return SelfTest(collector, last_error or Message("program_did_not_run", "the program did not run"))
    result = _read_back(started, folder / "run")
    return replace(result, error=last_error or result.error) if result.error else result


def _read_back(started: SelfTest, directory: Path) -> SelfTest:
    databases = sorted(directory.rglob("*.sqlite"))
    if not databases:
        return replace(started, error=Message("no_report", "no report was written"))
    try:
        from traceable.trace import load

        trace = load(databases[0])
    except ImportError as error:
        message = f"the report can't be read: {error.name or type(error).__name__} can't be imported"
        return replace(started, error=Message("package_not_importable", message))
    except TraceableError as error:
        return replace(started, error=error.cause)
    read, nvtx_read = _count_read(trace, _NAME), _count_read(trace, _NVTX_NAME)
    return replace(started, read=read, nvtx_read=nvtx_read, imported=any(directory.rglob("*.qdstrm")))


def _count_read(trace: Trace, name: str) -> int:
    """Return how many of the ranges of one name were recorded, each identified by its payload."""
    if name not in trace.names or _DOMAIN not in trace.names:
        return 0
    ranges = trace.ranges
    is_ours = (
        (ranges.name == trace.names.index(name)) & (ranges.domain == trace.names.index(_DOMAIN)) & ranges.has_payload
    )
    return len(set(ranges.payload[is_ours].tolist()) & set(range(RANGES)))


_HINTS = ("next: ", "collector ", "certain: ", "likely: ", "possible: ", "fix: ")
"""Prefixes of lines that are not errors; the last four belong to the diagnosis of the run."""


def _find_last_error(output: str, folder: Path) -> Message | None:
    """Return the last error of the launcher, without hints of the next command and without deleted paths."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    ours = [line.removeprefix("traceable: ") for line in lines if line.startswith("traceable: ")]
    ours = [line for line in ours if not line.lstrip().startswith(_HINTS)]
    if not lines:
        return None
    last = Message.parse(ours[-1]) if ours else Message("launcher_failed", lines[-1])
    text = last.partition("; see ")[0].replace(f"{folder}/run/", "").replace(f"{folder}/tmp/", "")
    return Message(last.code, text)


def _end(process: subprocess.Popen[bytes], folder: Path) -> None:
    """Kill the launcher, and every process that has our folder in its environment."""
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
