"""A recording, to ask questions of: what `traceable.load(path)` returns, and what the command line asks too.

Reads, narrows and hands on; what is computed stands in `analysis`, one module a question. Each is loaded when it is
first asked.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from traceable.analysis.attribution import Coverage
from traceable.analysis.completeness import Completeness
from traceable.analysis.context import Context
from traceable.analysis.pauses import drop_short_callbacks
from traceable.analysis.profile import RangeProfile, profile_ranges
from traceable.analysis.range_names import NameRules, RangeNames, build_range_names, load_name_rules
from traceable.analysis.table import Table
from traceable.analysis.windows import (
    STEP,
    CapturedWindow,
    CaptureRequest,
    CaptureResult,
    evaluate_capture,
    find_captured_windows,
)
from traceable.errors import Message, MissingDataError, UsageError
from traceable.trace.model import Trace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from traceable.analysis.expectations import ExpectationResult

ProgressCallback = Callable[[str], None]
"""Hears what is being done, as half a sentence: `reading x.sqlite`."""

_KEPT = ("steps", "findings")
"""Questions that a report asks more than once, for themselves and for the findings: their answers are kept."""

_UNATTRIBUTED = ("api", "kernels", "streams")
"""Questions that can be worked on while it is found out what belongs to which range: mostly they need not know."""

_FIRST = (*_UNATTRIBUTED, "steps", "ranges", "findings")
"""Where several questions are asked at a time, these come first: what others need, and what takes longest."""

_WORTH_A_THREAD = 200_000
"""From how many operations and calls on two questions are worked on at a time."""


def load(
    path: str | Path,
    *,
    progress: ProgressCallback | None = None,
    run_directory: Path | None = None,
    allow_unrelated: bool = False,
    raw_names: bool = False,
    expand: str | Sequence[str] = (),
    name_rules: str | Path | None = None,
) -> Recording:
    """Read a recording.

    Args:
        path: a run directory, a `.nsys-rep` (which needs nsys), an nsys `.sqlite` file, or a Kineto trace of
            torch.profiler (`.json`, `.json.gz`, or a directory of several), or a directory with the runs of several
            ranks (docs/ranks.md). It is only read.
        progress: is told what is being done; None for nobody.
        run_directory: the run that it is of, which says which steps were asked for; by default `path` where it is one.
            Where that run left a report for each window, all of them are read, as one.
        allow_unrelated: read the traces of torch.profiler in a directory as one recording even if they were recorded
            more than a minute apart, as those of different runs are.
        raw_names: leave the names of ranges as recorded, instead of normalizing them (docs/names.md).
        expand: folded names (`layers.*`), or globs over them, whose ranges stay apart.
        name_rules: a TOML file of rules for names, applied before traceable's own.

    Raises:
        TraceError: there is no such file, or it can't be read as a recording, or the directory holds unrelated traces.
        CollectorError: nsys is missing or can't read the `.nsys-rep`.
        TraceableError: `name_rules` can't be read, or holds anything but rules.
        UsageError: `expand` or `name_rules` together with `raw_names`.
        UnanswerableError: no folded name matches one of `expand`.
    """
    if raw_names and (expand or name_rules):
        raise UsageError(
            "raw_names_conflict",
            "raw names are not normalized: nothing to expand, and no rules apply",
            "leave raw_names out",
        )
    rules = None if raw_names else load_name_rules(None if name_rules is None else Path(name_rules))
    recording = _load_raw(path, progress, run_directory, allow_unrelated)
    if rules is not None:
        normalize_names([recording], rules, [expand] if isinstance(expand, str) else expand)
    return recording


def normalize_names(recordings: Sequence[Recording], rules: NameRules, expand: Sequence[str] = ()) -> None:
    """Give the ranges of recordings with raw names their normalized ones, folded as if they were one recording.

    Args:
        recordings: what `load(..., raw_names=True)` returned, before they are asked anything.
        rules, expand: as of `analysis.range_names.range_names`.

    Raises:
        UnanswerableError: no folded name matches one of `expand`.
    """
    for recording, names in zip(
        recordings, build_range_names([one.trace for one in recordings], rules, expand), strict=True
    ):
        recording.trace = dataclasses.replace(recording.trace, names=names.names)
        recording.names = names


def _load_raw(
    path: str | Path, progress: ProgressCallback | None, run_directory: Path | None, allow_unrelated: bool
) -> Recording:
    from traceable.launch import flight
    from traceable.launch.reports import find_manifest, open_report
    from traceable.trace import load as load_trace
    from traceable.trace.join import join_traces

    tell = progress or _tell_nobody
    path = Path(path)
    directory = (run_directory or path).absolute()
    directory = flight.find_run_of_dump(directory) or directory
    tell(f"opening {path}")
    if path.is_dir():
        # What knows of runs takes longer to import than a small file takes to read.
        from traceable.launch import processes

        if parts := processes.list_parts(path):
            from traceable.rank_recordings import load_ranks

            trace, windows, complete = load_ranks(
                path, parts, lambda part: load(part, progress=progress, raw_names=True)
            )
            of_all = Recording(trace, tell)
            of_all.windows = windows
            of_all.completeness = complete
            return of_all
    with open_report(path) as found:
        manifest = find_manifest(directory)
        files = [found]
        if manifest is not None:
            from traceable.launch.windows import list_databases

            files = list_databases(manifest, found)
        traces = []
        for file in files:
            tell(f"reading {path if len(files) == 1 else file}")
            # The windows of one run are related however far apart they are.
            unrelated = allow_unrelated or manifest is not None
            traces.append(load_trace(file, progress=tell, allow_unrelated=unrelated))
        shown = [one for file in files for one in flight.read_intervals(file, manifest)]
    trace = join_traces(traces)
    from traceable.launch import range_counts

    of_run = directory if manifest is not None else None
    complete = range_counts.evaluate_completeness(of_run, manifest, trace, files)
    if manifest is not None:
        from traceable.rank_recordings import name_processes

        trace = name_processes(trace, directory)
    if path.is_file() and len(files) == 1:
        # A .nsys-rep was read as an export that is gone by now.
        trace = dataclasses.replace(trace, source=dataclasses.replace(trace.source, path=str(path)))
    recording = Recording(trace, tell)
    recording.flight = shown
    recording.completeness = complete
    if manifest is not None:
        from traceable.launch.overhead import OVERHEAD_KEY
        from traceable.launch.windows import load_capture_request

        wanted = load_capture_request(directory, manifest)
        recording.windows = None if wanted is None else _judged(wanted, traces)
        recording.overhead = manifest[OVERHEAD_KEY] if isinstance(manifest.get(OVERHEAD_KEY), dict) else None
    return recording


def _judged(wanted: CaptureRequest, traces: Sequence[Trace]) -> CaptureResult:
    found: list[CapturedWindow] = []
    for trace in traces:
        file = Path(trace.source.path)
        report = file.with_suffix(".nsys-rep")
        found += find_captured_windows(trace, report.name if report.exists() else file.name)
    return evaluate_capture(wanted, found)


class Recording:
    """What was recorded, or a part of it.

    Every question returns a `Table`; all are described in docs/report.md. One that the trace can't answer raises
    `MissingDataError`, whose text says why, and what to record next time.

    Args:
        trace: what was recorded.
        progress: is told what is being done.
        names: what its ranges are called; None for as recorded.

    Attributes:
        trace: the same, as columns, names as recorded: for questions that are not here.
        names: as given.
        selection: which part of a file it is, as `report.json` says it; None for all of it.
        windows: what became of the steps that the run was asked for; None where it was asked for none.
        flight: which time of which process a flight recorder shows, as `report.json` says it; else empty.
        overhead: what recording cost, as `report.json` says it; None where that was not measured.
        completeness: whether all that the processes emitted is in it (docs/report.md); of a part, that of the whole.
    """

    def __init__(self, trace: Trace, progress: ProgressCallback | None = None, names: RangeNames | None = None) -> None:
        self.trace = trace
        self.names = names
        self.selection: dict[str, Any] | None = None
        self.windows: CaptureResult | None = None
        self.flight: list[dict[str, Any]] = []
        self.overhead: dict[str, Any] | None = None
        self.completeness = Completeness()
        self._tell = progress or _tell_nobody
        self._kept: dict[tuple[str, str], Table] = {}
        self._wholes: tuple[Recording, ...] = ()
        self._opened: dict[tuple[str, ...], Recording] = {}

    def ranges(
        self,
        *,
        by: str = "path",
        range: str | None = None,  # noqa: A002 - the word that users know
        slowest: int | None = None,
    ) -> Table:
        """Return what each range cost.

        Args:
            by: `path`, parents before children; `name`, over all paths; `instance`; or name and `process`, `thread`,
                `device` or `field:NAME`, the value of a field of that name.
            range: only rows of ranges of this name.
            slowest: by `instance`, only so many of these (without `range`: of the outermost), the slowest first, each
                followed by what lies inside it.

        Raises:
            UsageError: `slowest` by anything else.
        """
        return self.query("ranges", by=by, range_name=range, slowest=slowest)

    def kernels(
        self,
        *,
        by: str = "kernel",
        range: str | None = None,  # noqa: A002
        names: str = "demangled",
        families: str | Path | None = None,
    ) -> Table:
        """Return how long which kernels took, the largest total first.

        Args:
            by: `kernel`, `family`, `range`, `geometry` or `launch`: what a row is about.
            range: only kernels that belong to a range of this name.
            names: how they are named: `demangled`, `short` or `base`.
            families: a file of patterns that tell what a kernel is for, which go before traceable's own.
        """
        from traceable.analysis.kernel_families import load_families

        known = load_families(None if families is None else Path(families))
        return self.query("kernels", by=by, range_name=range, names=names, families=known)

    def api(self, *, by: str = "call", range: str | None = None) -> Table:  # noqa: A002
        """Return how long CUDA API calls took; `range`: only those inside of ranges of this name."""
        return self.query("api", by=by, range_name=range)

    def memory(self, *, by: str = "operation", range: str | None = None) -> Table:  # noqa: A002
        """Return what was copied, set and allocated.

        Args:
            by: `operation`, `range` or `process`: what a row is about.
            range: only what belongs to a range of this name.
        """
        return self.query("memory", by=by, range_name=range)

    def sync(self, *, range: str | None = None) -> Table:  # noqa: A002
        """Return who waited how long for what; `range`: only inside of ranges of this name."""
        return self.query("sync", range_name=range)

    def gaps(self, *, top: int = 20, range: str | None = None) -> Table:  # noqa: A002
        """Return when each GPU was idle.

        Args:
            top: how many of the largest gaps are listed.
            range: only gaps that were ended by an operation of a range of this name.
        """
        return self.query("gaps", top=top, range_name=range)

    def streams(self, *, range: str | None = None) -> Table:  # noqa: A002
        """Return what each stream did; `range`: only what belongs to ranges of this name."""
        return self.query("streams", range_name=range)

    def steps(self, *, range: str | None = None, kernel: str | None = None) -> Table:  # noqa: A002
        """Return what each step took.

        Args:
            range: a step is a range of this name, which may be a glob.
            kernel: a step ends where a kernel does whose name matches this glob. Without either, steps are found.
        """
        return self.query("steps", range_name=range, step_kernel=kernel)

    def findings(self, *, thresholds: Mapping[str, float] | None = None) -> Table:
        """Return where time can be saved, the largest bound first; the table may be empty (docs/findings.md).

        Args:
            thresholds: numbers that decide whether a rule speaks, by `rule.name`; for the rest the defaults hold.

        Raises:
            UsageError: there is no such threshold, or its value is no number from 0 on.
        """
        return self.query("findings", thresholds=thresholds)

    def counters(self) -> Table:
        """Return what each counter said."""
        from traceable.analysis.counters import summarize_counters

        return summarize_counters(self.trace)

    def outside_ranges(self) -> Table:
        """Return how much of each thread's wall time lies in no range, the most first."""
        from traceable.analysis.outside_ranges import measure_outside_ranges

        return measure_outside_ranges(self.context)

    def query(self, question: str, **options: Any) -> Table:
        """Ask a question by its name: the function `analysis.<question>.<question>`.

        Args:
            question: as the methods of this class are named, and the views of the command line.
            options: keyword arguments of that function.

        Raises:
            UnanswerableError: the trace can't answer it, or has no range of the name that is asked about.
        """
        if (name := options.get("range_name")) is not None:
            # What names a step may be a glob.
            asked = self.with_names_matching(name) if question == "steps" else self.with_range(name)
            if asked is not self:
                return asked.query(question, **options)
        key = question, repr(sorted((name, value) for name, value in options.items() if value))
        if key in self._kept:
            return self._kept[key]
        ask = getattr(importlib.import_module(f"traceable.analysis.{question}"), question)
        self._tell(f"{question}: {len(self.context.gpu):,} GPU operations, {len(self.trace.calls):,} API calls")
        if question == "findings":
            options["get_view"] = self.query
        found: Table = ask(self.context, **options)
        if question in _KEPT:
            self._kept[key] = found
        return found

    def query_all(self, asked: Sequence[tuple[str, Mapping[str, Any]]]) -> list[Table | MissingDataError]:
        """Ask several questions, as `answer` does, and return what it returns or raises for each, in their order.

        Those about a large recording are worked on two at a time: most of the work is numpy's, which lets go of the
        interpreter. A third would wait for memory.
        """
        if len(asked) < 2 or len(self.context.gpu) + len(self.trace.calls) < _WORTH_A_THREAD:
            return [self._answer_or_reason(*one) for one in asked]
        # Of use to large recordings alone, and takes 5 ms to import.
        from concurrent.futures import Future, ThreadPoolExecutor

        self._tell(f"attributing {len(self.context.gpu):,} GPU operations")
        self.context.prepare()
        found: dict[int, Future[Table | MissingDataError]] = {}
        # What is waited for was begun before, so that no two wait for each other.
        with ThreadPoolExecutor(2) as workers:
            attributed: Future[Any] = workers.submit(lambda: self.context.coverage)
            steps = attributed

            def ask(i: int, after: Future[Any] | None) -> Table | MissingDataError:
                if after is not None:
                    after.result()
                return self._answer_or_reason(*asked[i])

            for i in sorted(range(len(asked)), key=lambda i: _turn(asked[i][0])):
                question = asked[i][0]
                after = None if question in _UNATTRIBUTED else steps if question == "findings" else attributed
                found[i] = workers.submit(ask, i, after)
                if question == "steps":
                    steps = found[i]
        return [found[i].result() for i in range(len(asked))]

    def _answer_or_reason(self, question: str, options: Mapping[str, Any]) -> Table | MissingDataError:
        try:
            return self.query(question, **options)
        except MissingDataError as error:
            return error

    def select(
        self,
        *,
        process: int | str | Sequence[int | str] | None = None,
        device: int | Sequence[int] | None = None,
        time_ns: tuple[int | None, int | None] | None = None,
        steady: bool = False,
        step_range: str | None = None,
        step_kernel: str | None = None,
    ) -> Recording:
        """Return the part of the recording that is of these processes and GPUs and in this time.

        Args:
            process: pids, or globs over names of processes (`python*`); None for all.
            device: numbers of GPUs, as nsys counts them; None for all.
            time_ns: from when until before when, from the start of the collection; None on a side leaves it open. What
                lies across an edge counts with the part inside (docs/report.md).
            steady: of what that leaves, only the steps after the warm-up.
            step_range, step_kernel: what a step is, as for `steps`.

        Raises:
            UnanswerableError: one of the processes or GPUs is not in the recording, all of it lies outside the time,
                or it has no steps.
        """
        from traceable.analysis.select import select_part

        processes = None if process is None else [str(one) for one in _several(process)]
        devices = None if device is None else _several(device)
        part = self._part(select_part(self.trace, processes=processes, devices=devices, time_ns=time_ns))
        part.selection = _narrowed(self.selection, processes, devices, time_ns or (None, None), None)
        return part._steady(step_range, step_kernel) if steady else part

    def _part(self, trace: Trace) -> Recording:
        """Return the recording of a part of the trace."""
        part = self._like(trace, self.names)
        # What is known of the whole by now need not be computed again for its part.
        part._wholes = (self, *self._wholes)
        return part

    def with_range(self, name: str) -> Recording:
        """Return this recording, or one in which the ranges of a name are not renamed or folded.

        Args:
            name: of a range, or `domain:name`: normalized (`layers.*`), without what the rules take out (`layers.3`),
                or as recorded (`layers.3, op_id = 7`). The last two name some of the ranges of a normalized name.

        Raises:
            UnanswerableError: no range has this name.
        """
        asked = self._apart(name, name.partition(":")[2])
        asked.check_range(name)
        return asked

    def with_names_matching(self, glob: str) -> Recording:
        """Return this recording; where only recorded names match the glob, one in which these are not folded.

        Args:
            glob: of names, or `domain:glob`.
        """
        if self.names is None:
            return self
        globs = glob, glob.partition(":")[2]
        return self._apart(*globs, *(name for one in globs if one for name in self.names.match_glob(one)))

    def verdicts(self, expected: Sequence[str]) -> tuple[ExpectationResult, ...]:
        """Return what the ranges say of expected names, normalized or not, in their order (docs/contract.md)."""
        from traceable.analysis.expectations import evaluate_expectations

        judged = evaluate_expectations(expected, self.profile)
        missing = [one.name for one in judged if not one.ok]
        apart = self._apart(*missing, *(name.partition(":")[2] for name in missing))
        if apart is self:
            return judged
        found = dict(zip(missing, evaluate_expectations(missing, apart.profile), strict=True))
        return tuple(found[one.name] if one.name in found and found[one.name].ok else one for one in judged)

    @property
    def coverage(self) -> Coverage:
        """How much of the GPU's work the ranges explain."""
        self._tell(f"attributing {len(self.context.gpu):,} GPU operations")
        return self.context.coverage

    @property
    def profile(self) -> RangeProfile:
        """What the ranges cost, by path and by name, in one."""
        self._tell(f"profiling {len(self.trace.ranges):,} ranges")
        return profile_ranges(self.context)

    @cached_property
    def context(self) -> Context:
        """What the questions share."""
        trace, cut = self._told[0], self.trace.cut
        whole = next((one for one in self._wholes if cut is not None and one.trace is cut.whole), None)
        return Context(trace, self.names, None if whole is None else whole.context)

    @property
    def has_step_ranges(self) -> bool:
        """Whether the program marked its steps itself (`traceable.steps`, `step`)."""
        ranges, trace = self.context.trace.ranges, self.context.trace
        return bool(((ranges.name == trace.name_index(STEP)) & (ranges.domain == -1) & ranges.has_payload).any())

    @property
    def notes(self) -> tuple[Message, ...]:
        """What of the file could not be read as it stood, was left out, or contradicts itself, a message each."""
        from traceable.analysis.contradictions import find_contradictions

        short = self._told[1]
        left_out = Message(
            "short_callbacks_left_out", f"{short} callbacks of the event loop under the threshold left out"
        )
        callbacks = (left_out,) if short else ()
        return (*self.completeness.notes, *self.trace.source.notes, *callbacks, *find_contradictions(self.context))

    def _steady(self, step_range: str | None, step_kernel: str | None) -> Recording:
        from traceable.analysis.select import select_part
        from traceable.analysis.steps import find_steady_interval

        steps = self.steps(range=step_range, kernel=step_kernel)
        first, last = find_steady_interval(steps)
        part = self._part(select_part(self.trace, time_ns=(first, last)))
        part.selection = _narrowed(self.selection, None, None, (first, last), [note.as_dict for note in steps.notes])
        return part

    def _apart(self, *wanted: str) -> Recording:
        """Return the recording in which ranges of these names, if they were renamed, have them; else this one."""
        names = None if self.names is None else self.names.unfold_names(filter(None, wanted))
        if names is self.names:
            return self
        if wanted not in self._opened:
            self._opened[wanted] = self._like(self.trace, names)
            self._opened[wanted].selection = self.selection
        return self._opened[wanted]

    def _like(self, trace: Trace, names: RangeNames | None) -> Recording:
        """Return a recording of the same run."""
        other = Recording(trace, self._tell, names)
        other.windows, other.flight, other.overhead = self.windows, self.flight, self.overhead
        other.completeness = self.completeness
        return other

    @cached_property
    def _told(self) -> tuple[Trace, int]:
        return drop_short_callbacks(self.trace)

    def check_range(self, name: str) -> None:
        """Raise `MissingDataError` with the names that may have been meant where no range has this one."""
        try:
            self.context.mask_instances(name)
        except MissingDataError as error:
            from traceable.analysis.expectations import suggest_names

            names, found = self.trace.names, self.context.instances
            known = {names[index] for index in set(found.name.tolist())}
            meant = " or ".join(repr(one) for one in suggest_names(name, known))
            raise MissingDataError(
                "range_not_found", error.problem, f"did you mean {meant}?" if meant else error.remedy
            ) from None


def _turn(question: str) -> int:
    return _FIRST.index(question) if question in _FIRST else len(_FIRST)


def _several(one_or_more: Any) -> list[Any]:
    return [one_or_more] if isinstance(one_or_more, int | str) else list(one_or_more)


def _narrowed(
    before: dict[str, Any] | None,
    processes: list[str] | None,
    devices: list[int] | None,
    time_ns: tuple[int | None, int | None],
    steady: list[dict[str, Any]] | None,
) -> dict[str, Any]:
    """Return the selection of a part of what was selected before; of processes and GPUs the last word counts."""
    old = before or dict.fromkeys(("processes", "devices", "start_ns", "end_ns", "steady"))
    starts, ends = (
        [time for time in (old[key], asked) if time is not None]
        for key, asked in zip(("start_ns", "end_ns"), time_ns, strict=True)
    )
    return {
        "processes": old["processes"] if processes is None else processes,
        "devices": old["devices"] if devices is None else devices,
        "start_ns": max(starts, default=None),
        "end_ns": min(ends, default=None),
        "steady": old["steady"] if steady is None else steady,
    }


def _tell_nobody(_doing: str) -> None:
    pass
