"""The machine before the first run: probe and check everything that `traceable run` needs.

`run_checks` gathers the facts, slow ones in parallel, and passes each rule the facts that it needs. A probe that fails
or times out becomes a finding, and nothing that was started outlives the call. docs/doctor.md lists what each rule
checks, and when it is a warning or a problem.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as ProbeTimeoutError
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from traceable.checks import machine, probes
from traceable.checks.machine import (
    CAP_PERFMON,
    CAP_SYS_ADMIN,
    OUTPUT_BYTES,
    SHARED_BYTES,
    SPACE_BYTES,
    TEMPORARY_BYTES,
    Driver,
    Extensions,
    Folder,
    Machine,
    Packages,
    Python,
    Space,
    Torch,
    Variables,
)
from traceable.checks.probes import Cuda, Device, Nsys, SelfTest, Tool
from traceable.collectors import running_profilers
from traceable.collectors.process_list import UNREADABLE, list_descendants
from traceable.collectors.running_profilers import RunningProfilers
from traceable.errors import Message, TraceableError
from traceable.finding import OK, Finding, Rule, note, ok, problem, warning
from traceable.protocol import environment
from traceable.protocol.packages import get_package_version
from traceable.units import format_bytes

SECONDS = 13.0
"""How long to wait for the probes, so that everything is over in 15 s."""

NSYS_SECONDS = 5.0
"""How long nsys may take to print its version and options. It takes 0.2 s."""

GRACE_SECONDS = 1.5
"""How long abandoned probes may take to clean up."""

POLL_SECONDS = 0.05

TESTED_PYTHONS = ((3, 10), (3, 13))
"""The oldest and the newest Python that the tests run under."""

_PART = {
    "_core": "annotations go through the nvtx package and cost several times more",
    "_recorder": "there is no embedded recorder",
    "_pages": "reports are read through sqlite3, which is about ten times slower",
    "_hide_proc_environ": "nsys stores the environment of every process in its reports",
}

_REINSTALL = "reinstall traceable with this Python where there is a C compiler"

INSTALL_NSYS = (
    "run scripts/install-nsys.sh of traceable's repository (Debian, Ubuntu; traceable help install), install "
    f"NVIDIA's package nsight-systems-cli, or name an nsys in {environment.NSYS}"
)

_WHOLE = (
    "install the whole package (nsight-systems, not only its target part; scripts/install-nsys.sh does that), or put "
    "QdstrmImporter of the same version on PATH"
)

NEEDED_CUPTI = (((12, 0), (12, 8)), ((10, 0), (12, 8)), ((8, 9), (11, 8)), ((8, 6), (11, 1)), ((8, 0), (11, 0)))
"""The oldest CUPTI that supports each compute capability: that of the CUDA toolkit which introduced it."""

DROPPED_GPUS = ((2025, 4), (7, 5))
"""Since this nsys, GPUs below this compute capability (Pascal, Volta) are no longer traced (its release notes)."""

BLACKWELL = (10, 0)
"""From this compute capability on nsys uses the hardware trace of the GPU, which MIG and MPS don't support."""

_CUINIT_ERRORS = {
    34: (
        Message("libcuda_stub", "libcuda.so.1 is a stub"),
        "remove the folder `stubs` from LD_LIBRARY_PATH",
    ),
    100: (
        Message("no_cuda_device", "CUDA sees no GPU"),
        "see CUDA_VISIBLE_DEVICES; give a container GPUs (docker run --gpus all)",
    ),
    802: (Message("gpus_not_ready", "the GPUs are not ready"), "start nvidia-fabricmanager on the host"),
    803: (
        Message("driver_mismatch", "the versions of libcuda.so.1 and of the kernel driver differ"),
        "reboot, or use the libcuda of the driver",
    ),
    804: (
        Message("cuda_compat_mismatch", "libcuda.so.1 comes from a CUDA compat package that does not support this GPU"),
        "remove it from LD_LIBRARY_PATH",
    ),
}
"""Errors of cuInit (CUresult in cuda.h), each with its fix."""

_INSIDE = ("NSYS_PROFILING_SESSION_ID", "QUADD_INJECTION_PROXY")
"""Variables that nsys sets in the programs that it profiles."""

_DAEMONS = ("KINETO_USE_DAEMON", "KINETO_CONFIG")

_SET_BY_LAUNCHER = (environment.RUN_DIR, environment.COLLECTOR)


