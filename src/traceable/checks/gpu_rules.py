"""Rules about GPU work: why it is not in the recording, or not attributed to a range."""

from __future__ import annotations

import re

from traceable.checks.case import Case
from traceable.finding import (
    LIKELY,
    NOTE,
    WARNING,
    Finding,
    Rule,
    RuleResult,
    join_first,
    rule_out,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from traceable.analysis.attribution import Coverage, Share
    from traceable.recording import Recording

_GRAPH_LAUNCH = re.compile(r"cu(da)?GraphLaunch")
_AUTOGRAD = "pt_autograd"
_BACKWARD = re.compile("backward", re.IGNORECASE)


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
    if nodes := sum(int((trace.calls.name[call] == name).sum()) for name in launched):
        # torch.profiler names no nodes (2022 to 2026).
        return rule_out(f"{nodes} GPU operations were launched by cudaGraphLaunch")
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
    message = (
        f"{inherited.operations} GPU operations ({_share(inherited, coverage)} of the GPU's time) were launched by a "
        "thread other than the one with the range"
    )
    evidence = (
        f"attribution `inherited`: {inherited.operations} operations",
        f"launched by {join_first(threads)}",
        *((f"while {join_first(backward, 2)} was open",) if backward else ()),
    )
    fix = "use `traceable report`, which attributes them to the range that was open, and not nsys's own tables"
    if backward or any(name.startswith(_AUTOGRAD) for name in threads):
        message += ", as by autograd"
        return Finding("autograd_thread", message, fix, NOTE, evidence)
    message += ", a helper thread of the program"
    return Finding("launched_by_another_thread", message, fix, NOTE, evidence)


def _share(part: Share, coverage: Coverage) -> str:
    return f"{part.gpu_ns / max(1, coverage.total.gpu_ns):.0%}"


def _inherited_from(recording: Recording) -> tuple[list[str], list[str]]:
    """Return the names of the threads that launched what is inherited, and of the ranges of backward() it is in."""
    import numpy as np

    from traceable.analysis.attribution import INHERITED

    trace, context = recording.trace, recording.context
    operations = np.flatnonzero(context.attribution.rule == INHERITED)
    launching = np.unique(trace.calls.thread[context.launches.call_of[operations]]).tolist()
    threads = [trace.threads[index] for index in launching]
    instances = np.unique(context.attribution.innermost[operations])
    names = np.unique(context.attribution.instances.name[instances[instances >= 0]]).tolist()
    backward = sorted({trace.names[index] for index in names if _BACKWARD.search(trace.names[index])})
    return [f"{one.name} (thread {one.tid})" if one.name else f"thread {one.tid}" for one in threads], backward


RULES = (
    Rule("graphs_traced_as_one", diagnose_graphs),
    Rule("autograd_thread", diagnose_autograd),
)
