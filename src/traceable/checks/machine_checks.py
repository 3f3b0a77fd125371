"""What `traceable doctor` makes of its facts: of the machine, of what records on it, and of who else profiles there.

Pure functions from facts to what is said of them; the names and the order in which they are asked are in `doctor.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from traceable.analysis.units import format_bytes
from traceable.checks.disk_space import OUTPUT_BYTES, SHARED_BYTES, SPACE_BYTES, TEMPORARY_BYTES, Folder, Space
from traceable.checks.machine_facts import (
    CAP_PERFMON,
    CAP_SYS_ADMIN,
    Driver,
    Extensions,
    Machine,
    Packages,
    Python,
    RunningProfilers,
    Torch,
    Variables,
)
from traceable.checks.machine_findings import CheckResult, note, ok, problem, warning
from traceable.checks.probes import Cuda, Device, Nsys, Tool
from traceable.checks.self_test import SelfTest
from traceable.errors import Message
from traceable.protocol import environment

TESTED_PYTHONS = ((3, 10), (3, 13))
"""The oldest and the newest Python that the tests run under."""

_PART = {
    "_core": "annotations go through the nvtx package and cost several times more",
    "_recorder": "there is no embedded recorder",
    "_pages": "reports are read through sqlite3, which takes about ten times as long",
    "_hide_proc_environ": "nsys stores the environment of every process in its reports",
}

_REINSTALL = "reinstall traceable with this Python where there is a C compiler"

INSTALL_NSYS = (
    "run scripts/install-nsys.sh of traceable's repository (Debian, Ubuntu; traceable help install), install "
    f"NVIDIA's package nsight-systems-cli, or name an nsys in {environment.NSYS}"
)

_WHOLE = (
    "install the whole package (nsight-systems, not its target part alone; scripts/install-nsys.sh does), or put "
    "QdstrmImporter of the same version on PATH"
)

NEEDED_CUPTI = (((12, 0), (12, 8)), ((10, 0), (12, 8)), ((8, 9), (11, 8)), ((8, 6), (11, 1)), ((8, 0), (11, 0)))
"""From which compute capability on which CUPTI is needed: the CUDA toolkit that brought each architecture."""

DROPPED_GPUS = ((2025, 4), (7, 5))
"""From this nsys on GPUs below this compute capability (Pascal, Volta) are not traced any more (its release notes)."""

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

_INSIDE = ("NSYS_PROFILING_SESSION_ID", "QUADD_INJECTION_PROXY")
"""nsys sets them in the programs that it profiles."""

_DAEMONS = ("KINETO_USE_DAEMON", "KINETO_CONFIG")

_SET_BY_LAUNCHER = (environment.RUN_DIR, environment.COLLECTOR)


def check_python(facts: Python) -> CheckResult:
    """Judge the interpreter."""
    version = ".".join(map(str, facts.version))
    found = f"{facts.implementation} {version} at {facts.executable}"
    evidence = {
        "version": version,
        "implementation": facts.implementation,
        "executable": facts.executable,
        "free_threaded": facts.free_threaded,
        "flags": list(facts.flags),
    }
    oldest, newest = TESTED_PYTHONS
    if facts.implementation != "CPython" or not oldest <= facts.version[:2] <= newest:
        tested = f"CPython {'.'.join(map(str, oldest))} to {'.'.join(map(str, newest))}"
        return warning("python_untested", f"{found}: not tested", f"use {tested}", **evidence)
    if facts.free_threaded:
        fix = "use a build with the global lock"
        return warning("python_free_threaded", f"{found}, free-threaded: not tested", fix, **evidence)
    if facts.flags:
        found = f"{found} with {' '.join(facts.flags)}"
        lost = "nothing can be annotated or recorded by torch.profiler from outside"
        return warning("python_isolated", f"{found}: {lost}", "leave the flag out", **evidence)
    return ok("python_supported", found, **evidence)


def check_extensions(facts: Extensions) -> CheckResult:
    """Judge traceable's own C extensions. Whether anything is left to record with is judged by `check_recorder`."""
    missing, broken = list(facts.missing), dict(facts.broken)
    evidence = {"version": facts.version, "missing": missing, "broken": broken, "pure": facts.pure}
    if broken:
        found = "; ".join(f"{name} can't be loaded ({why}): {_PART[name]}" for name, why in broken.items())
        return warning("extension_not_loadable", f"traceable {facts.version}: {found}", _REINSTALL, **evidence)
    if facts.missing:
        lost = "; ".join(f"{name}: {_PART[name]}" for name in facts.missing)
        some = f"traceable {facts.version}, of whose C extensions some"
        if facts.foreign:
            found = f"{some} were built for another Python ({lost})"
            return warning("extension_of_another_python", found, _REINSTALL, **evidence)
        return warning("extension_not_built", f"{some} were not built ({lost})", _REINSTALL, **evidence)
    if facts.pure:
        found = f"traceable {facts.version} with {environment.PURE}=1: {_PART['_core']}"
        return warning("native_core_off", found, f"unset {environment.PURE}", **evidence)
    return ok("extensions_usable", f"traceable {facts.version} with all of its C extensions", **evidence)


