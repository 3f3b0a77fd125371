"""What `traceable doctor` makes of facts, those of machines that can't be had here among them."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from traceable import environment
from traceable.launch import doctor_checks, doctor_facts, doctor_tools
from traceable.launch.doctor_canary import Canary
from traceable.launch.doctor_facts import Driver, Machine, Packages, Parts, Python, Running, Torch, Variables
from traceable.launch.doctor_findings import Said
from traceable.launch.doctor_probes import Cuda, Device, Nsys, Tool
from traceable.launch.doctor_space import Place, Space

PYTHON = Python((3, 11, 2), "CPython", "/usr/bin/python3", False, ())
MACHINE = Machine("Linux", "5.15.0-100-generic", False, None, 0, 2)
ADMIN = replace(MACHINE, capabilities=1 << doctor_facts.CAP_SYS_ADMIN)
OFFERS = {"windows": True, "Python samples": False}
NSYS = Nsys(Tool(Path("/opt/nsys"), "2024.6.1"), OFFERS, Path("/opt/QdstrmImporter"), cupti=((11, 8), (12, 6)))
NO_NSYS = Nsys(Tool(None, error="nsys is not installed", remedy="install it", there=False), {})
FOLDER = Place(Path("/x"), Path("/x"), True, True, True, False, 10**12, 10**6)
SPACE = Space(FOLDER, "TMPDIR", FOLDER, FOLDER, None)
NO_GPU, GPU = Driver(None, False, None), Driver("580.65.06", True, False)
H100, NO_CUDA = Device("NVIDIA H100 80GB HBM3", (9, 0)), Cuda(None, 100, (13, 0))
CUDA = Cuda(None, 0, (13, 0), (H100, H100))
SUNG = Canary("nsys", None, read=20, nvtx_emitted=20, nvtx_read=20, seconds=2.0)
QUIET = Running((), False)
WHOLE = Packages({"numpy": "2.1.0"}, {})
BROKEN = Packages({}, {"numpy": "No module named 'numpy'"})


def says(said: Said | None, state: str, *words: str) -> None:
    """Assert a judgement and what stands in its line or its fix."""
    assert said is not None
    assert said.state == state, said
    for word in words:
        assert word in f"{said.found} | {said.fix}"
    assert (said.fix is None) == (state == "ok")


def test_pythons_that_are_tested_are_ok():
    says(doctor_checks.python(PYTHON), "ok", "CPython 3.11.2 at /usr/bin/python3")
    for other in (replace(PYTHON, version=(3, 14, 0)), replace(PYTHON, implementation="PyPy")):
        says(doctor_checks.python(other), "warning", "not tested", "CPython 3.10 to 3.13")
    says(doctor_checks.python(replace(PYTHON, free_threaded=True)), "warning", "free-threaded")
    says(doctor_checks.python(replace(PYTHON, flags=("-I",))), "warning", "with -I", "from outside")


def test_packages_that_can_not_be_imported(tmp_path, monkeypatch):
    says(doctor_checks.packages(doctor_facts.packages()), "ok", "numpy", "wrapt")
    (tmp_path / "wrapt.py").write_text("raise ImportError('\\n\\nof another Python')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "wrapt", raising=False)
    found = doctor_checks.packages(doctor_facts.packages())
    says(found, "problem", "wrapt can't be imported: of another Python", "force-reinstall wrapt")


def test_parts_that_were_not_built():
    parts = Parts("0.1.0", (), (), False)
    says(doctor_checks.core(parts), "ok", "traceable 0.1.0")
    says(doctor_checks.core(replace(parts, missing=("_pages",))), "warning", "not built", "ten times", "C compiler")
    foreign = replace(parts, missing=("_core",), foreign=("_core",))
    says(doctor_checks.core(foreign), "warning", "for another Python", "several times more")
    says(doctor_checks.core(replace(parts, pure=True)), "warning", "unset TRACEABLE_PURE")


def test_without_recorder_and_nsys_nothing_can_record():
    says(doctor_tools.recorder(NO_NSYS, WHOLE, None), "problem", "nothing can record", "C compiler")
    says(doctor_tools.recorder(NSYS, WHOLE, None), "warning", "needs nsys")
    says(doctor_tools.recorder(NSYS, WHOLE, SUNG), "ok", "20 of 20")


def test_systems():
    says(doctor_checks.system(MACHINE), "ok", "Linux 5.15")
    says(doctor_checks.system(replace(ADMIN, container="Podman")), "ok", "container (Podman) with CAP_SYS_ADMIN")
    says(doctor_checks.system(replace(MACHINE, wsl=True)), "warning", "WSL")
    says(doctor_checks.system(replace(MACHINE, system="Darwin")), "problem", "use Linux")


@pytest.mark.parametrize(
    ("change", "with_nsys", "without", "words"),
    [
        ({}, "ok", "ok", "free"),
        ({"noexec": True}, "warning", "ok", "/x (TMPDIR)"),
        ({"free_bytes": 10**8}, "warning", "warning", "may not fit"),
        ({"free_bytes": 10**6}, "problem", "warning", "976.6 KiB free"),
        ({"free_files": 0}, "problem", "warning", "no room for another file"),
        ({"writable": False}, "problem", "warning", "can't be written"),
        ({"there": False}, "problem", "warning", "is not there"),
    ],
)
def test_the_folder_for_temporary_files_is_what_nsys_needs(change, with_nsys, without, words):
    space = replace(SPACE, temporary=replace(FOLDER, **change))
    says(doctor_checks.temporary(space, NSYS), with_nsys, words)
    says(doctor_checks.temporary(space, NO_NSYS), without, words)


def test_where_nsys_gets_another_folder_for_temporary_files():
    for change, why in (
        ({"noexec": True}, "mounted noexec"),
        ({"free_bytes": 10**6}, "976.6 KiB"),
        ({}, "76.29 MiB free"),
    ):
        space = replace(SPACE, temporary=replace(FOLDER, **{"free_bytes": 80_000_000, **change}), instead=Path("/y"))
        says(doctor_checks.temporary(space, NSYS), "warning", f"{why}", "nsys gets /y", "set TMPDIR")


def test_outputs():
    says(doctor_checks.output(SPACE), "ok", "/x, ")
    says(doctor_checks.output(replace(SPACE, file_limit_bytes=1 << 20)), "warning", "1.000 MiB", "ulimit -f unlimited")
    full = replace(FOLDER, free_bytes=10**8)
    says(doctor_checks.output(replace(SPACE, output=full)), "warning", "may not fit")
    below = replace(FOLDER, path=Path("/x/runs"), writable=False)
    says(doctor_checks.output(replace(SPACE, output=below)), "problem", "/x/runs: /x can't be written", "run -o")


def test_shared_memory_is_what_nsys_needs():
    small = replace(SPACE, shared=replace(FOLDER, free_bytes=1 << 20))
    says(doctor_checks.shared(small, NSYS), "problem", "nsys does not start", "--shm-size")
    says(doctor_checks.shared(SPACE, NSYS), "ok")
    assert doctor_checks.shared(small, NO_NSYS) is None


def test_samples_of_the_cpu():
    refused = replace(NSYS, no_samples="not permitted here, see `nsys status --environment`")
    says(doctor_checks.cpu_samples(MACHINE, NSYS), "ok", "perf_event_paranoid 2")
    says(doctor_checks.cpu_samples(replace(MACHINE, paranoid=4), NO_NSYS), "ok", "only nsys")
    says(
        doctor_checks.cpu_samples(replace(MACHINE, paranoid=4), refused),
        "note",
        "perf_event_paranoid=2",
        "--cap-add",
    )
    says(doctor_checks.cpu_samples(replace(ADMIN, paranoid=4), refused), "note", "seccomp")
    says(doctor_checks.cpu_samples(replace(MACHINE, paranoid=None), refused), "note", "no perf events")
    old = replace(refused, hangs_with_samples=True)
    says(doctor_checks.cpu_samples(replace(MACHINE, paranoid=4), old), "note", "nsys 2023 or newer")


def test_torch_is_judged_by_what_it_was_built_for():
    says(doctor_checks.torch(Torch(None), CUDA), "ok", "not installed")
    says(doctor_checks.torch(Torch("2.9.0", "13.0"), CUDA), "ok", "CUDA 13.0")
    says(doctor_checks.torch(Torch("2.9.0+cpu"), NO_CUDA), "ok", "torch.cuda.nvtx raises")
    says(doctor_checks.torch(Torch("2.9.0+cpu"), CUDA), "warning", "build with CUDA")
    older = replace(CUDA, version=(12, 8))
    says(doctor_checks.torch(Torch("2.9.0", "13.0"), older), "warning", "the driver serves 12.8: it sees no GPU")
    says(doctor_checks.torch(Torch("2.9.0", "12.9"), older), "ok")
    says(doctor_checks.torch(Torch("2.9.0", hip="6.4"), NO_CUDA), "warning", "AMD")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"NVTX_DISABLE": "1"}, "every annotation is a no-op"),
        ({environment.LEVEL: "1"}, "up to that level"),
        ({environment.RUN_DIR: "/x"}, "another run"),
        (
            {"NSYS_PROFILING_SESSION_ID": "1", environment.NVTX_INJECTION: "/x"},
            "under nsys (NSYS_PROFILING_SESSION_ID)",
        ),
        ({"LD_PRELOAD": "/opt/libToolsInjectionProxy64.so"}, "under nsys (LD_PRELOAD)"),
        ({environment.NVTX_INJECTION: "/no/such.so"}, "a file that is not there"),
        ({environment.NVTX_INJECTION: os.devnull}, "another NVTX listener"),
        ({"CUDA_INJECTION64_PATH": "/x.so"}, "may hold CUPTI"),
        ({"KINETO_USE_DAEMON": "1"}, "Kineto"),
        ({"CUDA_LAUNCH_BLOCKING": "1"}, "each launch waits"),
    ],
)
def test_variables_that_change_what_is_recorded(given, words):
    (said,) = doctor_checks.variables(Variables(given, listening=given.get(environment.NVTX_INJECTION) == os.devnull))
    says(said, "warning", words)


def test_other_variables_are_named_without_their_values():
    (said,) = doctor_checks.variables(
        Variables({environment.CONTROL_TOKEN: "hush", "PATH": "/bin", "KINETO_USE_DAEMON": "0"})
    )
    says(said, "ok", "set: TRACEABLE_CONTROL_TOKEN")
    assert "hush" not in f"{said}"
    says(doctor_checks.variables(Variables({}))[0], "ok", "nothing set")
    says(doctor_checks.variables(Variables({}, disabled=True))[0], "warning", "no-op")


def test_other_profilers():
    says(doctor_checks.profilers(QUIET, GPU), "ok")
    says(doctor_checks.profilers(Running(((5, "nsys"), (6, "nsys")), False), GPU), "ok", "nsys (5, 6)")
    says(doctor_checks.profilers(Running(((5, "nv-hostengine"),), False), GPU), "warning", "dcgmi profile --pause")
    says(doctor_checks.profilers(Running(((5, "ncu"),), False), GPU), "warning", "ncu (5)")
    says(doctor_checks.profilers(Running(((5, "ncu"),), False), NO_GPU), "ok", "ncu (5)")


def test_an_nsys():
    says(doctor_tools.nsys(NSYS, GPU), "ok", "nsys 2024.6.1 at /opt/nsys (windows); not: Python samples")
    says(doctor_tools.nsys(replace(NSYS, offers={"windows": False}), NO_GPU), "warning", "--steps", "a newer nsys")
    says(doctor_tools.nsys(NO_NSYS, GPU), "warning", "GPU work is not", "install-nsys.sh")
    says(doctor_tools.nsys(NO_NSYS, NO_GPU), "note", "GPU work is not", "install-nsys.sh")
    broken = Tool(None, error="/x/nsys --version ends with -11", remedy="reinstall it")
    says(doctor_tools.nsys(Nsys(broken, {}), NO_GPU), "problem", "ends with -11", "reinstall it")


def test_the_importer_is_of_the_same_version_as_nsys():
    says(doctor_tools.importer(NSYS), "ok", "/opt/QdstrmImporter")
    says(doctor_tools.importer(replace(NSYS, importer_version="2024.6.1")), "ok")
    other = replace(NSYS, importer_version="2022.4.2")
    says(doctor_tools.importer(other), "warning", "is of nsys 2022.4.2 and may not read what 2024.6.1 leaves")
    failed = replace(SUNG, error="the stream can't be read")
    says(doctor_tools.nsys_capture(other, SPACE, WHOLE, failed), "problem", "see `nsys importer`")


def test_what_became_of_nsyss_canary():
    says(doctor_tools.nsys_capture(NSYS, SPACE, WHOLE, SUNG), "ok", "20 of 20")
    assert doctor_tools.nsys_capture(NO_NSYS, SPACE, WHOLE, None) is None
    says(
        doctor_tools.nsys_capture(NSYS, SPACE, WHOLE, replace(SUNG, read=19)),
        "problem",
        "only 19 of 20",
        "nsys profile",
    )
    failed = replace(SUNG, error="it did not end within 11 s")
    says(doctor_tools.nsys_capture(NSYS, SPACE, WHOLE, failed), "problem", "it did not end within 11 s")
    limited = replace(SPACE, file_limit_bytes=1 << 18)
    says(doctor_tools.nsys_capture(NSYS, limited, WHOLE, failed), "problem", "see `output`")
    says(doctor_tools.nsys_capture(NSYS, SPACE, BROKEN, failed), "problem", "see `packages`")
    pure = replace(SUNG, read=0, core=False, nvtx_read=0)
    says(doctor_tools.nsys_capture(NSYS, SPACE, WHOLE, pure), "problem", "without the native core")


def test_the_nvtx_package_is_judged_by_who_hears_it():
    deaf = replace(SUNG, nvtx_read=0)
    says(
        doctor_tools.nvtx("0.2.17", SUNG, deaf, CUDA),
        "warning",
        "0 of 20 ranges by nsys and 20 of 20",
        "import traceable as nvtx",
    )
    says(doctor_tools.nvtx("0.2.17", SUNG, deaf, NO_CUDA), "note", "0 of 20 ranges by nsys")
    says(doctor_tools.nvtx("0.2.11", SUNG, SUNG, CUDA), "ok", "20 of 20 ranges by nsys")
    says(doctor_tools.nvtx("0.2.17", SUNG, None, CUDA), "ok", "by the recorder")
    says(doctor_tools.nvtx(None, SUNG, None, CUDA), "warning", "pip install nvtx")


def test_an_ncu():
    says(doctor_tools.ncu(Tool(Path("/opt/ncu"), "2024.1.1.0"), GPU), "ok", "/opt/ncu")
    absent = Tool(None, error="ncu (Nsight Compute) is not installed", remedy="install it", there=False)
    says(doctor_tools.ncu(absent, GPU), "note", "nsight-compute")
    says(doctor_tools.ncu(absent, NO_GPU), "ok", "no GPU")
    says(doctor_tools.ncu(replace(absent, there=True), NO_GPU), "problem", "install it")


def test_a_driver():
    says(doctor_tools.cuda_driver(NO_GPU, MACHINE, NO_CUDA), "ok", "no GPU work")
    says(doctor_tools.cuda_driver(GPU, MACHINE, CUDA), "ok", "driver 580.65.06, CUDA 13.0")
    unloaded = Cuda("libcuda.so.1: cannot open shared object file")
    says(doctor_tools.cuda_driver(GPU, MACHINE, unloaded), "warning", "libcuda1")
    inside = replace(MACHINE, container="Docker")
    says(doctor_tools.cuda_driver(GPU, inside, unloaded), "warning", "--gpus all")
    for result, words in ((100, "sees no GPU"), (803, "two versions"), (999, "cuInit says 999")):
        says(doctor_tools.cuda_driver(GPU, MACHINE, Cuda(None, result, (13, 0))), "warning", words)


def test_gpus_that_this_nsys_knows():
    says(doctor_tools.gpus(CUDA, NSYS, QUIET), "ok", "2 x NVIDIA H100 80GB HBM3 (9.0)")
    assert doctor_tools.gpus(NO_CUDA, NSYS, QUIET) is None
    old = replace(NSYS, cupti=((11, 0), (11, 7)))
    says(doctor_tools.gpus(CUDA, old, QUIET), "warning", "CUPTI 11.7 at most, and this GPU needs 11.8")
    says(doctor_tools.gpus(CUDA, NO_NSYS, QUIET), "ok")
    volta = replace(CUDA, devices=(Device("Tesla V100", (7, 0)),))
    says(doctor_tools.gpus(volta, NSYS, QUIET), "ok")
    newer = replace(NSYS, tool=replace(NSYS.tool, version="2025.5.1"))
    says(doctor_tools.gpus(volta, newer, QUIET), "warning", "below 7.5")
    blackwell = replace(CUDA, devices=(Device("NVIDIA B200", (10, 0)),))
    knows = replace(NSYS, cupti=((12, 8),), cuda_by_software=True)
    says(doctor_tools.gpus(blackwell, knows, QUIET), "ok")
    says(doctor_tools.gpus(blackwell, knows, Running((), True)), "warning", "under MPS", "cuda-sw")


def test_the_gpus_counters():
    restricted = replace(GPU, admin_only=True)
    says(doctor_tools.gpu_counters(GPU, MACHINE, CUDA), "ok")
    says(doctor_tools.gpu_counters(restricted, ADMIN, CUDA), "ok")
    says(doctor_tools.gpu_counters(restricted, MACHINE, CUDA), "note", "NVreg_RestrictProfilingToAdminUsers=0")
    assert doctor_tools.gpu_counters(restricted, MACHINE, NO_CUDA) is None