def run_checks(output: Path) -> list[Finding]:
    """Run all checks and return their findings, in the order of `RULES`.

    A check that does not apply here has no finding; one may have several. Takes 15 s at most.

    Args:
        output: the output directory of runs.
    """
    facts = _Facts()
    try:
        _gather(facts, output)
        return [finding for rule in RULES for finding in _run_rule(rule, facts)]
    finally:
        facts.abandon_probes()


@dataclass
class _Facts:
    """The facts by name; each is probed once, in its own thread."""

    deadline: float = field(default_factory=lambda: time.monotonic() + SECONDS)
    futures: dict[str, Future[Any]] = field(default_factory=dict)
    threads: list[threading.Thread] = field(default_factory=list)

    def probe(self, name: str, function: Callable[[], Any]) -> None:
        """Start a probe in parallel to the others."""
        self.futures[name] = Future()
        # Not an executor's: Python would wait for its threads before it exits.
        thread = threading.Thread(target=self._run_probe, args=(name, function), name=f"traceable-{name}", daemon=True)
        self.threads.append(thread)
        thread.start()

    def get(self, name: str) -> Any:
        """Return a fact.

        Raises:
            ProbeTimeoutError: the probe is not finished in time.
            Exception: raised by the probe.
        """
        return self.futures[name].result(timeout=max(0.0, self.deadline - time.monotonic()))

    def abandon_probes(self) -> None:
        """Kill the processes that unfinished probes wait for, and let these probes clean up."""
        until = time.monotonic() + GRACE_SECONDS
        for thread in self.threads:
            # More than once: it may be about to start another one.
            while thread.is_alive() and time.monotonic() < until:
                for process in list_descendants(os.getpid()):
                    with contextlib.suppress(*UNREADABLE):
                        process.kill()
                thread.join(POLL_SECONDS)

    def _run_probe(self, name: str, function: Callable[[], Any]) -> None:
        try:
            self.futures[name].set_result(function())
        except Exception as error:  # noqa: BLE001 - whatever it is, it becomes a line of the result
            self.futures[name].set_exception(error)


def _gather(facts: _Facts, output: Path) -> None:
    facts.probe("running", running_profilers.find_running_profilers)
    facts.probe("space", lambda: machine.inspect_space(output))
    facts.probe("extensions", machine.inspect_extensions)
    facts.probe("nsys itself", probes.probe_nsys)
    facts.probe("nsys", lambda: _probe_nsys(facts))
    facts.probe("cuda", probes.probe_cuda)
    facts.probe("ncu", probes.probe_ncu)
    facts.probe("python", machine.inspect_python)
    facts.probe("packages", machine.inspect_packages)
    facts.probe("machine", machine.inspect_machine)
    facts.probe("torch", machine.inspect_torch)
    facts.probe("driver", machine.inspect_driver)
    facts.probe("variables", machine.inspect_environment)
    facts.probe("nvtx", lambda: get_package_version("nvtx"))
    facts.probe("nsys self-test", lambda: _run_self_test("nsys", facts) if facts.get("nsys").usable else None)
    facts.probe(
        "recorder self-test",
        lambda: _run_self_test("recorder", facts) if facts.get("extensions").has_recorder else None,
    )


def _probe_nsys(facts: _Facts) -> probes.Nsys:
    """Return the facts of nsys, also of one that hangs: most checks need to know whether there is a usable one."""
    try:
        nsys: probes.Nsys = facts.futures["nsys itself"].result(NSYS_SECONDS)
    except ProbeTimeoutError:
        return probes.describe_unresponsive_nsys(NSYS_SECONDS)
    return nsys


def _run_self_test(collector: str, facts: _Facts) -> probes.SelfTest:
    facts.get("running")  # other profilers are listed before we start one ourselves
    return probes.run_self_test(collector, facts.get("space").temporary.path)


def _run_rule(rule: Rule, facts: _Facts) -> Sequence[Finding]:
    try:
        return rule.run(*[facts.get(need) for need in rule.needs])
    except TraceableError as error:
        failure = warning(error.code, f"check failed: {error.problem}", error.remedy)
    except ProbeTimeoutError:
        message = f"check timed out after {SECONDS:g} s"
        failure = warning("check_timed_out", message, "try again when the machine is idle")
    except Exception as error:  # noqa: BLE001 - a fault of ours must not hide the results of other checks
        message = f"check failed: {type(error).__name__}: {error}"
        failure = warning("check_failed", message, "report this to traceable's authors")
    return [replace(failure, check=rule.name)]


