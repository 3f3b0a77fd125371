"""Rules about ranges: why those that the program makes are not in the recording."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath

from traceable.checks.diagnosis_case import NSYS, RECORDER, TORCH, Case, ProcessRecord, find_traced_apis
from traceable.checks.rule import (
    CERTAIN,
    EVERYTHING,
    LIKELY,
    NOTHING,
    PART,
    POSSIBLE,
    Finding,
    Rule,
    RuledOut,
    RuleResult,
    join_first,
)
from traceable.collectors import base
from traceable.collectors.recorder import collector as recorder
from traceable.launch import local_client
from traceable.launch.windows import TIMED_WINDOW_KEY
from traceable.protocol import environment

_NVTX_SILENT = r"NVTX binary payload extension is incompatible"
_NVTX_HEARD = r"NVTX injection initialized"
_NEVER_BEGAN = "nsys's NVTX injection was never initialised: nothing that it hears called NVTX"
_NVTX_OFF = "NVTX_DISABLE"
_USUAL_LEVEL = 2


def _loss(case: Case) -> str:
    return PART if case.range_count else EVERYTHING


def _empty(case: Case) -> bool:
    """Whether the recording ended in order and holds no range. Windows have a rule of their own."""
    if case.windows is not None and not case.windows.ok:
        return False
    if case.recording is None:
        # The recorder leaves no database then, and where nothing calls NVTX nothing at all.
        nothing = bool(case.find_notes(base.NOTHING_RECORDED.code)) or recorder.DIRECTORY not in case.files
        return case.manifest is not None and case.collector == RECORDER and nothing
    return case.range_count == 0


def diagnose_disabled(case: Case) -> RuleResult:
    """TRACEABLE_DISABLE, or the nvtx package's own variable."""
    off = [one for one in case.process_records if one.disabled]
    if off:
        name = next(
            (name for name in (environment.DISABLE, _NVTX_OFF) if name in case.environment_names), environment.DISABLE
        )
        return Finding(
            "annotations_disabled",
            CERTAIN,
            f"annotations are off: {name} is set",
            (f"process {off[0].pid} says that its annotations are off",),
            f"unset {name}",
            _loss(case),
        )
    if case.process_records:
        return RuledOut("no process says that its annotations are off")
    if _NVTX_OFF in case.environment_names and _empty(case):
        evidence = (f"{_NVTX_OFF} is in the environment of the run",)
        return Finding(
            "annotations_disabled", LIKELY, f"{_NVTX_OFF} is set", evidence, f"unset {_NVTX_OFF}", EVERYTHING
        )
    return None


def diagnose_nvtx_not_traced(case: Case) -> RuleResult:
    """NVTX was not asked for."""
    asked = find_traced_apis(case)
    if asked is None:
        return None
    if "nvtx" in asked:
        return RuledOut("NVTX was traced")
    return Finding(
        "nvtx_not_traced",
        CERTAIN,
        "nsys was not asked to record NVTX ranges",
        (f"it traced {join_first(sorted(asked)) or 'nothing'}",),
        "add nvtx to --trace",
        EVERYTHING,
    )


def diagnose_nvtx_silent(case: Case) -> RuleResult:
    """The nvtx package from 0.2.12 on emits nothing under an nsys whose injection refuses the payload extension."""
    if case.collector != NSYS or case.recording is None:
        return None
    said = case.find_messages(_NVTX_SILENT)
    if not said:
        return RuledOut("nsys did not refuse the payload extension of the nvtx package") if case.messages else None
    ended = [one for one in case.process_records if one.end is not None]
    if ended and not any(one.nvtx is not None for one in ended):
        return RuledOut("no process that told of itself imported the nvtx package")
    imported = next((one.nvtx for one in ended if one.nvtx), None)
    version = imported or ((case.manifest or {}).get("versions") or {}).get("nvtx")
    nsys = case.recording.trace.source.version
    return Finding(
        "nvtx_package_incompatible",
        # Others ask for that extension as well, NCCL among them.
        CERTAIN if imported and not case.range_count else LIKELY,
        f"the nvtx package {version or '(0.2.12 or newer)'} emits nothing under nsys {nsys}",
        (said[0], f"{case.range_count} ranges in the report, though NVTX was used"),
        "annotate with traceable.annotate instead of nvtx.annotate; or install nvtx==0.2.11 or a newer nsys; or "
        "use --collector recorder",
        _loss(case),
    )


