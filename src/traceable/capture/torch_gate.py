"""torch.profiler as what records: started and stopped by windows, or running from the import of torch to the exit.

One profiler at a time records in a process: a second one, on whichever thread, made torch 2.13 crash. So ours does not
start while the program has one of its own, and ends where the program starts one. Each recording is a file of its own,
Kineto's JSON with gzip, in the directory that the launcher named; it is there whole or not at all.
"""

from __future__ import annotations

import atexit
import os
import sys

from traceable import environment
from traceable.annotation import torch_records
from traceable.capture.gates import GateError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

SUFFIX = ".pt.trace.json.gz"
"""How the files end: as those of torch's own handlers."""

METADATA = "traceable"
"""The key of what our files say of themselves, by which a reader knows that names are ours (`torch_records`)."""

_ONE_ONLY = "only one can record at a time"
_COMPRESSION = 3
_ALL_THREADS = "profile_all_threads"
_OPTIONS = (_ALL_THREADS, "trace_only")
"""What is asked of torch beyond its defaults, where it has it. Without the second it makes Python objects of all events
when it stops, which nobody reads."""


class Profiler:
    """The torch profiler of this process, as far as it is ours.

    Attributes:
        gated: it is started by windows, and not by the import of torch.
    """

    def __init__(self) -> None:
        self.gated = False
        self._running: Any = None
        self._directory = ""
        self._number = 0
        self._theirs = False
        self._ours = False
        self._forked = False
        self._watched = False
        atexit.register(self.stop_quietly)
        os.register_at_fork(after_in_child=self._in_child)

    @property
    def running(self) -> bool:
        """Whether it records."""
        return self._running is not None

    def start(self) -> None:
        """Record from here on.

        Raises:
            GateError: it can't here; the text says why.
        """
        torch = sys.modules.get("torch")
        if torch is None:
            raise GateError("the program has not imported torch")
        directory = os.environ.get(environment.TORCH_DIR)
        if not directory:
            raise GateError(f"{environment.TORCH_DIR} is not set: run with traceable run --collector torch")
        if self._forked:
            raise GateError("this process was forked while torch.profiler recorded")
        self.watch()
        enabled = torch._C._autograd._profiler_enabled()
        if self._theirs or enabled:
            raise GateError(f"the program has a torch profiler of its own running, and {_ONE_ONLY}")
        self._directory = directory
        self._ours = True
        try:
            self._running = _started()
        except Exception as error:  # noqa: BLE001 - whatever a torch says, the program goes on
            raise GateError(f"torch.profiler does not start ({type(error).__name__}: {error})") from None
        finally:
            self._ours = False
        torch_records.begin(
            torch.autograd._record_function_with_args_enter, torch.autograd._record_function_with_args_exit
        )

    def stop(self) -> None:
        """Stop recording and write the file, where it records.

        Raises:
            OSError: the file can't be written.
        """
        profiler = self._stopped()
        if profiler is not None:
            self._write(profiler)

    def discard(self) -> None:
        """Stop recording and keep nothing of it."""
        self._stopped()

    def stop_quietly(self) -> None:
        """Stop where nobody could take an error; it is said on stderr."""
        try:
            self.stop()
        except Exception as error:  # noqa: BLE001 - the program ends as it ends
            environment.warn_once("torch trace", f"the trace of torch.profiler was not written: {error}")

    def _stopped(self) -> Any:
        profiler, self._running = self._running, None
        if profiler is None:
            return None
        torch_records.pause()
        self._ours = True
        try:
            _say_rank()
            profiler.__exit__(None, None, None)
        finally:
            self._ours = False
            torch_records.retire()
        return profiler

    def _write(self, profiler: Any) -> None:
        import gzip
        import shutil

        os.makedirs(self._directory, exist_ok=True)  # noqa: PTH103 - pathlib takes 10 ms to import
        path = self._free_path()
        plain, packed = (f"{self._directory}/.{os.path.basename(path)}.{kind}.part" for kind in ("json", "gz"))  # noqa: PTH119
        try:
            profiler.export_chrome_trace(plain)
            with open(plain, "rb") as file, gzip.open(packed, "wb", _COMPRESSION) as to:  # noqa: PTH123
                _check_end(file)
                shutil.copyfileobj(file, to, 1 << 20)
            os.replace(packed, path)  # noqa: PTH105
        finally:
            for part in (plain, packed):
                if os.path.exists(part):  # noqa: PTH110
                    os.unlink(part)  # noqa: PTH108

    def _free_path(self) -> str:
        while True:
            self._number += 1
            path = f"{self._directory}/{os.getpid()}-{self._number}{SUFFIX}"
            # A process may become another program that records too (os.exec*), under the same pid.
            if not os.path.exists(path):  # noqa: PTH110
                return path

    # ---- the program's own profilers

    def watch(self) -> None:
        """Learn of every profiler that the program starts and stops, from here on.

        All of torch's own, emit_nvtx too, go through these names of `torch.autograd.profiler`.

        Raises:
            GateError: this torch has none.
        """
        if self._watched:
            return
        import importlib

        try:
            module: Any = importlib.import_module("torch.autograd.profiler")
            prepare, enable, disable = module._prepare_profiler, module._enable_profiler, module._disable_profiler
        except (ImportError, AttributeError) as error:
            raise GateError(f"this torch has no profiler ({error})") from None
        module._prepare_profiler, module._enable_profiler = self._before(prepare), self._before(enable)
        module._disable_profiler = self._after(disable)
        self._watched = True

    def _before(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def starting(*arguments: Any, **named: Any) -> Any:
            if self._ours:
                return function(*arguments, **named)
            self._stand_back()
            self._theirs = True
            try:
                return function(*arguments, **named)
            except BaseException:
                self._theirs = False
                raise

        return starting

    def _after(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def stopping(*arguments: Any, **named: Any) -> Any:
            if not self._ours:
                self._theirs = False
            return function(*arguments, **named)

        return stopping

    def _stand_back(self) -> None:
        if not self.running:
            return
        said = f"the program starts a torch profiler of its own, so ours ended there: {_ONE_ONLY}"
        environment.warn_once("torch profiler", said)
        self.stop_quietly()

    def _in_child(self) -> None:
        torch_records.forget()
        if self._running is None:
            return
        self._running = None
        self._forked = True
        # What this thread does would go on to be recorded, for nobody, until memory ends.
        sys.modules["torch"].autograd._enable_record_function(False)


def _check_end(file: Any) -> None:
    """Raise OSError where the trace does not end as one: torch does not tell of a disk that is full."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(size - 64, 0))
    if not file.read().rstrip().endswith(b"}"):
        raise OSError("torch wrote only a part of it: is the disk full?")
    file.seek(0)


def _started() -> Any:
    """Start a torch profiler of all that this machine has, and return it.

    Of `torch.autograd.profiler`, on which `torch.profiler` stands: that imports all of dynamo at its start, which took
    3 to 6 s on the thread that opens the window (torch 2.13).
    """
    import importlib

    public: Any = importlib.import_module("torch.profiler")
    profiler = importlib.import_module("torch.autograd.profiler").profile(
        use_kineto=True,
        use_device="cuda" if public.ProfilerActivity.CUDA in public.supported_activities() else None,
        experimental_config=_configuration(),
    )
    profiler.__enter__()
    _add_metadata(METADATA, '{"annotations": 1}')
    return profiler


def _add_metadata(key: str, content: str) -> None:
    autograd: Any = sys.modules["torch.autograd"]
    autograd._add_metadata_json(key, content)


def _configuration() -> Any:
    from torch._C._profiler import _ExperimentalConfig

    make: Any = _ExperimentalConfig
    known = {name: True for name in _OPTIONS if name in (make.__init__.__doc__ or "")}
    if _ALL_THREADS not in known:
        environment.warn_once("torch threads", "this torch records the thread that starts its profiler alone")
    return make(**known)


def _say_rank() -> None:
    """Write into the trace which rank this process is, as torch.profiler does."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return
    import json

    rank = {
        "backend": distributed.get_backend(),
        "rank": distributed.get_rank(),
        "world_size": distributed.get_world_size(),
    }
    _add_metadata("distributedInfo", json.dumps(rank))


profiler = Profiler()
"""The one of this process."""


class TorchGate:
    """torch.profiler, a file a window."""

    name = "torch"

    def arm(self) -> None:
        """Record nothing until the first window."""
        profiler.gated = True
        profiler.discard()
        if "torch" in sys.modules:
            profiler.watch()

    def open(self) -> None:
        """Start the profiler."""
        profiler.start()

    def close(self) -> None:
        """Stop it and write the file."""
        if not profiler.running:
            raise GateError(f"the program started a torch profiler of its own, and {_ONE_ONLY}")
        profiler.stop()
