"""Rules about the whole report: not started, not written, truncated; and what the system does not permit nsys."""

from __future__ import annotations

import re
from itertools import pairwise

import numpy as np

from traceable.analysis.windows import CAPTURED
from traceable.checks.case import NONE, NSYS, RECORDER, TORCH, Case, join_first
from traceable.checks.machine import CAP_PERFMON, CAP_SYS_ADMIN
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

_REGISTER_ONLY = "NSYS_NVTX_PROFILER_REGISTER_ONLY=1"
_NO_IMPORTER = r"importer binary|QdstrmImporter"
_CANNOT_START = r"error while loading shared libraries|cannot execute|[Ee]xec format error|version `[^']*' not found"
_AGENT_LOST = r"Connection to (the )?Agent lost"  # 2022.4.2, and 2023.4.4 without the article
_NOT_PERMITTED = (
    r"perf event paranoid|Unable to configure the collection of CPU|Unable to collect CPU"
    r"|failed to start event source Perf: AccessDenied"
)
_COUNTERS_REFUSED = r"ERR_NVGPUCTRPERM|[Ii]nsufficient privilege"
_DROPPED = r"CUPTI dropped|CUPTI events dropped: [1-9]"
_DROPPED_CODES = ("events_dropped", "names_lost")
_CLOCK_CODES = ("rows_outside_time", "clocks_differ")


_DROP_FIXES = {
    "size_cap": "record less (--steps), or raise TRACEABLE_RECORDING_MAX_BYTES",
    "disk_full": "make room or record to another disk (-o), or record less (--steps)",
    "file_size_limit": "raise `ulimit -f`, or record less (--steps)",
    "permission": "record into a directory (-o) that is writable for the user that the program switches to",
    "descriptors": "raise `ulimit -n`",
    "directory_gone": "record into a directory (-o) that the program neither deletes nor leaves by chroot",
}
"""The fix for each reason why the recorder dropped events (`collectors/recorder/loss_table.py`)."""


def diagnose_not_recorded(case: Case) -> RuleResult:
    """No collector was requested."""
    if case.manifest is None:
        return None
    if case.collector == NONE:
        collector = f"collector {(case.manifest.get('collector') or {}).get('reason') or NONE}"
        return Finding("not_recorded", "no collector was requested", "use another --collector", PROBLEM, (collector,))
    return rule_out(f"the collector was {case.collector}")


def diagnose_windows(case: Case) -> RuleResult:
    """A requested window was not opened, opened late or closed early, according to analysis/windows."""
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


def diagnose_capture_range(case: Case) -> RuleResult:
    """The user's own options made nsys wait for a range or for cudaProfilerStart that never came."""
    waits = _find_awaited_range(case.argv)
    if case.collector != NSYS or case.windows is not None or waits is None:
        return None
    if case.recording is not None or not case.log or case.log[-1] != "Generated:":
        return rule_out(f"nsys began to record at {waits}")
    if waits == "cudaProfilerApi":
        return Finding(
            "profiler_never_started",
            "nsys waited for cudaProfilerStart, which was never called with a CUDA context",
            "call torch.cuda.profiler.start(), or record windows with `traceable run --steps`",
            PROBLEM,
            ("-c cudaProfilerApi", "nsys ended normally and generated nothing"),
        )
    name = waits.partition("@")[0]
    creators = [one.pid for one in case.process_records if name in one.names]
    evidence: tuple[str, ...] = (f"-c nvtx waits for {waits!r}", "nsys ended normally and generated nothing")
    if _REGISTER_ONLY in " ".join(case.argv) and not creators:
        return Finding(
            "unregistered_string",
            f"nsys waited for the range {waits!r} and accepted registered strings only",
            f"remove {_REGISTER_ONLY} (traceable sets it to 0), or open the range with traceable.annotate({name!r})",
            PROBLEM,
            (*evidence, _REGISTER_ONLY, "no process created that range with traceable, which registers its names"),
            LIKELY,
        )
    if creators and "@" not in waits:
        evidence = (*evidence, f"process {creators[0]} created a range of that name")
        fix = f"name its domain, as in -p {name}@domain or -p '{name}@*'"
    else:
        fix = "correct the name, or record windows with `traceable run --steps`"
    return Finding(
        "capture_range_never_came", f"nsys waited for the range {waits!r}, which never came", fix, PROBLEM, evidence
    )


