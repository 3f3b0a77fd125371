"""The recordings of several ranks as one: `traceable.load` of the directory that holds their runs.

Each rank is a run with its own trace and collector. They are aligned by the wall clock of the host; ranks of several
hosts are not merged if that would mix up their processes or GPUs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from traceable.analysis.completeness import Completeness, merge_completeness
from traceable.analysis.windows import CaptureResult, evaluate_capture, merge_capture_results
from traceable.checks.completeness import evaluate_completeness
from traceable.errors import Message, TraceableError, TraceError
from traceable.protocol import run_dir
from traceable.protocol.capture_request import load_capture_request
from traceable.protocol.run_records import load_labels, load_rank_numbers
from traceable.trace.join import join_traces
from traceable.trace.model import Trace

if TYPE_CHECKING:
    from traceable.recording import Recording


def label_processes(trace: Trace, directory: Path) -> Trace:
    """Return the trace of a run with the ranks of its processes, which are named by rank, or as they were started."""
    manifest = run_dir.load_manifest(directory)
    labels = load_labels(directory, manifest)
    ranks = load_rank_numbers(directory, manifest, [one.pid for one in trace.processes])
    return replace(
        trace,
        processes=tuple(
            replace(one, name=labels.get(one.pid, one.name), rank=ranks[one.pid]) for one in trace.processes
        ),
    )


def load_ranks(
    directory: Path, parts: Sequence[Path], load: Callable[[Path], Recording]
) -> tuple[Trace, CaptureResult | None, Completeness]:
    """Return the trace of all ranks, the result of the requested capture (None without one), and its completeness.

    Args:
        directory: the directory of their runs.
        parts: the run directories of the ranks.
        load: reads one of them.

    Raises:
        TraceableError: none of them can be read, or they can't be merged.
    """
    traces: list[tuple[str, Trace]] = []
    results: list[CaptureResult] = []
    complete: list[Completeness] = []
    notes: list[Message] = []
    errors: list[TraceableError] = []
    for part in parts:
        try:
            recording = load(part)
        except TraceableError as error:
            errors.append(error)
            notes.append(Message("rank_excluded", f"{part.name} is excluded: {error.problem}"))
            # A window that was never reached leaves nothing to read; the result reports that.
            request = load_capture_request(part, run_dir.load_manifest(part))
            results += [evaluate_capture(request, ())] if request is not None else []
            complete.append(evaluate_completeness(part, run_dir.load_manifest(part), None))
            continue
        complete.append(recording.completeness)
        traces.append((str((run_dir.load_manifest(part).get("host") or {}).get("name")), recording.trace))
        results += [recording.windows] if recording.windows is not None else []
    if not traces:
        raise errors[0]
    _check_hosts(directory, traces)
    whole = join_traces([trace for _, trace in traces])
    source = replace(whole.source, path=str(directory), notes=(*whole.source.notes, *notes))
    windows_result = merge_capture_results(results) if results else None
    return replace(whole, source=source), windows_result, merge_completeness(complete)


def _check_hosts(directory: Path, traces: Sequence[tuple[str, Trace]]) -> None:
    if len({host for host, _ in traces}) < 2:
        return
    global_ids = [one.global_id for _, trace in traces for one in trace.processes]
    has_gpu = any(len(trace.kernels) or len(trace.copies) or len(trace.memsets) for _, trace in traces)
    if has_gpu or len(set(global_ids)) < len(global_ids):
        hosts = len({host for host, _ in traces})
        raise TraceError(
            "ranks_of_several_hosts",
            f"{directory} contains ranks of {hosts} hosts, whose GPUs and processes have the same numbers",
            "give the directory of one rank",
        )
