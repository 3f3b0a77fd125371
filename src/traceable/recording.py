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
from traceable.analysis.context import Context
from traceable.analysis.pauses import without_short_callbacks
from traceable.analysis.profile import Profile, profile_of
from traceable.analysis.table import Table
from traceable.analysis.windows import Asked, Captured, Windows, captured, judged
from traceable.errors import UnanswerableError
from traceable.trace.model import Trace

Progress = Callable[[str], None]
"""Hears what is being done, as half a sentence: `reading x.sqlite`."""

_KEPT = ("sync", "findings")
"""Questions that a report asks more than once, for themselves and for the findings: their answers are kept."""

_WORTH_A_THREAD = 200_000
"""From how many operations and calls on two questions are worked on at a time."""


def load(path: str | Path, *, progress: Progress | None = None, run_directory: Path | None = None) -> Recording:
    """Read a recording.

    Args:
        path: a run directory, a `.nsys-rep` (which needs nsys), an nsys `.sqlite` file, or a Kineto trace of
            torch.profiler (`.json`, `.json.gz`, or a directory of several), or a directory with the runs of several
            ranks (docs/ranks.md). It is only read.
        progress: is told what is being done; None for nobody.
        run_directory: the run that it is of, which says which steps were asked for; by default `path` where it is one.
            Where that run left a report for each window, all of them are read, as one.

    Raises:
        TraceError: there is no such file, or it can't be read as a recording.
        CollectorError: nsys is missing or can't read the `.nsys-rep`.
    """
    from traceable.launch import flight, processes
    from traceable.launch.overhead import MANIFEST_KEY
    from traceable.launch.reports import manifest_of, opened
    from traceable.launch.windows import asked, databases
    from traceable.rank_recordings import load_ranks, named
    from traceable.trace import load as load_trace
    from traceable.trace.joined import joined

    tell = progress or _tell_nobody
    path = Path(path)
    directory = (run_directory or path).absolute()
    directory = flight.run_of(directory) or directory
    tell(f"opening {path}")
    if path.is_dir() and (parts := processes.parts(path)):
        trace, windows = load_ranks(path, parts, lambda part: load(part, progress=progress))
        of_all = Recording(trace, tell)
        of_all.windows = windows
        return of_all
    with opened(path) as found:
        manifest = manifest_of(directory)
        files = [found] if manifest is None else databases(directory, manifest, found)
        traces = []
        for file in files:
            tell(f"reading {path if len(files) == 1 else file}")
            traces.append(load_trace(file, progress=tell))
        shown = [one for file in files for one in flight.shown(file, manifest)]
    wanted = None if manifest is None else asked(directory, manifest)
    trace = joined(traces) if manifest is None else named(joined(traces), directory)
    if path.is_file() and len(files) == 1:
        # A .nsys-rep was read as an export that is gone by now.
        trace = dataclasses.replace(trace, source=dataclasses.replace(trace.source, path=str(path)))
    recording = Recording(trace, tell)
    recording.flight = shown
    if wanted is not None:
        recording.windows = _judged(wanted, traces)
    if manifest is not None and isinstance(manifest.get(MANIFEST_KEY), dict):
        recording.overhead = manifest[MANIFEST_KEY]
    return recording


def _judged(wanted: Asked, traces: Sequence[Trace]) -> Windows:
    found: list[Captured] = []
    for trace in traces:
        file = Path(trace.source.path)
        report = file.with_suffix(".nsys-rep")
        found += captured(trace, report.name if report.exists() else file.name)
    return judged(wanted, found)


