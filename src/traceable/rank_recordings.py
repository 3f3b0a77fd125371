"""The recordings of several ranks as one: `traceable.load` of the directory that holds their runs.

Each rank is a run with a trace of its own, made by its own collector. The wall clock of the host puts them side by
side; ranks of several hosts are not put together where that would mix up their processes or GPUs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from traceable.analysis.completeness import Completeness, merge_completeness
from traceable.analysis.windows import CaptureResult, evaluate_capture, merge_capture_results
from traceable.errors import Message, TraceableError, TraceError
from traceable.launch import processes, range_counts, run_dir, windows
from traceable.trace.join import join_traces
from traceable.trace.model import Trace

if TYPE_CHECKING:
    from traceable.recording import Recording


def name_processes(trace: Trace, directory: Path) -> Trace:
    """Return the trace of a run with its processes called what rank or whoever started them called them."""
    known = processes.load_labels(directory, run_dir.load_manifest(directory))
    if not known:
        return trace
    return replace(trace, processes=tuple(replace(one, name=known.get(one.pid, one.name)) for one in trace.processes))


def load_ranks(
    directory: Path, parts: Sequence[Path], load: Callable[[Path], Recording]
) -> tuple[Trace, CaptureResult | None, Completeness]:
    """Return the trace of all ranks, what became of the steps asked for (None for none), and whether it is complete.

    Args:
        directory: that holds them.
        parts: the run directories of the ranks.
        load: reads one of them.

    Raises:
        TraceableError: none of them can be read, or they can't be put together.
    """
    traces: list[tuple[str, Trace]] = []
    found: list[CaptureResult] = []
    complete: list[Completeness] = []
    notes: list[Message] = []
    errors: list[TraceableError] = []
    for part in parts:
        try:
            recording = load(part)
        except TraceableError as error:
            errors.append(error)
            notes.append(Message("rank_left_out", f"{part.name} is not in it: {error.problem}"))
            # A window that was never reached leaves nothing to read, and that is the answer.
            asked = windows.load_capture_request(part, run_dir.load_manifest(part))
            found += [evaluate_capture(asked, ())] if asked is not None else []
            complete.append(range_counts.evaluate_completeness(part, run_dir.load_manifest(part), None))
            continue
        complete.append(recording.completeness)
        traces.append((str((run_dir.load_manifest(part).get("host") or {}).get("name")), recording.trace))
        found += [recording.windows] if recording.windows is not None else []
    if not traces:
        raise errors[0]
    _check_hosts(directory, traces)
    whole = join_traces([trace for _, trace in traces])
    source = replace(whole.source, path=str(directory), notes=(*whole.source.notes, *notes))
    return replace(whole, source=source), merge_capture_results(found) if found else None, merge_completeness(complete)


def _check_hosts(directory: Path, traces: Sequence[tuple[str, Trace]]) -> None:
    if len({host for host, _ in traces}) < 2:
        return
    several = [one.global_id for _, trace in traces for one in trace.processes]
    gpus = any(len(trace.kernels) or len(trace.copies) or len(trace.memsets) for _, trace in traces)
    if gpus or len(set(several)) < len(several):
        hosts = len({host for host, _ in traces})
        raise TraceError(
            "ranks_of_several_hosts",
            f"{directory} holds ranks of {hosts} hosts, whose GPUs and processes have the same numbers",
            "name one of the ranks in it",
        )