def diagnose_fork(case: Case) -> RuleResult:
    """A process that was forked without an exec is not recorded by nsys."""
    if case.collector != NSYS or case.manifest is None:
        return None
    recorded = case.ranges_by_pid
    counts = {one.pid: one for one in case.completeness.processes if one.missing}
    of_forks = [one for one in case.process_files if one.get("lost") == "forked" and one["pid"] not in recorded]
    lost = [one for one in of_forks if case.completeness.count_missing(one["pid"]) != 0]
    if not lost:
        why = "the forked processes emitted no range" if of_forks else "no process that imported traceable was forked"
        return RuledOut(why)
    made = {one.pid: one.names for one in case.process_records if one.names}
    evidence = [f"process {one['pid']} made {join_first(made[one['pid']])}" for one in lost if one["pid"] in made]
    of_counts = [one["pid"] for one in lost if one["pid"] in counts and one["pid"] not in made]
    evidence += [f"process {pid} counted {counts[pid].emitted} ranges" for pid in of_counts]
    who = join_first([f"{one.get('label') or 'a process'} (pid {one['pid']})" for one in lost])
    # Of workers that only load data nothing is missing, and only one that imported traceable itself tells its ranges.
    idle = case.range_count and not evidence
    return Finding(
        "forked_child",
        POSSIBLE if idle else LIKELY,
        f"{who} {'was' if len(lost) == 1 else 'were'} forked, and nsys records no range of a forked process",
        (f"process.{lost[0]['pid']}.json says so", *evidence[:2], f"{case.range_count or 0} ranges in the report"),
        "use --collector recorder, or multiprocessing's start method spawn",
        NOTHING if idle else _loss(case),
    )


def diagnose_exec(case: Case) -> RuleResult:
    """exec: what a process image has not handed over to nsys goes with it."""
    if case.collector != NSYS or not case.process_records:
        return None
    recorded = case.ranges_by_pid
    unexplained = False
    signalled = ((case.manifest or {}).get("end") or {}).get("signal") is not None
    for one in case.process_records:
        missing = case.completeness.count_missing(one.pid)
        is_main = one.pid == (case.manifest or {}).get("pid")
        if missing == 0 or (one.end is None and is_main and signalled and not one.number):
            continue
        again = any(other.pid == one.pid and other.number > one.number for other in case.process_records)
        gone = one.end is None
        if gone and again:
            return _exec(case, one, "by another program (exec)", "it began twice, and the first time did not end")
        if gone and _ended_well(case) and is_main and (missing or not recorded.get(one.pid)):
            why = "Python in it never ended, and the process did without a signal"
            return _exec(case, one, "by another program (exec), or left by os._exit", why)
        unexplained = unexplained or gone
    if unexplained:
        return None
    if any(one.end is None for one in case.process_records):
        return RuledOut("no process that was replaced, or left by os._exit, lost a range by it")
    return RuledOut("every process that imported traceable ended as Python does")


def _exec(case: Case, life: ProcessRecord, how: str, why: str) -> Finding:
    # What made no range before lost none; one that is gone and did not count can't be asked.
    missing = case.completeness.count_missing(life.pid)
    return Finding(
        "exec",
        LIKELY if missing or not case.range_count else POSSIBLE,
        f"process {life.pid} replaced itself {how}, and nsys loses the ranges that it made before",
        (
            f"process {life.pid}: {why}",
            *((f"{missing} of the ranges that it counted are missing",) if missing else ()),
            f"{case.range_count or 0} ranges in the report",
        ),
        "use --collector recorder, which loses nothing; or start the other program with subprocess, and leave by "
        "sys.exit",
        NOTHING if case.range_count and not missing else _loss(case),
    )


def _ended_well(case: Case) -> bool:
    end = (case.manifest or {}).get("end") or {}
    return end.get("exit_code") is not None