def _find_awaited_range(argv: tuple[str, ...]) -> str | None:
    """Return the range that the user's -c nvtx waits for, or `cudaProfilerApi`; None where nsys waits for nothing."""
    values = {"c": "", "p": ""}
    names = {"-c": "c", "--capture-range": "c", "-p": "p", "--nvtx-capture": "p"}
    for word, after in pairwise((*argv, "")):
        name, equals, value = word.partition("=")
        if name in names:
            values[names[name]] = value if equals else after
        elif word[:2] in ("-c", "-p") and word[:2] != "--" and len(word) > 2:
            values[word[1]] = word[2:].removeprefix("=")
        if name.endswith("exec_shim.py"):
            break  # what follows is the program's
    return values["p"] if values["c"] == "nvtx" else values["c"] or None if values["c"] != "none" else None


def diagnose_importer(case: Case) -> RuleResult:
    """The stream that nsys left could not be converted to a report."""
    errors = case.find_messages(_NO_IMPORTER)
    streams = [name for name in case.files if name.endswith(".qdstrm")]
    if not streams:
        return rule_out("there is no .qdstrm file") if case.collector == NSYS else None
    if case.recording is not None:
        return rule_out(f"{streams[0]} was imported")
    error = str(case.error.problem) if case.error else ""
    evidence = (f"{streams[0]} and no .nsys-rep of it", *errors[:1], *([error] if error else []))
    if re.search(_CANNOT_START, error):
        return Finding(
            "importer_fails",
            "the importer, which converts nsys's stream to a report, does not start",
            f"install its missing libraries, then run `traceable report {case.path.name}`",
            PROBLEM,
            evidence,
        )
    if case.has_importer or re.search("incomplete|invalid", error):
        return Finding(
            "stream_incomplete",
            f"nsys was interrupted before {streams[0]} was complete, and its content is lost",
            "run again and let nsys finish; the recorder (--collector recorder) loses nothing when it is killed",
            PROBLEM,
            evidence,
        )
    return Finding(
        "importer_missing",
        "this nsys has no importer to convert its stream to a report",
        "install the whole nsight-systems package, or put QdstrmImporter of the same version on PATH; then run "
        f"`traceable report {case.path.name}`",
        PROBLEM,
        evidence,
    )


def diagnose_killed_collector(case: Case) -> RuleResult:
    """The collector nsys was killed or abandoned, and left no report."""
    if case.collector != NSYS or case.directory is None:
        return None
    if case.recording is not None:
        return rule_out("nsys wrote its report")
    if any(name.endswith((".nsys-rep", ".qdstrm")) for name in case.files) or case.log[-1:] == ("Generated:",):
        return rule_out("nsys ended normally")
    lost = case.find_messages(_AGENT_LOST)
    last = f"its last output: {case.log[-1][-200:]!r}" if case.log else "it printed nothing"
    return Finding(
        "collector_killed",
        "nsys was killed before it wrote its report",
        "stop the program, not nsys, and give nsys time to write (an orchestrator's grace period, memory, disk); the "
        "recorder (--collector recorder) loses nothing when it is killed",
        PROBLEM,
        ("there is no .nsys-rep", *(lost[:1] or [last])),
        CERTAIN if lost else LIKELY,
    )


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


