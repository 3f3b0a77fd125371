"""Facts about this machine that need other programs: nsys, ncu, the CUDA driver, and a self-test with each collector.

Each is run with a time limit of its own. A tool that can't be used is the error with the reason. The checks are in
`doctor.py`.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from traceable.collectors import tools
from traceable.collectors.nsys import install as nsys_install
from traceable.collectors.nsys import user_options
from traceable.collectors.process_list import UNREADABLE, list_processes
from traceable.errors import CollectorError, Message, TraceableError
from traceable.protocol import environment
from traceable.protocol.python_command import parse_python_command

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
"""The variables of traceable that select nsys and the core. The others would change the recording; a check of
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
class Nsys:
    """The nsys that `traceable run` uses.

    Attributes:
        features: whether it supports each feature.
        importer: the program that converts its streams to reports; None if not found.
        importer_error: why that does not start; None if it does.
        importer_version: its version; empty if not known.
        no_samples_reason: why it can't sample the CPU here; None where it can.
        cupti: the CUDA versions whose CUPTI it contains, ascending; empty if not known.
        supports_cuda_sw: whether it can trace CUDA without the hardware trace (`--trace=cuda-sw`).
    """

    install: nsys_install.Install
    features: Mapping[str, bool]
    importer: Path | None = None
    importer_error: str | None = None
    importer_version: str = ""
    no_samples_reason: Message | None = None
    cupti: tuple[tuple[int, int], ...] = ()
    supports_cuda_sw: bool = False

    @property
    def has_matching_importer(self) -> bool:
        """Whether the importer starts and has the same version, if it prints one."""
        starts = self.importer is not None and self.importer_error is None
        return starts and self.importer_version in ("", self.install.short_version)


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
    """The report of the driver's library.

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
        error: why nothing could be read, with the code of the launcher if it reported one; None if it could.
        native_core: whether the program emitted through the native core.
        read: how many of traceable's ranges (`RANGES`) were read back with their payload.
        nvtx_emitted, nvtx_read: the ranges of the `nvtx` package, 0 if it can't be imported, and how many were read.
        imported: nsys left a stream that traceable had to import.
        seconds: how long it took.
    """

    error: Message | None = None
    native_core: bool = True
    read: int = 0
    nvtx_emitted: int = 0
    nvtx_read: int = 0
    imported: bool = False
    seconds: float = 0.0


def probe_nsys() -> Nsys | CollectorError:
    """Return the features of the nsys that `traceable run` would use."""
    try:
        install = nsys_install.find_nsys()
    except CollectorError as error:
        return error
    options = install.options
    importer = nsys_install.find_importer(install)
    return Nsys(
        install,
        {
            "windows": options.has_value("--capture-range-end", "repeat"),
            "CUDA graphs by node": "--cuda-graph-trace" in options,
            "GPU counters": any(name in options for name in user_options.GPU_METRICS),
            "Python samples": "--python-sampling" in options,
            "Python backtraces": "--python-backtrace" in options,
        },
        importer,
        *(_run_importer(importer) if importer is not None else (None, "")),
        install.explain_no_sampling(),
        _list_cupti_versions(install.executable),
        options.has_value(user_options.TRACE, "cuda-sw"),
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


def _list_cupti_versions(executable: Path) -> tuple[tuple[int, int], ...]:
    """Return the versions of CUPTI among the libraries that nsys loads into programs."""
    home = executable.resolve().parent
    folders = (home, *home.parent.glob("target-linux-*"))
    matches = (_CUPTI.fullmatch(entry.name) for folder in folders for entry in folder.glob("libcupti.so.*"))
    return tuple(sorted({(int(match[1]), int(match[2])) for match in matches if match}))


def probe_ncu() -> tuple[Path, str] | CollectorError:
    """Return the ncu that `traceable ncu` would use."""
    try:
        return tools.find_ncu()
    except CollectorError as error:
        return error


def probe_cuda() -> Cuda:
    """Query the driver's library in a process of its own: cuInit may hang, and takes resources.

    Raises:
        CollectorError: it does not respond, or crashes.
    """
    words = [sys.executable, "-I", "-S", "-c", _CUDA_PROGRAM]
    fix = "check `nvidia-smi` and `dmesg`"
    try:
        result = subprocess.run(words, capture_output=True, stdin=subprocess.DEVNULL, timeout=CUDA_SECONDS, check=False)
        facts = json.loads(result.stdout)
    except subprocess.TimeoutExpired:
        message = f"the CUDA driver does not respond within {CUDA_SECONDS:g} s"
        raise CollectorError("cuda_driver_no_answer", message, fix) from None
    except ValueError:
        message = f"initializing the CUDA driver failed with exit code {result.returncode}"
        raise CollectorError("cuda_driver_crashed", message, fix) from None
    devices = tuple(Device(name, (major, minor)) for name, major, minor in facts["devices"])
    version = facts["version"]
    return Cuda(facts["error"], facts["result"], (version[0], version[1]) if version else None, devices)


def run_self_test(collector: str, temporary: Path) -> SelfTest:
    """Record the test program with a collector, read it back, and delete all files.

    Args:
        collector: `nsys` or `recorder`.
        temporary: the user's folder for temporary files.

    Raises:
        CollectorError: that folder is not writable.
    """
    began = time.monotonic()
    try:
        with tempfile.TemporaryDirectory(prefix="traceable-doctor-", dir=temporary, ignore_cleanup_errors=True) as name:
            (Path(name) / "tmp").mkdir()
            return replace(_record(collector, Path(name)), seconds=time.monotonic() - began)
    except OSError as error:
        message = f"can't write to {temporary}: {error.strerror}"
        raise CollectorError("temporary_not_writable", message, "see `temporary`") from None


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
            [sys.executable, *parse_python_command(sys.orig_argv).options, *words],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
            env={**passed, "TMPDIR": str(folder / "tmp"), environment.START_SECONDS: START_SECONDS},
            start_new_session=True,  # Ctrl+C ends this process, which then ends the launcher
        )
        try:
            process.wait(SELF_TEST_SECONDS)
        except subprocess.TimeoutExpired:
            return SelfTest(Message("capture_timed_out", f"timed out after {SELF_TEST_SECONDS:g} s"))
        finally:
            process.kill()
            process.wait()
            _kill_processes_of(folder)
    last_error = _find_last_error((folder / "errors").read_text(errors="replace"), folder)
    try:
        report = json.loads((folder / "output").read_text(errors="replace").strip().rpartition("\n")[2])
        started = SelfTest(native_core=bool(report["core"]), nvtx_emitted=int(report["nvtx"]))
    except (ValueError, KeyError, TypeError):
        return SelfTest(last_error or Message("program_did_not_run", "the program did not run"))
    result = _read_back(started, folder / "run")
    return replace(result, error=last_error or result.error) if result.error else result


def _kill_processes_of(folder: Path) -> None:
    """Kill every process that has our folder in its environment."""
    for process in list_processes():
        with contextlib.suppress(*UNREADABLE):
            if any(value.startswith(f"{folder}/") for value in process.environ().values()):
                process.kill()


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