def diagnose_scrubbed_environment(case: Case) -> RuleResult:
    """A process that was started without the environment by which a collector is heard of."""
    if case.manifest is None or case.collector not in (NSYS, RECORDER, TORCH):
        return None
    if "nvtx" not in (find_traced_apis(case) or {"nvtx"}):
        return RuledOut("without NVTX in --trace nsys sets its variables in no process")
    # Of one that made no range nothing is missing; one that is gone can't be asked.
    deaf = [one for one in case.process_records if not one.has_listener and (one.names or one.end is None)]
    if not deaf and not case.without_environment:
        why = "every process that imported traceable, and made a range, had the environment of the run"
        return RuledOut(why) if case.process_records else None
    if case.without_environment:
        pid, name = case.without_environment[0]
        who, why = f"process {pid} ({name})", "without the environment of the run"
        evidence = [f"the launcher saw it with traceable loaded and without {environment.RUN_DIR}"]
        evidence += (
            [f"{len(case.without_environment) - 1} more such processes"] if len(case.without_environment) > 1 else []
        )
    else:
        who, why = f"process {deaf[0].pid}", "without the variables of the collector"
        evidence = [f"in process {deaf[0].pid} {environment.NVTX_INJECTION} was not set when it imported traceable"]
        evidence += [f"it made the ranges {join_first(deaf[0].names)}"] if deaf[0].names else []
    return Finding(
        "environment_scrubbed",
        CERTAIN if not case.without_environment and deaf[0].names else LIKELY,
        f"{who} was started {why}, so that none of its ranges is recorded",
        tuple(evidence),
        "hand os.environ on to it, with LD_PRELOAD, NVTX_*, NSYS_*, QUADD_* and TRACEABLE_* (env=, `env -i`, sudo)",
        _loss(case),
    )


def diagnose_unrecorded_process(case: Case) -> RuleResult:
    """A process made ranges, and the recording holds others' only."""
    if not case.process_records or not case.is_full_recording or (case.recording is None and not _empty(case)):
        return None
    recorded = case.ranges_by_pid
    missing = _unheard(case)
    if not missing:
        return RuledOut("each process that made ranges and told of itself is in the recording")
    one = missing[0]
    made = f"it made {join_first(one.names)}"
    if case.collector == NSYS and not case.range_count and case.messages and not case.find_messages(_NVTX_HEARD):
        # nsys 2022.4 now and then, on a machine with more to do than it has cores.
        return Finding(
            "nsys_never_attached",
            CERTAIN if any(process.ended_steps for process in case.step_statuses) else LIKELY,
            f"nsys did not begin to listen to process {one.pid}, which made ranges",
            (made, _NEVER_BEGAN),
            "run it again, while the machine has less to do; or use --collector recorder",
            EVERYTHING,
        )
    if case.collector == RECORDER and not case.range_count:
        return None  # it records every process: `nothing_entered` covers ranges that are never entered
    heard = [f"{count} ranges of process {pid}" for pid, count in recorded.items()]
    # Of a decorated function that is never called, nothing is missing.
    return Finding(
        "process_not_recorded",
        POSSIBLE if case.range_count else LIKELY,
        f"process {one.pid} made ranges, and none of them was recorded",
        (made, f"the recording holds {join_first(heard) or 'no range'}"),
        "see whether these ranges are ever entered; --collector recorder follows every process",
        NOTHING if case.range_count else EVERYTHING,
    )


def _unheard(case: Case) -> list[ProcessRecord]:
    """Return the processes that made ranges, could be heard, ended as Python does, and are not in the recording."""
    could = [
        one
        for one in case.process_records
        if one.names and one.end and not one.disabled and not _lost_by_fork(case, one)
    ]
    return [one for one in could if one.has_listener and one.pid not in case.ranges_by_pid]


def _lost_by_fork(case: Case, life: ProcessRecord) -> bool:
    return life.forked and case.collector == NSYS