def check_python(facts: Python) -> Finding:
    """Check the interpreter."""
    version = ".".join(map(str, facts.version))
    message = f"{facts.implementation} {version} at {facts.executable}"
    data = {
        "version": version,
        "implementation": facts.implementation,
        "executable": facts.executable,
        "free_threaded": facts.free_threaded,
        "flags": list(facts.flags),
    }
    oldest, newest = TESTED_PYTHONS
    if facts.implementation != "CPython" or not oldest <= facts.version[:2] <= newest:
        tested = f"CPython {'.'.join(map(str, oldest))} to {'.'.join(map(str, newest))}"
        return warning("python_untested", f"{message}: not tested", f"use {tested}", **data)
    if facts.free_threaded:
        fix = "use a build with the global lock"
        return warning("python_free_threaded", f"{message}, free-threaded: not tested", fix, **data)
    if facts.flags:
        message = f"{message} with {' '.join(facts.flags)}"
        lost = "annotations and torch.profiler can't be enabled from outside"
        return warning("python_isolated", f"{message}: {lost}", "remove the flag", **data)
    return ok("python_supported", message, **data)


def check_extensions(facts: Extensions) -> Finding:
    """Check traceable's own C extensions. `check_recorder` checks whether any collector is left."""
    missing, broken = list(facts.missing), dict(facts.broken)
    data = {"version": facts.version, "missing": missing, "broken": broken, "pure": facts.pure}
    if broken:
        message = "; ".join(f"{name} can't be loaded ({reason}): {_PART[name]}" for name, reason in broken.items())
        return warning("extension_not_loadable", f"traceable {facts.version}: {message}", _REINSTALL, **data)
    if facts.missing:
        lost = "; ".join(f"{name}: {_PART[name]}" for name in facts.missing)
        some = f"traceable {facts.version}: some C extensions"
        if facts.foreign:
            message = f"{some} were built for another Python ({lost})"
            return warning("extension_of_another_python", message, _REINSTALL, **data)
        return warning("extension_not_built", f"{some} were not built ({lost})", _REINSTALL, **data)
    if facts.pure:
        message = f"traceable {facts.version} with {environment.PURE}=1: {_PART['_core']}"
        return warning("native_core_off", message, f"unset {environment.PURE}", **data)
    return ok("extensions_usable", f"traceable {facts.version} with all of its C extensions", **data)


def check_packages(facts: Packages) -> Finding:
    """Check the packages that traceable needs: without numpy no recording can be read."""
    data = {"versions": dict(facts.versions), "errors": dict(facts.errors)}
    if facts.errors:
        message = "; ".join(f"{name} can't be imported: {error}" for name, error in facts.errors.items())
        fix = f"run `python -m pip install --force-reinstall {' '.join(facts.errors)}`"
        return problem("package_not_importable", message, fix, **data)
    message = ", ".join(f"{name} {version or ''}".strip() for name, version in facts.versions.items())
    return ok("packages_importable", message, **data)


def check_nvtx(version: str | None, recorded: SelfTest | None, captured: SelfTest | None, cuda: Cuda) -> Finding:
    """Check the nvtx package by how many of its ranges were recorded: third-party annotations use it.

    Without a GPU nsys is not needed.
    """
    if version is None:
        fix = "run `python -m pip install nvtx`"
        return warning("nvtx_not_installed", "the nvtx package is not installed", fix)
    counts = {
        name: (test.nvtx_read, test.nvtx_emitted)
        for name, test in (("nsys", captured), ("the recorder", recorded))
        if test is not None and test.error is None and test.nvtx_emitted
    }
    message = f"nvtx {version}"
    if counts:
        listing = " and ".join(f"{read} of {emitted} ranges by {name}" for name, (read, emitted) in counts.items())
        message += f", recorded: {listing}"
    data = {"version": version, "recorded": {name: read for name, (read, _) in counts.items()}}
    read, emitted = counts.get("nsys", (0, 0))
    if read < emitted:
        # Measured: 0.2.12 and later emit nothing under 2022.4 and 2023.4, 0.2.11 does.
        fix = "annotate with `import traceable as nvtx`, or use a newer nsys; traceable's own ranges are not affected"
        if cuda.devices:
            return warning("nvtx_package_incompatible", message, fix, **data)
        return note("nvtx_package_incompatible", message, fix, **data)
    return ok("nvtx_usable", message, **data)


def check_recorder(nsys: Nsys, packages: Packages, test: SelfTest | None) -> Finding:
    """Check the embedded recorder by its self-test."""
    if test is None:
        fix = "reinstall traceable with this Python where there is a C compiler"
        if nsys.usable:
            return warning("recorder_not_built", "the embedded recorder was not built: `traceable run` needs nsys", fix)
        message = "the embedded recorder was not built, and nsys is not installed: nothing can record"
        return problem("no_collector", message, fix)
    rerun = "see the output of `traceable run --collector recorder -c pass`"
    return _check_self_test(test, "see `packages`" if packages.errors else rerun)


