"""Kineto, the recorder beneath torch.profiler, in this process: one recording at a time, a file each.

One profiler at a time records in a process: a second one, on whichever thread, made torch 2.13 crash. So ours does not
start while the program has one of its own, and ends where the program starts one. Each recording is Kineto's JSON with
gzip, in the directory that the launcher named; it is there whole or not at all. What is recorded, and when, is told by
`torch_gate` and `gpu_gate`.
"""

from __future__ import annotations

import atexit
import os
import sys

from traceable.capture.gates import GateError
from traceable.protocol import environment

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

SUFFIX = ".pt.trace.json.gz"
"""How the files end: as those of torch's own handlers."""

ONE_ONLY = "only one can record at a time"
_COMPRESSION = 3
_ALL_THREADS = "profile_all_threads"


class Kineto:
    """The recordings of this process that are ours. A subclass says what is recorded.

    Attributes:
        directory_variable: the environment names the directory of the files in it.
        option: of `traceable run`, which sets that variable.
        label: is recorded, in the words of a message.
        gated: it is started by windows, and not by the import of torch.
    """

    directory_variable = ""
    option = ""
    label = ""

    def __init__(self) -> None:
        self.gated = False
        self._running: Any = None
        self._directory = ""
        self._number = 0
        self._theirs = False
        self._ours = False
        self._forked = False
        self._watched = False
        self._ends_with: int | None = None
        atexit.register(self.stop_quietly)
        os.register_at_fork(after_in_child=self._in_child)

    # ---- what a subclass does

    def _begin(self, torch: Any) -> Any:
        """Have torch record, and return what `_end` ends."""
        raise NotImplementedError

    def _on_start(self, torch: Any) -> None:
        """It records."""

    def _on_stop(self) -> None:
        """It is about to be ended."""

    def _end(self, recording: Any) -> Callable[[str], Any]:
        """End it, and return what writes it to a path."""
        raise NotImplementedError

    def _on_stopped(self) -> None:
        """It has ended, whether well or not."""

    def _on_written(self) -> None:
        """Its file is on disk, or was not wanted."""

    def _on_lost(self, why: str) -> None:
        """Its file could not be written."""

    def _on_fork(self) -> None:
        """This is a forked child, and what its parent records is none of its own."""

    # ---- start and stop

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
            raise GateError("torch_not_imported", "the program has not imported torch")
        directory = os.environ.get(self.directory_variable)
        if not directory:
            why = f"{self.directory_variable} is not set: run with traceable run {self.option}"
            raise GateError("trace_dir_not_set", why)
        if self._forked:
            raise GateError("forked_while_recording", f"this process was forked while {self.label} recorded")
        self.watch()
        enabled = torch._C._autograd._profiler_enabled()
        if self._theirs or enabled:
            why = f"the program has a torch profiler of its own running, and {ONE_ONLY}"
            raise GateError("other_profiler_running", why)
        self._directory = directory
        self._ours = True
        try:
            self._running = self._begin(torch)
        except GateError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever a torch says, the program goes on
            why = f"torch.profiler does not start ({type(error).__name__}: {error})"
            raise GateError("torch_profiler_not_started", why) from None
        finally:
            self._ours = False
        self._end_with_worker()
        self._on_start(torch)

    def stop(self) -> None:
        """Stop recording and write the file, where it records.

        Raises:
            OSError: the file can't be written.
        """
        save = self._stopped()
        if save is None:
            return
        try:
            self._write(save)
        except BaseException as error:
            self._on_lost(str(error))
            raise
        self._on_written()

    def discard(self) -> None:
        """Stop recording and keep nothing of it."""
        if self._stopped() is not None:
            self._on_written()

    def stop_quietly(self) -> None:
        """Stop where nobody could take an error; it is said on stderr."""
        try:
            self.stop()
        except Exception as error:  # noqa: BLE001 - the program ends as it ends
            message = f"the trace of {self.label} was not written: {error}"
            environment.warn_once("trace_not_written", message, key=self.label)

    def _stopped(self) -> Callable[[str], Any] | None:
        recording, self._running = self._running, None
        if recording is None:
            return None
        self._on_stop()
        self._ours = True
        try:
            _say_rank()
            return self._end(recording)
        finally:
            self._ours = False
            self._on_stopped()

    def _write(self, save: Callable[[str], Any]) -> None:
        import gzip
        import shutil

        os.makedirs(self._directory, exist_ok=True)  # noqa: PTH103 - pathlib takes 10 ms to import
        path = self._free_path()
        plain, packed = (f"{self._directory}/.{os.path.basename(path)}.{kind}.part" for kind in ("json", "gz"))  # noqa: PTH119
        try:
            save(plain)
            with open(plain, "rb") as file, gzip.open(packed, "wb", _COMPRESSION) as to:  # noqa: PTH123
                check_end(file)
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

    def _end_with_worker(self) -> None:
        """Have a worker that multiprocessing forked write its file: it ends without the functions of `atexit`."""
        process = sys.modules.get("multiprocessing.process")
        if process is None or process.parent_process() is None or self._ends_with == os.getpid():
            return
        from multiprocessing.util import Finalize

        self._ends_with = os.getpid()
        Finalize(None, self.stop_quietly, exitpriority=0)

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
            raise GateError("torch_without_profiler", f"this torch has no profiler ({error})") from None
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
        said = f"the program starts a torch profiler of its own, so ours ended there: {ONE_ONLY}"
        environment.warn_once("other_profiler_started", said)
        self.stop_quietly()

    def _in_child(self) -> None:
        self._on_fork()
        if self._running is None:
            return
        self._running = None
        self._forked = True
        # What this thread does would go on to be recorded, for nobody, until memory ends.
        sys.modules["torch"].autograd._enable_record_function(False)


def check_end(file: Any) -> None:
    """Raise OSError where the trace does not end as one: torch does not tell of a disk that is full."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(size - 64, 0))
    if not file.read().rstrip().endswith(b"}"):
        raise OSError("torch wrote only a part of it: is the disk full?")
    file.seek(0)


def add_metadata(key: str, content: str) -> None:
    """Have the file of the recording that runs say something of itself, in JSON."""
    autograd: Any = sys.modules["torch.autograd"]
    autograd._add_metadata_json(key, content)


def make_config(*options: str) -> Any:
    """Return what is asked of torch beyond its defaults: all threads, and these options where it has them."""
    from torch._C._profiler import _ExperimentalConfig

    make: Any = _ExperimentalConfig
    known = {name: True for name in (_ALL_THREADS, *options) if name in (make.__init__.__doc__ or "")}
    if _ALL_THREADS not in known:
        environment.warn_once("one_thread_recorded", "this torch records the thread that starts its profiler alone")
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
    add_metadata("distributedInfo", json.dumps(rank))