def diagnose_level(case: Case) -> RuleResult:
    """TRACEABLE_LEVEL leaves out what the program has."""
    if not _empty(case) or not case.is_full_recording:
        return None
    low = [one for one in _unheard(case) if one.level < _USUAL_LEVEL]
    if not low:
        return RuledOut(f"{environment.LEVEL} is not below {_USUAL_LEVEL}") if case.process_records else None
    return Finding(
        "level_too_low",
        LIKELY if low[0].level else CERTAIN,
        f"{environment.LEVEL}={low[0].level}: annotations of a higher level are off",
        (f"process {low[0].pid} made {join_first(low[0].names)}, and no range was recorded",),
        f"unset {environment.LEVEL}",
        EVERYTHING,
    )


def diagnose_program_failure(case: Case) -> RuleResult:
    """The program failed, and with it went what it was to record: it may well be annotated."""
    end = (case.manifest or {}).get("end") or {}
    code, number = end.get("exit_code"), end.get("signal")
    if code is None and number is None:
        return None
    if not code and number is None:
        return RuledOut("the program ended with exit code 0")
    if not _empty(case) or any(one.names for one in case.process_records):
        return None
    how = f"died of signal {number}" if number is not None else f"failed with exit code {code}"
    errors = [one for one in case.process_records if one.end and one.end.startswith("exception")]
    evidence = [f"process {one.pid} ended by {one.end}" for one in errors[:1]]
    return Finding(
        "program_failed",
        LIKELY,
        f"the program {how} before it made a range",
        (f"the run {how}, and no range was recorded", *evidence),
        "see what it printed; if it ran as it should, annotate it",
        EVERYTHING,
    )


def diagnose_nothing_annotated(case: Case) -> RuleResult:
    """Nothing in the program emits a range. Never certain: a process that nobody hears leaves the same traces."""
    if not _empty(case):
        return RuledOut(f"{case.range_count} ranges were recorded") if case.range_count else None
    if case.process_records:
        return RuledOut(f"{_processes(case.process_records)} imported traceable")
    if case.find_messages(_NVTX_HEARD):
        return RuledOut("NVTX was used: nsys's injection was initialised")
    if timed := (case.manifest or {}).get(TIMED_WINDOW_KEY):
        return Finding(
            "empty_window",
            LIKELY,
            f"no range lies in the window that was recorded ({timed})",
            ("the program is no Python, so nobody in it knows when its first range began",),
            "begin earlier or record longer (--delay, --duration), or leave both out to see when its ranges come",
            EVERYTHING,
        )
    client = diagnose_profiled_client(case)
    if isinstance(client, Finding) and client.certainty == LIKELY:
        return RuledOut("the program is a client, and its server is not part of the run")
    evidence = ["no range in the recording"]
    if case.collector == NSYS and case.messages:
        evidence.append(_NEVER_BEGAN)
    if case.collector == RECORDER:
        evidence.append("the recorder heard no range and no mark")
    if case.manifest is not None:
        evidence.append("no process imported traceable")
    return Finding(
        "nothing_annotated",
        LIKELY,
        "the program is not annotated",
        tuple(evidence),
        'put `with traceable.annotate("forward"):` around its parts, or use `traceable run --annotate`',
        EVERYTHING,
    )


def diagnose_profiled_client(case: Case) -> RuleResult:
    """The program only talked to a server on this machine, which was started without the launcher."""
    server = (case.manifest or {}).get(local_client.CLIENT_OF_KEY)
    if not isinstance(server, dict) or not _empty(case) or case.process_records:
        return None
    program = str(((case.manifest or {}).get("target") or {}).get("program"))
    who = f"process {server['pid']} ({server['name']})" if server.get("pid") else "a process of another user"
    # Any program may have a database on the same machine; of these nothing else is known than that they are clients.
    only_client = PurePath(program).name in local_client.CLIENT_PROGRAMS
    return Finding(
        "profiled_the_client",
        LIKELY if only_client else POSSIBLE,
        f"the program is a client of port {server['port']}, whose server is not part of the run",
        (f"{program} talked to port {server['port']}, where {who} listens", "no process imported traceable"),
        "start the server with `traceable run`, and the client without it",
        EVERYTHING,
    )