def check_packages(facts: Packages) -> CheckResult:
    """Judge the packages that traceable needs: without numpy no recording can be read."""
    evidence = {"versions": dict(facts.versions), "errors": dict(facts.errors)}
    if facts.errors:
        found = "; ".join(f"{name} can't be imported: {error}" for name, error in facts.errors.items())
        fix = f"type `python -m pip install --force-reinstall {' '.join(facts.errors)}`"
        return problem("package_not_importable", found, fix, **evidence)
    found = ", ".join(f"{name} {version or ''}".strip() for name, version in facts.versions.items())
    return ok("packages_importable", found, **evidence)


def check_nvtx(version: str | None, recorded: SelfTest | None, captured: SelfTest | None, cuda: Cuda) -> CheckResult:
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
    evidence = {"version": version, "recorded": {name: read for name, (read, _) in heard.items()}}
    read, emitted = heard.get("nsys", (0, 0))
    if read < emitted:
        # Measured: 0.2.12 and later are silent under 2022.4 and 2023.4, 0.2.11 is not.
        fix = "annotate with `import traceable as nvtx`, or use a newer nsys; traceable's own ranges are not concerned"
        if cuda.devices:
            return warning("nvtx_silent", found, fix, **evidence)
        return note("nvtx_silent", found, fix, **evidence)
    return ok("nvtx_usable", found, **evidence)


def check_recorder(nsys: Nsys, packages: Packages, canary: SelfTest | None) -> CheckResult:
    """Judge the embedded recorder by its canary."""
    if canary is None:
        fix = "reinstall traceable with this Python where there is a C compiler"
        if nsys.usable:
            return warning("recorder_not_built", "the embedded recorder was not built: `traceable run` needs nsys", fix)
        found = "the embedded recorder was not built, and there is no nsys: nothing can record"
        return problem("no_collector", found, fix)
    again = "see what `traceable run --collector recorder -c pass` says"
    return _sung(canary, "see `check_packages`" if packages.errors else again)


def check_nsys(facts: Nsys, driver: Driver) -> CheckResult:
    """Judge the nsys that is found, by what it can do; without a GPU there is nothing that it alone records."""
    tool = facts.tool
    if not facts.usable and tool.exists:
        return problem("nsys_unusable", f"no nsys can be used: {tool.error}", tool.remedy)
    if not facts.usable:
        missing = f"{tool.error}: ranges are recorded by the embedded recorder, GPU work is not"
        if driver.present:
            return warning("nsys_not_installed", missing, INSTALL_NSYS)
        return note("nsys_not_installed", missing, INSTALL_NSYS)
    found = f"nsys {tool.version} at {tool.executable}"
    evidence = {"executable": str(tool.executable), "version": tool.version, "features": dict(facts.features)}
    can = [what for what, offered in facts.features.items() if offered]
    not_ = [what for what, offered in facts.features.items() if not offered]
    found += f" ({', '.join(can)})" if can else ""
    if "windows" in not_:
        fix = "use a newer nsys, or --collector recorder"
        found += ": it can't record windows (--steps, --control)"
        return warning("nsys_without_windows", found, fix, **evidence)
    return ok("nsys_usable", f"{found}; not: {', '.join(not_)}" if not_ else found, **evidence)


