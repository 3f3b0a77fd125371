"""What `traceable run --gpu` records beside the embedded recorder: the GPU's work, by Kineto in the program's torch.

The ranges go to the recorder as ever. Kineto is asked for the GPU's activity and for annotations of users, among which
are our clock markers. It is not asked for operators: what each takes longer (0.4 us of 1 us, benchmarks/gpu_recording)
would be in the ranges, and they would fill memory.

It starts when torch begins to use CUDA and not before. To ask CUDA for its devices would initialise it, and a
process that has done so can't fork children that use CUDA: a program that imports torch, forks and lets its workers use
the GPU would fail because of us.

What a process did is told to the launcher in `<directory>/.<pid>.json`, written whole whenever that changes.
"""

from __future__ import annotations

import os
import sys
import time
from _thread import RLock

from traceable.capture import kineto, process
from traceable.capture.gates import GateError, RecorderGate
from traceable.errors import code_of
from traceable.protocol import environment

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

SCHEMA = "traceable.gpu/1"
METADATA = "traceable_gpu"
"""The key in the file of what we say in it: what CLOCK_MONOTONIC, which the embedded recorder uses, was around each
marker, both clocks at the end, and which GPU is behind CUDA's number of a device."""

MARKER = "traceable.clock"
"""How the name of a marker begins; its number follows."""

MARKERS = 12
"""How many there are at the start of a recording, and again at its end."""

NO_CUDA, WAITING, RECORDING, STOPPED, LOST, REFUSED = "no cuda", "waiting", "recording", "stopped", "lost", "refused"
"""What a process may say: its torch has no CUDA; it has not used CUDA; Kineto records, or did; what it recorded could
not be written; Kineto could not be started."""

_OPTIONS = ("enable_cuda_sync_events", "disable_external_correlation")
"""Asked of torch where it has them: synchronizations as records of their own, and no links to operators."""


class GpuProfiler(kineto.Kineto):
    """The GPU recording of this process."""

    directory_variable = environment.GPU_DIR
    option = "--gpu"
    label = "the GPU"

    def __init__(self) -> None:
        self._lock = RLock()
        self._wanted = False
        self._watching_cuda = False
        self._config: Any = None
        self._activities: Any = None
        self._clock: list[tuple[int, int, int]] = []
        super().__init__()

    # ---- when

    def watch_cuda(self) -> None:
        """Learn when torch begins to use CUDA, from here on. Says so where this torch never will."""
        torch = sys.modules.get("torch")
        if torch is None or self._watching_cuda:
            return
        self._watching_cuda = True
        if not _has_cuda(torch):
            self._say(NO_CUDA)
            if not _is_worker():
                message = f"torch {torch.__version__} is built without CUDA: --gpu records no GPU"
                environment.warn_once("torch_without_cuda", message)
            return
        self.watch()
        if torch.cuda.is_initialized():
            return
        self._say(WAITING)
        # It is called once CUDA is initialised, in the thread that does so, and not under a lock of ours.
        torch.cuda._lazy_call(self._cuda_begins)

    def _cuda_begins(self) -> None:
        try:
            # A forked child has what its parent wanted, and may be none that is to be recorded.
            with self._lock:
                if self._wanted and process.is_selected() and not self.running:
                    super().start()
        except Exception as error:  # noqa: BLE001 - torch would make the program's first use of CUDA fail
            self._refuse(error)

    def start(self) -> None:
        """Record from here on, or from the moment when torch begins to use CUDA. Where it can't, that is said."""
        self._wanted = True
        try:
            self.watch_cuda()
            torch = sys.modules.get("torch")
            with self._lock:
                if torch is not None and _has_cuda(torch) and torch.cuda.is_initialized() and not self.running:
                    super().start()
        except Exception as error:  # noqa: BLE001 - the ranges are recorded whatever becomes of the GPU
            self._refuse(error)

    def stop(self) -> None:
        """Wait for the GPU, stop recording and write the file, where it records.

        Raises:
            OSError: the file can't be written.
        """
        self._wanted = False
        with self._lock:
            super().stop()

    def _refuse(self, error: Exception) -> None:
        self._say(REFUSED, str(error))
        message = f"the GPU is not recorded in process {os.getpid()}: {error}"
        environment.warn_once(code_of(error, "gpu_not_recorded"), message)

    # ---- how

    def _begin(self, torch: Any) -> Any:
        profiler = sys.modules["torch.autograd.profiler"]
        from torch._C._profiler import ProfilerActivity, ProfilerConfig, ProfilerState, RecordScope

        activities: set[Any] = {ProfilerActivity.CPU}
        if ProfilerActivity.CUDA in torch._C._autograd._supported_activities():
            activities.add(ProfilerActivity.CUDA)
        elif _has_cuda(torch):
            raise GateError("torch_without_cupti", "this torch was built without CUPTI")
        options = kineto.make_config(*_OPTIONS)
        config = ProfilerConfig(ProfilerState.KINETO, False, False, False, False, False, options, "")
        self._clock = []
        profiler._prepare_profiler(config, activities)
        profiler._enable_profiler(config, activities, {RecordScope.USER_SCOPE})
        try:
            self._mark(torch)
        except BaseException:
            profiler._disable_profiler()
            raise
        return profiler

    def _on_start(self, torch: Any) -> None:  # noqa: ARG002 - of the base
        self._say(RECORDING)

    def _end(self, recording: Any) -> Callable[[str], Any]:
        torch: Any = sys.modules["torch"]
        _finish_gpu_work(torch)
        self._mark(torch)
        import json

        said = {"monotonic_ns": time.monotonic_ns(), "realtime_ns": time.time_ns(), "markers": self._clock}
        kineto.add_metadata(METADATA, json.dumps({**said, "gpus": _gpus(torch)}))
        save: Callable[[str], Any] = recording._disable_profiler().save
        return save

    def _mark(self, torch: Any) -> None:
        """Annotate a few moments, and note between which readings of the recorder's clock each begins."""
        enter, leave = torch.autograd._record_function_with_args_enter, torch.autograd._record_function_with_args_exit
        for number in range(len(self._clock), len(self._clock) + MARKERS):
            name = f"{MARKER} {number}"
            before = time.monotonic_ns()
            handle = enter(name)
            after = time.monotonic_ns()
            leave(handle)
            self._clock.append((number, before, after))

    # ---- what the launcher is told

    def _on_written(self) -> None:
        self._say(STOPPED)

    def _on_lost(self, why: str) -> None:
        self._say(LOST, why)

    def _on_fork(self) -> None:
        self._lock = RLock()

    def _say(self, state: str, detail: str = "") -> None:
        directory = os.environ.get(self.directory_variable)
        if not directory:
            return
        try:
            import json

            os.makedirs(directory, exist_ok=True)  # noqa: PTH103 - pathlib takes 10 ms to import
            path = f"{directory}/.{os.getpid()}.json"
            with open(f"{path}.part", "w", encoding="utf-8") as file:  # noqa: PTH123
                json.dump({"schema": SCHEMA, "pid": os.getpid(), "state": state, "detail": detail}, file)
            os.replace(f"{path}.part", path)  # noqa: PTH105
        except Exception as error:  # noqa: BLE001 - a full disk, a directory that is gone: the program goes on
            environment.warn_once(
                "gpu_state_not_written", f"the launcher is not told what of the GPU was recorded: {error}"
            )