def check_nsys(facts: Nsys, driver: Driver) -> Finding:
    """Check nsys and its features; without a GPU there is nothing that only nsys records."""
    tool = facts.tool
    if not facts.usable and tool.exists:
        return problem("nsys_unusable", f"nsys is not usable: {tool.error}", tool.remedy)
    if not facts.usable:
        missing = f"{tool.error}: the embedded recorder records ranges, but not GPU work"
        if driver.present:
            return warning("nsys_not_installed", missing, INSTALL_NSYS)
        return note("nsys_not_installed", missing, INSTALL_NSYS)
    message = f"nsys {tool.version} at {tool.executable}"
    data = {"executable": str(tool.executable), "version": tool.version, "features": dict(facts.features)}
    supported = [feature for feature, has in facts.features.items() if has]
    unsupported = [feature for feature, has in facts.features.items() if not has]
    message += f" ({', '.join(supported)})" if supported else ""
    if "windows" in unsupported:
        fix = "use a newer nsys, or --collector recorder"
        message += ": it can't record windows (--steps, --control)"
        return warning("nsys_without_windows", message, fix, **data)
    return ok("nsys_usable", f"{message}; not: {', '.join(unsupported)}" if unsupported else message, **data)


def check_importer(facts: Nsys) -> Finding | None:
    """Check the program that converts nsys's stream to a report."""
    if not facts.usable:
        return None
    if facts.importer is None:
        message = "QdstrmImporter was not found: nsys leaves a .qdstrm file, which can't be read here"
        return problem("importer_missing", message, _WHOLE)
    data = {"path": str(facts.importer), "version": facts.importer_version, "error": facts.importer_error}
    if facts.importer_error is not None:
        message = f"{facts.importer} does not start: {facts.importer_error}"
        fix = f"install its missing libraries: `ldd {facts.importer}` lists them"
        return problem("importer_fails", message, fix, **data)
    if not facts.has_matching_importer:
        message = f"{facts.importer} belongs to nsys {facts.importer_version}"
        message += f" and may not read streams of {facts.tool.version}"
        return warning("importer_version_differs", message, _WHOLE, **data)
    return ok("importer_usable", str(facts.importer), **data)


def check_nsys_capture(facts: Nsys, space: Space, packages: Packages, test: SelfTest | None) -> Finding | None:
    """Check nsys by its self-test."""
    if test is None:
        return None
    if not facts.has_matching_importer:
        return _check_self_test(test, "see `nsys importer`")
    if test.error is None and not test.read and not test.native_core:
        message = (
            f"none of {test.emitted} ranges was recorded: without the native core they go through the nvtx package"
        )
        message += ", which this nsys does not support"
        return problem("nvtx_package_incompatible", message, "see `traceable` and `nvtx`", **_describe_self_test(test))
    # The likeliest reasons why nsys can't record have checks of their own.
    failed = [name for name, fails in {**space.shortages, "packages": bool(packages.errors)}.items() if fails]
    fix = f"see `{failed[0]}`" if failed else "see the output of `nsys profile -t nvtx python3 -c pass`"
    result = _check_self_test(test, fix)
    if test.imported and result.severity == OK:
        message = (
            f"{result.message}, but nsys did not find its importer: traceable imports each report with {facts.importer}"
        )
        fix = "run scripts/install-nsys.sh of traceable's repository, which links the importer to where nsys expects it"
        return warning("importer_not_linked", message, fix, **result.data)
    return result


def _check_self_test(test: SelfTest, fix: str) -> Finding:
    data = _describe_self_test(test)
    if test.error is not None:
        message = f"a capture of {test.emitted} ranges failed: {test.error}"
        return problem("capture_failed", message, fix, **data, error=test.error.as_dict)
    read = f"{test.read} of {test.emitted} ranges of a test program"
    if test.read != test.emitted:
        return problem("ranges_missing", f"only {read} were read back", fix, **data)
    message = f"{read} were recorded and read back, in {test.seconds:.1f} s"
    return ok("capture_complete", message, **data)


def _describe_self_test(test: SelfTest) -> dict[str, object]:
    return {
        "emitted": test.emitted,
        "recorded": test.read,
        "native_core": test.native_core,
        "imported": test.imported,
        "seconds": round(test.seconds, 3),
    }


