"""What an analysis costs: ours and real `nsys stats`, in turn on the same generated files.

    python benchmarks/analysis.py [--kernels 1000000 ...] [--timeout 300] [--rounds 3] [--folder DIRECTORY] [--json]

Prints Markdown: the machine, then for each size wall and CPU seconds and peak memory of each command, in a process of
its own with its output thrown away, and the ratios. The files are generated once and kept in DIRECTORY. `warm` is with
the file in the page cache; `cold` after it was dropped from the cache, which is checked. nsys runs once a report, after
all of ours, with the file warm; a report that reaches the limit is ended, and marked in the table. Our commands find
compiled modules, as those of an installed package do, whatever PYTHONDONTWRITEBYTECODE is here.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import mmap
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from statistics import median

from traceable.report.views import ALL, VIEWS

# Linux counts what this process holds when it starts another one as that one's peak. So numpy is never loaded here,
# files are generated elsewhere, and no peak is shown of what holds less.

GENERATOR = Path(__file__).with_name("generate_trace.py")
OURS = ("-m", "traceable", "report", "{path}", "--view", "{view}", "--json")
"""The measured command, after the interpreter."""

NSYS = ("stats", "--report", "{report}", "--format", "csv", "{path}")

REPORTS = (
    ("nvtx_pushpop_sum", "nvtxppsum"),
    ("cuda_gpu_kern_sum", "gpukernsum"),
    ("cuda_api_sum", "cudaapisum"),
    ("cuda_gpu_mem_time_sum", "gpumemtimesum"),
    ("cuda_gpu_mem_size_sum", "gpumemsizesum"),
    ("cuda_kern_exec_sum", "kernexecsum"),
    ("nvtx_kern_sum", "nvtxkernsum"),
    ("nvtx_gpu_proj_sum", "nvtxgpuproj"),
)
"""nsys's reports that are nearest to our questions: the name since 2023, and before. The last has no sum before."""

START_UP_KERNELS = 20_000
"""Size of the file that is always measured as well, in which starting up is most of the time."""

WITHOUT_DATA = ("requests", "rates")
"""The views that the generated files have nothing for: `requests.py` measures the first."""

_BLOCK = 1 << 22


@dataclass(frozen=True)
class Run:
    """One process: wall seconds, CPU seconds, peak resident bytes, whether it was ended at the limit.

    CPU seconds are those of the process and of all that it started and waited for, user and system.
    """

    seconds: float
    cpu_seconds: float
    peak_bytes: int
    timed_out: bool = False


@dataclass(frozen=True)
class Size:
    """What was measured with one file. Runs are the medians of their rounds.

    Attributes:
        read_warm_s, read_cold_s: of reading the file to its end, in this process.
        resident_share: how much of the file the page cache still held when it was read cold; None if unknown.
        interpreter, numpy: `python -c pass`, and with numpy imported.
        views: our views, warm, each alone.
        reports: nsys's reports; None where there is no nsys.
    """

    kernels: int
    file_bytes: int
    read_warm_s: float
    read_cold_s: float
    resident_share: float | None
    interpreter: Run
    numpy: Run
    warm: Run
    cold: Run
    views: dict[str, Run]
    reports: dict[str, Run] | None


# ---- measuring


def run(argv: Sequence[str], timeout_s: float | None = None, environment: Mapping[str, str] | None = None) -> Run:
    """Run `argv` with its output thrown away.

    Args:
        timeout_s: after how long it is ended; None for never.
        environment: its environment variables; None for those of this process.

    Raises:
        RuntimeError: it failed.
    """
    begin = time.perf_counter()
    # A process group of its own: nsys runs each report in a child, which has to end with it.
    with tempfile.TemporaryFile() as errors:
        child = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            start_new_session=True,
            env=environment,
        )
        ended = threading.Event()
        timer = threading.Timer(timeout_s or threading.TIMEOUT_MAX, _end, (child.pid, ended))
        timer.daemon = True
        timer.start()
        _, status, used = os.wait4(child.pid, 0)
        seconds = time.perf_counter() - begin
        timer.cancel()
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode and not ended.is_set():
            errors.seek(0)
            stderr_tail = errors.read().decode(errors="replace").strip()[-2000:]
            raise RuntimeError(f"{' '.join(argv)} ended with {child.returncode}: {stderr_tail}")
    return Run(seconds, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024, ended.is_set())


