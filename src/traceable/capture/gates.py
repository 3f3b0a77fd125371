"""What lets a profiler record, and stops it: one small class a way, opened and closed at the boundaries of steps.

A gate may raise; `control` says so once and lets the program run on. It also chooses the gate.
"""

from __future__ import annotations

import os

from traceable.annotation import engine
from traceable.annotation.ranges import annotate
from traceable.errors import CauseError, Message
from traceable.protocol import environment

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    from traceable.capture.cuda import Runtime

    class Gate(Protocol):
        """One way to gate a profiler."""

        name: str

        def arm(self, follow: bool) -> bool:
            """Record nothing from here on, as far as this process decides it. Called once, before a window is opened.

            Args:
                follow: the process has taken no step: where its starter opens windows, record while it does.

            Returns:
                Whether it follows. Then this is called again, with `follow` False, when the first step begins.
            """

        def open(self) -> None:
            """Have the profiler record; return when it does."""

        def close(self) -> None:
            """Have it stop; return when it has."""


NSYS_NOT_GATED = Message(
    "nsys_not_gated", "nsys was started to record everything; name the steps with `run --steps`, or run with --control"
)
"""Why a window in code comes to nothing under nsys, which has to be told when it is started."""


class GateError(CauseError):
    """The gate can't be opened here; the text says why."""


class NvtxGate:
    """The capture range of nsys: needs no CUDA.

    A start/end range, so that the window may be closed by another thread than opened it. Its name is a registered
    string, as nsys wants it unless NSYS_NVTX_PROFILER_REGISTER_ONLY=0 is set.
    """

    name = "nvtx"

    def __init__(self) -> None:
        self._range = annotate(environment.CAPTURE_RANGE, None, environment.WINDOW_DOMAIN)
        self._id: int | None = None

    def arm(self, follow: bool) -> bool:  # noqa: ARG002
        """Do nothing: nsys waits for the first range, of whichever process, and records all that it hears."""
        return False

    def open(self) -> None:
        """Start the range. nsys 2022.4 returns from it when the collection has started (0.1-0.3 s)."""
        if self._range._silent and engine.can_emit():
            why = "no range is emitted, so nsys's capture range is not either (TRACEABLE_LEVEL or _DISABLE)"
            raise GateError("capture_range_silent", why)
        self._id = self._range._start()

    def close(self) -> None:
        """End the range. nsys 2022.4 returns from it when the report is generated (0.6-1.2 s)."""
        if self._id is not None:
            self._range._end(self._id)
            self._id = None


class CudaGate:
    """cudaProfilerStart and cudaProfilerStop: for `nsys -c cudaProfilerApi`, ncu and whatever else listens to them."""

    name = "cudaProfilerApi"

    def __init__(self) -> None:
        self._runtime: Runtime | None = None

    def arm(self, follow: bool) -> bool:  # noqa: ARG002
        """Do nothing: the profiler waits for the first start."""
        return False

    def open(self) -> None:
        """Call cudaProfilerStart."""
        from traceable.capture import cuda

        # Looked for here and not at the start: by now the program has loaded what it uses.
        self._runtime = self._runtime or cuda.find_runtime()
        self._runtime.start_profiler()

    def close(self) -> None:
        """Call cudaProfilerStop."""
        if self._runtime is not None:
            self._runtime.stop_profiler()


class RecorderGate:
    """The flag of the embedded recorder in this process."""

    name = "recorder"

    def __init__(self) -> None:
        import ctypes

        path = os.environ.get(environment.NVTX_INJECTION, "")
        try:
            # NVTX has loaded it, or will: the same file is the same library.
            library = ctypes.CDLL(path)
            self._gate, self._follow = library.traceable_recorder_gate, library.traceable_recorder_follow
        except (OSError, AttributeError):
            raise GateError("not_our_recorder", f"{path or 'the recorder'} is not traceable's recorder") from None

    def arm(self, follow: bool) -> bool:
        """Record nothing until the first window, or while the process records that started this one."""
        follows = follow and bool(self._follow())
        if not follows:
            self._gate(0)
        return follows

    def open(self) -> None:
        """Record."""
        self._gate(1)

    def close(self) -> None:
        """Record nothing."""
        self._gate(0)


class NoGate:
    """Gates nothing; the windows are only marked by ranges."""

    name = "none"

    def arm(self, follow: bool) -> bool:  # noqa: ARG002
        """Do nothing."""
        return False

    def open(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""
