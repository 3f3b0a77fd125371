"""The facts for `traceable doctor` that are cheap to read: from the interpreter, /proc and files of this machine.

No process is started and nothing is written. `probes.py` and `self_test.py` start processes; `machine_checks.py`
decides what a fact means. Where a function takes `root`, that folder replaces `/`.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.machinery
import importlib.util
import os
import platform
import re
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import traceable
from traceable import _native
from traceable.collectors import gpu_device
from traceable.launch.provenance import get_package_version
from traceable.protocol import environment

ROOT = Path("/")
_RECORDER = "_recorder"
EXTENSIONS = ("_core", _RECORDER, "_pages", "_hide_proc_environ")
"""The C extensions."""

PACKAGES = ("numpy", "rich", "wrapt") if sys.version_info >= (3, 11) else ("numpy", "rich", "wrapt", "tomli")
"""The packages that traceable needs, except nvtx, which has a check of its own."""

CAP_SYS_ADMIN, CAP_PERFMON = 21, 38
"""Bits of CapEff (linux/capability.h)."""

FLAGS = {"isolated": "-I", "ignore_environment": "-E", "no_site": "-S"}
"""Options of the interpreter that keep `sitecustomize`, and with it annotations from outside, out of a program."""

PROFILERS = re.compile(
    r"nsys(-launcher|-ui)?|ncu(-ui)?|nv-nsight-cu(-cli)?|nv-hostengine|dcgm-exporter|dcgmproftester\d*|dynolog"
    r"|nvprof|cuda-gdb|compute-sanitiz"
)
"""Names of processes that profile GPUs, or use what profilers need, in the 15 characters that Linux stores."""

MPS = "nvidia-cuda-mps"

_CGROUPS = {"kubepods": "Kubernetes", "docker": "Docker", "libpod": "Podman", "containerd": "containerd", "lxc": "LXC"}


@dataclass(frozen=True)
class Python:
    """The interpreter that programs will be run with.

    Attributes:
        version: e.g. `(3, 11, 2)`.
        implementation: `CPython`.
        executable: its path.
        free_threaded: built without the global lock.
        flags: those of `FLAGS` it was started with; `traceable run` passes them to the program.
    """

    version: tuple[int, int, int]
    implementation: str
    executable: str
    free_threaded: bool
    flags: tuple[str, ...]


@dataclass(frozen=True)
class Extensions:
    """The C extensions of traceable.

    Attributes:
        version: traceable's.
        missing: names of `EXTENSIONS` that were not built for this interpreter.
        foreign: those of them that were built for another one.
        pure: TRACEABLE_PURE disables the native core.
        broken: names of those that exist and can't be loaded, each with the reason.
    """

    version: str
    missing: tuple[str, ...]
    foreign: tuple[str, ...]
    pure: bool
    broken: tuple[tuple[str, str], ...] = ()

    @property
    def has_recorder(self) -> bool:
        """Whether there is an embedded recorder."""
        return _RECORDER not in (*self.missing, *dict(self.broken))


@dataclass(frozen=True)
class Packages:
    """The packages that traceable needs.

    Attributes:
        versions: of each that can be imported; None if not known.
        errors: why the others can't.
    """

    versions: Mapping[str, str | None]
    errors: Mapping[str, str]


@dataclass(frozen=True)
class Machine:
    """The system.

    Attributes:
        system: `Linux`.
        kernel: its release.
        wsl: it runs under Windows.
        container: which kind of container this is; None for none.
        capabilities: CapEff of this process; None where that is not known.
        perf_event_paranoid: kernel.perf_event_paranoid; None where the kernel has no perf events.
    """

    system: str
    kernel: str
    wsl: bool
    container: str | None
    capabilities: int | None
    perf_event_paranoid: int | None

    def has_capability(self, capability: int) -> bool:
        """Whether this process has a capability, as far as is known."""
        return self.capabilities is not None and bool(self.capabilities >> capability & 1)


@dataclass(frozen=True)
class Torch:
    """The installed torch, according to its own files.

    Attributes:
        version: e.g. `2.13.0+cpu`; None where there is none.
        cuda: the CUDA version that it was built for; None for none.
        hip: the same of ROCm.
    """

    version: str | None
    cuda: str | None = None
    hip: str | None = None


@dataclass(frozen=True)
class Driver:
    """What the system reports about NVIDIA's driver.

    Attributes:
        version: of the kernel's module; None where it is not loaded.
        devices: whether there are device files of GPUs.
        admin_only: whether GPU counters are for administrators (RmProfilingAdminOnly); None if not known.
    """

    version: str | None
    devices: bool
    admin_only: bool | None

    @property
    def present(self) -> bool:
        """Whether there is anything of a GPU."""
        return self.version is not None or self.devices


@dataclass(frozen=True)
class Variables:
    """The environment.

    Attributes:
        environ: all of it.
        disabled: TRACEABLE_DISABLE is set.
        injection_exists: the file named by NVTX_INJECTION64_PATH exists.
    """

    environ: Mapping[str, str]
    disabled: bool = False
    injection_exists: bool = False


@dataclass(frozen=True)
class RunningProfilers:
    """Processes that may interfere, including those of other users where /proc shows them.

    Attributes:
        profilers: pid and name of each whose name is one of `PROFILERS`.
        mps: whether CUDA's multi-process service runs.
    """

    profilers: tuple[tuple[int, str], ...]
    mps: bool


def inspect_python() -> Python:
    """Return the facts of this interpreter."""
    return Python(
        sys.version_info[:3],
        platform.python_implementation(),
        sys.executable,
        bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
        tuple(flag for name, flag in FLAGS.items() if getattr(sys.flags, name)),
    )


def inspect_extensions(folder: Path | None = None) -> Extensions:
    """Return which C extensions are in `folder`, by default that of the traceable in use."""
    folder = Path(_native.__file__).parent if folder is None else folder
    candidates = [
        (name, folder / f"{name}{suffix}") for name in EXTENSIONS for suffix in importlib.machinery.EXTENSION_SUFFIXES
    ]
    built = {name: path for name, path in reversed(candidates) if path.is_file()}
    missing = tuple(name for name in EXTENSIONS if name not in built)
    foreign = tuple(name for name in missing if any(folder.glob(f"{name}.*.so")))
    broken = tuple((name, why) for name in EXTENSIONS if name in built and (why := _find_load_error(built[name])))
    return Extensions(
        get_package_version("traceable") or _describe_source(),
        missing,
        foreign,
        environment.read_flag(environment.PURE),
        broken,
    )


def _find_load_error(library: Path) -> str | None:
    """Return why the loader rejects a library, e.g. one built for a newer libc; None if it loads."""
    try:
        ctypes.CDLL(str(library))
    except OSError as error:
        return str(error).removeprefix(f"{library}: ")
    return None


def inspect_packages() -> Packages:
    """Import the packages that traceable needs, and return which of them fail."""
    versions: dict[str, str | None] = {}
    errors: dict[str, str] = {}
    for name in PACKAGES:
        try:
            importlib.import_module(name)
        except Exception as error:  # noqa: BLE001, PERF203 - a broken package may raise anything
            # numpy raises a long text, with the actual error as its cause.
            lines = str(error.__cause__ or error).splitlines()
            errors[name] = next((line for line in lines if line.strip()), type(error).__name__)
        else:
            versions[name] = get_package_version(name)
    return Packages(versions, errors)


def inspect_machine(root: Path = ROOT) -> Machine:
    """Return the facts of the system below `root`."""
    kernel_version = _read(root / "proc/version") or ""
    capabilities = re.search(r"^CapEff:\s*([0-9a-f]+)", _read(root / "proc/self/status") or "", re.MULTILINE)
    return Machine(
        platform.system(),
        platform.release(),
        "microsoft" in kernel_version.lower() or (root / "dev/dxg").exists(),
        _container(root, os.environ),
        int(capabilities[1], 16) if capabilities else None,
        _number(_read(root / "proc/sys/kernel/perf_event_paranoid")),
    )


def inspect_torch() -> Torch:
    """Return which torch is installed, without importing it: that takes seconds, and may fail."""
    try:
        spec = importlib.util.find_spec("torch")
    except (ImportError, ValueError):
        spec = None
    if spec is None or spec.origin is None:
        return Torch(get_package_version("torch"))
    content = _read(Path(spec.origin).parent / "version.py") or ""
    values = dict(re.findall(r"^(__version__|cuda|hip)\b[^=\n]*=\s*['\"]([^'\"]*)['\"]", content, re.MULTILINE))
    return Torch(values.get("__version__") or get_package_version("torch"), values.get("cuda"), values.get("hip"))


def inspect_driver(root: Path = ROOT) -> Driver:
    """Return what the system below `root` reports about NVIDIA's driver."""
    module = re.search(r"^NVRM version:.*?\s(\d+\.\d[\d.]*)\s", _read(root / "proc/driver/nvidia/version") or "")
    admin_only = re.search(r"RmProfilingAdminOnly:\s*(\d+)", _read(root / "proc/driver/nvidia/params") or "")
    devices = bool(gpu_device.list_device_files(root))
    return Driver(module[1] if module else None, devices, admin_only[1] != "0" if admin_only else None)


