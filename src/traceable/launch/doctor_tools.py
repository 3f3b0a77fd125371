"""What `traceable doctor` makes of what records: the recorder, nsys, ncu, the nvtx package, the driver and the GPUs.

Pure functions from facts to what is said of them. What is said of the machine around them is in `doctor_checks.py`.
"""

from __future__ import annotations

from collections import Counter

from traceable import environment
from traceable.errors import Message
from traceable.launch.doctor_canary import Canary
from traceable.launch.doctor_facts import CAP_SYS_ADMIN, Driver, Machine, Packages, Running
from traceable.launch.doctor_findings import Said, note, ok, problem, warning
from traceable.launch.doctor_probes import Cuda, Device, Nsys, Tool
from traceable.launch.doctor_space import Space

INSTALL_NSYS = (
    "run scripts/install-nsys.sh of traceable's repository (Debian, Ubuntu; traceable help install), install "
    f"NVIDIA's package nsight-systems-cli, or name an nsys in {environment.NSYS}"
)

NEEDED_CUPTI = (((12, 0), (12, 8)), ((10, 0), (12, 8)), ((8, 9), (11, 8)), ((8, 6), (11, 1)), ((8, 0), (11, 0)))
"""From which compute capability on which CUPTI is needed: the CUDA toolkit that brought each architecture."""

DROPPED = ((2025, 4), (7, 5))
"""From this nsys on GPUs below this compute capability (Pascal, Volta) are not traced any more (its release notes)."""

_WHOLE = (
    "install the whole package (nsight-systems, not its target part alone; scripts/install-nsys.sh does), or put "
    "QdstrmImporter of the same version on PATH"
)

BLACKWELL = (10, 0)
"""From this compute capability on nsys has the GPU itself trace CUDA; slices of one (MIG) and MPS don't let it."""

_REFUSED = {
    34: (
        Message("libcuda_stub", "the libcuda.so.1 that is found is a stub"),
        "take the folder `stubs` out of LD_LIBRARY_PATH",
    ),
    100: (
        Message("no_cuda_device", "CUDA sees no GPU"),
        "see CUDA_VISIBLE_DEVICES; give a container GPUs (docker run --gpus all)",
    ),
    802: (Message("gpus_not_ready", "the GPUs are not ready"), "start nvidia-fabricmanager on the host"),
    803: (
        Message("driver_mismatch", "libcuda.so.1 and the kernel's driver are of two versions"),
        "reboot, or use the libcuda of the driver",
    ),
    804: (
        Message("cuda_compat_mismatch", "libcuda.so.1 is of a CUDA compat package that does not serve this GPU"),
        "take it out of LD_LIBRARY_PATH",
    ),
}
"""What some results of cuInit mean (CUresult in cuda.h), and what to do."""


def recorder(nsys: Nsys, packages: Packages, canary: Canary | None) -> Said:
    """Judge the embedded recorder by its canary."""
    if canary is None:
        fix = "reinstall traceable with this Python where there is a C compiler"
        if nsys.found:
            return warning("recorder_not_built", "the embedded recorder was not built: `traceable run` needs nsys", fix)
        found = "the embedded recorder was not built, and there is no nsys: nothing can record"
        return problem("no_collector", found, fix)
    again = "see what `traceable run --collector recorder -c pass` says"
    return _sung(canary, "see `packages`" if packages.errors else again)


def nsys(facts: Nsys, driver: Driver) -> Said:
    """Judge the nsys that is found, by what it can do; without a GPU there is nothing that it alone records."""
    tool = facts.tool
    if not facts.found and tool.there:
        return problem("nsys_unusable", f"no nsys can be used: {tool.error}", tool.remedy)
    if not facts.found:
        missing = f"{tool.error}: ranges are recorded by the embedded recorder, GPU work is not"
        if driver.present:
            return warning("nsys_not_installed", missing, INSTALL_NSYS)
        return note("nsys_not_installed", missing, INSTALL_NSYS)
    found = f"nsys {tool.version} at {tool.executable}"
    evidence = {"executable": str(tool.executable), "version": tool.version, "offers": dict(facts.offers)}
    can = [what for what, offered in facts.offers.items() if offered]
    not_ = [what for what, offered in facts.offers.items() if not offered]
    found += f" ({', '.join(can)})" if can else ""
    if "windows" in not_:
        fix = "use a newer nsys, or --collector recorder"
        found += ": it can't record windows (--steps, --control)"
        return warning("nsys_without_windows", found, fix, **evidence)
    return ok("nsys_usable", f"{found}; not: {', '.join(not_)}" if not_ else found, **evidence)


