"""Loads the embedded recorder into the test process, once, and reports why where that is impossible.

Nothing is read here (`live`), and nothing happens on import: pytest's hooks call `attach`.
"""

from __future__ import annotations

import atexit
import importlib
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from traceable._native import find_recorder_library
from traceable.errors import CollectorError, Message, TraceableError
from traceable.protocol import environment

PROBE_DOMAIN = "traceable.testing"
"""Domain of the one mark that checks that this process is recorded."""

_LOAD_FIRST = (
    "load the plugin before any annotated module: `pytest -p traceable.testing`, or pytest_plugins in a root "
    "conftest.py that imports none of them at its top"
)
_NO_FLIGHT_RECORDER = "run the tests without --flight-recorder"
_RELOADED = ("engine", "resumable", "ranges", "counters", "domains", "external.profile")
"""Modules of `annotation` that hold the choice of the backend, or a class made of it, in the order of their imports."""

_state: _Attachment | None = None


class _Attachment:
    """The recorder in this process: where it writes, or why it can't."""

    def __init__(self) -> None:
        self.directory: Path | None = None
        self.shared = False
        self.error: TraceableError | None = None
        self.missed_libraries: tuple[str, ...] = ()
        self.is_recorded = False
        try:
            self._attach()
        except TraceableError as error:
            self.error = error

    def _attach(self) -> None:
        library = find_recorder_library()
        if library is None:
            raise CollectorError(
                "recorder_not_built",
                "the embedded recorder was not built",
                "reinstall traceable where there is a C compiler",
            )
        present = os.environ.get(environment.NVTX_INJECTION)
        if present and Path(present).resolve() != library:
            raise CollectorError(
                "other_listener",
                f"{environment.NVTX_INJECTION} names another NVTX tool ({present}), and NVTX loads only one",
                "run these tests outside of nsys or ncu, or unset the variable",
            )
        given = os.environ.get(environment.RECORDING_DIR)
        if present and given and (os.environ.get(environment.RUN_DIR) or any(Path(given).glob(f"{os.getpid()}-*"))):
            if os.environ.get(environment.FLIGHT_RECORDER):
                problem = "this run has a flight recorder, which overwrites the tests' ranges"
                raise CollectorError("flight_recorder_on", problem, _NO_FLIGHT_RECORDER)
            # Under `traceable run`, or recorded already: that recording is kept, and this process's part is read.
            self.directory, self.shared = Path(given), True
            return
        # A parent that loaded the plugin too (pytest-xdist's controller) left its variables; NVTX reads them at its
        # first call, so this process can still have a directory of its own.
        self.directory = _make_temporary_directory()
        os.environ[environment.NVTX_INJECTION] = str(library)
        os.environ[environment.RECORDING_DIR] = str(self.directory)
        os.environ.pop(environment.FLIGHT_RECORDER, None)
        if not present:
            self.missed_libraries = tuple(name for name in ("nvtx",) if name in sys.modules)
            _wake_traceable()


def attach() -> None:
    """Attach the recorder to this process and, by the environment, to its children. Later calls do nothing."""
    global _state
    if _state is None:
        _state = _Attachment()


def list_attachment_problems() -> list[Message]:
    """Return the warnings for pytest's header: why nothing can be recorded, or what will be missing."""
    if _state is None:
        return []
    if _state.error is not None:
        return [Message(_state.error.code, f"nvtx_events can't record: {_state.error.message}")]
    return [
        Message(
            "early_ranges_missed",
            f"{name} was imported before traceable.testing; its earlier ranges are not recorded",
        )
        for name in _state.missed_libraries
    ]


def find_recording() -> tuple[Path, bool]:
    """Return the recording's directory, and whether other processes than this one and its children write there.

    Raises:
        CollectorError: this process is not recorded, and why.
    """
    attach()
    assert _state is not None
    if _state.error is None and not _state.is_recorded:
        try:
            _state.is_recorded = _probe(_state.directory)
        except TraceableError as error:
            _state.error = error
    if _state.error is not None:
        raise _state.error
    assert _state.directory is not None
    return _state.directory, _state.shared


def _make_temporary_directory() -> Path:
    """Return where to record, removed when this process ends.

    One level below the removed directory: a child that outlives this process creates the directory of its environment,
    not its parent.
    """
    outer = tempfile.mkdtemp(prefix="traceable-testing-")
    owner = os.getpid()

    def remove() -> None:
        if os.getpid() == owner:
            shutil.rmtree(outer, ignore_errors=True)

    atexit.register(remove)
    return Path(outer) / "recording"


def _wake_traceable() -> None:
    """Undo the choice that traceable made at its import, just before this plugin, when there was no profiler yet.

    Raises:
        CollectorError: something was annotated already, and stays silent.
    """
    from traceable.annotation import engine

    if engine.disabled:
        raise CollectorError(
            "annotations_off",
            f"annotation is switched off by {environment.DISABLE} or NVTX_DISABLE",
            "unset both for the tests",
        )
    if engine.has_skipped_annotations:
        problem = "functions were annotated before traceable.testing was loaded"
        raise CollectorError("annotated_too_early", problem, _LOAD_FIRST)
    if engine.core is not None:
        return  # the native core looks for a profiler when a range is made
    import traceable
    from traceable.annotation import nvtx_backend, ranges

    holder = _find_holder({id(value) for value in vars(ranges).values() if getattr(value, "__module__", "") == _RANGES})
    if holder or nvtx_backend._interned:
        where = f" by {holder}" if holder else ""
        problem = f"traceable was imported{where} before traceable.testing was loaded"
        raise CollectorError("imported_too_early", problem, _LOAD_FIRST)
    for name in _RELOADED:
        importlib.reload(sys.modules[f"traceable.annotation.{name}"])
    importlib.reload(traceable)


_RANGES = "traceable.annotation.ranges"


def _find_holder(objects: set[int]) -> str | None:
    """Return the name of a module that is not ours and holds one of the objects, by id."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "traceable":
            continue
        names: dict[str, Any] = getattr(module, "__dict__", {})
        if any(id(value) in objects for value in list(names.values())):
            return name
    return None


def _probe(directory: Path | None) -> bool:
    """Emit one mark and check that this process is in the recording.

    Raises:
        CollectorError: it is not.
    """
    import traceable
    from traceable.collectors.recorder.recording import DOMAIN, read_recording

    traceable.mark("probe", domain=PROBE_DOMAIN)
    assert directory is not None
    for process in read_recording(directory).processes:
        if process.pid == os.getpid() and any(n.kind == DOMAIN and n.text == PROBE_DOMAIN for n in process.names):
            return True
    problem = "NVTX was first called before traceable.testing was loaded"
    raise CollectorError("nvtx_called_too_early", problem, _LOAD_FIRST)
