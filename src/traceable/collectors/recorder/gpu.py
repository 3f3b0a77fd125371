"""The GPU part of a recording (`run --gpu`): its files, and notes on what is missing.

In the program Kineto records (`capture/gpu_gate.py`), by the torch that the program imports, into files next to the
embedded recorder's. Here they are read, and what is missing is reported: GPU activity of a process without torch, of
one that was killed, of one whose torch has no CUDA. `kineto_merge` writes them into the recorder's database.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from traceable.collectors.base import GPU_DIRECTORY, NOTHING_RECORDED
from traceable.collectors.recorder.recording import ProcessRecording, Recording
from traceable.collectors.recorder.schema import DatabaseWriter, EventSource, SourceResult
from traceable.collectors.torch import collector as torch
from traceable.errors import Message, TraceError
from traceable.protocol import untrusted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from traceable.collectors.recorder.kineto_merge import KinetoTrace, KinetoTraces

NO_CUDA, WAITING, RECORDING, LOST, REFUSED = "no cuda", "waiting", "recording", "lost", "refused"
"""States of a process other than a completed recording; as in `capture.gpu_gate`."""

_TRACE = re.compile(rf"(\d{{1,10}})-(\d+){re.escape(torch.SUFFIX)}")
_STATE = re.compile(r"\.(\d{1,10})\.json")
_MAX_PIDS_SHOWN = 8
"""How many processes a message lists."""


@dataclass(frozen=True)
class _State:
    """The last state that a process recorded."""

    state: str
    detail: str


@dataclass(frozen=True)
class GpuRecording:
    """The GPU part of a run.

    Attributes:
        recording: the recorder's; with a placeholder process if only the GPU part has any.
        source: writes the GPU activity into its database.
    """

    recording: Recording
    source: EventSource


def find_gpu_recording(run_dir: Path, recording: Recording, *, requested: bool) -> GpuRecording | None:
    """Read the GPU part of a run; None if it was not requested.

    Args:
        run_dir: the run directory.
        recording: the recorder's.
        requested: whether --gpu was given; for an interrupted run the directory alone shows that.
    """
    directory = run_dir / GPU_DIRECTORY
    if not requested and not untrusted.is_directory(directory):
        return None
    from traceable.collectors.recorder.kineto_merge import KinetoTraces

    traces = KinetoTraces()
    problems = [] if recording.processes else [NOTHING_RECORDED]
    for path, pid in _list_traces(directory):
        try:
            traces.add(path, pid)
        except TraceError as error:  # noqa: PERF203 - one damaged file must not hide the others
            problems.append(Message(error.code, f"{error.problem}; it was skipped"))
    states = dict(_read_states(directory))
    placed = recording if recording.processes else replace(recording, processes=tuple(_make_placeholder(traces.traces)))
    notes = (
        *problems,
        *_list_missing(states, recording.processes),
        *_list_unused(states, recorded=bool(traces.traces)),
    )
    return GpuRecording(placed, partial(_write, traces, placed, notes, tuple(_list_without_cuda(states))))


def _write(
    traces: KinetoTraces,
    recording: Recording,
    notes: Iterable[Message],
    infos: Iterable[Message],
    writer: DatabaseWriter,
) -> SourceResult:
    from traceable.collectors.recorder.kineto_merge import merge_traces

    for note in notes:
        writer.warn(note, None)
    for info in infos:
        writer.info(info, None)
    return merge_traces(traces, recording, writer)


def _list_entries(directory: Path) -> list[Path]:
    return sorted(directory.iterdir()) if untrusted.is_directory(directory) else []


def _list_traces(directory: Path) -> list[tuple[Path, int]]:
    """Return Kineto's files, each with the pid of its process, in the order of their creation."""
    matches = [(path, _TRACE.fullmatch(path.name)) for path in _list_entries(directory)]
    traces = [(int(match[1]), int(match[2]), path) for path, match in matches if match]
    return [
        (path, pid) for pid, _, path in sorted(traces) if 0 < pid < untrusted.PID_MAX and untrusted.is_regular(path)
    ]