def check_importer(facts: Nsys) -> CheckResult | None:
    """Judge the program that turns what nsys records into a report."""
    if not facts.usable:
        return None
    if facts.importer is None:
        found = "QdstrmImporter was not found: nsys would leave a .qdstrm file, which nothing here can read"
        return problem("importer_missing", found, _WHOLE)
    evidence = {"path": str(facts.importer), "version": facts.importer_version, "error": facts.importer_error}
    if facts.importer_error is not None:
        found = f"{facts.importer} does not start: {facts.importer_error}"
        fix = f"install what it lacks: `ldd {facts.importer}` lists it"
        return problem("importer_fails", found, fix, **evidence)
    if not facts.has_matching_importer:
        found = f"{facts.importer} is of nsys {facts.importer_version}"
        found += f" and may not read what {facts.tool.version} leaves"
        return warning("importer_version_differs", found, _WHOLE, **evidence)
    return ok("importer_usable", str(facts.importer), **evidence)


def check_nsys_capture(facts: Nsys, space: Space, packages: Packages, canary: SelfTest | None) -> CheckResult | None:
    """Judge nsys by its canary."""
    if canary is None:
        return None
    if not facts.has_matching_importer:
        return _sung(canary, "see `nsys importer`")
    if canary.error is None and not canary.read and not canary.native_core:
        found = f"none of {canary.emitted} ranges came back: without the native core they go through the nvtx package"
        found += ", of which this nsys hears nothing"
        return problem("nvtx_silent", found, "see `traceable` and `check_nvtx`", **_evidence(canary))
    # What is the likeliest to keep nsys from recording, and is judged elsewhere.
    wanting = [name for name, is_so in {**space.shortages, "packages": bool(packages.errors)}.items() if is_so]
    fix = f"see `{wanting[0]}`" if wanting else "see what `nsys profile -t nvtx python3 -c pass` says"
    said = _sung(canary, fix)
    if canary.imported and said.state == "ok":
        found = (
            f"{said.message}, but nsys did not find its importer: each report is imported anew with {facts.importer}"
        )
        fix = "run scripts/install-nsys.sh of traceable's repository, which links it to where nsys looks"
        return warning("importer_not_linked", found, fix, **said.evidence)
    return said


def _sung(canary: SelfTest, fix: str) -> CheckResult:
    evidence = _evidence(canary)
    if canary.error is not None:
        found = f"a capture of {canary.emitted} ranges failed: {canary.error}"
        return problem("capture_failed", found, fix, **evidence, error=canary.error.as_dict)
    read = f"{canary.read} of {canary.emitted} ranges of a test program"
    if canary.read != canary.emitted:
        return problem("ranges_missing", f"only {read} were read back", fix, **evidence)
    found = f"{read} were recorded and read back, in {canary.seconds:.1f} s"
    return ok("capture_complete", found, **evidence)


def _evidence(canary: SelfTest) -> dict[str, object]:
    return {
        "emitted": canary.emitted,
        "recorded": canary.read,
        "native_core": canary.native_core,
        "imported": canary.imported,
        "seconds": round(canary.seconds, 3),
    }


def check_ncu(tool: Tool, driver: Driver) -> CheckResult:
    """Judge Nsight Compute, of which only `traceable ncu` makes use."""
    if tool.executable is not None:
        evidence = {"executable": str(tool.executable), "version": tool.version}
        return ok("ncu_usable", f"ncu {tool.version} at {tool.executable}", **evidence)
    if tool.exists:
        return problem("ncu_unusable", f"no ncu can be used: {tool.error}", tool.remedy)
    if driver.present:
        fix = f"install NVIDIA's package nsight-compute, or name an ncu in {environment.NCU}"
        return note("ncu_not_installed", f"{tool.error}: `traceable ncu` can't measure kernels", fix)
    return ok("ncu_not_installed", f"{tool.error}; there is no GPU whose kernels it could measure")


def check_cuda_driver(driver: Driver, machine: Machine, cuda: Cuda) -> CheckResult:
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


def check_gpus(cuda: Cuda, facts: Nsys, running: RunningProfilers) -> CheckResult | None:
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
    if shared and facts.supports_cuda_sw and max(one.capability for one in cuda.devices) >= BLACKWELL:
        fix = "run with --nsys-args='--trace=cuda-sw,nvtx'"
        found += f", under {shared}: nsys can't have the GPU itself trace CUDA"
        return warning("hardware_trace_unavailable", found, fix, **evidence)
    return ok("gpus_supported", f"{found}, under {shared}" if shared else found, **evidence)


