"""Rules about GPU work: why it is not in the recording, or belongs to no range."""

from __future__ import annotations

import re

import numpy as np

from traceable.launch.diagnosis_case import NSYS, Case
from traceable.launch.diagnosis_ranges import traced
from traceable.launch.diagnosis_rules import (
    CERTAIN,
    EVERYTHING,
    LIKELY,
    NOTHING,
    PART,
    Finding,
    Judged,
    Rule,
    RuledOut,
    listed,
)

_SUBSCRIBED = r"already subscribed to CUPTI|CUPTI_ERROR_MULTIPLE_SUBSCRIBERS|CUPTI_ERROR_MAX_LIMIT"
_OLD_DRIVER = r"is no longer supported|Incompatible CUDA driver"
_NEW_DRIVER = r"is not supported by this build of Nsight Systems|Could not (load the CUPTI|parse \d+ CUPTI)"
_NO_CUDA = r"No CUDA events collected|CUDA profiling might have not been started"
_GRAPH_LAUNCH = re.compile(r"cu(da)?GraphLaunch")
_BACKWARD = re.compile("backward", re.IGNORECASE)


def _gpus(case: Case) -> list[str] | None:
    """Return the GPUs of the machine that the run was on; None where that is not known, empty for none."""
    if case.recording is not None and case.recording.trace.devices:
        return [device.name for device in case.recording.trace.devices]
    if case.manifest is None or "gpus" not in case.manifest:
        return None
    return [str(gpu.get("name")) for gpu in case.manifest["gpus"] or ()]


def cupti_taken(case: Case) -> Judged:
    """CUPTI serves one subscriber in a process."""
    if case.collector != NSYS:
        return None
    said = case.said(_SUBSCRIBED)
    fix = "leave the other one out while nsys records: torch.profiler, an injection, DCGM, ncu"
    found = "another profiler holds CUPTI in the program, so that nsys gets nothing from the GPU"
    if said:
        return Finding("cupti_taken", CERTAIN, found, tuple(said[:2]), fix, PART if case.operations else EVERYTHING)
    if case.operations:
        return RuledOut(f"{case.operations} GPU operations were recorded")
    if not _gpus(case) or "cuda" not in (traced(case) or ()):
        return None
    evidence = [f"process {one.pid} had a torch.profiler of its own" for one in case.lives if one.torch_profiler]
    evidence += ["CUDA_INJECTION64_PATH is set"] if "CUDA_INJECTION64_PATH" in case.variables else []
    evidence += [f"{name} is set" for name in ("KINETO_USE_DAEMON", "KINETO_CONFIG") if name in case.variables]
    if not evidence:
        return RuledOut("nothing says that another profiler was there")
    evidence.append("no GPU operation was recorded, on a machine with a GPU")
    return Finding("cupti_taken", LIKELY, found, tuple(evidence), fix, EVERYTHING)


def driver(case: Case) -> Judged:
    """A driver of a CUDA that nsys brings no CUPTI for is served by the nearest one, or not at all."""
    if case.collector != NSYS or case.recording is None:
        return None
    old, new = case.said(_OLD_DRIVER), case.said(_NEW_DRIVER)
    if not old and not new:
        return RuledOut("nsys did not complain of the CUDA driver")
    loss = NOTHING if case.operations else EVERYTHING
    version = case.recording.trace.source.version
    if old:
        return Finding(
            "driver_too_old",
            CERTAIN,
            f"the CUDA driver is too old for nsys {version}",
            tuple(old[:2]),
            "update the driver, or use an older nsys (--nsys or TRACEABLE_NSYS)",
            loss,
        )
    return Finding(
        "driver_too_new",
        CERTAIN,
        f"the CUDA driver is newer than what nsys {version} knows"
        + ("; GPU work was recorded all the same" if case.operations else ""),
        tuple(new[:2]),
        "install a newer nsys",
        loss,
    )