def diagnose_nothing_entered(case: Case) -> RuleResult:
    """Processes imported traceable, could be recorded, and entered no range: of a server that got no request, say."""
    if not case.process_records or not _empty(case) or not case.is_full_recording:
        return None
    heard = [
        one for one in case.process_records if one.has_listener and not one.disabled and not _lost_by_fork(case, one)
    ]
    unknown = [one for one in heard if one.end is None]
    # What nsys was handed when a process dies without Python's end is not known; the recorder loses nothing of it.
    if not heard or (case.collector == NSYS and (unknown or any(one.names for one in heard))):
        return None
    names = tuple(sorted({name for one in heard for name in one.names}))
    evidence = [f"{_processes(heard)} imported traceable, and no range was recorded"]
    evidence += [f"defined and never entered: {join_first(names)}"] if names else []
    return Finding(
        "nothing_entered",
        LIKELY,
        "no annotated code ran while it was recorded",
        tuple(evidence),
        "run that code (send a server requests), or annotate what runs: `with traceable.annotate(...)`, `--annotate`",
        EVERYTHING,
    )


def _processes(lives: Sequence[ProcessRecord]) -> str:
    pids = list(dict.fromkeys(one.pid for one in lives))
    return (
        f"process {pids[0]}" if len(pids) == 1 else f"{len(pids)} processes ({join_first([str(pid) for pid in pids])})"
    )


def diagnose_missing_ranges(case: Case) -> RuleResult:
    """Processes counted more ranges than the recording holds of them: why is for the other rules."""
    complete = case.completeness
    lost = [one for one in complete.processes if one.missing]
    counted = sum(one.emitted or 0 for one in complete.processes)
    if not lost:
        known = complete.not_compared is None and counted
        return RuledOut(f"each of the {counted} ranges that were counted is in the recording") if known else None
    of = f"process {lost[0].pid}" if len(lost) == 1 else f"{len(lost)} processes"
    evidence = [f"process {one.pid} emitted {one.emitted}, {one.missing} of them are missing" for one in lost[:4]]
    evidence += [f"and {len(lost) - 4} more processes"] if len(lost) > 4 else []
    evidence += _ends_of(case, [one.pid for one in lost])
    fixes = {
        NSYS: "end processes as Python does (sys.exit and not os._exit; close() and join() of a pool and not "
        "terminate()), start them with spawn, or use --collector recorder",
        RECORDER: "see what is said of dropped events, and whether the process could write into the run directory",
        TORCH: "end processes as Python does, and do not fork after torch is imported; or use --collector recorder",
    }
    return Finding(
        "ranges_missing",
        CERTAIN,
        f"{sum(one.missing for one in lost)} ranges that {of} emitted are not in the recording",
        tuple(evidence),
        fixes.get(case.collector, "record again, with --collector recorder"),
        _loss(case),
    )


def _ends_of(case: Case, pids: Sequence[int]) -> list[str]:
    """Return how processes ended that did not as Python does."""
    last = {one.pid: one for one in case.process_records}
    forked = {one["pid"] for one in case.process_files if one.get("start") in ("fork", "forkserver")}
    forked |= {pid for pid, one in last.items() if one.forked}
    said = [f"process {pid} was forked" for pid in pids if pid in forked]
    said += [
        f"process {pid} did not end as Python does (a signal, os._exit, exec)"
        for pid in pids
        if pid in last and last[pid].end is None and pid not in forked
    ]
    return said[:3]


RULES = (
    Rule("annotations_disabled", diagnose_disabled),
    Rule("nvtx_not_traced", diagnose_nvtx_not_traced),
    Rule("nvtx_package_incompatible", diagnose_nvtx_silent),
    Rule("forked_child", diagnose_fork),
    Rule("exec", diagnose_exec),
    Rule("environment_scrubbed", diagnose_scrubbed_environment),
    Rule("level_too_low", diagnose_level),
    Rule("process_not_recorded", diagnose_unrecorded_process),
    Rule("program_failed", diagnose_program_failure),
    Rule("profiled_the_client", diagnose_profiled_client),
    Rule("nothing_annotated", diagnose_nothing_annotated),
    Rule("nothing_entered", diagnose_nothing_entered),
    Rule("ranges_missing", diagnose_missing_ranges),
)
