"""The three calls of the CUDA runtime that a window may need, by whichever way to it this process has.

torch where the program has loaded it, then cuda-bindings, then libcudart itself. Nothing is imported that the program
has not installed, and torch is never imported for it: it takes seconds.
"""

from __future__ import annotations

import sys

from traceable.errors import CauseError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_LIBRARIES = ("libcudart.so", "libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0")


class CudaError(CauseError):
    """CUDA is not there, or refused."""


class Runtime:
    """One way to CUDA.

    Attributes:
        way: what it goes through, for the status file.
    """

    def __init__(self, way: str, call: Callable[[str], int]) -> None:
        self.way = way
        self._call = call

    def start_profiler(self) -> None:
        """Call cudaProfilerStart."""
        self._checked("cudaProfilerStart")

    def stop_profiler(self) -> None:
        """Call cudaProfilerStop."""
        self._checked("cudaProfilerStop")

    def synchronize(self) -> None:
        """Wait until the current device has done all its work."""
        self._checked("cudaDeviceSynchronize")

    def _checked(self, name: str) -> None:
        code = self._call(name)
        if code:
            raise CudaError("cuda_call_failed", f"{name} through {self.way} returns error {code}")


def find_runtime() -> Runtime:
    """Return the first way to CUDA that there is.

    Raises:
        CudaError: there is none.
    """
    for look in (_through_torch, _through_bindings, _through_library):
        runtime = look()
        if runtime is not None:
            return runtime
    raise CudaError(
        "cuda_runtime_missing", "no CUDA runtime is there: neither torch with CUDA, cuda-bindings nor libcudart"
    )


def _through_torch() -> Runtime | None:
    torch: Any = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    if cuda is None or not cuda.is_available():
        return None
    runtime = cuda.cudart()

    def call(name: str) -> int:
        if name == "cudaDeviceSynchronize":  # not among what torch binds of cudart
            cuda.synchronize()
            return 0
        return int(getattr(runtime, name)() or 0)

    return Runtime("torch", call)


def _through_bindings() -> Runtime | None:
    try:
        from cuda.bindings import runtime  # type: ignore[import-not-found]
    except ImportError:
        return None
    return Runtime("cuda-bindings", lambda name: int(getattr(runtime, name)()[0]))


def _through_library() -> Runtime | None:
    import ctypes

    for name in _LIBRARIES:
        try:
            library = ctypes.CDLL(name)
        except OSError:
            continue
        return Runtime(name, lambda function, library=library: int(getattr(library, function)()))  # type: ignore[misc]
    return None