def check_ncu(tool: Tool, driver: Driver) -> Finding:
    """Check Nsight Compute, which only `traceable ncu` uses."""
    if tool.executable is not None:
        data = {"executable": str(tool.executable), "version": tool.version}
        return ok("ncu_usable", f"ncu {tool.version} at {tool.executable}", **data)
    if tool.exists:
        return problem("ncu_unusable", f"ncu is not usable: {tool.error}", tool.remedy)
    if driver.present:
        fix = f"install NVIDIA's package nsight-compute, or name an ncu in {environment.NCU}"
        return note("ncu_not_installed", f"{tool.error}: `traceable ncu` can't measure kernels", fix)
    return ok("ncu_not_installed", f"{tool.error}; not needed without a GPU")


def check_cuda_driver(driver: Driver, machine: Machine, cuda: Cuda) -> Finding:
    """Check NVIDIA's driver and its library."""
    version = ".".join(map(str, cuda.version)) if cuda.version else None
    data = {"version": driver.version, "cuda": version, "cuInit": cuda.result, "error": cuda.error}
    if not driver.present:
        return ok("no_gpu", "no NVIDIA GPU: there is no GPU work to record", **data)
    name = f"driver {driver.version}" if driver.version else "a GPU's device files"
    if cuda.error is not None:
        fix = "install the driver's libcuda1"
        if machine.container:
            fix = "start the container with --gpus all and NVIDIA_DRIVER_CAPABILITIES=all"
        message = f"{name}, but CUDA can't be used: {cuda.error}"
        return warning("libcuda_not_loadable", message, fix, **data)
    if cuda.result:
        other = Message("cuda_init_failed", f"cuInit returns {cuda.result}"), "see `nvidia-smi` and `dmesg`"
        what, fix = _CUINIT_ERRORS.get(cuda.result, other)
        return warning(what.code, f"{name}, but {what}", fix, **data)
    return ok("cuda_driver_usable", f"{name}, CUDA {version}", **data)


def check_gpus(cuda: Cuda, facts: Nsys, running: RunningProfilers) -> Finding | None:
    """Check whether this nsys supports the GPUs."""
    if not cuda.devices:
        return None
    counts = Counter(f"{one.name} ({_dotted(one.capability)})" for one in cuda.devices)
    message = ", ".join(f"{count} x {name}" for name, count in counts.items())
    data = {
        "devices": [{"name": one.name, "compute_capability": _dotted(one.capability)} for one in cuda.devices],
        "mps": running.mps,
        "cupti": [_dotted(one) for one in facts.cupti],
    }
    unknown = next(filter(None, (_unknown(one, facts) for one in cuda.devices)), None)
    if unknown:
        message += f"; {unknown}: its kernels may not be recorded"
        return warning(unknown.code, message, "use another nsys", **data)
    shared = "MPS" if running.mps else "MIG" if any(one.is_slice for one in cuda.devices) else None
    if shared and facts.supports_cuda_sw and max(one.capability for one in cuda.devices) >= BLACKWELL:
        fix = "run with --nsys-args='--trace=cuda-sw,nvtx'"
        message += f", under {shared}: nsys can't use the hardware trace of the GPU"
        return warning("hardware_trace_unavailable", message, fix, **data)
    return ok("gpus_supported", f"{message}, under {shared}" if shared else message, **data)


def _unknown(device: Device, facts: Nsys) -> Message | None:
    """Return why nsys does not support a GPU; None if no reason is known."""
    name = f"nsys {facts.tool.version}"
    needed = next((cupti for capability, cupti in NEEDED_CUPTI if device.capability >= capability), None)
    if needed and facts.cupti and facts.cupti[-1] < needed:
        message = f"{name} has CUPTI {_dotted(facts.cupti[-1])} at most, and this GPU needs {_dotted(needed)}"
        return Message("cupti_too_old", message)
    since, least = DROPPED_GPUS
    if facts.version_numbers and facts.version_numbers >= since and device.capability < least:
        return Message("gpu_too_old", f"{name} no longer traces GPUs below {_dotted(least)}")
    return None


def _dotted(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))


