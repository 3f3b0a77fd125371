"""The facts for `traceable doctor` that need other programs: nsys, ncu, and the CUDA driver.

Each is run with a time limit of its own. `machine_checks.py` decides what their output means.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from traceable.collectors import ncu, tools
from traceable.collectors.nsys import install as nsys_install
from traceable.collectors.nsys import user_options
from traceable.errors import CollectorError, TraceableError
from traceable.protocol import environment

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
        install = ncu.find_ncu()
    except TraceableError as error:
        exists = bool(os.environ.get(environment.NCU) or shutil.which("ncu"))
        return Tool(None, error=error.problem, remedy=error.remedy, exists=exists)
    return Tool(install.executable, install.version)


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