def _unknown(device: Device, facts: Nsys) -> Message | None:
    """Return why nsys does not know a GPU, or None where nothing speaks against it."""
    name = f"nsys {facts.tool.version}"
    needed = next((cupti for capability, cupti in NEEDED_CUPTI if device.capability >= capability), None)
    if needed and facts.cupti and facts.cupti[-1] < needed:
        found = f"{name} brings CUPTI {_dotted(facts.cupti[-1])} at most, and this GPU needs {_dotted(needed)}"
        return Message("cupti_too_old", found)
    since, least = DROPPED_GPUS
    if facts.version_numbers and facts.version_numbers >= since and device.capability < least:
        return Message("gpu_too_old", f"{name} does not trace GPUs below {_dotted(least)} any more")
    return None


def _dotted(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))


def check_gpu_counters(driver: Driver, machine: Machine, cuda: Cuda) -> CheckResult | None:
    """Judge whether this user may read the GPU's counters, which ncu and `--trace-preset full` do."""
    if not cuda.devices:
        return None
    evidence = {"RmProfilingAdminOnly": driver.admin_only}
    if driver.admin_only and not machine.has_capability(CAP_SYS_ADMIN):
        found = "the GPU's counters are for administrators (RmProfilingAdminOnly 1): ncu, and `--trace-preset full`"
        found += " in part, are refused"
        fix = "load the driver with NVreg_RestrictProfilingToAdminUsers=0, or run with CAP_SYS_ADMIN"
        fix += " (docker run --cap-add SYS_ADMIN)"
        return note("counters_not_permitted", found, fix, **evidence)
    return ok("counters_permitted", "the GPU's counters may be read", **evidence)


def check_cpu_samples(machine: Machine, nsys: Nsys) -> CheckResult:
    """Judge whether the CPU can be sampled, of which `--trace-preset python` and `full` make use."""
    level = (
        "no perf events"
        if machine.perf_event_paranoid is None
        else f"perf_event_paranoid {machine.perf_event_paranoid}"
    )
    evidence = {"perf_event_paranoid": machine.perf_event_paranoid, "nsys": nsys.no_samples_reason}
    if not nsys.usable:
        return ok("samples_need_nsys", f"{level}; only nsys takes samples", **evidence)
    if nsys.no_samples_reason is None:
        return ok("samples_permitted", f"{level}; nsys may sample the CPU", **evidence)
    found = (
        f"{level}; no samples of the CPU, which only `--trace-preset python` and `full` take: {nsys.no_samples_reason}"
    )
    if nsys.hangs_with_samples:
        return note("samples_hang_nsys", found, "use nsys 2023 or newer, where you need them", **evidence)
    if machine.perf_event_paranoid is None:
        fix = "use a kernel or a sandbox with perf events, where you need them"
        return note("no_perf_events", found, fix, **evidence)
    if machine.perf_event_paranoid > 2 and not (
        machine.has_capability(CAP_SYS_ADMIN) or machine.has_capability(CAP_PERFMON)
    ):
        fix = "type `sysctl kernel.perf_event_paranoid=2` as root on the host"
        fix += ", or start the container with --cap-add PERFMON"
        return note("perf_event_paranoid", found, fix, **evidence)
    fix = "see `nsys status --environment`; a container's seccomp profile may refuse it"
    return note("samples_not_permitted", found, fix, **evidence)


def check_system(facts: Machine) -> CheckResult:
    """Judge the operating system, and say whether this is a container."""
    admin = "with" if facts.has_capability(CAP_SYS_ADMIN) else "without"
    inside = f", in a container ({facts.container}) {admin} CAP_SYS_ADMIN" if facts.container else ""
    found = f"{facts.system} {facts.kernel}{inside}"
    evidence = {
        "kernel": facts.kernel,
        "wsl": facts.wsl,
        "container": facts.container,
        "capabilities": None if facts.capabilities is None else f"{facts.capabilities:#x}",
    }
    if facts.system != "Linux":
        return problem("not_linux", found, "use Linux: nothing is recorded elsewhere", **evidence)
    if facts.wsl:
        return warning(
            "inside_wsl",
            f"{found}, under Windows (WSL): nsys has no samples of the CPU and no GPU counters here",
            "record those on a Linux of its own",
            **evidence,
        )
    return ok("linux", found, **evidence)