def check_gpu_counters(driver: Driver, machine: Machine, cuda: Cuda) -> Finding | None:
    """Check whether this user may read the GPU's counters, as ncu and `--trace-preset full` do."""
    if not cuda.devices:
        return None
    data = {"RmProfilingAdminOnly": driver.admin_only}
    if driver.admin_only and not machine.has_capability(CAP_SYS_ADMIN):
        message = "GPU counters are restricted to administrators (RmProfilingAdminOnly 1): ncu fails, and"
        message += " `--trace-preset full` lacks them"
        fix = "load the driver with NVreg_RestrictProfilingToAdminUsers=0, or run with CAP_SYS_ADMIN"
        fix += " (docker run --cap-add SYS_ADMIN)"
        return note("counters_not_permitted", message, fix, **data)
    return ok("counters_permitted", "GPU counters are readable", **data)


def check_cpu_samples(machine: Machine, nsys: Nsys) -> Finding:
    """Check whether nsys can sample the CPU, as `--trace-preset python` and `full` do."""
    level = (
        "no perf events"
        if machine.perf_event_paranoid is None
        else f"perf_event_paranoid {machine.perf_event_paranoid}"
    )
    data = {"perf_event_paranoid": machine.perf_event_paranoid, "nsys": nsys.no_samples_reason}
    if not nsys.usable:
        return ok("samples_need_nsys", f"{level}; only nsys samples the CPU", **data)
    if nsys.no_samples_reason is None:
        return ok("samples_permitted", f"{level}; nsys can sample the CPU", **data)
    message = f"{level}; no CPU samples, which only `--trace-preset python` and `full` need: {nsys.no_samples_reason}"
    if nsys.hangs_with_samples:
        return note("samples_hang_nsys", message, "use nsys 2023 or newer if you need them", **data)
    if machine.perf_event_paranoid is None:
        fix = "use a kernel or a sandbox with perf events if you need them"
        return note("no_perf_events", message, fix, **data)
    if machine.perf_event_paranoid > 2 and not (
        machine.has_capability(CAP_SYS_ADMIN) or machine.has_capability(CAP_PERFMON)
    ):
        fix = "run `sysctl kernel.perf_event_paranoid=2` as root on the host"
        fix += ", or start the container with --cap-add PERFMON"
        return note("perf_event_paranoid", message, fix, **data)
    fix = "see `nsys status --environment`; a container's seccomp profile may deny it"
    return note("samples_not_permitted", message, fix, **data)


def check_system(facts: Machine) -> Finding:
    """Check the operating system, and report whether this is a container."""
    admin = "with" if facts.has_capability(CAP_SYS_ADMIN) else "without"
    inside = f", in a container ({facts.container}) {admin} CAP_SYS_ADMIN" if facts.container else ""
    message = f"{facts.system} {facts.kernel}{inside}"
    data = {
        "kernel": facts.kernel,
        "wsl": facts.wsl,
        "container": facts.container,
        "capabilities": None if facts.capabilities is None else f"{facts.capabilities:#x}",
    }
    if facts.system != "Linux":
        return problem("not_linux", message, "use Linux: traceable records nowhere else", **data)
    if facts.wsl:
        return warning(
            "inside_wsl",
            f"{message}, under Windows (WSL): nsys can't record CPU samples or GPU counters here",
            "record those on native Linux",
            **data,
        )
    return ok("linux", message, **data)


def check_temporary_folder(space: Space, nsys: Nsys) -> Finding:
    """Check the folder in which nsys stores its data until the program ends."""
    place = space.temporary
    by = f" ({space.temporary_variable})" if space.temporary_variable else ""
    message, data = f"{place.path}{by}, {place.free_text}", _of(place)
    fix = "set TMPDIR to an existing, writable folder with free space, not mounted noexec"
    unusable = place.find_problem(TEMPORARY_BYTES)
    if space.fallback and nsys.usable:
        noexec = Message("folder_noexec", "is mounted noexec") if place.noexec else None
        reason = unusable or noexec or Message("low_space", f"has {place.free_text}")
        return warning(reason.code, f"{place.path}{by} {reason}: nsys uses {space.fallback}", fix, **data)
    if unusable and nsys.usable:
        return problem(unusable.code, f"{place.path}{by} {unusable}: nsys does not start", fix, **data)
    if unusable:
        return warning(unusable.code, f"{place.path}{by} {unusable}", fix, **data)
    if place.noexec and nsys.usable:
        message += ", mounted noexec: some versions of nsys can't load their libraries then (2022.4.2 can)"
        return warning("folder_noexec", message, "set TMPDIR to a folder that is not mounted noexec", **data)
    if place.free_bytes < SPACE_BYTES:
        return warning("low_space", f"{message}: a long recording may not fit", fix, **data)
    return ok("folder_usable", message, **data)


