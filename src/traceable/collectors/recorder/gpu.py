"""The GPU's part of a recording (`run --gpu`): what the program left, and what is missing.

In the program Kineto records (`capture/gpu_gate.py`), by the torch that the program imports, into files beside the
embedded recorder's. Here they are found, and what is missing is said: GPU work of a process without torch, of one that
was killed, of one whose torch has no CUDA. `kineto_merge` writes them into the recorder's database.
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
"""What a process may say of itself besides that all is written; as in `capture.gpu_gate`."""

_TRACE = re.compile(rf"(\d{{1,10}})-(\d+){re.escape(torch.SUFFIX)}")
_STATE = re.compile(r"\.(\d{1,10})\.json")
_NAMED = 8
"""How many processes are named in a sentence."""


@dataclass(frozen=True)
class _State:
    """What a process said last."""

    state: str
    detail: str


@dataclass(frozen=True)
class GpuRecording:
    """The GPU's part of a run.

    Attributes:
        recording: the recorder's, with a process in it where it had none and the GPU has.
        source: writes the GPU work into its database.
    """

    recording: Recording
    source: EventSource


def find_gpu_recording(run_dir: Path, recording: Recording, *, requested: bool) -> GpuRecording | None:
    """Read the GPU's part of a run; None where none was asked for.

    Args:
        run_dir: the run directory.
        recording: the recorder's.
        requested: whether --gpu was given; a run that was cut short is known by the directory alone.
    """
    directory = run_dir / GPU_DIRECTORY
    if not requested and not untrusted.is_directory(directory):
        return None
    from traceable.collectors.recorder.kineto_merge import KinetoTraces

    parts = KinetoTraces()
    unread = [] if recording.processes else [NOTHING_RECORDED]
    for path, pid in _traces(directory):
        try:
            parts.add(path, pid)
        except TraceError as error:  # noqa: PERF203 - one damaged file is not to cost the others
            unread.append(Message(error.code, f"{error.problem}; it was left out"))
    states = dict(_states(directory))
    placed = recording if recording.processes else replace(recording, processes=tuple(_placeholder(parts.traces)))
    notes = (*unread, *_missing(states, recording.processes), *_unused(states, recorded=bool(parts.traces)))
    return GpuRecording(placed, partial(_write, parts, placed, notes, tuple(_without_cuda(states))))


def _write(
    parts: KinetoTraces,
    recording: Recording,
    notes: Iterable[Message],
    remarks: Iterable[Message],
    sink: DatabaseWriter,
) -> SourceResult:
    from traceable.collectors.recorder.kineto_merge import merge_traces

    for note in notes:
        sink.warn(note, None)
    for remark in remarks:
        sink.info(remark, None)
    return merge_traces(parts, recording, sink)


def _entries(directory: Path) -> list[Path]:
    return sorted(directory.iterdir()) if untrusted.is_directory(directory) else []


def _traces(directory: Path) -> list[tuple[Path, int]]:
    """Return the files of Kineto's, each with the pid of its process, in the order in which they were made."""
    found = [(path, _TRACE.fullmatch(path.name)) for path in _entries(directory)]
    traces = [(int(words[1]), int(words[2]), path) for path, words in found if words]
    return [
        (path, pid) for pid, _, path in sorted(traces) if 0 < pid < untrusted.PID_MAX and untrusted.is_regular(path)
    ]


def _states(directory: Path) -> Iterator[tuple[int, _State]]:
    for path in _entries(directory):
        words = _STATE.fullmatch(path.name)
        if words is None:
            continue
        try:
            said = untrusted.read_json_object(path, untrusted.GPU_STATE)
            yield int(words[1]), _State(said["state"], said["detail"])
        except (OSError, ValueError):
            # Written whole or not at all: this is none of ours.
            continue


def _placeholder(parts: Iterable[KinetoTrace]) -> Iterator[ProcessRecording]:
    """Yield a recording without events for the first process that used the GPU, where none used NVTX.

    It is what times are counted from.
    """
    begun = [(int(part.clock.monotonic_ns(np.array([part.file.begin_ns or 0]))[0]), part) for part in parts]
    for monotonic_ns, part in sorted(begun, key=lambda pair: pair[0])[:1]:
        name = part.file.events.process_names.get(part.pid, "")
        yield ProcessRecording(
            directory=part.file.path.parent,
            pid=part.pid,
            parent_pid=0,
            name=name,
            command=(name,),
            monotonic_ns=monotonic_ns,
            realtime_ns=monotonic_ns + part.metadata.realtime_ns - part.metadata.monotonic_ns,
            dropped=0,
            lost_names=0,
            names=(),
            threads=(),
        )


# ---- what is missing


def _missing(states: dict[int, _State], processes: Iterable[ProcessRecording]) -> Iterator[Message]:
    """Yield why GPU work of some processes is not there."""
    for pid, said in sorted(states.items()):
        if said.state == RECORDING:
            yield Message(
                "gpu_recording_not_ended",
                f"process {pid} did not end its recording of the GPU (it was killed, or still runs): what it recorded "
                "since it last began to is lost",
            )
        elif said.state == LOST:
            yield Message(
                "gpu_recording_not_written",
                f"what process {pid} recorded of the GPU could not be written: {said.detail}",
            )
        elif said.state == REFUSED:
            yield Message("gpu_refused", f"the GPU work of process {pid} is not recorded: {said.detail}")
    by_pid = {process.pid: process for process in processes}
    silent = [process.pid for process in by_pid.values() if process.pid not in states and not _forked(process, by_pid)]
    if silent:
        found = f"{_named(silent)} never imported torch: GPU work of {_its(silent)} own, if any, is not recorded"
        yield Message("torch_not_imported", found)


def _forked(process: ProcessRecording, by_pid: dict[int, ProcessRecording]) -> bool:
    """Whether it was forked and goes on as what its parent is: it would have told us if torch had begun to use CUDA."""
    parent = by_pid.get(process.parent_pid)
    return parent is not None and parent.command == process.command


def _unused(states: dict[int, _State], *, recorded: bool) -> Iterator[Message]:
    """Yield, where there is no GPU work at all, which processes could have had some."""
    waiting = sorted(pid for pid, said in states.items() if said.state == WAITING)
    if waiting and not recorded:
        found = f"{_named(waiting)} imported torch and did not use CUDA with it: there is no GPU work"
        yield Message("cuda_not_used", found)


def _without_cuda(states: dict[int, _State]) -> Iterator[Message]:
    """Yield what the processes have said themselves on stderr."""
    without = sorted(pid for pid, said in states.items() if said.state == NO_CUDA)
    if without:
        found = f"the torch of {_named(without)} is built without CUDA: no GPU is recorded"
        yield Message("torch_without_cuda", found)


def _named(pids: list[int]) -> str:
    more = f" and {len(pids) - _NAMED} more" if len(pids) > _NAMED else ""
    return f"process{'es' if len(pids) > 1 else ''} {', '.join(map(str, pids[:_NAMED]))}{more}"


def _its(pids: list[int]) -> str:
    return "their" if len(pids) > 1 else "its"