def find_running_profilers(root: Path = ROOT) -> RunningProfilers:
    """Return which processes below `root` profile, except this one and its parent."""
    names = {}
    for entry in root.glob("proc/[0-9]*"):
        name = (_read(entry / "comm") or "").strip()
        if name and int(entry.name) not in (os.getpid(), os.getppid()):
            names[int(entry.name)] = name
    profilers = sorted((pid, name) for pid, name in names.items() if PROFILERS.fullmatch(name))
    return RunningProfilers(tuple(profilers), MPS in names.values())


def inspect_environment() -> Variables:
    """Return the environment of this process."""
    injection_exists = os.access(os.environ.get(environment.NVTX_INJECTION, ""), os.F_OK)
    return Variables(dict(os.environ), environment.read_flag(environment.DISABLE), injection_exists)


def _container(root: Path, variables: Mapping[str, str]) -> str | None:
    if variables.get("KUBERNETES_SERVICE_HOST"):
        return "Kubernetes"
    if (root / "run/.containerenv").exists():
        return "Podman"
    groups = (_read(root / "proc/self/cgroup") or "") + (_read(root / "proc/1/cgroup") or "")
    for word, name in _CGROUPS.items():
        if word in groups:
            return name
    if (root / ".dockerenv").exists():
        return "Docker"
    return variables.get("container") or None


def _describe_source() -> str:
    return f"of {Path(traceable.__file__).parent}"


def _number(text: str | None) -> int | None:
    try:
        return int(text or "")
    except ValueError:
        return None


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