def check_temporary_folder(space: Space, nsys: Nsys) -> CheckResult:
    """Judge the folder in which nsys keeps what it records until the program ends."""
    place = space.temporary
    by = f" ({space.temporary_variable})" if space.temporary_variable else ""
    found, evidence = f"{place.path}{by}, {place.free_text}", _of(place)
    fix = "set TMPDIR to a folder that is there, can be written, has space and is not mounted noexec"
    unusable = place.find_problem(TEMPORARY_BYTES)
    if space.fallback and nsys.usable:
        noexec = Message("folder_noexec", "is mounted noexec") if place.noexec else None
        why = unusable or noexec or Message("low_space", f"has {place.free_text}")
        return warning(why.code, f"{place.path}{by} {why}: nsys gets {space.fallback}", fix, **evidence)
    if unusable and nsys.usable:
        return problem(unusable.code, f"{place.path}{by} {unusable}: nsys does not start", fix, **evidence)
    if unusable:
        return warning(unusable.code, f"{place.path}{by} {unusable}", fix, **evidence)
    if place.noexec and nsys.usable:
        found += ", mounted noexec: not every nsys can load its libraries then (2022.4.2 can)"
        return warning("folder_noexec", found, "set TMPDIR to a folder that is mounted without noexec", **evidence)
    if place.free_bytes < SPACE_BYTES:
        return warning("low_space", f"{found}: a long recording may not fit", fix, **evidence)
    return ok("folder_usable", found, **evidence)


def check_output_folder(space: Space) -> CheckResult:
    """Judge the folder into which runs go."""
    place, limit = space.output, space.file_limit_bytes
    found, evidence = f"{place.path}, {place.free_text}", {**_of(place), "file_limit_bytes": limit}
    unusable = place.find_problem(OUTPUT_BYTES)
    if unusable:
        where = "" if place.nearest_existing == place.path else f": {place.nearest_existing}"
        fix = "name another with `traceable run -o`"
        return problem(unusable.code, f"{place.path}{where} {unusable}", fix, **evidence)
    if limit is not None and limit < SPACE_BYTES:
        found += f", but a file may have no more than {format_bytes(limit)}"
        fix = "type `ulimit -f unlimited`, else longer recordings are cut off"
        return warning("file_size_limited", found, fix, **evidence)
    if place.free_bytes < SPACE_BYTES:
        fix = "free some, or name another with -o"
        return warning("low_space", f"{found}: a long recording may not fit", fix, **evidence)
    return ok("folder_usable", found, **evidence)


def check_shared_memory(space: Space, nsys: Nsys) -> CheckResult | None:
    """Judge /dev/shm, by which the parts of nsys speak with each other."""
    if not nsys.usable:
        return None
    unusable = space.shared.find_problem(SHARED_BYTES)
    if unusable:
        fix = "free some; of a container it is set at its start: docker run --shm-size=1g"
        return problem(unusable.code, f"/dev/shm {unusable}: nsys does not start", fix, **_of(space.shared))
    return ok("folder_usable", f"/dev/shm, {space.shared.free_text}", **_of(space.shared))


def _of(place: Folder) -> dict[str, object]:
    return {"path": str(place.path), "free_bytes": place.free_bytes, "noexec": place.noexec}


def check_torch(facts: Torch, cuda: Cuda) -> CheckResult:
    """Judge torch by what it was built for."""
    evidence = {"version": facts.version, "cuda": facts.cuda, "hip": facts.hip}
    if facts.version is None:
        return ok("torch_not_installed", "torch is not installed", **evidence)
    if facts.hip:
        found = f"torch {facts.version} is for AMD's GPUs, whose work nsys does not record"
        fix = "use --collector recorder for the ranges, and AMD's rocprof for the GPU"
        return warning("torch_for_amd", found, fix, **evidence)
    if facts.cuda is None:
        found = f"torch {facts.version} is built without CUDA: it uses no GPU, and torch.cuda.nvtx raises"
        if cuda.devices:
            fix = "install a build with CUDA; annotate with traceable"
            return warning("torch_without_cuda", found, fix, **evidence)
        return ok("torch_without_cuda", f"{found} (traceable's own annotations work)", **evidence)
    found = f"torch {facts.version} for CUDA {facts.cuda}"
    if cuda.devices and cuda.version and int(facts.cuda.partition(".")[0]) > cuda.version[0]:
        serves = ".".join(map(str, cuda.version))
        found += f", and the driver serves {serves}: it sees no GPU"
        return warning("torch_cuda_too_new", found, "update one of the two", **evidence)
    return ok("torch_with_cuda", f"{found}, with its NVTX", **evidence)


