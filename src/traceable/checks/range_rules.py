"""Rules about ranges: why the ranges of the program are not in the recording."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath

from traceable.checks.case import Case
from traceable.finding import (
    CERTAIN,
    LIKELY,
    NOTE,
    POSSIBLE,
    PROBLEM,
    Finding,
    Rule,
    RuleResult,
    join_first,
    rule_out,
)
from traceable.protocol import environment
from traceable.protocol.capture_request import TIMED_WINDOW_KEY
from traceable.protocol.run_dir import CLIENT_OF_KEY
from traceable.protocol.run_records import ProcessRecord

_CLIENT_PROGRAMS = frozenset(
    (
        *("curl", "wget", "http", "https", "ab", "wrk", "wrk2", "hey", "oha", "siege"),
        *("bombardier", "h2load", "vegeta", "k6", "locust", "aiperf", "genai-perf"),
    )
)
"""Programs that are only clients."""

_NVTX_OFF = "NVTX_DISABLE"
_USUAL_LEVEL = 2


def diagnose_disabled(case: Case) -> RuleResult:
    """TRACEABLE_DISABLE, or the nvtx package's own variable."""
    off = [one for one in case.process_records if one.disabled]
    if off:
        name = next(
            (name for name in (environment.DISABLE, _NVTX_OFF) if name in case.environment_names), environment.DISABLE
        )
        return Finding(
            "annotations_disabled",
            f"annotations are off: {name} is set",
            f"unset {name}",
            case.loss_severity,
            (f"process {off[0].pid} reports that its annotations are off",),
        )
    if case.process_records:
        return rule_out("no process reports that its annotations are off")
    if _NVTX_OFF in case.environment_names and case.is_empty:
        evidence = (f"{_NVTX_OFF} is in the environment of the run",)
        return Finding("annotations_disabled", f"{_NVTX_OFF} is set", f"unset {_NVTX_OFF}", PROBLEM, evidence, LIKELY)
    return None


def diagnose_fork(case: Case) -> RuleResult:
    """A process that was forked without an exec, which not every collector can trace."""
    if case.collector.follows_forks or case.manifest is None:
        return None
    recorded = case.ranges_by_pid
    counts = {one.pid: one for one in case.completeness.processes if one.missing}
    of_forks = [one for one in case.last_programs if one.forked and one.pid not in recorded]
    lost = [one for one in of_forks if case.completeness.count_missing(one.pid) != 0]
    if not lost:
        reason = (
            "the forked processes emitted no range" if of_forks else "no process that imported traceable was forked"
        )
        return rule_out(reason)
    names_by_pid = {one.pid: one.names for one in case.process_records if one.names}
    evidence = [
        f"process {one.pid} created {join_first(names_by_pid[one.pid])}" for one in lost if one.pid in names_by_pid
    ]
    of_counts = [one.pid for one in lost if one.pid in counts and one.pid not in names_by_pid]
    evidence += [f"process {pid} counted {counts[pid].emitted} ranges" for pid in of_counts]
    who = join_first([str(one) for one in lost])
    # Workers that only load data have no ranges; only one that imported traceable itself reports its ranges.
    idle = case.range_count and not evidence
    return Finding(
        "forked_child",
        f"{who} {'was' if len(lost) == 1 else 'were'} forked, and {case.collector.name} can't trace forked processes",
        "use --collector recorder, or multiprocessing's start method spawn",
        NOTE if idle else case.loss_severity,
        (f"{lost[0].file_name} reports it", *evidence[:2], f"{case.range_count or 0} ranges in the report"),
        POSSIBLE if idle else LIKELY,
    )


def diagnose_scrubbed_environment(case: Case) -> RuleResult:
    """A process that was started without the environment variables of the collector."""
    if case.manifest is None or not case.collector.records:
        return None
    if "nvtx" not in (case.traced_apis or {"nvtx"}):
        return rule_out("NVTX was not traced")
    # A process without ranges lost none; one that ended abruptly is unknown.
    not_traced = [one for one in case.process_records if not one.has_listener and (one.names or one.end is None)]
    if not not_traced and not case.without_environment:
        reason = "every process that imported traceable, and created a range, had the environment of the run"
        return rule_out(reason) if case.process_records else None
    if case.without_environment:
        pid, name = case.without_environment[0]
        who, how = f"process {pid} ({name})", "without the environment of the run"
        evidence = [f"the launcher saw it with traceable loaded and without {environment.RUN_DIR}"]
        if more := len(case.without_environment) - 1:
            evidence.append(f"{more} more such processes")
    else:
        who, how = f"process {not_traced[0].pid}", "without the variables of the collector"
        evidence = [
            f"in process {not_traced[0].pid} {environment.NVTX_INJECTION} was not set when it imported traceable"
        ]
        evidence += [f"it created the ranges {join_first(not_traced[0].names)}"] if not_traced[0].names else []
    return Finding(
        "environment_scrubbed",
        f"{who} was started {how}, so none of its ranges were recorded",
        "pass os.environ to it, including LD_PRELOAD, NVTX_*, NSYS_*, QUADD_* and TRACEABLE_* (env=, `env -i`, sudo)",
        case.loss_severity,
        tuple(evidence),
        CERTAIN if not case.without_environment and not_traced[0].names else LIKELY,
    )


