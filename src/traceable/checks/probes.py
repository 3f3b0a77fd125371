"""Facts about this machine that need other programs: nsys, ncu, the CUDA driver, and a self-test with each collector.

Each is run with a time limit of its own. The rules in `doctor.py` evaluate them.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from traceable.collectors import tools
from traceable.collectors.nsys import install as nsys_install
from traceable.collectors.nsys import user_options
from traceable.collectors.process_list import UNREADABLE, list_processes
from traceable.errors import CollectorError, Message, TraceableError
from traceable.launch import ncu, target
from traceable.protocol import environment

TYPE_CHECKING = False
if TYPE_CHECKING:
    from traceable.trace.model import Trace

CUDA_SECONDS = 8.0
"""How long the driver may take to list the GPUs. A machine with eight takes about 2 s from cold."""

_CUPTI = re.compile(r"libcupti\.so\.(\d+)\.(\d+)")

_CUDA_PROGRAM = """
import ctypes, json
facts = {"error": None, "result": None, "version": None, "devices": []}
try:
    cuda = ctypes.CDLL("libcuda.so.1")
except OSError as error:
    facts["error"] = str(error)
else:
    number, count, text = ctypes.c_int(), ctypes.c_int(), ctypes.create_string_buffer(256)
    if cuda.cuDriverGetVersion(ctypes.byref(number)) == 0:
        facts["version"] = [number.value // 1000, number.value % 1000 // 10]
    facts["result"] = cuda.cuInit(0)
    if facts["result"] == 0:
        facts["result"] = cuda.cuDeviceGetCount(ctypes.byref(count))
    for index in range(count.value):
        device, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
        cuda.cuDeviceGet(ctypes.byref(device), index)
        cuda.cuDeviceGetName(text, len(text), device)
        cuda.cuDeviceGetAttribute(ctypes.byref(major), 75, device)
        cuda.cuDeviceGetAttribute(ctypes.byref(minor), 76, device)
        facts["devices"].append([text.value.decode("utf-8", "replace"), major.value, minor.value])
print(json.dumps(facts))
"""
"""75 and 76 are CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR of cuda.h. It creates no context, so it uses no
GPU memory."""


RANGES = 20
"""How many ranges the self-test emits."""

SELF_TEST_SECONDS = 11.0
"""How long the self-test may take. Under nsys it takes 2 to 4 s."""

START_SECONDS = "8"
"""How long nsys may take to start the program: short enough for the launcher to report it within SELF_TEST_SECONDS."""

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
class Tool:
    """A program of NVIDIA's that may be installed.

    Attributes:
        executable: its path; None if none is usable.
        version: as it prints it; empty if none is usable.
        error: why none is usable.
        remedy: the fix.
        exists: whether one is configured or on PATH, usable or not.
    """

    executable: Path | None
    version: str = ""
    error: str = ""
    remedy: str = ""
    exists: bool = True


@dataclass(frozen=True)
class Nsys:
    """The nsys that `traceable run` uses.

    Attributes:
        tool: where it is.
        features: whether it supports each feature.
        importer: the program that converts its streams to reports; None if not found.
        importer_error: why that does not start; None if it does.
        importer_version: its version; empty if not known.
        no_samples_reason: why it can't sample the CPU here; None where it can.
        hangs_with_samples: whether that is because it may never end with them.
        cupti: the CUDA versions whose CUPTI it contains, ascending; empty if not known.
        supports_cuda_sw: whether it can trace CUDA without the hardware trace (`--trace=cuda-sw`).
    """

    tool: Tool
    features: Mapping[str, bool]
    importer: Path | None = None
    importer_error: str | None = None
    importer_version: str = ""
    no_samples_reason: str | None = None
    hangs_with_samples: bool = False
    cupti: tuple[tuple[int, int], ...] = ()
    supports_cuda_sw: bool = False

    @property
    def usable(self) -> bool:
        """Whether nsys can be run."""
        return self.tool.executable is not None

    @property
    def has_matching_importer(self) -> bool:
        """Whether the importer starts and has the same version, if it prints one."""
        starts = self.importer is not None and self.importer_error is None
        return starts and self.importer_version in ("", self.tool.version)

    @property
    def version_numbers(self) -> tuple[int, ...]:
        """Its version, `(2022, 4, 2)`."""
        return tuple(int(number) for number in re.findall(r"\d+", self.tool.version)[:3])


@dataclass(frozen=True)
class Device:
    """A GPU, as CUDA names it.

    Attributes:
        name: e.g. `NVIDIA H100 80GB HBM3`; that of a slice (MIG) contains `MIG`.
        capability: compute capability, e.g. `(9, 0)`.
    """

    name: str
    capability: tuple[int, int]

    @property
    def is_slice(self) -> bool:
        """Whether it is a slice of a GPU (MIG)."""
        return " MIG " in f"{self.name} "


@dataclass(frozen=True)
class Cuda:
    """What the driver's library reports.

    Attributes:
        error: why it can't be loaded; None where it was.
        result: of cuInit, 0 being success; None where it was not called.
        version: the newest CUDA that it supports.
        devices: the GPUs that this process may use.
    """

    error: str | None
    result: int | None = None
    version: tuple[int, int] | None = None
    devices: tuple[Device, ...] = ()


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


def probe_nsys() -> Nsys:
    """Return the features of the nsys that `traceable run` would use."""
    try:
        install = nsys_install.find_nsys()
    except CollectorError as error:
        exists = bool(os.environ.get(environment.NSYS) or shutil.which("nsys"))
        return Nsys(Tool(None, error=error.problem, remedy=error.remedy, exists=exists), {})
    options = install.options
    features = {
        "windows": options.offers("--capture-range-end", "repeat"),
        "CUDA graphs by node": "--cuda-graph-trace" in options,
        "GPU counters": any(name in options for name in user_options.GPU_METRICS),
        "Python samples": "--python-sampling" in options,
        "Python backtraces": "--python-backtrace" in options,
    }
    importer = nsys_install.find_importer(install)
    return Nsys(
        Tool(install.executable, install.short_version),
        features,
        importer,
        *(_run_importer(importer) if importer is not None else (None, "")),
        install.explain_no_sampling(),
        install.sampling_hang_reason is not None,
        _cupti(install.executable),
        options.offers(user_options.TRACE, "cuda-sw"),
    )


def _run_importer(importer: Path) -> tuple[str | None, str]:
    """Return why it does not start, or None, and its version."""
    try:
        result = tools.run_tool([str(importer), "--version"])
    except CollectorError as error:
        return error.problem, ""
    if result.returncode:
        return tools.quote_last_line(result), ""
    version = re.search(r"\d+\.\d+\.\d+", result.stdout)
    return None, version[0] if version else ""


def describe_unresponsive_nsys(seconds: float) -> Nsys:
    """Return the facts of an nsys that does not respond within some time."""
    path = os.environ.get(environment.NSYS) or shutil.which("nsys") or "nsys"
    return Nsys(Tool(None, error=f"{path} does not respond within {seconds:g} s", remedy="reinstall it"), {})


def probe_ncu() -> Tool:
    """Return the version of the ncu that `traceable ncu` would use."""
    try:
        return Tool(*ncu.find_ncu())
    except TraceableError as error:
        exists = bool(os.environ.get(environment.NCU) or shutil.which("ncu"))
        return Tool(None, error=error.problem, remedy=error.remedy, exists=exists)


def probe_cuda() -> Cuda:
    """Return what the driver's library reports, in a process of its own: cuInit may hang, and takes resources.

    Raises:
        CollectorError: it does not respond, or crashes.
    """
    words = [sys.executable, "-I", "-S", "-c", _CUDA_PROGRAM]
    try:
        result = subprocess.run(words, capture_output=True, stdin=subprocess.DEVNULL, timeout=CUDA_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise CollectorError(
            "cuda_driver_no_answer",
            f"the CUDA driver does not respond within {CUDA_SECONDS:g} s",
            "check `nvidia-smi` and `dmesg`",
        ) from None
    try:
        facts = json.loads(result.stdout)
    except ValueError:
        raise CollectorError(
            "cuda_driver_crashed",
            f"initializing the CUDA driver failed with exit code {result.returncode}",
            "check `nvidia-smi` and `dmesg`",
        ) from None
    devices = tuple(Device(name, (major, minor)) for name, major, minor in facts["devices"])
    version = facts["version"]
    return Cuda(facts["error"], facts["result"], (version[0], version[1]) if version else None, devices)


def _cupti(executable: Path) -> tuple[tuple[int, int], ...]:
    """Return the versions of CUPTI among the libraries that nsys loads into programs."""
    home = executable.resolve().parent
    versions = set()
    for folder in (home, *home.parent.glob("target-linux-*")):
        for entry in folder.glob("libcupti.so.*"):
            match = _CUPTI.fullmatch(entry.name)
            if match:
                versions.add((int(match[1]), int(match[2])))
    return tuple(sorted(versions))


TYPE_CHECKING = False
if TYPE_CHECKING:
    from traceable.trace.model import Trace


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
            process.wait(SELF_TEST_SECONDS)
        except subprocess.TimeoutExpired:
            return SelfTest(collector, Message("capture_timed_out", f"timed out after {SELF_TEST_SECONDS:g} s"))
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
    for process in list_processes():
        if process.pid != os.getpid():
            with contextlib.suppress(*UNREADABLE):
                if any(value.startswith(f"{folder}/") for value in process.environ().values()):
                    yield process.pid
