"""What `traceable doctor` makes of the machine: interpreter, system, space, environment, torch, who else profiles.

Pure functions from facts to what is said of them. What is said of NVIDIA's tools and GPUs is in `doctor_tools.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from traceable import environment
from traceable.analysis.units import size
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
        return warning(f"{found}: not tested", f"use {tested}", **evidence)
    if facts.free_threaded:
        return warning(f"{found}, free-threaded: not tested", "use a build with the global lock", **evidence)
    if facts.flags:
        lost = "nothing can be annotated or recorded by torch.profiler from outside"
        return warning(f"{found} with {' '.join(facts.flags)}: {lost}", "leave the flag out", **evidence)
    return ok(found, **evidence)


def core(facts: Parts) -> Said:
    """Judge traceable's own C extensions. Whether anything is left to record with is judged by `recorder`."""
    missing, broken = list(facts.missing), dict(facts.broken)
    evidence = {"version": facts.version, "missing": missing, "broken": broken, "pure": facts.pure}
    if broken:
        found = "; ".join(f"{name} can't be loaded ({why}): {_PART[name]}" for name, why in broken.items())
        return warning(f"traceable {facts.version}: {found}", _REINSTALL, **evidence)
    if facts.missing:
        lost = "; ".join(f"{name}: {_PART[name]}" for name in facts.missing)
        why = "were built for another Python" if facts.foreign else "were not built"
        found = f"traceable {facts.version}, of whose C extensions some {why} ({lost})"
        return warning(found, _REINSTALL, **evidence)
    if facts.pure:
        found = f"traceable {facts.version} with {environment.PURE}=1: {_PART['_core']}"
        return warning(found, f"unset {environment.PURE}", **evidence)
    return ok(f"traceable {facts.version} with all of its C extensions", **evidence)


def packages(facts: Packages) -> Said:
    """Judge the packages that traceable needs: without numpy no recording can be read."""
    evidence = {"versions": dict(facts.versions), "errors": dict(facts.errors)}
    if facts.errors:
        found = "; ".join(f"{name} can't be imported: {error}" for name, error in facts.errors.items())
        return problem(found, f"type `python -m pip install --force-reinstall {' '.join(facts.errors)}`", **evidence)
    return ok(", ".join(f"{name} {version or ''}".strip() for name, version in facts.versions.items()), **evidence)


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
        return problem(found, "use Linux: nothing is recorded elsewhere", **evidence)
    if facts.wsl:
        return warning(
            f"{found}, under Windows (WSL): nsys has no samples of the CPU and no GPU counters here",
            "record those on a Linux of its own",
            **evidence,
        )
    return ok(found, **evidence)


def temporary(space: Space, nsys: Nsys) -> Said:
    """Judge the folder in which nsys keeps what it records until the program ends."""
    place = space.temporary
    by = f" ({space.temporary_by})" if space.temporary_by else ""
    found, evidence = f"{place.path}{by}, {place.free}", _of(place)
    fix = "set TMPDIR to a folder that is there, can be written, has space and is not mounted noexec"
    unusable = place.unusable(TEMPORARY_BYTES)
    if space.instead and nsys.found:
        why = unusable or ("is mounted noexec" if place.noexec else f"has {place.free}")
        return warning(f"{place.path}{by} {why}: nsys gets {space.instead}", fix, **evidence)
    if unusable and nsys.found:
        return problem(f"{place.path}{by} {unusable}: nsys does not start", fix, **evidence)
    if unusable:
        return warning(f"{place.path}{by} {unusable}", fix, **evidence)
    if place.noexec and nsys.found:
        found += ", mounted noexec: not every nsys can load its libraries then (2022.4.2 can)"
        return warning(found, "set TMPDIR to a folder that is mounted without noexec", **evidence)
    if place.free_bytes < SPACE_BYTES:
        return warning(f"{found}: a long recording may not fit", fix, **evidence)
    return ok(found, **evidence)