def diagnose_unrecorded_process(case: Case) -> RuleResult:
    """A process created ranges, and the recording has only those of others."""
    if not case.process_records or not case.is_full_recording or (case.recording is None and not case.is_empty):
        return None
    missing = case.unrecorded_processes
    if not missing:
        return rule_out("each process that created ranges and has a record is in the recording")
    if case.collector.survives_kill and not case.range_count:
        return None  # it records every process: `nothing_entered` covers ranges that are never entered
    one = missing[0]
    recorded_counts = [f"{count} ranges of process {pid}" for pid, count in case.ranges_by_pid.items()]
    # A decorated function that is never called has no ranges to lose.
    return Finding(
        "process_not_recorded",
        f"process {one.pid} created ranges, and none of them was recorded",
        "check that these ranges are entered; --collector recorder follows every process",
        NOTE if case.range_count else PROBLEM,
        (f"it created {join_first(one.names)}", f"the recording holds {join_first(recorded_counts) or 'no range'}"),
        POSSIBLE if case.range_count else LIKELY,
    )


def diagnose_level(case: Case) -> RuleResult:
    """TRACEABLE_LEVEL disables the annotations of the program."""
    if not case.is_empty or not case.is_full_recording:
        return None
    low = [one for one in case.unrecorded_processes if one.level < _USUAL_LEVEL]
    if not low:
        return rule_out(f"{environment.LEVEL} is not below {_USUAL_LEVEL}") if case.process_records else None
    return Finding(
        "level_too_low",
        f"{environment.LEVEL}={low[0].level}: annotations of a higher level are off",
        f"unset {environment.LEVEL}",
        PROBLEM,
        (f"process {low[0].pid} created {join_first(low[0].names)}, and no range was recorded",),
        LIKELY if low[0].level else CERTAIN,
    )


def diagnose_program_failure(case: Case) -> RuleResult:
    """The program failed before it created a range; it may be annotated."""
    code, number = case.end.get("exit_code"), case.end.get("signal")
    if code is None and number is None:
        return None
    if not code and number is None:
        return rule_out("the program ended with exit code 0")
    if not case.is_empty or any(one.names for one in case.process_records):
        return None
    how = f"died of signal {number}" if number is not None else f"failed with exit code {code}"
    errors = [one for one in case.process_records if one.end and one.end.startswith("exception")]
    evidence = [f"process {one.pid} ended by {one.end}" for one in errors[:1]]
    return Finding(
        "program_failed",
        f"the program {how} before it created a range",
        "check its output; if it ran as intended, annotate it",
        PROBLEM,
        (f"the run {how}, and no range was recorded", *evidence),
        LIKELY,
    )


def diagnose_nothing_annotated(case: Case) -> RuleResult:
    """Nothing in the program emits a range. Never certain: an untraced process leaves the same evidence."""
    if not case.is_empty:
        return rule_out(f"{case.range_count} ranges were recorded") if case.range_count else None
    if case.process_records:
        return rule_out(f"{_processes(case.process_records)} imported traceable")
    if case.nvtx_used:
        return rule_out("a traced process called NVTX")
    if timed := (case.manifest or {}).get(TIMED_WINDOW_KEY):
        return Finding(
            "empty_window",
            f"no range lies in the window that was recorded ({timed})",
            "begin earlier or record longer (--delay, --duration), or omit both to see when its ranges begin",
            PROBLEM,
            ("the program is not a Python program, so the time of its first range is not known",),
            LIKELY,
        )
    client = diagnose_profiled_client(case)
    if isinstance(client, Finding) and client.certainty == LIKELY:
        return rule_out("the program is a client, and its server is not part of the run")
    evidence = ["no range in the recording"]
    if case.nvtx_used is False:
        evidence.append("no traced process called NVTX")
    if case.manifest is not None:
        evidence.append("no process imported traceable")
    return Finding(
        "nothing_annotated",
        "the program is not annotated",
        'put `with traceable.annotate("forward"):` around its parts, or use `traceable run --annotate`',
        PROBLEM,
        tuple(evidence),
        LIKELY,
    )


