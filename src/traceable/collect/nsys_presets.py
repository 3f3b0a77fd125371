"""What traceable asks of nsys: its defaults, and the presets that record less or more (`--trace-preset`).

A preset is what is wished for; what the nsys that is here does not offer, or the machine does not permit, is left out
and named. Nothing here starts nsys; what is asked of the machine comes in as `Machine`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from traceable.collect.nsys_options import Options
from traceable.errors import Message

DEFAULT = "default"

ALWAYS = (
    # By default nsys ends a program that outlives the collection; nothing of ours may do that.
    ("--kill", "none"),
    # `all` also waits for daemons that the program left behind (16 s instead of 1 s in a measured case).
    ("--wait", "primary"),
)
"""Options that nsys is given where its --help names them with this value, whatever the preset."""

QUIET = (
    # Both need perf_event_paranoid <= 2, which containers seldom have, and neither feeds a number of ours.
    ("--sample", "none"),
    ("--cpuctxsw", "none"),
)
"""What a preset without samples of the CPU has in their place: nsys takes them by default."""

TRACE = "--trace"
GPU_METRICS = ("--gpu-metrics-devices", "--gpu-metrics-device")
"""The option has had two names; the newer first."""


@dataclass(frozen=True)
class Preset:
    """What to record.

    Attributes:
        trace: the APIs, of which `cuda` and `nvtx` are in all of them.
        options: further options with their values.
        sampled: options that need samples of the CPU, and are left out where it can't be sampled.
        gpu_metrics: sample the GPU's own counters.
    """

    trace: tuple[str, ...] = ("cuda", "nvtx")
    options: tuple[tuple[str, str], ...] = ()
    sampled: tuple[tuple[str, str], ...] = ()
    gpu_metrics: bool = False


# The default, `graph` with a driver of CUDA 11.7 or newer, leaves the kernels of a CUDA graph out of the report.
_GRAPH_NODES = ("--cuda-graph-trace", "node")
_PYTHON = (("--python-sampling", "true"),)
_BACKTRACES = (
    ("--sample", "process-tree"),
    # The threshold in ns from which on a call gets a backtrace; its default went from 80000 to 1000.
    ("--cudabacktrace", "all:80000"),
    ("--python-backtrace", "cuda"),
)

# Not `python-gil`: 2023.4.4 records the GIL as NVTX ranges (domain `GIL Trace`), which enclose the program's own.
PRESETS = {
    "light": Preset(),
    DEFAULT: Preset(options=(_GRAPH_NODES,)),
    "python": Preset(options=(_GRAPH_NODES, *_PYTHON), sampled=_BACKTRACES),
    "full": Preset(
        ("cuda", "nvtx", "osrt", "cublas", "cusparse", "cusolver", "cudnn", "nccl", "mpi", "ucx"),
        (_GRAPH_NODES, ("--cuda-memory-usage", "true"), *_PYTHON),
        (*_BACKTRACES, ("--cpuctxsw", "process-tree")),
        gpu_metrics=True,
    ),
}
"""Each preset by its name. docs/nsys.md says what it records and costs."""


class Machine(Protocol):
    """What is asked of the machine, and only where a preset wishes for it."""

    def no_samples(self) -> Message | None:
        """Return why the CPU can't be sampled; None where it can."""
        ...

    def gpu_metrics(self, option: str) -> tuple[str | None, str]:
        """Return the value that selects the GPUs whose counters may be sampled, or None and why there is none."""
        ...


@dataclass(frozen=True)
class Chosen:
    """What a preset comes to with one nsys on one machine.

    Attributes:
        options: in order, with their values.
        missing: what this nsys does not have, as one would type it.
        refused: what the machine does not permit, each with the reason.
    """

    options: tuple[tuple[str, str], ...]
    missing: tuple[str, ...] = ()
    refused: tuple[Message, ...] = ()


def choose(preset: Preset, options: Options, machine: Machine) -> Chosen:
    """Return what of `preset` this nsys offers and this machine permits."""
    missing: list[str] = []
    refused: list[Message] = []
    trace = [api for api in preset.trace if api in ("cuda", "nvtx") or options.offers(TRACE, api)]
    missing += [f"{TRACE}={api}" for api in preset.trace if api not in trace]
    chosen = [(TRACE, ",".join(trace)), *_there(ALWAYS, options)]
    wished = preset.options
    if preset.sampled and (reason := machine.no_samples()):
        refused.append(Message(reason.code, f"samples and backtraces of the CPU ({reason})"))
    else:
        wished += preset.sampled
    chosen += _there([one for one in QUIET if one[0] not in dict(wished)], options)
    chosen += _there(wished, options)
    missing += [_named(name, value, options) for name, value in wished if not options.takes(name, value)]
    if preset.gpu_metrics:
        name = next((one for one in GPU_METRICS if one in options), None)
        value, why = machine.gpu_metrics(name) if name else (None, "this nsys has none")
        if name and value:
            chosen.append((name, value))
        else:
            refused.append(Message("gpu_counters_unavailable", f"the GPU's counters ({why})"))
    return Chosen(tuple(chosen), tuple(missing), tuple(refused))


def _there(wished: Iterable[tuple[str, str]], options: Options) -> list[tuple[str, str]]:
    return [(name, value) for name, value in wished if options.takes(name, value)]


def _named(name: str, value: str, options: Options) -> str:
    """Return what is missing as one would type it: the option, or this value of it."""
    return f"{name}={value}" if name in options else name