def no_context(case: Case) -> Judged:
    """CUDA was traced, and nothing made a context."""
    asked = traced(case)
    if case.recording is None or asked is None or "cuda" not in asked:
        return None
    if case.operations or len(case.recording.trace.calls):
        return RuledOut(
            f"{len(case.recording.trace.calls)} CUDA calls and {case.operations} GPU operations were recorded"
        )
    gpus = _gpus(case)
    evidence = ["CUDA was traced, and no CUDA call was recorded", *case.said(_NO_CUDA)[:1]]
    evidence += ["the machine has no NVIDIA GPU"] if gpus == [] else []
    evidence += [f"the machine has {listed(gpus)}"] if gpus else []
    return Finding(
        "no_cuda_context",
        LIKELY,
        "the program never used CUDA: no context was created in a process that nsys hears",
        tuple(evidence),
        "see whether the program finds the GPU (torch.cuda.is_available()) and uses it while it is recorded",
        NOTHING if not gpus else EVERYTHING,
    )


def graphs(case: Case) -> Judged:
    """CUDA graphs that were traced as one: their kernels are in no table."""
    if case.recording is None:
        return None
    trace = case.recording.trace
    launched = [i for i, name in enumerate(trace.names) if _GRAPH_LAUNCH.match(name)]
    calls = int(sum((trace.calls.name == number).sum() for number in launched))
    whole = len(trace.graph_launches)
    fix = "record with --cuda-graph-trace=node, as `traceable run` does"
    if whole:
        time_ns = int((trace.graph_launches.end_ns - trace.graph_launches.start_ns).sum())
        others = sum(int((one.end_ns - one.start_ns).sum()) for one in (trace.kernels, trace.copies, trace.memsets))
        share = time_ns / max(1, time_ns + others)
        found = f"CUDA graphs were traced as one: the kernels of {share:.0%} of the GPU's time are not in the recording"
        evidence = (
            f"{whole} graph launches of {time_ns / 1e6:.1f} ms",
            f"{len(trace.kernels)} kernels and copies of {others / 1e6:.1f} ms",
        )
        return Finding("graphs_traced_as_one", CERTAIN, found, evidence, fix, PART)
    by_node = bool((trace.kernels.graph_node >= 0).any())
    if not calls:
        return RuledOut("no CUDA graph was launched") if case.operations else None
    if by_node:
        return RuledOut("the kernels of CUDA graphs were recorded node by node")
    found = f"{calls} CUDA graphs were launched, and none of their kernels is in the recording"
    evidence = (f"{calls} calls of cudaGraphLaunch", "no kernel with a graph node, no table of graphs")
    return Finding("graphs_traced_as_one", LIKELY, found, evidence, fix, PART)


def autograd(case: Case) -> Judged:
    """Kernels of backward(), which another thread launches than the one whose range is open."""
    if case.recording is None or not case.operations or not case.ranges:
        return None
    coverage = case.recording.coverage
    adopted = coverage.attributed.get("adopted")
    lost = coverage.unattributed.get("several_threads")
    trace = case.recording.trace
    names = [trace.names[index] for index in np.unique(trace.ranges.name).tolist() if index >= 0]
    backward = [name for name in names if _BACKWARD.search(name)]
    if lost is not None and lost.operations:
        share = lost.gpu_ns / max(1, coverage.total.gpu_ns)
        return Finding(
            "launched_by_another_thread",
            CERTAIN,
            f"{lost.operations} GPU operations ({share:.0%} of the GPU's time) were launched by threads without a "
            "range while several others had one open",
            ("no rule says to which of these ranges they belong",),
            "annotate within the thread that launches, or run one annotated thread at a time",
            PART,
        )
    if adopted is None or not adopted.operations:
        return RuledOut("ranges and what they launch are on the same threads")
    share = adopted.gpu_ns / max(1, coverage.total.gpu_ns)
    named = (f"ranges named {listed(backward[:2])}",) if backward else ()
    return Finding(
        "autograd_thread",
        CERTAIN,
        f"{adopted.operations} GPU operations ({share:.0%} of the GPU's time) were launched by another thread than the "
        "one with the range, as autograd's does; nsys's own tables show them outside of every range",
        (f"attribution `adopted`: {adopted.operations} operations", *named),
        "read them in `traceable report`, which gives them to the range that was open; leave nsys's projection aside",
        NOTHING,
    )


RULES = (
    Rule("cupti_taken", cupti_taken),
    Rule("driver", driver),
    Rule("no_cuda_context", no_context),
    Rule("graphs_traced_as_one", graphs),
    Rule("autograd_thread", autograd),
)