def diagnose_missing_torch_trace(case: Case) -> RuleResult:
    """The torch collector needs a program that imports torch and exits normally."""
    if case.collector != TORCH or case.directory is None:
        return None
    if case.recording is not None:
        return rule_out("torch.profiler left a trace")
    return Finding(
        "no_torch_trace",
        "torch.profiler left no trace",
        "let the program import torch and exit without a signal or os._exit, or use --collector recorder",
        PROBLEM,
        ("the run directory has no file of torch.profiler",),
        LIKELY,
    )


def diagnose_dropped_events(case: Case) -> RuleResult:
    """Buffers were full, and records were dropped."""
    if case.recording is None:
        return None
    reports = [*case.find_messages(_DROPPED), *case.find_notes(*_DROPPED_CODES)]
    if not reports:
        would_report = bool(case.messages) if case.collector == NSYS else case.collector == RECORDER
        return rule_out(f"{case.collector} reported no dropped events") if would_report else None
    fix = "record less: windows (--steps), or less of everything (--trace-preset light)"
    if case.collector == RECORDER:
        reasons = [one.reason for one in case.completeness.processes if one.reason]
        fix = next((_DROP_FIXES[one] for one in reasons if one in _DROP_FIXES), _DROP_FIXES["size_cap"])
    return Finding("events_dropped", "the collector dropped records", fix, WARNING, tuple(dict.fromkeys(reports))[:3])


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


def diagnose_permissions(case: Case) -> RuleResult:
    """CPU samples and GPU counters that the kernel, the container or the driver denies."""
    refused, samples = case.find_messages(_COUNTERS_REFUSED), case.find_messages(_NOT_PERMITTED)
    if refused:
        return Finding(
            "counters_not_permitted",
            "GPU counters are restricted to administrators",
            "start the container with --cap-add SYS_ADMIN, or load the driver with "
            "NVreg_RestrictProfilingToAdminUsers=0",
            WARNING,
            tuple(refused[:2]),
        )
    if not samples:
        known = case.collector == NSYS and bool(case.messages)
        return rule_out("nsys reported no missing permission") if known else None
    evidence = list(samples[:2])
    machine = case.machine
    if machine is not None and machine.perf_event_paranoid is not None:
        evidence.append(f"perf_event_paranoid is {machine.perf_event_paranoid}")
    if (
        machine is not None
        and machine.container
        and not (machine.has_capability(CAP_SYS_ADMIN) or machine.has_capability(CAP_PERFMON))
    ):
        evidence.append(f"a container ({machine.container}) without CAP_SYS_ADMIN and CAP_PERFMON")
    fix = "run `sysctl kernel.perf_event_paranoid=1` on the host, start the container with --cap-add PERFMON, or "
    if _on_windows(case):
        fix = "start nsys as administrator, or "
    return Finding(
        "samples_not_permitted",
        "the system denied CPU samples; ranges and GPU work are not affected",
        f"{fix}disable sampling (--sample=none)",
        NOTE,
        tuple(evidence),
    )


def _on_windows(case: Case) -> bool:
    return case.options.get("DEVICE_TYPE", "").startswith("Windows")


def diagnose_system(case: Case) -> RuleResult:
    """Recorded on Windows or WSL."""
    kernels = (str(((case.manifest or {}).get("host") or {}).get("system", "")), case.system.get("kernel", ""))
    wsl = [f"the kernel is {name}" for name in kernels if "microsoft" in name.lower()][:1]
    wsl += [f"the process {name} in the report" for name in (case.system.get("wsl"),) if name]
    wsl += ["/proc/version or /dev/dxg of this system"] if case.machine is not None and case.machine.wsl else []
    if _on_windows(case):
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