def _end(pid: int, ended: threading.Event) -> None:
    ended.set()
    os.killpg(pid, signal.SIGKILL)


def take_medians(runs: Sequence[Run]) -> Run:
    """Return the medians of the seconds and of the peaks."""
    return Run(
        median(each.seconds for each in runs),
        median(each.cpu_seconds for each in runs),
        int(median(each.peak_bytes for each in runs)),
    )


def read(path: Path) -> float:
    """Return the seconds that reading the file to its end takes."""
    block = bytearray(_BLOCK)
    begin = time.perf_counter()
    with path.open("rb", buffering=0) as file:
        while file.readinto(block):
            pass
    return time.perf_counter() - begin


def drop_from_cache(path: Path) -> float | None:
    """Drop the file from the page cache; return the share that stayed, None where the system does not report it."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return _read_resident_share(file.fileno(), path.stat().st_size)


def _read_resident_share(descriptor: int, size: int) -> float | None:
    """Return how much of the file is in the page cache, by mincore(2)."""
    pages = -(-size // mmap.PAGESIZE)
    resident = (ctypes.c_ubyte * pages)()
    # A private mapping, because only one that may be written to has an address that ctypes gives.
    with mmap.mmap(descriptor, size, access=mmap.ACCESS_COPY) as mapped:
        begin = ctypes.c_char.from_buffer(mapped)
        mincore = ctypes.CDLL(None, use_errno=True).mincore
        mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.POINTER(ctypes.c_ubyte))
        failed = mincore(ctypes.addressof(begin), size, resident)
        del begin
    return None if failed else sum(page & 1 for page in resident) / pages


def make_command(path: Path, view: str) -> list[str]:
    """Return our command for `view`."""
    return [sys.executable, *(word.format(path=path, view=view) for word in OURS)]


def make_compile_environ(folder: Path) -> dict[str, str]:
    """Return the environment in which Python keeps compiled modules below `folder`, and finds them there again."""
    own = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**own, "PYTHONPYCACHEPREFIX": str(folder / "compiled-modules")}


def measure(kernels: int, path: Path, rounds: int, reports: Sequence[str], nsys: str | None, timeout: float) -> Size:
    """Measure one file, which is generated already: each round everything of ours once, then nsys."""
    interpreter: list[Run] = []
    with_numpy: list[Run] = []
    warm: list[Run] = []
    cold: list[Run] = []
    read_warm: list[float] = []
    read_cold: list[float] = []
    views: dict[str, list[Run]] = {name: [] for name in VIEWS if name not in WITHOUT_DATA}
    shares: list[float | None] = []
    compiled = make_compile_environ(path.parent)
    read(path)
    run(make_command(path, ALL), environment=compiled)  # compiles what was changed since
    for _ in range(rounds):
        interpreter.append(run([sys.executable, "-c", "pass"], environment=compiled))
        with_numpy.append(run([sys.executable, "-c", "import numpy"], environment=compiled))
        read_warm.append(read(path))
        warm.append(run(make_command(path, ALL), environment=compiled))
        for name, runs in views.items():
            runs.append(run(make_command(path, name), environment=compiled))
        shares.append(drop_from_cache(path))
        read_cold.append(read(path))
        shares.append(drop_from_cache(path))
        cold.append(run(make_command(path, ALL), environment=compiled))
        read(path)
    known = [share for share in shares if share is not None]
    found_reports = None
    if nsys is not None:
        found_reports = {name: run([nsys, *_make_nsys_words(name, path)], timeout) for name in reports}
    return Size(
        kernels=kernels,
        file_bytes=path.stat().st_size,
        read_warm_s=median(read_warm),
        read_cold_s=median(read_cold),
        resident_share=max(known) if len(known) == len(shares) else None,
        interpreter=take_medians(interpreter),
        numpy=take_medians(with_numpy),
        warm=take_medians(warm),
        cold=take_medians(cold),
        views={name: take_medians(runs) for name, runs in views.items()},
        reports=found_reports,
    )


def _make_nsys_words(report: str, path: Path) -> list[str]:
    return [word.format(report=report, path=path) for word in NSYS]


def list_reports(nsys: str) -> list[str]:
    """Return the reports that this nsys has, each under the name that it knows."""
    help_text = subprocess.run([nsys, "stats", "--help-reports"], capture_output=True, text=True, check=False).stdout
    words = {word.partition("[")[0] for line in help_text.splitlines() for word in line.split()[:1]}
    return [next(name for name in names if name in words) for names in REPORTS if words & set(names)]


def ensure_generated(folder: Path, kernels: int, seed: int = 0) -> Path:
    """Return the file with so many kernels, after generating it if it is not there.

    Its name holds what the generator's code is, so that a file of other code is never taken for it.
    """
    sources = sorted({GENERATOR, *(GENERATOR.with_name(f"_{name}.py") for name in _GENERATOR_PARTS)})
    code = b"".join(source.read_bytes() for source in sources)
    path = folder / f"decode-{kernels}-{seed}-{zlib.crc32(code):08x}.sqlite"
    if not path.exists():
        run([sys.executable, str(GENERATOR), str(path), "--kernels", str(kernels), "--seed", str(seed)])
    return path


_GENERATOR_PARTS = ("decode_kernels", "decode_server", "profiler", "program", "table_writer", "trace_tables")


# ---- saying it


def describe_machine(nsys: str | None) -> dict[str, str]:
    """Return what the figures depend on."""
    nsys_version = "not installed"
    if nsys is not None:
        version_text = subprocess.run([nsys, "--version"], capture_output=True, text=True, check=False).stdout
        nsys_version = version_text.strip().rpartition("version ")[2]
    return {
        "CPUs": str(os.cpu_count()),
        "system": platform.platform(),
        "Python": platform.python_version(),
        "numpy": version("numpy"),
        "nsys": nsys_version,
        "load average": f"{os.getloadavg()[0]:.1f}",
    }


def split_by_timeout(size: Size) -> tuple[list[Run], list[str]]:
    """Return the reports of nsys that finished, and the names of those that were ended at the limit."""
    reports = size.reports or {}
    finished = [each for each in reports.values() if not each.timed_out]
    return finished, [name for name, each in reports.items() if each.timed_out]


def render_markdown(facts: dict[str, str], sizes: Sequence[Size], rounds: int, timeout: float) -> str:
    """Render everything as Markdown."""
    lines = [
        ", ".join(f"{name} {value}" for name, value in facts.items()) + ".",
        f"Medians of {rounds} rounds, nsys once with at most {timeout:g} s a report; its file is warm.",
    ]
    for size in sizes:
        lines += ["", *_render_size(size)]
    if len(sizes) > 1:
        lines += ["", *_render_growth(sizes)]
    return "\n".join(lines)


def _render_size(size: Size) -> list[str]:
    lines = [
        f"### {size.kernels:,} kernels, {size.file_bytes / 1e6:.0f} MB",
        "",
        "| command | wall s | CPU s | peak MB | bytes a kernel |",
        "| --- | ---: | ---: | ---: | ---: |",
        f"| reading the file, warm | {size.read_warm_s:.3f} | | | |",
        f"| reading the file, cold{_explain_doubt(size)} | {size.read_cold_s:.3f} | | | |",
        f"| `python -c pass` | {size.interpreter.seconds:.3f} | {size.interpreter.cpu_seconds:.3f} | | |",
        f"| `python -c 'import numpy'` | {size.numpy.seconds:.3f} | {size.numpy.cpu_seconds:.3f} | | |",
        _render_row(f"ours, all {len(VIEWS)} views, warm", size.warm, size.kernels),
        _render_row(f"ours, all {len(VIEWS)} views, cold{_explain_doubt(size)}", size.cold, size.kernels),
        *(_render_row(f"ours, {name}", each, size.kernels) for name, each in size.views.items()),
        *(_render_row(f"nsys, {name}", each, size.kernels) for name, each in (size.reports or {}).items()),
        "",
        *(f"- {line}" for line in _render_ratios(size)),
    ]
    return lines


def _render_row(what: str, each: Run, kernels: int) -> str:
    seconds = f"> {each.seconds:.0f}, ended" if each.timed_out else f"{each.seconds:.3f}"
    measured = f"{each.cpu_seconds:.3f} | {each.peak_bytes / 1e6:.0f} | {each.peak_bytes / kernels:,.0f}"
    return f"| {what} | {seconds} | {measured} |"


def _explain_doubt(size: Size) -> str:
    if size.resident_share is None:
        return " (not verified)"
    return f" (up to {size.resident_share:.0%} was cached)" if size.resident_share > 0.005 else ""


def _render_ratios(size: Size) -> list[str]:
    lines = [f"ours cold / reading cold: {size.cold.seconds / size.read_cold_s:.1f}"]
    if size.reports is None:
        return lines
    finished, ended = split_by_timeout(size)
    ratio = sum(each.seconds for each in finished) / size.warm.seconds
    of_cpu = sum(each.cpu_seconds for each in finished) / size.warm.cpu_seconds
    lines.append(f"nsys, the {len(finished)} reports that finished / ours warm: {ratio:.1f} (wall), {of_cpu:.1f} (CPU)")
    if ended:
        all_of_them = sum(each.seconds for each in size.reports.values()) / size.warm.seconds
        lines.append(f"with {', '.join(ended)} counted as the limit, all / ours warm: more than {all_of_them:.1f}")
    return lines


def _render_growth(sizes: Sequence[Size]) -> list[str]:
    lines = [
        "### Growth",
        "",
        "What each further kernel costs, from one size to the next, all views and the file warm.",
        "",
        "| kernels | wall ns a further kernel | CPU ns a further kernel | bytes of peak memory a further kernel |",
        "| --- | ---: | ---: | ---: |",
    ]
    for before, after in pairwise(sizes):
        further = after.kernels - before.kernels
        wall = (after.warm.seconds - before.warm.seconds) / further * 1e9
        cpu = (after.warm.cpu_seconds - before.warm.cpu_seconds) / further * 1e9
        peak = (after.warm.peak_bytes - before.warm.peak_bytes) / further
        lines.append(f"| {before.kernels:,} to {after.kernels:,} | {wall:,.0f} | {cpu:,.0f} | {peak:,.0f} |")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernels", type=int, action="append", help="repeatable (default: 1000000)")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds for each report of nsys (default: 300)")
    parser.add_argument("--rounds", type=int, default=3, help="(default: 3)")
    parser.add_argument("--no-nsys", action="store_true", help="leave nsys out")
    parser.add_argument("--folder", type=Path, help="where the files are kept (default: in the temporary folder)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of Markdown")
    options = parser.parse_args()
    kernel_counts = options.kernels or [1_000_000]
    if min(kernel_counts) < 1 or options.rounds < 1 or options.timeout <= 0:
        parser.error("--kernels, --rounds and --timeout must be positive")
    folder = options.folder or Path(tempfile.gettempdir()) / "traceable-benchmark"
    folder.mkdir(parents=True, exist_ok=True)
    nsys = None if options.no_nsys else os.environ.get("TRACEABLE_NSYS") or shutil.which("nsys")
    facts = describe_machine(nsys)
    reports = list_reports(nsys) if nsys else []
    sizes = []
    for kernels in sorted({START_UP_KERNELS, *kernel_counts}):
        path = ensure_generated(folder, kernels)
        print(f"measuring {path}", file=sys.stderr)
        sizes.append(measure(kernels, path, options.rounds, reports, nsys, options.timeout))
    if options.json:
        print(json.dumps({"machine": facts, "sizes": [asdict(size) for size in sizes]}, indent=2))
    else:
        print(render_markdown(facts, sizes, options.rounds, options.timeout))
    return 0


if __name__ == "__main__":
    sys.exit(main())