class Recording:
    """What was recorded, or a part of it.

    Every question returns a `Table`; all are described in docs/report.md. One that the trace can't answer raises
    `UnanswerableError`, whose text says why, and what to record next time.

    Args:
        trace: what was recorded.
        progress: is told what is being done.

    Attributes:
        trace: the same, as columns: for questions that are not here.
        selection: which part of a file it is, as `report.json` says it; None for all of it.
        windows: what became of the steps that the run was asked for; None where it was asked for none.
        flight: which time of which process a flight recorder shows, as `report.json` says it; else empty.
        overhead: what recording cost, as `report.json` says it; None where that was not measured.
    """

    def __init__(self, trace: Trace, progress: Progress | None = None) -> None:
        self.trace = trace
        self.selection: dict[str, Any] | None = None
        self.windows: Windows | None = None
        self.flight: list[dict[str, Any]] = []
        self.overhead: dict[str, Any] | None = None
        self._tell = progress or _tell_nobody
        self._kept: dict[tuple[str, str], Table] = {}

    def ranges(self, *, by: str = "path", range: str | None = None) -> Table:  # noqa: A002 - the word that users know
        """Return what each range cost.

        Args:
            by: `path`, parents before children; `name`, over all paths; `instance`; or name and `process`, `thread` or
                `device`.
            range: only rows of ranges of this name.
        """
        return self.answer("ranges", by=by, range_name=range)

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
        return self.answer("kernels", by=by, range_name=range, names=names, families=known)

    def api(self, *, by: str = "call", range: str | None = None) -> Table:  # noqa: A002
        """Return how long CUDA API calls took; `range`: only those inside of ranges of this name."""
        return self.answer("api", by=by, range_name=range)

    def memory(self, *, by: str = "operation", range: str | None = None) -> Table:  # noqa: A002
        """Return what was copied, set and allocated.

        Args:
            by: `operation`, `range` or `process`: what a row is about.
            range: only what belongs to a range of this name.
        """
        return self.answer("memory", by=by, range_name=range)

    def sync(self, *, range: str | None = None) -> Table:  # noqa: A002
        """Return who waited how long for what; `range`: only inside of ranges of this name."""
        return self.answer("sync", range_name=range)

    def gaps(self, *, top: int = 20, range: str | None = None) -> Table:  # noqa: A002
        """Return when each GPU was idle.

        Args:
            top: how many of the largest gaps are listed.
            range: only gaps that were ended by an operation of a range of this name.
        """
        return self.answer("gaps", top=top, range_name=range)

    def streams(self, *, range: str | None = None) -> Table:  # noqa: A002
        """Return what each stream did; `range`: only what belongs to ranges of this name."""
        return self.answer("streams", range_name=range)

    def steps(self, *, range: str | None = None, kernel: str | None = None) -> Table:  # noqa: A002
        """Return what each step took.

        Args:
            range: a step is a range of this name, which may be a glob.
            kernel: a step ends where a kernel does whose name matches this glob. Without either, steps are found.
        """
        return self.answer("steps", range_name=range, step_kernel=kernel)

    def findings(self, *, thresholds: Mapping[str, float] | None = None) -> Table:
        """Return where time is to be won, most first; the table may be empty (docs/findings.md).

        Args:
            thresholds: numbers that decide whether a rule speaks, by `rule.name`; for the rest the defaults hold.

        Raises:
            UsageError: there is no such threshold, or its value is no number from 0 on.
        """
        return self.answer("findings", thresholds=thresholds)

    def counters(self) -> Table:
        """Return what each counter said."""
        from traceable.analysis.counters import counters

        return counters(self.trace)

    def answer(self, question: str, **options: Any) -> Table:
        """Ask a question by its name: the function `analysis.<question>.<question>`.

        Args:
            question: as the methods of this class are named, and the views of the command line.
            options: keyword arguments of that function.

        Raises:
            UnanswerableError: the trace can't answer it, or has no range of the name that is asked about.
        """
        # What names a step may be a glob.
        if options.get("range_name") is not None and question != "steps":
            self.check_range(options["range_name"])
        key = question, repr(sorted((name, value) for name, value in options.items() if value))
        if key in self._kept:
            return self._kept[key]
        if question == "findings" and not len(self.context.gpu):
            from traceable.analysis.gpus import gpus

            # Says why there is nothing to find, so that the rules are not loaded for it.
            gpus(self.context)
        ask = getattr(importlib.import_module(f"traceable.analysis.{question}"), question)
        self._tell(f"{question}: {len(self.context.gpu):,} GPU operations, {len(self.trace.calls):,} API calls")
        if question == "findings":
            options["ask"] = self.answer
        found: Table = ask(self.context, **options)
        if question in _KEPT:
            self._kept[key] = found
        return found

    def answers(self, asked: Sequence[tuple[str, Mapping[str, Any]]]) -> list[Table | UnanswerableError]:
        """Ask several questions, as `answer` does, and return what it returns or raises for each, in their order.

        Those about a large recording are worked on two at a time: most of the work is numpy's, which lets go of the
        interpreter. A third would wait for memory.
        """
        if len(asked) < 2 or len(self.context.gpu) + len(self.trace.calls) < _WORTH_A_THREAD:
            return [self._answer_or_reason(*one) for one in asked]
        # Of use to large recordings alone, and takes 5 ms to import.
        from concurrent.futures import ThreadPoolExecutor

        self._tell(f"attributing {len(self.context.gpu):,} GPU operations")
        self.context.prepare()
        # The findings ask others of them, and come last.
        first = [i for i, (question, _) in enumerate(asked) if question != "findings"]
        with ThreadPoolExecutor(2) as workers:
            found = dict(zip(first, workers.map(lambda i: self._answer_or_reason(*asked[i]), first), strict=True))
        return [found[i] if i in found else self._answer_or_reason(*asked[i]) for i in range(len(asked))]

    def _answer_or_reason(self, question: str, options: Mapping[str, Any]) -> Table | UnanswerableError:
        try:
            return self.answer(question, **options)
        except UnanswerableError as error:
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
            time_ns: from when until before when, from the start of the collection; None on a side leaves it open.
            steady: of what that leaves, only the steps after the warm-up.
            step_range, step_kernel: what a step is, as for `steps`.

        Raises:
            UnanswerableError: one of the processes or GPUs is not in the recording, or it has no steps.
        """
        from traceable.analysis.select import selected

        processes = None if process is None else [str(one) for one in _several(process)]
        devices = None if device is None else _several(device)
        part = Recording(selected(self.trace, processes=processes, devices=devices, time_ns=time_ns), self._tell)
        part.selection = _narrowed(self.selection, processes, devices, time_ns or (None, None), None)
        part.windows, part.flight, part.overhead = self.windows, self.flight, self.overhead
        return part._steady(step_range, step_kernel) if steady else part

    @property
    def coverage(self) -> Coverage:
        """How much of the GPU's work the ranges explain."""
        self._tell(f"attributing {len(self.context.gpu):,} GPU operations")
        return self.context.coverage

    @property
    def profile(self) -> Profile:
        """What the ranges cost, by path and by name, in one."""
        self._tell(f"profiling {len(self.trace.ranges):,} ranges")
        return profile_of(self.context)

    @cached_property
    def context(self) -> Context:
        """What the questions share."""
        return Context(self._told[0])

    @property
    def notes(self) -> tuple[str, ...]:
        """What of the file could not be read as it stood, or was left out, a sentence each."""
        short = self._told[1]
        said = self.trace.source.notes
        return (*said, f"{short} callbacks of the event loop under the threshold left out") if short else said

    def _steady(self, step_range: str | None, step_kernel: str | None) -> Recording:
        from traceable.analysis.select import selected
        from traceable.analysis.steps import steady_window

        steps = self.steps(range=step_range, kernel=step_kernel)
        first, last = steady_window(steps)
        part = Recording(selected(self.trace, time_ns=(first, last)), self._tell)
        part.selection = _narrowed(self.selection, None, None, (first, last), list(steps.notes))
        part.windows, part.flight, part.overhead = self.windows, self.flight, self.overhead
        return part

    @cached_property
    def _told(self) -> tuple[Trace, int]:
        return without_short_callbacks(self.trace)

    def check_range(self, name: str) -> None:
        """Raise `UnanswerableError` with the names that may have been meant where no range has this one."""
        try:
            self.context.instances_of(name)
        except UnanswerableError as error:
            from traceable.analysis.contract import near

            names, found = self.trace.names, self.context.found
            known = {names[index] for index in set(found.name.tolist())}
            meant = " or ".join(repr(one) for one in near(name, known))
            raise UnanswerableError(error.found, f"did you mean {meant}?" if meant else error.remedy) from None


def _several(one_or_more: Any) -> list[Any]:
    return [one_or_more] if isinstance(one_or_more, int | str) else list(one_or_more)


def _narrowed(
    before: dict[str, Any] | None,
    processes: list[str] | None,
    devices: list[int] | None,
    time_ns: tuple[int | None, int | None],
    steady: list[str] | None,
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