def output(space: Space) -> Said:
    """Judge the folder into which runs go."""
    place, limit = space.output, space.file_limit_bytes
    found, evidence = f"{place.path}, {place.free}", {**_of(place), "file_limit_bytes": limit}
    unusable = place.unusable(OUTPUT_BYTES)
    if unusable:
        where = "" if place.standing == place.path else f": {place.standing}"
        return problem(f"{place.path}{where} {unusable}", "name another with `traceable run -o`", **evidence)
    if limit is not None and limit < SPACE_BYTES:
        found += f", but a file may have no more than {size(limit)}"
        return warning(found, "type `ulimit -f unlimited`, else longer recordings are cut off", **evidence)
    if place.free_bytes < SPACE_BYTES:
        return warning(f"{found}: a long recording may not fit", "free some, or name another with -o", **evidence)
    return ok(found, **evidence)


def shared(space: Space, nsys: Nsys) -> Said | None:
    """Judge /dev/shm, by which the parts of nsys speak with each other."""
    if not nsys.found:
        return None
    unusable = space.shared.unusable(SHARED_BYTES)
    if unusable:
        fix = "free some; of a container it is set at its start: docker run --shm-size=1g"
        return problem(f"/dev/shm {unusable}: nsys does not start", fix, **_of(space.shared))
    return ok(f"/dev/shm, {space.shared.free}", **_of(space.shared))


def cpu_samples(machine: Machine, nsys: Nsys) -> Said:
    """Judge whether the CPU can be sampled, of which `--trace-preset python` and `full` make use."""
    level = "no perf events" if machine.paranoid is None else f"perf_event_paranoid {machine.paranoid}"
    evidence = {"perf_event_paranoid": machine.paranoid, "nsys": nsys.no_samples}
    if not nsys.found:
        return ok(f"{level}; only nsys takes samples", **evidence)
    if nsys.no_samples is None:
        return ok(f"{level}; nsys may sample the CPU", **evidence)
    found = f"{level}; no samples of the CPU, which only `--trace-preset python` and `full` take: {nsys.no_samples}"
    if nsys.hangs_with_samples:
        return note(found, "use nsys 2023 or newer, where you need them", **evidence)
    if machine.paranoid is None:
        return note(found, "use a kernel or a sandbox with perf events, where you need them", **evidence)
    if machine.paranoid > 2 and not (machine.can(CAP_SYS_ADMIN) or machine.can(CAP_PERFMON)):
        fix = "type `sysctl kernel.perf_event_paranoid=2` as root on the host"
        return note(found, f"{fix}, or start the container with --cap-add PERFMON", **evidence)
    return note(found, "see `nsys status --environment`; a container's seccomp profile may refuse it", **evidence)


def torch(facts: Torch, cuda: Cuda) -> Said:
    """Judge torch by what it was built for."""
    evidence = {"version": facts.version, "cuda": facts.cuda, "hip": facts.hip}
    if facts.version is None:
        return ok("torch is not installed", **evidence)
    if facts.hip:
        found = f"torch {facts.version} is for AMD's GPUs, whose work nsys does not record"
        return warning(found, "use --collector recorder for the ranges, and AMD's rocprof for the GPU", **evidence)
    if facts.cuda is None:
        found = f"torch {facts.version} is built without CUDA: it uses no GPU, and torch.cuda.nvtx raises"
        if cuda.devices:
            return warning(found, "install a build with CUDA; annotate with traceable", **evidence)
        return ok(f"{found} (traceable's own annotations work)", **evidence)
    found = f"torch {facts.version} for CUDA {facts.cuda}"
    if cuda.devices and cuda.version and int(facts.cuda.partition(".")[0]) > cuda.version[0]:
        serves = ".".join(map(str, cuda.version))
        return warning(f"{found}, and the driver serves {serves}: it sees no GPU", "update one of the two", **evidence)
    return ok(f"{found}, with its NVTX", **evidence)