def check_output_folder(space: Space) -> Finding:
    """Check the output directory of runs."""
    place, limit = space.output, space.file_limit_bytes
    message, data = f"{place.path}, {place.free_text}", {**_of(place), "file_limit_bytes": limit}
    unusable = place.find_problem(OUTPUT_BYTES)
    if unusable:
        where = "" if place.nearest_existing == place.path else f": {place.nearest_existing}"
        fix = "choose another one with `traceable run -o`"
        return problem(unusable.code, f"{place.path}{where} {unusable}", fix, **data)
    if limit is not None and limit < SPACE_BYTES:
        message += f", but files are limited to {format_bytes(limit)}"
        fix = "run `ulimit -f unlimited`; without it long recordings are truncated"
        return warning("file_size_limited", message, fix, **data)
    if place.free_bytes < SPACE_BYTES:
        fix = "free some space, or choose another directory with -o"
        return warning("low_space", f"{message}: a long recording may not fit", fix, **data)
    return ok("folder_usable", message, **data)


def check_shared_memory(space: Space, nsys: Nsys) -> Finding | None:
    """Check /dev/shm, through which the processes of nsys communicate."""
    if not nsys.usable:
        return None
    unusable = space.shared.find_problem(SHARED_BYTES)
    if unusable:
        fix = "free some space; in a container set its size with docker run --shm-size=1g"
        return problem(unusable.code, f"/dev/shm {unusable}: nsys does not start", fix, **_of(space.shared))
    return ok("folder_usable", f"/dev/shm, {space.shared.free_text}", **_of(space.shared))


def _of(place: Folder) -> dict[str, object]:
    return {"path": str(place.path), "free_bytes": place.free_bytes, "noexec": place.noexec}


def check_torch(facts: Torch, cuda: Cuda) -> Finding:
    """Check which GPUs torch was built for."""
    data = {"version": facts.version, "cuda": facts.cuda, "hip": facts.hip}
    if facts.version is None:
        return ok("torch_not_installed", "torch is not installed", **data)
    if facts.hip:
        message = f"torch {facts.version} is built for AMD GPUs, which nsys does not support"
        fix = "use --collector recorder for the ranges, and AMD's rocprof for the GPU"
        return warning("torch_for_amd", message, fix, **data)
    if facts.cuda is None:
        message = f"torch {facts.version} is built without CUDA: it can't use a GPU, and torch.cuda.nvtx raises"
        if cuda.devices:
            fix = "install a build with CUDA; annotate with traceable"
            return warning("torch_without_cuda", message, fix, **data)
        return ok("torch_without_cuda", f"{message} (traceable's own annotations work)", **data)
    message = f"torch {facts.version} for CUDA {facts.cuda}"
    if cuda.devices and cuda.version and int(facts.cuda.partition(".")[0]) > cuda.version[0]:
        supported = ".".join(map(str, cuda.version))
        message += f", but the driver supports CUDA {supported}: torch can't use the GPU"
        return warning("torch_cuda_too_new", message, "update the driver, or install torch for an older CUDA", **data)
    return ok("torch_with_cuda", f"{message}, with its NVTX", **data)


def check_environment(facts: Variables) -> list[Finding]:
    """Check the environment: each variable that changes what is recorded."""
    results = list(_check_variables(facts, facts.environ))
    if results:
        return results
    ours = sorted(name for name in facts.environ if name.startswith(("TRACEABLE_", "NSYS_", "QUADD_")))
    message = f"set: {', '.join(ours)}" if ours else "no variable is set that changes a recording"
    return [ok("environment_harmless", message, names=ours)]


