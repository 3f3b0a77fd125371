"""The facts that `traceable doctor` has to ask other programs for: nsys, ncu, and the CUDA driver.

Each is asked with a time limit of its own. What the answers mean is said in `doctor_checks.py`.
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

from traceable.collectors import tools
from traceable.collectors.ncu import install as ncu_install
from traceable.collectors.nsys import install as nsys_install
from traceable.collectors.nsys import user_options
from traceable.errors import CollectorError, TraceableError
from traceable.protocol import environment

CUDA_SECONDS = 8.0
"""How long the driver may take to say which GPUs there are. A machine with eight takes about 2 s from cold."""

_CUPTI = re.compile(r"libcupti\.so\.(\d+)\.(\d+)")

_ASK_CUDA = """
import ctypes, json
said = {"error": None, "result": None, "version": None, "devices": []}
try:
    cuda = ctypes.CDLL("libcuda.so.1")
except OSError as error:
    said["error"] = str(error)
else:
    number, count, text = ctypes.c_int(), ctypes.c_int(), ctypes.create_string_buffer(256)
    if cuda.cuDriverGetVersion(ctypes.byref(number)) == 0:
        said["version"] = [number.value // 1000, number.value % 1000 // 10]
    said["result"] = cuda.cuInit(0)
    if said["result"] == 0:
        said["result"] = cuda.cuDeviceGetCount(ctypes.byref(count))
    for index in range(count.value):
        device, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
        cuda.cuDeviceGet(ctypes.byref(device), index)
        cuda.cuDeviceGetName(text, len(text), device)
        cuda.cuDeviceGetAttribute(ctypes.byref(major), 75, device)
        cuda.cuDeviceGetAttribute(ctypes.byref(minor), 76, device)
        said["devices"].append([text.value.decode("utf-8", "replace"), major.value, minor.value])
print(json.dumps(said))
"""
"""75 and 76 are CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR of cuda.h. It makes no context, so it takes no
memory of the GPU's."""


@dataclass(frozen=True)
class Tool:
    """A program of NVIDIA's that was looked for.

    Attributes:
        executable: its path; None where none answers.
        version: what it says; empty where none answers.
        error: why none answers.
        remedy: what to do about that.
        exists: whether one was named or is on PATH, whether it answers or not.
    """

    executable: Path | None
    version: str = ""
    error: str = ""
    remedy: str = ""
    exists: bool = True


@dataclass(frozen=True)
class Nsys:
    """The nsys that `traceable run` takes.

    Attributes:
        tool: where it is.
        features: what can be asked of it, by what it is good for, and whether this one can do it.
        importer: the program that turns its streams into reports; None where it was not found.
        importer_error: why that does not start; None where it does.
        importer_version: its version; empty where it does not say.
        no_samples_reason: why it can't sample the CPU here; None where it can.
        hangs_with_samples: whether that is because it may never end with them.
        cupti: the CUDA versions whose CUPTI it brings, ascending; empty where they are not known.
        supports_cuda_sw: whether it can be told to trace CUDA without the GPU's own help (`--trace=cuda-sw`).
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
        """Whether there is one that answers."""
        return self.tool.executable is not None

    @property
    def has_matching_importer(self) -> bool:
        """Whether the importer starts and is of the same version, as far as it says."""
        there = self.importer is not None and self.importer_error is None
        return there and self.importer_version in ("", self.tool.version)

    @property
    def version_numbers(self) -> tuple[int, ...]:
        """Its version, `(2022, 4, 2)`."""
        return tuple(int(number) for number in re.findall(r"\d+", self.tool.version)[:3])


@dataclass(frozen=True)
class Device:
    """A GPU, as CUDA names it.

    Attributes:
        name: e.g. `NVIDIA H100 80GB HBM3`; a slice of one (MIG) says so in it.
        capability: compute capability, e.g. `(9, 0)`.
    """

    name: str
    capability: tuple[int, int]

    @property
    def is_slice(self) -> bool:
        """Whether it is a part of a GPU (MIG)."""
        return " MIG " in f"{self.name} "


@dataclass(frozen=True)
class Cuda:
    """What the driver's library says.

    Attributes:
        error: why it can't be loaded; None where it was.
        result: of cuInit, 0 being success; None where it was not called.
        version: the newest CUDA that it serves.
        devices: the GPUs that this process may use.
    """

    error: str | None
    result: int | None = None
    version: tuple[int, int] | None = None
    devices: tuple[Device, ...] = ()


def probe_nsys() -> Nsys:
    """Ask the nsys that `traceable run` would take what it can do here."""
    try:
        install = nsys_install.find_nsys()
    except CollectorError as error:
        there = bool(os.environ.get(environment.NSYS) or shutil.which("nsys"))
        return Nsys(Tool(None, error=error.problem, remedy=error.remedy, exists=there), {})
    options = install.options
    offers = {
        "windows": options.offers("--capture-range-end", "repeat"),
        "CUDA graphs by node": "--cuda-graph-trace" in options,
        "GPU counters": any(name in options for name in user_options.GPU_METRICS),
        "Python samples": "--python-sampling" in options,
        "Python backtraces": "--python-backtrace" in options,
    }
    importer = nsys_install.find_importer(install)
    return Nsys(
        Tool(install.executable, install.short_version),
        offers,
        importer,
        *(_started(importer) if importer is not None else (None, "")),
        install.explain_no_sampling(),
        install.sampling_hang_reason is not None,
        _cupti(install.executable),
        options.offers(user_options.TRACE, "cuda-sw"),
    )


def _started(importer: Path) -> tuple[str | None, str]:
    """Return why it does not start, or None, and its version."""
    try:
        answer = tools.run_tool([str(importer), "--version"])
    except CollectorError as error:
        return error.problem, ""
    if answer.returncode:
        return tools.quote_last_line(answer), ""
    found = re.search(r"\d+\.\d+\.\d+", answer.stdout)
    return None, found[0] if found else ""


def describe_unresponsive_nsys(seconds: float) -> Nsys:
    """Return the facts of an nsys that does not answer within some time."""
    named = os.environ.get(environment.NSYS) or shutil.which("nsys") or "nsys"
    return Nsys(Tool(None, error=f"{named} does not answer within {seconds:g} s", remedy="reinstall it"), {})


def probe_ncu() -> Tool:
    """Ask the ncu that `traceable ncu` would take for its version."""
    try:
        install = ncu_install.find_ncu()
    except TraceableError as error:
        there = bool(os.environ.get(environment.NCU) or shutil.which("ncu"))
        return Tool(None, error=error.problem, remedy=error.remedy, exists=there)
    return Tool(install.executable, install.version)


def probe_cuda() -> Cuda:
    """Ask the driver's library, in a process of its own: cuInit may hang, and what it takes is given back with it.

    Raises:
        CollectorError: it does not answer.
    """
    words = [sys.executable, "-I", "-S", "-c", _ASK_CUDA]
    try:
        answer = subprocess.run(words, capture_output=True, stdin=subprocess.DEVNULL, timeout=CUDA_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise CollectorError(
            "cuda_driver_no_answer",
            f"the CUDA driver does not answer within {CUDA_SECONDS:g} s",
            "see whether `nvidia-smi` does, and `dmesg`",
        ) from None
    try:
        said = json.loads(answer.stdout)
    except ValueError:
        raise CollectorError(
            "cuda_driver_crashed",
            f"asking the CUDA driver ended with {answer.returncode}",
            "see whether `nvidia-smi` works, and `dmesg`",
        ) from None
    devices = tuple(Device(name, (major, minor)) for name, major, minor in said["devices"])
    version = said["version"]
    return Cuda(said["error"], said["result"], (version[0], version[1]) if version else None, devices)


def _cupti(executable: Path) -> tuple[tuple[int, int], ...]:
    """Return the versions of CUPTI that lie where nsys keeps what it loads into programs."""
    home = executable.resolve().parent
    found = set()
    for folder in (home, *home.parent.glob("target-linux-*")):
        for entry in folder.glob("libcupti.so.*"):
            match = _CUPTI.fullmatch(entry.name)
            if match:
                found.add((int(match[1]), int(match[2])))
    return tuple(sorted(found))