def check_environment(facts: Variables) -> list[CheckResult]:
    """Judge the environment: each variable that changes what is recorded."""
    found = list(_variables(facts, facts.environ))
    if found:
        return found
    ours = sorted(name for name in facts.environ if name.startswith(("TRACEABLE_", "NSYS_", "QUADD_")))
    said = f"set: {', '.join(ours)}" if ours else "nothing set that changes a recording"
    return [ok("environment_harmless", said, names=ours)]


def _variables(facts: Variables, given: Mapping[str, str]) -> Iterator[CheckResult]:
    if facts.disabled:
        yield warning("annotations_disabled", f"{environment.DISABLE} is set: every annotation is a no-op", "unset it")
    if given.get("NVTX_DISABLE"):
        found = "NVTX_DISABLE is set: every annotation is a no-op, those of the nvtx package too"
        yield warning("annotations_disabled", found, "unset it")
    if given.get(environment.LEVEL, "2") in {"0", "1"}:
        level = given[environment.LEVEL]
        found = f"{environment.LEVEL}={level}: only annotations up to that level are recorded"
        yield warning("level_too_low", found, "unset it")
    for name in _SET_BY_LAUNCHER:
        if name in given:
            found = f"{name} is set: this is a process of another run"
            yield warning("inside_another_run", found, "type it in a shell of its own")
            break
    inside = [name for name in _INSIDE if given.get(name)]
    if inside or "ToolsInjection" in given.get("LD_PRELOAD", ""):
        name = inside[0] if inside else "LD_PRELOAD"
        found = f"this runs under nsys ({name}): CUPTI serves one profiler in a process, and that is this nsys"
        yield warning("inside_nsys", found, "type it in a shell that is not under nsys")
    elif given.get(environment.NVTX_INJECTION):
        place = given[environment.NVTX_INJECTION]
        instead = f"({place}); `traceable run` puts its own in its place"
        fix = "unset it, if you don't mean it"
        if facts.injection_exists:
            found = f"{environment.NVTX_INJECTION} names another NVTX listener {instead}"
            yield warning("nvtx_listener_set", found, fix)
        else:
            found = f"{environment.NVTX_INJECTION} names a file that is not there {instead}"
            yield warning("nvtx_listener_missing", found, fix)
    if given.get("CUDA_INJECTION64_PATH"):
        place = given["CUDA_INJECTION64_PATH"]
        found = f"CUDA_INJECTION64_PATH={place}: it may hold CUPTI, and then no GPU work is recorded"
        yield warning("cuda_injection_set", found, "unset it while you profile")
    for name in _DAEMONS:
        if given.get(name) not in (None, "", "0"):
            found = f"{name} is set: Kineto may take CUPTI in the midst of a run, and GPU work is lost"
            yield warning("kineto_daemon_set", found, "unset it while you profile")
    if given.get("CUDA_LAUNCH_BLOCKING") == "1":
        found = "CUDA_LAUNCH_BLOCKING=1: each launch waits for its kernel, so that times are not those of production"
        yield warning("cuda_launch_blocking", found, "unset it while you profile")


def check_other_profilers(running: RunningProfilers, driver: Driver) -> CheckResult:
    """Judge the other profilers of this machine, as far as /proc shows them."""
    names = sorted({name for _, name in running.profilers})
    evidence = {"processes": [{"pid": pid, "name": name} for pid, name in running.profilers]}
    if not names:
        return ok("no_other_profiler", "none is running, as far as is seen from here", **evidence)
    found = f"running: {', '.join(f'{name} ({_pids(running.profilers, name)})' for name in names)}"
    if driver.present and any(name.startswith(("nv-hostengine", "dcgm")) for name in names):
        found += "; DCGM may hold the GPU's counters, which ncu and nsys then don't get"
        fix = "type `dcgmi profile --pause` while you profile, and --resume after"
        return warning("dcgm_running", found, fix, **evidence)
    if driver.present and any(name.startswith(("ncu", "nv-nsight-cu")) for name in names):
        found += "; ncu slows its GPU down for all"
        return warning("ncu_running", found, "measure when it has ended", **evidence)
    # CUPTI serves one profiler in each process: one of another process is not in our way.
    return ok("other_profilers_harmless", f"{found}; each holds CUPTI in what it profiles alone", **evidence)


def _pids(processes: Sequence[tuple[int, str]], name: str) -> str:
    pids = [str(pid) for pid, its_name in processes if its_name == name]
    return ", ".join(pids[:4]) + (f" and {len(pids) - 4} more" if len(pids) > 4 else "")