def variables(facts: Variables) -> list[Said]:
    """Judge the environment: each variable that changes what is recorded."""
    found = list(_variables(facts, facts.given))
    if found:
        return found
    ours = sorted(name for name in facts.given if name.startswith(("TRACEABLE_", "NSYS_", "QUADD_")))
    return [ok(f"set: {', '.join(ours)}" if ours else "nothing set that changes a recording", names=ours)]


def _variables(facts: Variables, given: Mapping[str, str]) -> Iterator[Said]:
    if facts.disabled:
        yield warning(f"{environment.DISABLE} is set: every annotation is a no-op", "unset it")
    if given.get("NVTX_DISABLE"):
        yield warning("NVTX_DISABLE is set: every annotation is a no-op, those of the nvtx package too", "unset it")
    if given.get(environment.LEVEL, "2") in {"0", "1"}:
        level = given[environment.LEVEL]
        yield warning(f"{environment.LEVEL}={level}: only annotations up to that level are recorded", "unset it")
    for name in _SET_BY_LAUNCHER:
        if name in given:
            yield warning(f"{name} is set: this is a process of another run", "type it in a shell of its own")
            break
    inside = [name for name in _INSIDE if given.get(name)]
    if inside or "ToolsInjection" in given.get("LD_PRELOAD", ""):
        name = inside[0] if inside else "LD_PRELOAD"
        found = f"this runs under nsys ({name}): CUPTI serves one profiler in a process, and that is this nsys"
        yield warning(found, "type it in a shell that is not under nsys")
    elif given.get(environment.NVTX_INJECTION):
        place = given[environment.NVTX_INJECTION]
        what = "another NVTX listener" if facts.listening else "a file that is not there"
        found = f"{environment.NVTX_INJECTION} names {what} ({place}); `traceable run` puts its own in its place"
        yield warning(found, "unset it, if you don't mean it")
    if given.get("CUDA_INJECTION64_PATH"):
        place = given["CUDA_INJECTION64_PATH"]
        found = f"CUDA_INJECTION64_PATH={place}: it may hold CUPTI, and then no GPU work is recorded"
        yield warning(found, "unset it while you profile")
    for name in _DAEMONS:
        if given.get(name) not in (None, "", "0"):
            found = f"{name} is set: Kineto may take CUPTI in the midst of a run, and GPU work is lost"
            yield warning(found, "unset it while you profile")
    if given.get("CUDA_LAUNCH_BLOCKING") == "1":
        found = "CUDA_LAUNCH_BLOCKING=1: each launch waits for its kernel, so that times are not those of production"
        yield warning(found, "unset it while you profile")


def profilers(running: Running, driver: Driver) -> Said:
    """Judge the other profilers of this machine, as far as /proc shows them."""
    names = sorted({name for _, name in running.profilers})
    evidence = {"processes": [{"pid": pid, "name": name} for pid, name in running.profilers]}
    if not names:
        return ok("none is running, as far as is seen from here", **evidence)
    found = f"running: {', '.join(f'{name} ({_pids(running.profilers, name)})' for name in names)}"
    if driver.present and any(name.startswith(("nv-hostengine", "dcgm")) for name in names):
        found += "; DCGM may hold the GPU's counters, which ncu and nsys then don't get"
        return warning(found, "type `dcgmi profile --pause` while you profile, and --resume after", **evidence)
    if driver.present and any(name.startswith(("ncu", "nv-nsight-cu")) for name in names):
        return warning(f"{found}; ncu slows its GPU down for all", "measure when it has ended", **evidence)
    # CUPTI serves one profiler in each process: one of another process is not in our way.
    return ok(f"{found}; each holds CUPTI in what it profiles alone", **evidence)


def _pids(processes: Sequence[tuple[int, str]], name: str) -> str:
    pids = [str(pid) for pid, its_name in processes if its_name == name]
    return ", ".join(pids[:4]) + (f" and {len(pids) - 4} more" if len(pids) > 4 else "")


def _of(place: Place) -> dict[str, object]:
    return {"path": str(place.path), "free_bytes": place.free_bytes, "noexec": place.noexec}