def diagnose_profiled_client(case: Case) -> RuleResult:
    """The program only talked to a server on this machine, which was started without the launcher."""
    server = (case.manifest or {}).get(CLIENT_OF_KEY)
    if not isinstance(server, dict) or not case.is_empty or case.process_records:
        return None
    program = str(((case.manifest or {}).get("target") or {}).get("program"))
    who = f"process {server['pid']} ({server['name']})" if server.get("pid") else "a process of another user"
    # Any program may use a database on the same machine; only these programs are known to be pure clients.
    only_client = PurePath(program).name in _CLIENT_PROGRAMS
    return Finding(
        "profiled_the_client",
        f"the program is a client of port {server['port']}, whose server is not part of the run",
        "start the server with `traceable run`, and the client without it",
        PROBLEM,
        (f"{program} talked to port {server['port']}, where {who} listens", "no process imported traceable"),
        LIKELY if only_client else POSSIBLE,
    )


def diagnose_nothing_entered(case: Case) -> RuleResult:
    """Processes imported traceable, were traced, and entered no range: e.g. a server without requests."""
    if not case.process_records or not case.is_empty or not case.is_full_recording:
        return None
    traced = [
        one for one in case.process_records if one.has_listener and not one.disabled and not case.is_lost_by_fork(one)
    ]
    # A process that ended abruptly may have entered ranges that are lost.
    may_have_lost = not case.collector.survives_kill and any(one.end is None or one.names for one in traced)
    if not traced or may_have_lost:
        return None
    names = tuple(sorted({name for one in traced for name in one.names}))
    evidence = [f"{_processes(traced)} imported traceable, and no range was recorded"]
    evidence += [f"defined and never entered: {join_first(names)}"] if names else []
    return Finding(
        "nothing_entered",
        "no annotated code ran during the recording",
        "run that code (send a server requests), or annotate what runs: `with traceable.annotate(...)`, `--annotate`",
        PROBLEM,
        tuple(evidence),
        LIKELY,
    )


def _processes(records: Sequence[ProcessRecord]) -> str:
    pids = list(dict.fromkeys(one.pid for one in records))
    return (
        f"process {pids[0]}" if len(pids) == 1 else f"{len(pids)} processes ({join_first([str(pid) for pid in pids])})"
    )


def diagnose_missing_ranges(case: Case) -> RuleResult:
    """Processes counted more ranges than the recording has; other rules find the reason."""
    complete = case.completeness
    lost = [one for one in complete.processes if one.missing]
    counted = sum(one.emitted or 0 for one in complete.processes)
    if not lost:
        known = complete.not_compared is None and counted
        return rule_out(f"each of the {counted} ranges that were counted is in the recording") if known else None
    of = f"process {lost[0].pid}" if len(lost) == 1 else f"{len(lost)} processes"
    evidence = [f"process {one.pid} emitted {one.emitted}, {one.missing} of them are missing" for one in lost[:4]]
    evidence += [f"and {len(lost) - 4} more processes"] if len(lost) > 4 else []
    evidence += _ends_of(case, [one.pid for one in lost])
    return Finding(
        "ranges_missing",
        f"{sum(one.missing for one in lost)} ranges that {of} emitted are not in the recording",
        case.collector.loss_fix,
        case.loss_severity,
        tuple(evidence),
    )


def _ends_of(case: Case, pids: Sequence[int]) -> list[str]:
    """Return how processes ended that did not exit normally."""
    last = {one.pid: one for one in case.process_records}
    forked = {one.pid for one in case.last_programs if one.start in ("fork", "forkserver")}
    forked |= {pid for pid, one in last.items() if one.forked}
    endings = [f"process {pid} was forked" for pid in pids if pid in forked]
    endings += [
        f"process {pid} did not exit normally (a signal, os._exit, exec)"
        for pid in pids
        if pid in last and last[pid].end is None and pid not in forked
    ]
    return endings[:3]


RULES = (
    Rule("annotations_disabled", diagnose_disabled),
    Rule("forked_child", diagnose_fork),
    Rule("environment_scrubbed", diagnose_scrubbed_environment),
    Rule("level_too_low", diagnose_level),
    Rule("process_not_recorded", diagnose_unrecorded_process),
    Rule("program_failed", diagnose_program_failure),
    Rule("profiled_the_client", diagnose_profiled_client),
    Rule("nothing_annotated", diagnose_nothing_annotated),
    Rule("nothing_entered", diagnose_nothing_entered),
    Rule("ranges_missing", diagnose_missing_ranges),
)
