"""What `traceable doctor` makes of the machine: interpreter, system, space, environment, torch, who else profiles.

Pure functions from facts to what is said of them. What is said of NVIDIA's tools and GPUs is in `doctor_tools.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from traceable import environment
from traceable.analysis.units import size
from traceable.errors import Message
from traceable.launch.doctor_facts import (
    CAP_PERFMON,
    CAP_SYS_ADMIN,
    Driver,
    Machine,
    Packages,
    Parts,
    Python,
    Running,
    Torch,
    Variables,
)
from traceable.launch.doctor_findings import Said, note, ok, problem, warning
from traceable.launch.doctor_probes import Cuda, Nsys
from traceable.launch.doctor_space import OUTPUT_BYTES, SHARED_BYTES, SPACE_BYTES, TEMPORARY_BYTES, Place, Space

TESTED = ((3, 10), (3, 13))
"""The oldest and the newest Python that the tests run under."""

_PART = {
    "_core": "annotations go through the nvtx package and cost several times more",
    "_recorder": "there is no embedded recorder",
    "_pages": "reports are read through sqlite3, which takes about ten times as long",
    "_discreet": "nsys stores the environment of every process in its reports",
}

_REINSTALL = "reinstall traceable with this Python where there is a C compiler"

_INSIDE = ("NSYS_PROFILING_SESSION_ID", "QUADD_INJECTION_PROXY")
"""nsys sets them in the programs that it profiles."""

_DAEMONS = ("KINETO_USE_DAEMON", "KINETO_CONFIG")

_SET_BY_LAUNCHER = (environment.RUN_DIR, environment.COLLECTOR)


def python(facts: Python) -> Said:
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
    oldest, newest = TESTED
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


def core(facts: Parts) -> Said:
    """Judge traceable's own C extensions. Whether anything is left to record with is judged by `recorder`."""
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


def packages(facts: Packages) -> Said:
    """Judge the packages that traceable needs: without numpy no recording can be read."""
    evidence = {"versions": dict(facts.versions), "errors": dict(facts.errors)}
    if facts.errors:
        found = "; ".join(f"{name} can't be imported: {error}" for name, error in facts.errors.items())
        fix = f"type `python -m pip install --force-reinstall {' '.join(facts.errors)}`"
        return problem("package_not_importable", found, fix, **evidence)
    found = ", ".join(f"{name} {version or ''}".strip() for name, version in facts.versions.items())
    return ok("packages_importable", found, **evidence)


def system(facts: Machine) -> Said:
    """Judge the operating system, and say whether this is a container."""
    admin = "with" if facts.can(CAP_SYS_ADMIN) else "without"
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


def temporary(space: Space, nsys: Nsys) -> Said:
    """Judge the folder in which nsys keeps what it records until the program ends."""
    place = space.temporary
    by = f" ({space.temporary_by})" if space.temporary_by else ""
    found, evidence = f"{place.path}{by}, {place.free}", _of(place)
    fix = "set TMPDIR to a folder that is there, can be written, has space and is not mounted noexec"
    unusable = place.unusable(TEMPORARY_BYTES)
    if space.instead and nsys.found:
        noexec = Message("folder_noexec", "is mounted noexec") if place.noexec else None
        why = unusable or noexec or Message("low_space", f"has {place.free}")
        return warning(why.code, f"{place.path}{by} {why}: nsys gets {space.instead}", fix, **evidence)
    if unusable and nsys.found:
        return problem(unusable.code, f"{place.path}{by} {unusable}: nsys does not start", fix, **evidence)
    if unusable:
        return warning(unusable.code, f"{place.path}{by} {unusable}", fix, **evidence)
    if place.noexec and nsys.found:
        found += ", mounted noexec: not every nsys can load its libraries then (2022.4.2 can)"
        return warning("folder_noexec", found, "set TMPDIR to a folder that is mounted without noexec", **evidence)
    if place.free_bytes < SPACE_BYTES:
        return warning("low_space", f"{found}: a long recording may not fit", fix, **evidence)
    return ok("folder_usable", found, **evidence)