def _has_cuda(torch: Any) -> bool:
    """Whether this torch is built for CUDA, which is known without asking for a GPU."""
    return torch.version.cuda is not None


def _finish_gpu_work(torch: Any) -> None:
    """Wait for the devices that this process uses: what is still running when Kineto stops is not recorded."""
    if not _has_cuda(torch) or not torch.cuda.is_initialized():
        return
    try:
        # To wait would break the capture.
        if torch.cuda.is_current_stream_capturing():
            return
        for device in range(torch.cuda.device_count()):
            # On any other device a context would be made, of some hundred MB.
            if torch._C._cuda_hasPrimaryContext(device):
                torch.cuda.synchronize(device)
    except Exception as error:  # noqa: BLE001 - an error of the program's kernels is the program's to find
        message = f"the GPU was not waited for, its last operations may be missing: {error}"
        environment.warn_once("gpu_not_waited_for", message)


def _gpus(torch: Any) -> dict[str, str]:
    """Return the UUID of each device: CUDA counts them anew in every process (CUDA_VISIBLE_DEVICES)."""
    if not _has_cuda(torch) or not torch.cuda.is_initialized():
        return {}
    try:
        devices = range(torch.cuda.device_count())
        return {str(device): str(torch.cuda.get_device_properties(device).uuid) for device in devices}
    except Exception:  # noqa: BLE001 - an older torch says no UUID
        return {}


def _is_worker() -> bool:
    """Whether multiprocessing started this process: its parent has said the same."""
    module = sys.modules.get("multiprocessing.process")
    return module is not None and module.parent_process() is not None


profiler = GpuProfiler()
"""The one of this process."""


class GpuGate:
    """The embedded recorder and, around what it records, Kineto: a file a window."""

    name = "gpu"

    def __init__(self) -> None:
        self._recorder = RecorderGate()

    def arm(self, follow: bool) -> bool:
        """Record nothing until the first window. While another process is followed, ranges alone are recorded."""
        follows = self._recorder.arm(follow)
        profiler.gated = True
        profiler.discard()
        profiler.watch_cuda()
        return follows

    def open(self) -> None:
        """Start Kineto, where the process uses CUDA, and then the recorder."""
        profiler.start()
        self._recorder.open()

    def close(self) -> None:
        """Stop the recorder, and then Kineto, which waits for the GPU and writes the file."""
        self._recorder.close()
        profiler.stop()
