"""What `traceable doctor` makes of facts, those of machines that can't be had here among them."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from traceable.checks import machine, machine_checks
from traceable.checks.disk_space import Folder, Space
from traceable.checks.finding import CheckResult
from traceable.checks.machine import (
    Driver,
    Extensions,
    Machine,
    Packages,
    Python,
    RunningProfilers,
    Torch,
    Variables,
)
from traceable.checks.probes import Cuda, Device, Nsys, Tool
from traceable.checks.self_test import SelfTest
from traceable.errors import Message
from traceable.protocol import environment

PYTHON = Python((3, 11, 2), "CPython", "/usr/bin/python3", False, ())
MACHINE = Machine("Linux", "5.15.0-100-generic", False, None, 0, 2)
ADMIN = replace(MACHINE, capabilities=1 << machine.CAP_SYS_ADMIN)
OFFERS = {"windows": True, "Python samples": False}
NSYS = Nsys(Tool(Path("/opt/nsys"), "2024.6.1"), OFFERS, Path("/opt/QdstrmImporter"), cupti=((11, 8), (12, 6)))
NO_NSYS = Nsys(Tool(None, error="nsys is not installed", remedy="install it", exists=False), {})
FOLDER = Folder(Path("/x"), Path("/x"), True, True, True, False, 10**12, 10**6)
SPACE = Space(FOLDER, "TMPDIR", FOLDER, FOLDER, None)
NO_GPU, GPU = Driver(None, False, None), Driver("580.65.06", True, False)
H100, NO_CUDA = Device("NVIDIA H100 80GB HBM3", (9, 0)), Cuda(None, 100, (13, 0))
CUDA = Cuda(None, 0, (13, 0), (H100, H100))
DONE = SelfTest("nsys", None, read=20, nvtx_emitted=20, nvtx_read=20, seconds=2.0)
QUIET = RunningProfilers((), False)
WHOLE = Packages({"numpy": "2.1.0"}, {})
BROKEN = Packages({}, {"numpy": "No module named 'numpy'"})


def says(said: CheckResult | None, state: str, code: str, *words: str) -> None:
    """Assert a judgement, and the numbers and names that stand in its line or its fix."""
    assert said is not None
    assert (said.state, said.message.code) == (state, code), said
    for word in words:
        assert word in f"{said.message} | {said.fix}"
    assert (said.fix is None) == (state == "ok")


def test_pythons_that_are_tested_are_ok():
    says(machine_checks.check_python(PYTHON), "ok", "python_supported", "CPython 3.11.2", "/usr/bin/python3")
    for other in (replace(PYTHON, version=(3, 14, 0)), replace(PYTHON, implementation="PyPy")):
        says(machine_checks.check_python(other), "warning", "python_untested", "CPython", "3.10", "3.13")
    says(machine_checks.check_python(replace(PYTHON, free_threaded=True)), "warning", "python_free_threaded")
    says(machine_checks.check_python(replace(PYTHON, flags=("-I",))), "warning", "python_isolated", "-I")


def test_packages_that_can_not_be_imported(tmp_path, monkeypatch):
    says(machine_checks.check_packages(machine.inspect_packages()), "ok", "packages_importable", "numpy", "wrapt")
    (tmp_path / "wrapt.py").write_text("raise ImportError('\\n\\nof another Python')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "wrapt", raising=False)
    found = machine_checks.check_packages(machine.inspect_packages())
    says(found, "problem", "package_not_importable", "of another Python", "--force-reinstall wrapt")
    assert found.evidence["errors"] == {"wrapt": "of another Python"}


def test_parts_that_were_not_built():
    parts = Extensions("0.1.0", (), (), False)
    says(machine_checks.check_extensions(parts), "ok", "extensions_usable", "0.1.0")
    says(
        machine_checks.check_extensions(replace(parts, missing=("_pages",))),
        "warning",
        "extension_not_built",
        "_pages: ",
    )
    foreign = replace(parts, missing=("_core",), foreign=("_core",))
    says(machine_checks.check_extensions(foreign), "warning", "extension_of_another_python", "_core: ")
    says(
        machine_checks.check_extensions(replace(parts, pure=True)), "warning", "native_core_off", "unset TRACEABLE_PURE"
    )


def test_without_recorder_and_nsys_nothing_can_record():
    says(machine_checks.check_recorder(NO_NSYS, WHOLE, None), "problem", "no_collector")
    says(machine_checks.check_recorder(NSYS, WHOLE, None), "warning", "recorder_not_built")
    says(machine_checks.check_recorder(NSYS, WHOLE, DONE), "ok", "capture_complete", "20 of 20")


def test_systems():
    says(machine_checks.check_system(MACHINE), "ok", "linux", "5.15")
    says(machine_checks.check_system(replace(ADMIN, container="Podman")), "ok", "linux", "Podman", "with CAP_SYS_ADMIN")
    says(machine_checks.check_system(replace(MACHINE, wsl=True)), "warning", "inside_wsl")
    says(machine_checks.check_system(replace(MACHINE, system="Darwin")), "problem", "not_linux", "Darwin")


@pytest.mark.parametrize(
    ("change", "with_nsys", "without", "code", "words"),
    [
        ({}, "ok", "ok", "folder_usable", "/x (TMPDIR)"),
        ({"noexec": True}, "warning", "ok", "folder_noexec", "/x (TMPDIR)"),
        ({"free_bytes": 10**8}, "warning", "warning", "low_space", "95.37 MiB"),
        ({"free_bytes": 10**6}, "problem", "warning", "no_space", "976.6 KiB"),
        ({"free_files": 0}, "problem", "warning", "no_inodes", "/x (TMPDIR)"),
        ({"writable": False}, "problem", "warning", "folder_not_writable", "/x (TMPDIR)"),
        ({"is_directory": False}, "problem", "warning", "not_a_directory", "/x (TMPDIR)"),
        ({"exists": False}, "problem", "warning", "folder_missing", "/x (TMPDIR)"),
    ],
)
def test_the_folder_for_temporary_files_is_what_nsys_needs(change, with_nsys, without, code, words):
    space = replace(SPACE, temporary=replace(FOLDER, **change))
    says(machine_checks.check_temporary_folder(space, NSYS), with_nsys, code, words)
    says(
        machine_checks.check_temporary_folder(space, NO_NSYS),
        without,
        "folder_usable" if without == "ok" else code,
        words,
    )


def test_where_nsys_gets_another_folder_for_temporary_files():
    for change, code, why in (
        ({"noexec": True}, "folder_noexec", "/x"),
        ({"free_bytes": 10**6}, "no_space", "976.6 KiB"),
        ({}, "low_space", "76.29 MiB"),
    ):
        space = replace(SPACE, temporary=replace(FOLDER, **{"free_bytes": 80_000_000, **change}), fallback=Path("/y"))
        says(machine_checks.check_temporary_folder(space, NSYS), "warning", code, why, "/y", "set TMPDIR")


def test_outputs():
    says(machine_checks.check_output_folder(SPACE), "ok", "folder_usable", "/x, ")
    limited = machine_checks.check_output_folder(replace(SPACE, file_limit_bytes=1 << 20))
    says(limited, "warning", "file_size_limited", "1.000 MiB", "ulimit -f unlimited")
    full = replace(FOLDER, free_bytes=10**8)
    says(machine_checks.check_output_folder(replace(SPACE, output=full)), "warning", "low_space", "95.37 MiB")
    below = replace(FOLDER, path=Path("/x/runs"), writable=False)
    says(
        machine_checks.check_output_folder(replace(SPACE, output=below)),
        "problem",
        "folder_not_writable",
        "/x/runs: /x ",
        "run -o",
    )


def test_shared_memory_is_what_nsys_needs():
    small = replace(SPACE, shared=replace(FOLDER, free_bytes=1 << 20))
    says(machine_checks.check_shared_memory(small, NSYS), "problem", "no_space", "/dev/shm", "1.000 MiB", "--shm-size")
    says(machine_checks.check_shared_memory(SPACE, NSYS), "ok", "folder_usable", "/dev/shm")
    assert machine_checks.check_shared_memory(small, NO_NSYS) is None


def test_samples_of_the_cpu():
    refused = replace(NSYS, no_samples_reason="not permitted here, see `nsys status --environment`")
    says(machine_checks.check_cpu_samples(MACHINE, NSYS), "ok", "samples_permitted", "perf_event_paranoid 2")
    strict = replace(MACHINE, perf_event_paranoid=4)
    says(machine_checks.check_cpu_samples(strict, NO_NSYS), "ok", "samples_need_nsys", "perf_event_paranoid 4")
    fix = ("perf_event_paranoid=2", "--cap-add")
    says(machine_checks.check_cpu_samples(strict, refused), "note", "perf_event_paranoid", *fix)
    says(
        machine_checks.check_cpu_samples(replace(ADMIN, perf_event_paranoid=4), refused),
        "note",
        "samples_not_permitted",
    )
    says(
        machine_checks.check_cpu_samples(replace(MACHINE, perf_event_paranoid=None), refused), "note", "no_perf_events"
    )
    old = replace(refused, hangs_with_samples=True)
    says(machine_checks.check_cpu_samples(strict, old), "note", "samples_hang_nsys", "2023")


def test_torch_is_judged_by_what_it_was_built_for():
    says(machine_checks.check_torch(Torch(None), CUDA), "ok", "torch_not_installed")
    says(machine_checks.check_torch(Torch("2.9.0", "13.0"), CUDA), "ok", "torch_with_cuda", "CUDA 13.0")
    says(machine_checks.check_torch(Torch("2.9.0+cpu"), NO_CUDA), "ok", "torch_without_cuda", "2.9.0+cpu")
    says(machine_checks.check_torch(Torch("2.9.0+cpu"), CUDA), "warning", "torch_without_cuda", "2.9.0+cpu")
    older = replace(CUDA, version=(12, 8))
    says(machine_checks.check_torch(Torch("2.9.0", "13.0"), older), "warning", "torch_cuda_too_new", "13.0", "12.8")
    says(machine_checks.check_torch(Torch("2.9.0", "12.9"), older), "ok", "torch_with_cuda")
    says(machine_checks.check_torch(Torch("2.9.0", hip="6.4"), NO_CUDA), "warning", "torch_for_amd")


@pytest.mark.parametrize(
    ("given", "code", "words"),
    [
        ({"NVTX_DISABLE": "1"}, "annotations_disabled", "NVTX_DISABLE"),
        ({environment.LEVEL: "1"}, "level_too_low", "TRACEABLE_LEVEL=1"),
        ({environment.RUN_DIR: "/x"}, "inside_another_run", "TRACEABLE_RUN_DIR"),
        (
            {"NSYS_PROFILING_SESSION_ID": "1", environment.NVTX_INJECTION: "/x"},
            "inside_nsys",
            "(NSYS_PROFILING_SESSION_ID)",
        ),
        ({"LD_PRELOAD": "/opt/libToolsInjectionProxy64.so"}, "inside_nsys", "(LD_PRELOAD)"),
        ({environment.NVTX_INJECTION: "/no/such.so"}, "nvtx_injection_missing", "(/no/such.so)"),
        ({environment.NVTX_INJECTION: os.devnull}, "nvtx_injection_set", f"({os.devnull})"),
        ({"CUDA_INJECTION64_PATH": "/x.so"}, "cuda_injection_set", "CUDA_INJECTION64_PATH=/x.so"),
        ({"KINETO_USE_DAEMON": "1"}, "kineto_daemon_set", "KINETO_USE_DAEMON"),
        ({"CUDA_LAUNCH_BLOCKING": "1"}, "cuda_launch_blocking", "CUDA_LAUNCH_BLOCKING=1"),
    ],
)
def test_variables_that_change_what_is_recorded(given, code, words):
    (said,) = machine_checks.check_environment(
        Variables(given, injection_exists=given.get(environment.NVTX_INJECTION) == os.devnull)
    )
    says(said, "warning", code, words)


def test_other_variables_are_named_without_their_values():
    (said,) = machine_checks.check_environment(
        Variables({environment.CONTROL_TOKEN: "hush", "PATH": "/bin", "KINETO_USE_DAEMON": "0"})
    )
    says(said, "ok", "environment_harmless", "TRACEABLE_CONTROL_TOKEN")
    assert said.evidence == {"names": ["TRACEABLE_CONTROL_TOKEN"]}
    assert "hush" not in f"{said}"
    (nothing,) = machine_checks.check_environment(Variables({}))
    says(nothing, "ok", "environment_harmless")
    assert nothing.evidence == {"names": []}
    (off,) = machine_checks.check_environment(Variables({}, disabled=True))
    says(off, "warning", "annotations_disabled", "TRACEABLE_DISABLE")


def test_other_profilers():
    def judged(driver: Driver, *processes: tuple[int, str]) -> CheckResult:
        return machine_checks.check_other_profilers(RunningProfilers(processes, False), driver)

    says(machine_checks.check_other_profilers(QUIET, GPU), "ok", "no_other_profiler")
    says(judged(GPU, (5, "nsys"), (6, "nsys")), "ok", "other_profilers_harmless", "nsys (5, 6)")
    says(judged(GPU, (5, "nv-hostengine")), "warning", "dcgm_running", "nv-hostengine (5)", "dcgmi profile --pause")
    says(judged(GPU, (5, "ncu")), "warning", "ncu_running", "ncu (5)")
    says(judged(NO_GPU, (5, "ncu")), "ok", "other_profilers_harmless", "ncu (5)")


def test_an_nsys():
    said = machine_checks.check_nsys(NSYS, GPU)
    says(said, "ok", "nsys_usable", "2024.6.1", "/opt/nsys", "(windows)", "Python samples")
    assert said.evidence["features"] == OFFERS
    without = replace(NSYS, features={"windows": False})
    says(machine_checks.check_nsys(without, NO_GPU), "warning", "nsys_without_windows", "--steps")
    says(machine_checks.check_nsys(NO_NSYS, GPU), "warning", "nsys_not_installed", "install-nsys.sh")
    says(machine_checks.check_nsys(NO_NSYS, NO_GPU), "note", "nsys_not_installed", "install-nsys.sh")
    broken = Tool(None, error="/x/nsys --version ends with -11", remedy="reinstall it")
    says(
        machine_checks.check_nsys(Nsys(broken, {}), NO_GPU), "problem", "nsys_unusable", "ends with -11", "reinstall it"
    )


def test_the_importer_is_of_the_same_version_as_nsys():
    says(machine_checks.check_importer(NSYS), "ok", "importer_usable", "/opt/QdstrmImporter")
    says(machine_checks.check_importer(replace(NSYS, importer_version="2024.6.1")), "ok", "importer_usable")
    other = replace(NSYS, importer_version="2022.4.2")
    says(machine_checks.check_importer(other), "warning", "importer_version_differs", "2022.4.2", "2024.6.1")
    failed = replace(DONE, error=Message("stream_unreadable", "the stream can't be read"))
    says(
        machine_checks.check_nsys_capture(other, SPACE, WHOLE, failed),
        "problem",
        "capture_failed",
        "see `nsys importer`",
    )


def test_the_self_test_under_nsys():
    says(machine_checks.check_nsys_capture(NSYS, SPACE, WHOLE, DONE), "ok", "capture_complete", "20 of 20")
    assert machine_checks.check_nsys_capture(NO_NSYS, SPACE, WHOLE, None) is None
    fewer = machine_checks.check_nsys_capture(NSYS, SPACE, WHOLE, replace(DONE, read=19))
    says(fewer, "problem", "ranges_missing", "19 of 20", "nsys profile")
    failed = replace(DONE, error=Message("capture_timed_out", "it did not end within 11 s"))
    said = machine_checks.check_nsys_capture(NSYS, SPACE, WHOLE, failed)
    says(said, "problem", "capture_failed", "it did not end within 11 s")
    assert said.evidence["error"] == {"code": "capture_timed_out", "text": "it did not end within 11 s"}
    limited = replace(SPACE, file_limit_bytes=1 << 18)
    says(machine_checks.check_nsys_capture(NSYS, limited, WHOLE, failed), "problem", "capture_failed", "see `output`")
    says(machine_checks.check_nsys_capture(NSYS, SPACE, BROKEN, failed), "problem", "capture_failed", "see `packages`")
    pure = replace(DONE, read=0, native_core=False, nvtx_read=0)
    says(
        machine_checks.check_nsys_capture(NSYS, SPACE, WHOLE, pure),
        "problem",
        "nvtx_package_incompatible",
        "see `traceable` and `nvtx`",
    )


def test_the_nvtx_package_is_judged_by_who_hears_it():
    unrecorded = replace(DONE, nvtx_read=0)
    said = machine_checks.check_nvtx("0.2.17", DONE, unrecorded, CUDA)
    says(said, "warning", "nvtx_package_incompatible", "0.2.17", "0 of 20", "20 of 20", "import traceable as nvtx")
    assert said.evidence["recorded"] == {"nsys": 0, "the recorder": 20}
    says(
        machine_checks.check_nvtx("0.2.17", DONE, unrecorded, NO_CUDA),
        "note",
        "nvtx_package_incompatible",
        "0 of 20 ranges by nsys",
    )
    says(machine_checks.check_nvtx("0.2.11", DONE, DONE, CUDA), "ok", "nvtx_usable", "20 of 20 ranges by nsys")
    alone = machine_checks.check_nvtx("0.2.17", DONE, None, CUDA)
    says(alone, "ok", "nvtx_usable")
    assert alone.evidence["recorded"] == {"the recorder": 20}
    says(machine_checks.check_nvtx(None, DONE, None, CUDA), "warning", "nvtx_not_installed", "pip install nvtx")


def test_an_ncu():
    says(
        machine_checks.check_ncu(Tool(Path("/opt/ncu"), "2024.1.1.0"), GPU),
        "ok",
        "ncu_usable",
        "/opt/ncu",
        "2024.1.1.0",
    )
    absent = Tool(None, error="ncu (Nsight Compute) is not installed", remedy="install it", exists=False)
    says(machine_checks.check_ncu(absent, GPU), "note", "ncu_not_installed", "nsight-compute")
    says(machine_checks.check_ncu(absent, NO_GPU), "ok", "ncu_not_installed")
    says(machine_checks.check_ncu(replace(absent, exists=True), NO_GPU), "problem", "ncu_unusable", "install it")


def test_a_driver():
    says(machine_checks.check_cuda_driver(NO_GPU, MACHINE, NO_CUDA), "ok", "no_gpu")
    says(machine_checks.check_cuda_driver(GPU, MACHINE, CUDA), "ok", "cuda_driver_usable", "580.65.06", "CUDA 13.0")
    unloaded = Cuda("libcuda.so.1: cannot open shared object file")
    says(machine_checks.check_cuda_driver(GPU, MACHINE, unloaded), "warning", "libcuda_not_loadable", "libcuda1")
    inside = replace(MACHINE, container="Docker")
    says(machine_checks.check_cuda_driver(GPU, inside, unloaded), "warning", "libcuda_not_loadable", "--gpus all")
    for result, code in (
        (34, "libcuda_stub"),
        (100, "no_cuda_device"),
        (802, "gpus_not_ready"),
        (803, "driver_mismatch"),
        (804, "cuda_compat_mismatch"),
        (999, "cuda_init_failed"),
    ):
        said = machine_checks.check_cuda_driver(GPU, MACHINE, Cuda(None, result, (13, 0)))
        says(said, "warning", code, "580.65.06")
        assert said.evidence["cuInit"] == result
    says(said, "warning", "cuda_init_failed", "999")


def test_gpus_that_this_nsys_knows():
    says(machine_checks.check_gpus(CUDA, NSYS, QUIET), "ok", "gpus_supported", "2 x NVIDIA H100 80GB HBM3 (9.0)")
    assert machine_checks.check_gpus(NO_CUDA, NSYS, QUIET) is None
    old = replace(NSYS, cupti=((11, 0), (11, 7)))
    says(machine_checks.check_gpus(CUDA, old, QUIET), "warning", "cupti_too_old", "11.7", "11.8")
    says(machine_checks.check_gpus(CUDA, NO_NSYS, QUIET), "ok", "gpus_supported")
    volta = replace(CUDA, devices=(Device("Tesla V100", (7, 0)),))
    says(machine_checks.check_gpus(volta, NSYS, QUIET), "ok", "gpus_supported")
    newer = replace(NSYS, tool=replace(NSYS.tool, version="2025.5.1"))
    says(machine_checks.check_gpus(volta, newer, QUIET), "warning", "gpu_too_old", "7.5")
    blackwell = replace(CUDA, devices=(Device("NVIDIA B200", (10, 0)),))
    knows = replace(NSYS, cupti=((12, 8),), supports_cuda_sw=True)
    says(machine_checks.check_gpus(blackwell, knows, QUIET), "ok", "gpus_supported")
    shared = machine_checks.check_gpus(blackwell, knows, RunningProfilers((), True))
    says(shared, "warning", "hardware_trace_unavailable", "MPS", "cuda-sw")


def test_the_gpus_counters():
    restricted = replace(GPU, admin_only=True)
    says(machine_checks.check_gpu_counters(GPU, MACHINE, CUDA), "ok", "counters_permitted")
    says(machine_checks.check_gpu_counters(restricted, ADMIN, CUDA), "ok", "counters_permitted")
    fix = "NVreg_RestrictProfilingToAdminUsers=0"
    says(machine_checks.check_gpu_counters(restricted, MACHINE, CUDA), "note", "counters_not_permitted", fix)
    assert machine_checks.check_gpu_counters(restricted, MACHINE, NO_CUDA) is None
