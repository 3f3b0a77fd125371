"""Rules about GPU work: why it is not in the recording, or not attributed to a range."""

from __future__ import annotations

import re

import numpy as np

from traceable.analysis.attribution import INHERITED, Coverage, Share
from traceable.checks.case import NSYS, Case, find_traced_apis, join_first
from traceable.finding import (
    LIKELY,
    NOTE,
    POSSIBLE,
    PROBLEM,
    WARNING,
    Finding,
    Rule,
    RuleResult,
    rule_out,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from traceable.recording import Recording

_SUBSCRIBED = r"already subscribed to CUPTI|CUPTI_ERROR_MULTIPLE_SUBSCRIBERS|CUPTI_ERROR_MAX_LIMIT"
_OLD_DRIVER = r"is no longer supported|Incompatible CUDA driver"
_NEW_DRIVER = r"is not supported by this build of Nsight Systems|Could not (load the CUPTI|parse \d+ CUPTI)"
_NO_CUDA = r"No CUDA events collected|CUDA profiling might have not been started"
_CUDA_INITIALIZED = r"CUDA injection initialized successfully"
_COUNTERS_TAKEN = r"Already under profiling|sampling hardware unit is already in use"
_OTHER_SUBSCRIBERS = {
    "NV_COMPUTE_PROFILER_PERFWORKS_DIR": "the run was under ncu",
    "NV_SANITIZER_INJECTION_PORT_RANGE_BEGIN": "the run was under compute-sanitizer",
    "NSYS_PROFILING_SESSION_ID": "the run was under another nsys",
    "KINETO_USE_DAEMON": "Kineto's daemon may record in the program",
    "KINETO_CONFIG": "Kineto may record in the program",
}
"""Variables by which other subscribers of CUPTI are known. Not CUDA_INJECTION64_PATH: nsys sets it itself."""
_COUNTER_USERS = re.compile(r"nv-hostengine|dcgm|ncu|nv-nsight-cu|nsys")
_GRAPH_LAUNCH = re.compile(r"cu(da)?GraphLaunch")
_AUTOGRAD = "pt_autograd"
_BACKWARD = re.compile("backward", re.IGNORECASE)


def _list_gpus(case: Case) -> list[str] | None:
    """Return the GPUs of the machine that the run was on; None if not known, empty for none."""
    if case.recording is not None and case.recording.trace.devices:
        return [device.name for device in case.recording.trace.devices]
    gpus = (case.manifest or {}).get("gpus")
    return None if gpus is None else [str(gpu.get("name")) for gpu in gpus]


def diagnose_cupti_taken(case: Case) -> RuleResult:
    """CUPTI supports one subscriber per process."""
    if case.collector != NSYS:
        return None
    errors = case.find_messages(_SUBSCRIBED)
    fix = "disable the other one while nsys records: torch.profiler, ncu, compute-sanitizer, an outer nsys"
    message = "another profiler uses CUPTI in the program, so nsys can't record the GPU"
    if errors:
        return Finding("cupti_taken", message, fix, WARNING if case.operation_count else PROBLEM, tuple(errors[:2]))
    if case.operation_count:
        return rule_out(f"{case.operation_count} GPU operations were recorded")
    if not _list_gpus(case) or "cuda" not in (find_traced_apis(case) or ()):
        return None
    evidence = [f"process {one.pid} used torch.profiler itself" for one in case.process_records if one.torch_profiler]
    evidence += [
        f"{name} is set: {effect}" for name, effect in _OTHER_SUBSCRIBERS.items() if name in case.environment_names
    ]
    if not evidence:
        return rule_out("no sign of another profiler")
    evidence.append("no GPU operation was recorded, on a machine with a GPU")
    return Finding("cupti_taken", message, fix, PROBLEM, tuple(evidence), LIKELY)


def diagnose_counters_taken(case: Case) -> RuleResult:
    """One tool per machine can use the GPU counters. That is not CUPTI: DCGM does not block kernel tracing."""
    if case.collector != NSYS:
        return None
    errors = case.find_messages(_COUNTERS_TAKEN)
    if not errors:
        return rule_out("nsys did not report that another tool uses the GPU counters") if case.messages else None
    users = [name for name in case.profilers if _COUNTER_USERS.match(name)]
    running = (f"running when the run began: {join_first(users)}",) if users else ()
    return Finding(
        "counters_taken",
        "another tool uses the GPU counters, so nsys can't sample GPU metrics",
        "run `dcgmi profile --pause` while you profile and `--resume` after, or end the other nsys or ncu",
        WARNING,
        (*errors[:1], *running),
    )


def diagnose_driver(case: Case) -> RuleResult:
    """For a CUDA driver without a matching CUPTI nsys uses the nearest one, or none."""
    if case.collector != NSYS or case.recording is None:
        return None
    old, new = case.find_messages(_OLD_DRIVER), case.find_messages(_NEW_DRIVER)
    if not old and not new:
        return rule_out("nsys did not reject the CUDA driver") if case.messages else None
    severity = NOTE if case.operation_count else PROBLEM
    version = case.recording.trace.source.version
    if old:
        return Finding(
            "driver_too_old",
            f"the CUDA driver is too old for nsys {version}",
            "update the driver, or set TRACEABLE_NSYS to an older nsys",
            severity,
            tuple(old[:2]),
        )
    return Finding(
        "driver_too_new",
        f"the CUDA driver is too new for nsys {version}"
        + ("; GPU work was recorded anyway" if case.operation_count else ""),
        "install a newer nsys",
        severity,
        tuple(new[:2]),
    )


def diagnose_no_context(case: Case) -> RuleResult:
    """CUDA was traced, and no context was created."""
    traced = find_traced_apis(case)
    if case.recording is None or traced is None or "cuda" not in traced:
        return None
    if case.operation_count or len(case.recording.trace.calls):
        return rule_out(
            f"{len(case.recording.trace.calls)} CUDA calls and {case.operation_count} GPU operations were recorded"
        )
    gpus = _list_gpus(case)
    if not gpus:
        return rule_out("the recorded machine has no known GPU")
    evidence = ["CUDA was traced, and no CUDA call was recorded", *case.find_messages(_NO_CUDA)[:1]]
    evidence.append(f"the machine has {join_first(gpus)}")
    initialized = case.find_messages(_CUDA_INITIALIZED)
    message = "the program never used CUDA: no context was created in a process that nsys traces"
    if initialized:
        message = "the program loaded CUDA, but made no CUDA call while it was recorded"
    # If the ranges were recorded and the program is not meant to use the GPU, nothing is missing.
    return Finding(
        "no_cuda_context",
        message,
        "check that the program finds the GPU (torch.cuda.is_available()) and uses it while it is recorded",
        WARNING if case.range_count else PROBLEM,
        (*evidence, *initialized[:1]),
        POSSIBLE if initialized or case.range_count else LIKELY,
    )


def diagnose_graphs(case: Case) -> RuleResult:
    """CUDA graphs that were traced as one: their kernels were not recorded."""
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
        message = (
            f"CUDA graphs were traced as one: the kernels of {share:.0%} of the GPU's time are not in the recording"
        )
        evidence = (
            f"{whole} graph launches of {time_ns / 1e6:.1f} ms",
            f"{len(trace.kernels)} kernels and copies of {others / 1e6:.1f} ms",
        )
        return Finding("graphs_traced_as_one", message, fix, WARNING, evidence)
    if not calls:
        return rule_out("no CUDA graph was launched") if case.operation_count else None
    if (trace.kernels.graph_node >= 0).any():
        return rule_out("the kernels of CUDA graphs were recorded node by node")
    context = case.recording.context
    call = context.launches.call_of[context.launches.call_of >= 0]
    if nodes := int(np.isin(trace.calls.name[call], launched).sum()):
        # torch.profiler names no nodes (2022 to 2026).
        return rule_out(f"{nodes} GPU operations were launched by cudaGraphLaunch")
    if case.collector != NSYS:
        return None
    message = f"{calls} CUDA graphs were launched, and none of their kernels is in the recording"
    evidence = (f"{calls} calls of cudaGraphLaunch", "no kernel with a graph node, no table of graphs")
    return Finding("graphs_traced_as_one", message, fix, WARNING, evidence, LIKELY)


def diagnose_autograd(case: Case) -> RuleResult:
    """Kernels, e.g. of backward(), launched by another thread than the one whose range is open."""
    if case.recording is None or not case.operation_count or not case.range_count:
        return None
    coverage = case.recording.coverage
    inherited, lost = coverage.attributed["inherited"], coverage.unattributed["several_threads"]
    if lost.operations:
        return Finding(
            "launched_by_another_thread",
            f"{lost.operations} GPU operations ({_share(lost, coverage)} of the GPU's time) were launched by threads "
            "without a range while several others had one open",
            "annotate in the launching thread, or run one annotated thread at a time",
            WARNING,
            ("no attribution rule decides between these ranges",),
        )
    if not inherited.operations:
        return rule_out("ranges and what they launch are on the same threads")
    threads, backward = _inherited_from(case.recording)
    outside = "; nsys's own tables show them outside of every range" if case.collector == NSYS else ""
    message = (
        f"{inherited.operations} GPU operations ({_share(inherited, coverage)} of the GPU's time) were launched by a "
        "thread other than the one with the range"
    )
    evidence = (
        f"attribution `inherited`: {inherited.operations} operations",
        f"launched by {join_first(threads)}",
        *((f"while {join_first(backward, 2)} was open",) if backward else ()),
    )
    fix = "use `traceable report`, which attributes them to the range that was open"
    fix += "; do not use nsys's projection" if outside else ""
    if backward or any(name.startswith(_AUTOGRAD) for name in threads):
        message += f", as by autograd{outside}"
        return Finding("autograd_thread", message, fix, NOTE, evidence)
    message += f", a helper thread of the program{outside}"
    return Finding("launched_by_another_thread", message, fix, NOTE, evidence)


def _share(part: Share, coverage: Coverage) -> str:
    return f"{part.gpu_ns / max(1, coverage.total.gpu_ns):.0%}"


def _inherited_from(recording: Recording) -> tuple[list[str], list[str]]:
    """Return the names of the threads that launched what is inherited, and of the ranges of backward() it is in."""
    trace, context = recording.trace, recording.context
    operations = np.flatnonzero(context.attribution.rule == INHERITED)
    launching = np.unique(trace.calls.thread[context.launches.call_of[operations]]).tolist()
    threads = [trace.threads[index] for index in launching]
    instances = np.unique(context.attribution.innermost[operations])
    names = np.unique(context.attribution.instances.name[instances[instances >= 0]]).tolist()
    backward = sorted({trace.names[index] for index in names if _BACKWARD.search(trace.names[index])})
    return [f"{one.name} (thread {one.tid})" if one.name else f"thread {one.tid}" for one in threads], backward


RULES = (
    Rule("cupti_taken", diagnose_cupti_taken),
    Rule("counters_taken", diagnose_counters_taken),
    Rule("driver", diagnose_driver),
    Rule("no_cuda_context", diagnose_no_context),
    Rule("graphs_traced_as_one", diagnose_graphs),
    Rule("autograd_thread", diagnose_autograd),
)