def diagnose_killed_program(case: Case) -> RuleResult:
    """The program died of a signal, and events that nsys had not received are lost."""
    number = ((case.manifest or {}).get("end") or {}).get("signal")
    if case.collector != NSYS or case.manifest is None or case.manifest.get("end") is None:
        return None
    if number is None:
        return _killed_worker(case)
    if case.recording is None:
        return None
    creator = next((one for one in case.process_records if one.names), None) if not case.range_count else None
    return Finding(
        "tail_lost",
        f"the program died of signal {number}, and nsys loses what a process has not sent by then: its last "
        "ranges, and the ends of open ones",
        "end the program with a signal that it handles, or use --collector recorder, which loses nothing",
        WARNING if case.range_count else PROBLEM,
        (
            f"the run ended by signal {number}",
            f"{case.range_count} ranges in the report",
            *((f"process {creator.pid} created {join_first(creator.names)}",) if creator else ()),
        ),
        CERTAIN if creator else LIKELY,
    )


def _killed_worker(case: Case) -> RuleResult:
    """A child process was ended by a signal or os._exit, and its last ranges may be lost."""
    if case.recording is None:
        return None
    main, cut = (case.manifest or {}).get("pid"), _cut_ranges(case) if case.is_full_recording else {}
    last = {one.pid: one for one in case.process_records if one.pid != main}
    traced = [one for one in last.values() if one.has_listener and not one.disabled and not one.forked]
    lost = [one for one in traced if one.end is None or one.pid in cut]
    if not lost:
        return rule_out("the program ended without a signal, and so did every process that imported traceable")
    lost = [one for one in lost if one.pid in cut or case.completeness.count_missing(one.pid) != 0]
    if not lost:
        return rule_out("every range of the processes that did not exit normally is in the recording")
    unended = [one.file_name for one in lost if one.end is None]
    evidence = [f"no normal exit of Python in {name}" for name in unended[:2]]
    for one in lost:
        if number := case.ranges_by_pid.get(one.pid):
            open_ = f", {cut[one.pid]} of them without their end" if one.pid in cut else ""
            evidence.append(f"{number} ranges of process {one.pid} are in the report{open_}")
    return Finding(
        "tail_lost",
        f"nsys may lack the last ranges of process{'es' if len(lost) > 1 else ''} "
        f"{join_first([str(one.pid) for one in lost])}: it loses what a process has not sent when a signal, as of "
        "Pool.terminate(), or os._exit ends it",
        "end workers with close() and join() (`with Pool()` terminates them), or use --collector recorder, which loses "
        "nothing",
        WARNING if case.range_count else PROBLEM,
        tuple(evidence),
        LIKELY if any(one.pid in case.ranges_by_pid for one in lost) else POSSIBLE,
    )


def _cut_ranges(case: Case) -> dict[int, int]:
    """Return how many ranges without an end each process has, for processes with any."""
    assert case.recording is not None
    trace = case.recording.trace
    threads, counts = np.unique(trace.ranges.thread[trace.ranges.clipped], return_counts=True)
    counts_by_pid: dict[int, int] = {}
    for thread, count in zip(threads.tolist(), counts.tolist(), strict=True):
        pid = trace.processes[trace.threads[thread].process].pid
        counts_by_pid[pid] = counts_by_pid.get(pid, 0) + count
    return counts_by_pid


RULES = (
    Rule("not_recorded", diagnose_not_recorded),
    Rule("window", diagnose_windows),
    Rule("closed_before_first_range", diagnose_closed_before_first_range),
    Rule("capture_range_never_came", diagnose_capture_range),
    Rule("importer_missing", diagnose_importer),
    Rule("collector_killed", diagnose_killed_collector),
    Rule("report_truncated", diagnose_truncated_report),
    Rule("no_torch_trace", diagnose_missing_torch_trace),
    Rule("tail_lost", diagnose_killed_program),
    Rule("events_dropped", diagnose_dropped_events),
    Rule("clock_outliers", diagnose_clocks),
    Rule("permissions", diagnose_permissions),
    Rule("windows", diagnose_system),
)

FALLBACK = Rule("no_report", diagnose_unreadable)
"""Is reported if no other rule is."""