def importer(facts: Nsys) -> Said | None:
    """Judge the program that turns what nsys records into a report."""
    if not facts.found:
        return None
    if facts.importer is None:
        found = "QdstrmImporter was not found: nsys would leave a .qdstrm file, which nothing here can read"
        return problem("importer_missing", found, _WHOLE)
    evidence = {"path": str(facts.importer), "version": facts.importer_version, "error": facts.importer_error}
    if facts.importer_error is not None:
        found = f"{facts.importer} does not start: {facts.importer_error}"
        fix = f"install what it lacks: `ldd {facts.importer}` lists it"
        return problem("importer_fails", found, fix, **evidence)
    if not facts.importer_fits:
        found = f"{facts.importer} is of nsys {facts.importer_version}"
        found += f" and may not read what {facts.tool.version} leaves"
        return warning("importer_version_differs", found, _WHOLE, **evidence)
    return ok("importer_usable", str(facts.importer), **evidence)


def nsys_capture(facts: Nsys, space: Space, packages: Packages, canary: Canary | None) -> Said | None:
    """Judge nsys by its canary."""
    if canary is None:
        return None
    if not facts.importer_fits:
        return _sung(canary, "see `nsys importer`")
    if canary.error is None and not canary.read and not canary.core:
        found = f"none of {canary.emitted} ranges came back: without the native core they go through the nvtx package"
        found += ", of which this nsys hears nothing"
        return problem("nvtx_silent", found, "see `traceable` and `nvtx`", **_evidence(canary))
    # What is the likeliest to keep nsys from recording, and is judged elsewhere.
    wanting = [name for name, is_so in {**space.wanting, "packages": bool(packages.errors)}.items() if is_so]
    fix = f"see `{wanting[0]}`" if wanting else "see what `nsys profile -t nvtx python3 -c pass` says"
    said = _sung(canary, fix)
    if canary.imported and said.state == "ok":
        found = f"{said.found}, but nsys did not find its importer: each report is imported anew with {facts.importer}"
        fix = "run scripts/install-nsys.sh of traceable's repository, which links it to where nsys looks"
        return warning("importer_not_linked", found, fix, **said.evidence)
    return said


def _sung(canary: Canary, fix: str) -> Said:
    evidence = _evidence(canary)
    if canary.error is not None:
        found = f"a capture of {canary.emitted} ranges failed: {canary.error}"
        return problem("capture_failed", found, fix, **evidence, error=canary.error.plain)
    read = f"{canary.read} of {canary.emitted} ranges of a test program"
    if canary.read != canary.emitted:
        return problem("ranges_missing", f"only {read} were read back", fix, **evidence)
    found = f"{read} were recorded and read back, in {canary.seconds:.1f} s"
    return ok("capture_complete", found, **evidence)


def _evidence(canary: Canary) -> dict[str, object]:
    return {
        "emitted": canary.emitted,
        "read": canary.read,
        "native_core": canary.core,
        "imported": canary.imported,
        "seconds": round(canary.seconds, 3),
    }


def nvtx(version: str | None, recorded: Canary | None, captured: Canary | None, cuda: Cuda) -> Said:
    """Judge the nvtx package by what came back of its ranges: it is other people's annotations that go through it.

    Where there is no GPU nothing has to be recorded by nsys.
    """
    if version is None:
        fix = "type `python -m pip install nvtx`"
        return warning("nvtx_not_installed", "the nvtx package is not installed", fix)
    heard = {
        name: (canary.nvtx_read, canary.nvtx_emitted)
        for name, canary in (("nsys", captured), ("the recorder", recorded))
        if canary is not None and canary.error is None and canary.nvtx_emitted
    }
    found = f"nvtx {version}"
    if heard:
        counts = " and ".join(f"{read} of {emitted} ranges by {name}" for name, (read, emitted) in heard.items())
        found += f", recorded: {counts}"
    evidence = {"version": version, "read": {name: read for name, (read, _) in heard.items()}}
    read, emitted = heard.get("nsys", (0, 0))
    if read < emitted:
        # Measured: 0.2.12 and later are silent under 2022.4 and 2023.4, 0.2.11 is not.
        fix = "annotate with `import traceable as nvtx`, or use a newer nsys; traceable's own ranges are not concerned"
        if cuda.devices:
            return warning("nvtx_silent", found, fix, **evidence)
        return note("nvtx_silent", found, fix, **evidence)
    return ok("nvtx_usable", found, **evidence)