def output(space: Space) -> Said:
    """Judge the folder into which runs go."""
    place, limit = space.output, space.file_limit_bytes
    found, evidence = f"{place.path}, {place.free}", {**_of(place), "file_limit_bytes": limit}
    unusable = place.unusable(OUTPUT_BYTES)
    if unusable:
        where = "" if place.standing == place.path else f": {place.standing}"
        fix = "name another with `traceable run -o`"
        return problem(unusable.code, f"{place.path}{where} {unusable}", fix, **evidence)
    if limit is not None and limit < SPACE_BYTES:
        found += f", but a file may have no more than {size(limit)}"
        fix = "type `ulimit -f unlimited`, else longer recordings are cut off"
        return warning("file_size_limited", found, fix, **evidence)
    if place.free_bytes < SPACE_BYTES:
        fix = "free some, or name another with -o"
        return warning("low_space", f"{found}: a long recording may not fit", fix, **evidence)
    return ok("folder_usable", found, **evidence)


def shared(space: Space, nsys: Nsys) -> Said | None:
    """Judge /dev/shm, by which the parts of nsys speak with each other."""
    if not nsys.found:
        return None
    unusable = space.shared.unusable(SHARED_BYTES)
    if unusable:
        fix = "free some; of a container it is set at its start: docker run --shm-size=1g"
        return problem(unusable.code, f"/dev/shm {unusable}: nsys does not start", fix, **_of(space.shared))
    return ok("folder_usable", f"/dev/shm, {space.shared.free}", **_of(space.shared))


def cpu_samples(machine: Machine, nsys: Nsys) -> Said:
    """Judge whether the CPU can be sampled, of which `--trace-preset python` and `full` make use."""
    level = "no perf events" if machine.paranoid is None else f"perf_event_paranoid {machine.paranoid}"
    evidence = {"perf_event_paranoid": machine.paranoid, "nsys": nsys.no_samples}
    if not nsys.found:
        return ok("samples_need_nsys", f"{level}; only nsys takes samples", **evidence)
    if nsys.no_samples is None:
        return ok("samples_permitted", f"{level}; nsys may sample the CPU", **evidence)
    found = f"{level}; no samples of the CPU, which only `--trace-preset python` and `full` take: {nsys.no_samples}"
    if nsys.hangs_with_samples:
        return note("samples_hang_nsys", found, "use nsys 2023 or newer, where you need them", **evidence)
    if machine.paranoid is None:
        fix = "use a kernel or a sandbox with perf events, where you need them"
        return note("no_perf_events", found, fix, **evidence)
    if machine.paranoid > 2 and not (machine.can(CAP_SYS_ADMIN) or machine.can(CAP_PERFMON)):
        fix = "type `sysctl kernel.perf_event_paranoid=2` as root on the host"
        fix += ", or start the container with --cap-add PERFMON"
        return note("perf_event_paranoid", found, fix, **evidence)
    fix = "see `nsys status --environment`; a container's seccomp profile may refuse it"
    return note("samples_not_permitted", found, fix, **evidence)


def torch(facts: Torch, cuda: Cuda) -> Said:
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


def variables(facts: Variables) -> list[Said]:
    """Judge the environment: each variable that changes what is recorded."""
    found = list(_variables(facts, facts.given))
    if found:
        return found
    ours = sorted(name for name in facts.given if name.startswith(("TRACEABLE_", "NSYS_", "QUADD_")))
    said = f"set: {', '.join(ours)}" if ours else "nothing set that changes a recording"
    return [ok("environment_harmless", said, names=ours)]


def _variables(facts: Variables, given: Mapping[str, str]) -> Iterator[Said]:
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
        if facts.listening:
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


def profilers(running: Running, driver: Driver) -> Said:
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


def _of(place: Place) -> dict[str, object]:
    return {"path": str(place.path), "free_bytes": place.free_bytes, "noexec": place.noexec}
