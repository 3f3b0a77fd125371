"""Rules about the whole report: not started, not written, truncated; and recorded elsewhere."""

from __future__ import annotations

from traceable.checks.case import Case
from traceable.checks.windows import CAPTURED
from traceable.finding import (
    CERTAIN,
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

_CLOCK_CODES = ("rows_outside_time", "clocks_differ")


def diagnose_not_recorded(case: Case) -> RuleResult:
    """No collector was requested."""
    if case.manifest is None:
        return None
    if case.collector.records:
        return rule_out(f"the collector was {case.collector.name}")
    evidence = (f"collector {(case.manifest.get('collector') or {}).get('reason') or case.collector.name}",)
    return Finding("not_recorded", "no collector was requested", "use another --collector", PROBLEM, evidence)


def diagnose_windows(case: Case) -> RuleResult:
    """A requested window was not opened, opened late or closed early, according to checks/windows."""
    if case.windows is None:
        return None
    lost = [one for one in case.windows.outcomes if one.outcome != CAPTURED]
    if not lost and not case.windows.problems:
        return rule_out(f"every window of {case.windows.requested} was captured completely")
    if not lost:
        message, code = str(case.windows.problems[0]), "window_never_reached"
    else:
        first = lost[0]
        code = f"window_{first.outcome}"
        message = f"steps {first.start_step}-{first.stop_step}: {first.reason}"
    captured = [one.captured_steps for one in case.windows.outcomes]
    evidence = (f"requested {case.windows.requested}", f"{sum(captured)} steps captured in {len(captured)} windows")
    fixes = {
        "window_never_reached": "request steps that the program reaches, or count them with traceable.steps()",
        "window_stopped_early": "request fewer steps, or let the program run until the window ends",
        "window_opened_late": "start the loop's first step with traceable.steps() or `with traceable.step()`",
    }
    fix = fixes.get(code, "see `traceable help windows`, and run again with --collector recorder to rule out nsys")
    return Finding(code, message, fix, WARNING if any(captured) else PROBLEM, evidence)


def diagnose_closed_before_first_range(case: Case) -> RuleResult:
    """A time window ended before the program created its first range."""
    if case.windows is None or case.range_count:
        return None
    for one in case.step_statuses:
        closed = [window.closed_wall_ns for window in one.windows if window.closed_wall_ns is not None]
        if one.first_range_wall_ns is None or not closed or max(closed) >= one.first_range_wall_ns:
            continue
        gap_s = (one.first_range_wall_ns - max(closed)) / 1e9
        return Finding(
            "closed_before_first_range",
            f"the window closed {gap_s:.1f} s before the first range",
            "count from the first range or step, as in --delay 1, or let the window last longer (--duration)",
            PROBLEM,
            (f"process {one.pid} emitted its first range {gap_s:.1f} s after its window had closed",),
        )
    return rule_out("no window closed before the first range")


def diagnose_truncated_report(case: Case) -> RuleResult:
    """The file exists, but is truncated."""
    if case.recording is not None:
        return rule_out("the report was read")
    if case.error is None or case.directory is not None or case.path.suffix == ".qdstrm":
        return None
    if case.missing_bytes or (case.path.is_file() and not case.path.stat().st_size):
        reason = (
            f"{case.missing_bytes} bytes are missing, according to its header" if case.missing_bytes else "it is empty"
        )
        return _report_truncated(case, CERTAIN, reason)
    if case.path.suffix in (".nsys-rep", ".qdrep"):
        return _report_truncated(case, LIKELY, f"nsys can't read it: {case.error.problem}")
    return Finding("unreadable", case.error.problem, case.error.remedy, PROBLEM, (f"{case.path} was opened",))


def _report_truncated(case: Case, certainty: str, reason: str) -> Finding:
    return Finding(
        "report_truncated",
        f"{case.path.name} is truncated",
        "copy it again from the original, or record again (a full disk, a killed nsys or a copy cut short)",
        PROBLEM,
        (reason,),
        certainty,
    )


def diagnose_unreadable(case: Case) -> RuleResult:
    """A run left no report, and no other rule finds the reason."""
    if case.directory is None or case.error is None:
        return None
    return Finding(
        "no_report", case.error.problem, case.error.remedy, PROBLEM, ("no other rule explains it",), POSSIBLE
    )


def diagnose_clocks(case: Case) -> RuleResult:
    """Impossible times: work before its launch, rows outside the recording, a process with another clock."""
    if case.recording is None:
        return None
    from_reader = (one for one in case.recording.notes if one.code in _CLOCK_CODES)
    problems: list[str] = [*from_reader, *case.find_notes(*_CLOCK_CODES)]
    early, joined = _before_launch(case)
    if joined and early > max(1, joined // 1000):
        problems.append(f"{early} of {joined} GPU operations began more than 1 ms before their launch call")
    if not problems:
        return rule_out("no event is outside the recording or before its cause")
    return Finding(
        "clock_outliers",
        "clocks disagree, so that times across processes, or of GPU and CPU, are off",
        "compare times within one process only; avoid clock changes while recording (NTP steps, suspended machines)",
        WARNING,
        tuple(dict.fromkeys(problems))[:3],
    )


def _before_launch(case: Case) -> tuple[int, int]:
    assert case.recording is not None
    context = case.recording.context
    if not len(context.gpu) or not len(context.trace.calls):
        return 0, 0
    call = context.launches.call_of
    joined = call >= 0
    early = context.gpu.start_ns[joined] < context.trace.calls.start_ns[call[joined]] - 1_000_000
    return int(early.sum()), int(joined.sum())


def diagnose_system(case: Case) -> RuleResult:
    """Recorded on Windows or WSL."""
    kernels = (str(((case.manifest or {}).get("host") or {}).get("system", "")), case.system.get("kernel", ""))
    wsl = [f"the kernel is {name}" for name in kernels if "microsoft" in name.lower()][:1]
    wsl += [f"the process {name} in the report" for name in (case.system.get("wsl"),) if name]
    wsl += ["/proc/version or /dev/dxg of this system"] if case.machine is not None and case.machine.wsl else []
    if case.is_from_windows:
        message, evidence = "the report was recorded on Windows", ["DEVICE_TYPE Windows in the report"]
    elif wsl:
        message, evidence = "the report was recorded on Linux under Windows (WSL)", wsl
    else:
        known = case.manifest is not None or bool(case.options)
        return rule_out("nothing in the report indicates Windows") if known else None
    return Finding(
        "windows",
        f"{message}, whose driver may delay launches and submit them in batches",
        "compare its times, especially of queues and gaps, only with recordings of the same system",
        NOTE,
        tuple(evidence),
    )


RULES = (
    Rule("not_recorded", diagnose_not_recorded),
    Rule("window", diagnose_windows),
    Rule("closed_before_first_range", diagnose_closed_before_first_range),
    Rule("report_truncated", diagnose_truncated_report),
    Rule("clock_outliers", diagnose_clocks),
    Rule("windows", diagnose_system),
)

FALLBACK = Rule("no_report", diagnose_unreadable)
"""Is reported if no other rule is."""