def ncu(tool: Tool, driver: Driver) -> Said:
    """Judge Nsight Compute, of which only `traceable ncu` makes use."""
    if tool.executable is not None:
        evidence = {"executable": str(tool.executable), "version": tool.version}
        return ok("ncu_usable", f"ncu {tool.version} at {tool.executable}", **evidence)
    if tool.there:
        return problem("ncu_unusable", f"no ncu can be used: {tool.error}", tool.remedy)
    if driver.present:
        fix = f"install NVIDIA's package nsight-compute, or name an ncu in {environment.NCU}"
        return note("ncu_not_installed", f"{tool.error}: `traceable ncu` can't measure kernels", fix)
    return ok("ncu_not_installed", f"{tool.error}; there is no GPU whose kernels it could measure")


def cuda_driver(driver: Driver, machine: Machine, cuda: Cuda) -> Said:
    """Judge NVIDIA's driver and its library."""
    version = ".".join(map(str, cuda.version)) if cuda.version else None
    evidence = {"version": driver.version, "cuda": version, "cuInit": cuda.result, "error": cuda.error}
    if not driver.present:
        return ok("no_gpu", "no NVIDIA GPU here: there is no GPU work to record", **evidence)
    name = f"driver {driver.version}" if driver.version else "a GPU's device files"
    if cuda.error is not None:
        fix = "install the driver's libcuda1"
        if machine.container:
            fix = "start the container with --gpus all and NVIDIA_DRIVER_CAPABILITIES=all"
        found = f"{name}, but CUDA can't be used: {cuda.error}"
        return warning("libcuda_not_loadable", found, fix, **evidence)
    if cuda.result:
        other = Message("cuda_init_failed", f"cuInit says {cuda.result}"), "see `nvidia-smi` and `dmesg`"
        what, fix = _REFUSED.get(cuda.result, other)
        return warning(what.code, f"{name}, but {what}", fix, **evidence)
    return ok("cuda_driver_usable", f"{name}, CUDA {version}", **evidence)


def gpus(cuda: Cuda, facts: Nsys, running: Running) -> Said | None:
    """Judge the GPUs by what this nsys knows of them."""
    if not cuda.devices:
        return None
    counts = Counter(f"{one.name} ({_dotted(one.capability)})" for one in cuda.devices)
    found = ", ".join(f"{count} x {name}" for name, count in counts.items())
    evidence = {
        "devices": [{"name": one.name, "compute_capability": _dotted(one.capability)} for one in cuda.devices],
        "mps": running.mps,
        "cupti": [_dotted(one) for one in facts.cupti],
    }
    unknown = next(filter(None, (_unknown(one, facts) for one in cuda.devices)), None)
    if unknown:
        found += f"; {unknown}: its kernels may not be recorded"
        return warning(unknown.code, found, "use another nsys", **evidence)
    shared = "MPS" if running.mps else "MIG" if any(one.is_slice for one in cuda.devices) else None
    if shared and facts.cuda_by_software and max(one.capability for one in cuda.devices) >= BLACKWELL:
        fix = "run with --nsys-args='--trace=cuda-sw,nvtx'"
        found += f", under {shared}: nsys can't have the GPU itself trace CUDA"
        return warning("hardware_trace_unavailable", found, fix, **evidence)
    return ok("gpus_supported", f"{found}, under {shared}" if shared else found, **evidence)


def gpu_counters(driver: Driver, machine: Machine, cuda: Cuda) -> Said | None:
    """Judge whether this user may read the GPU's counters, which ncu and `--trace-preset full` do."""
    if not cuda.devices:
        return None
    evidence = {"RmProfilingAdminOnly": driver.admin_only}
    if driver.admin_only and not machine.can(CAP_SYS_ADMIN):
        found = "the GPU's counters are for administrators (RmProfilingAdminOnly 1): ncu, and `--trace-preset full`"
        found += " in part, are refused"
        fix = "load the driver with NVreg_RestrictProfilingToAdminUsers=0, or run with CAP_SYS_ADMIN"
        fix += " (docker run --cap-add SYS_ADMIN)"
        return note("counters_not_permitted", found, fix, **evidence)
    return ok("counters_permitted", "the GPU's counters may be read", **evidence)


def _unknown(device: Device, facts: Nsys) -> Message | None:
    """Return why nsys does not know a GPU, or None where nothing speaks against it."""
    name = f"nsys {facts.tool.version}"
    needed = next((cupti for capability, cupti in NEEDED_CUPTI if device.capability >= capability), None)
    if needed and facts.cupti and facts.cupti[-1] < needed:
        found = f"{name} brings CUPTI {_dotted(facts.cupti[-1])} at most, and this GPU needs {_dotted(needed)}"
        return Message("cupti_too_old", found)
    since, least = DROPPED
    if facts.numbers and facts.numbers >= since and device.capability < least:
        return Message("gpu_too_old", f"{name} does not trace GPUs below {_dotted(least)} any more")
    return None


def _dotted(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))