def _read_states(directory: Path) -> Iterator[tuple[int, _State]]:
    for path in _list_entries(directory):
        match = _STATE.fullmatch(path.name)
        if match is None:
            continue
        try:
            content = untrusted.read_json_object(path, untrusted.GPU_STATE)
            yield int(match[1]), _State(content["state"], content["detail"])
        except (OSError, ValueError):
            # Ours are written whole or not at all: this is another file.
            continue


def _make_placeholder(traces: Iterable[KinetoTrace]) -> Iterator[ProcessRecording]:
    """Yield a recording without events for the first process that used the GPU, if none used NVTX.

    Times are relative to it.
    """
    starts = [(int(trace.clock.monotonic_ns(np.array([trace.file.begin_ns or 0]))[0]), trace) for trace in traces]
    for monotonic_ns, trace in sorted(starts, key=lambda pair: pair[0])[:1]:
        name = trace.file.events.process_names.get(trace.pid, "")
        yield ProcessRecording(
            directory=trace.file.path.parent,
            pid=trace.pid,
            parent_pid=0,
            name=name,
            command=(name,),
            monotonic_ns=monotonic_ns,
            realtime_ns=monotonic_ns + trace.metadata.realtime_ns - trace.metadata.monotonic_ns,
            dropped=0,
            lost_names=0,
            names=(),
            threads=(),
        )


# ---- notes on missing data


def _list_missing(states: dict[int, _State], processes: Iterable[ProcessRecording]) -> Iterator[Message]:
    """Yield the reasons why GPU activity of some processes is missing."""
    for pid, state in sorted(states.items()):
        if state.state == RECORDING:
            yield Message(
                "gpu_recording_not_ended",
                f"process {pid} did not end its GPU recording (it was killed, or still runs): the data since the "
                "recording last started is lost",
            )
        elif state.state == LOST:
            yield Message(
                "gpu_recording_not_written",
                f"the GPU recording of process {pid} could not be written: {state.detail}",
            )
        elif state.state == REFUSED:
            yield Message("gpu_refused", f"GPU activity of process {pid} is not recorded: {state.detail}")
    by_pid = {process.pid: process for process in processes}
    without_torch = [
        process.pid for process in by_pid.values() if process.pid not in states and not _is_fork(process, by_pid)
    ]
    if without_torch:
        whose = _format_possessive(without_torch)
        text = f"{_format_pids(without_torch)} never imported torch: {whose} GPU activity, if any, is not recorded"
        yield Message("torch_not_imported", text)


def _is_fork(process: ProcessRecording, by_pid: dict[int, ProcessRecording]) -> bool:
    """Whether it is a fork of its parent without an exec: it would have a state file if torch had used CUDA in it."""
    parent = by_pid.get(process.parent_pid)
    return parent is not None and parent.command == process.command


def _list_unused(states: dict[int, _State], *, recorded: bool) -> Iterator[Message]:
    """Yield, if there is no GPU activity at all, the processes that could have had some."""
    waiting = sorted(pid for pid, state in states.items() if state.state == WAITING)
    if waiting and not recorded:
        text = f"{_format_pids(waiting)} imported torch but did not use CUDA through it: there is no GPU activity"
        yield Message("cuda_not_used", text)


def _list_without_cuda(states: dict[int, _State]) -> Iterator[Message]:
    """Yield the processes without CUDA, which they also reported on stderr themselves."""
    without = sorted(pid for pid, state in states.items() if state.state == NO_CUDA)
    if without:
        text = f"the torch of {_format_pids(without)} is built without CUDA: GPU activity is not recorded"
        yield Message("torch_without_cuda", text)


def _format_pids(pids: list[int]) -> str:
    more = f" and {len(pids) - _MAX_PIDS_SHOWN} more" if len(pids) > _MAX_PIDS_SHOWN else ""
    return f"process{'es' if len(pids) > 1 else ''} {', '.join(map(str, pids[:_MAX_PIDS_SHOWN]))}{more}"


def _format_possessive(pids: list[int]) -> str:
    return "their" if len(pids) > 1 else "its"