def _check_variables(facts: Variables, environ: Mapping[str, str]) -> Iterator[Finding]:
    if facts.disabled:
        yield warning("annotations_disabled", f"{environment.DISABLE} is set: every annotation is a no-op", "unset it")
    if environ.get("NVTX_DISABLE"):
        message = "NVTX_DISABLE is set: every annotation is a no-op, those of the nvtx package too"
        yield warning("annotations_disabled", message, "unset it")
    if environ.get(environment.LEVEL, "2") in {"0", "1"}:
        level = environ[environment.LEVEL]
        message = f"{environment.LEVEL}={level}: only annotations up to that level are recorded"
        yield warning("level_too_low", message, "unset it")
    for name in _SET_BY_LAUNCHER:
        if name in environ:
            message = f"{name} is set: this process belongs to another run"
            yield warning("inside_another_run", message, "run it in a new shell")
            break
    inside = [name for name in _INSIDE if environ.get(name)]
    if inside or "ToolsInjection" in environ.get("LD_PRELOAD", ""):
        name = inside[0] if inside else "LD_PRELOAD"
        message = (
            f"this process runs under nsys ({name}): CUPTI supports one profiler per process, and nsys is using it"
        )
        yield warning("inside_nsys", message, "run it in a shell that is not under nsys")
    elif environ.get(environment.NVTX_INJECTION):
        place = environ[environment.NVTX_INJECTION]
        replaced = f"({place}); `traceable run` replaces it"
        fix = "unset it unless you need it"
        if facts.injection_exists:
            message = f"{environment.NVTX_INJECTION} names another NVTX injection library {replaced}"
            yield warning("nvtx_injection_set", message, fix)
        else:
            message = f"{environment.NVTX_INJECTION} names a missing file {replaced}"
            yield warning("nvtx_injection_missing", message, fix)
    if environ.get("CUDA_INJECTION64_PATH"):
        place = environ["CUDA_INJECTION64_PATH"]
        message = f"CUDA_INJECTION64_PATH={place}: it may use CUPTI, and then no GPU work is recorded"
        yield warning("cuda_injection_set", message, "unset it while you profile")
    for name in _DAEMONS:
        if environ.get(name) not in (None, "", "0"):
            message = f"{name} is set: Kineto may start using CUPTI during a run, and GPU work is lost"
            yield warning("kineto_daemon_set", message, "unset it while you profile")
    if environ.get("CUDA_LAUNCH_BLOCKING") == "1":
        message = "CUDA_LAUNCH_BLOCKING=1: each launch waits for its kernel, so timings differ from production"
        yield warning("cuda_launch_blocking", message, "unset it while you profile")


def check_other_profilers(running: RunningProfilers, driver: Driver) -> Finding:
    """Check for other profilers on this machine, as far as /proc shows them."""
    names = sorted({name for _, name in running.profilers})
    data = {"processes": [{"pid": pid, "name": name} for pid, name in running.profilers]}
    if not names:
        return ok("no_other_profiler", "no other profiler is visible", **data)
    message = f"running: {', '.join(f'{name} ({_pids(running.profilers, name)})' for name in names)}"
    if driver.present and any(name.startswith(("nv-hostengine", "dcgm")) for name in names):
        message += "; DCGM may be using the GPU counters, and ncu and nsys then can't read them"
        fix = "run `dcgmi profile --pause` while you profile, and --resume after"
        return warning("dcgm_running", message, fix, **data)
    if driver.present and any(name.startswith(("ncu", "nv-nsight-cu")) for name in names):
        message += "; ncu slows down its GPU for all processes"
        return warning("ncu_running", message, "wait until it has ended", **data)
    # CUPTI supports one profiler per process: one in another process does not interfere.
    return ok("other_profilers_harmless", f"{message}; each uses CUPTI only in its own target", **data)


def _pids(processes: Sequence[tuple[int, str]], name: str) -> str:
    pids = [str(pid) for pid, its_name in processes if its_name == name]
    return ", ".join(pids[:4]) + (f" and {len(pids) - 4} more" if len(pids) > 4 else "")


RULES: tuple[Rule, ...] = (
    Rule("python", check_python, ("python",)),
    Rule("traceable", check_extensions, ("extensions",)),
    Rule("packages", check_packages, ("packages",)),
    Rule("nvtx", check_nvtx, ("nvtx", "recorder self-test", "nsys self-test", "cuda")),
    Rule("recorder", check_recorder, ("nsys", "packages", "recorder self-test")),
    Rule("nsys", check_nsys, ("nsys", "driver")),
    Rule("nsys importer", check_importer, ("nsys",)),
    Rule("nsys capture", check_nsys_capture, ("nsys", "space", "packages", "nsys self-test")),
    Rule("ncu", check_ncu, ("ncu", "driver")),
    Rule("cuda driver", check_cuda_driver, ("driver", "machine", "cuda")),
    Rule("gpus", check_gpus, ("cuda", "nsys", "running")),
    Rule("gpu counters", check_gpu_counters, ("driver", "machine", "cuda")),
    Rule("cpu samples", check_cpu_samples, ("machine", "nsys")),
    Rule("system", check_system, ("machine",)),
    Rule("temporary", check_temporary_folder, ("space", "nsys")),
    Rule("output", check_output_folder, ("space",)),
    Rule("shared memory", check_shared_memory, ("space", "nsys")),
    Rule("torch", check_torch, ("torch", "cuda")),
    Rule("environment", check_environment, ("variables",)),
    Rule("other profilers", check_other_profilers, ("running", "driver")),
)
"""The checks, in the order in which they are printed."""
