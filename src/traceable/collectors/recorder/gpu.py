"""The GPU part of a recording (`run --gpu`): its files, and notes on what is missing.

In the program Kineto records (`capture/gpu_gate.py`), by the torch that the program imports, into files next to the
embedded recorder's. They stay as they are: `trace.recorder_gpu` reads them with the recorder's database, which lists
them. Here the states of the processes become notes: on GPU activity of a process without torch, of one that was
killed, of one whose torch has no CUDA.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from traceable.collectors.recorder.recording import ProcessRecording, Recording
from traceable.errors import Message
from traceable.protocol import untrusted
from traceable.protocol.gpu_files import DIRECTORY, LOST, NO_CUDA, RECORDING, REFUSED, TRACE_NAME, WAITING

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
        files: name of each of Kineto's files, with the pid of its process.
        notes: for the user, on what is missing.
        infos: for the database alone.
    """

    files: tuple[tuple[str, int], ...]
    notes: tuple[Message, ...]
    infos: tuple[Message, ...]


def find_gpu_recording(run_dir: Path, recording: Recording, *, requested: bool) -> GpuRecording | None:
    """Return the GPU part of a run; None if it was not requested.

    Args:
        run_dir: the run directory.
        recording: the recorder's.
        requested: whether --gpu was given; for an interrupted run the directory alone shows that.
    """
    directory = run_dir / DIRECTORY
    exists = untrusted.is_directory(directory)
    if not requested and not exists:
        return None
    entries = sorted(directory.iterdir()) if exists else []
    matches = [
        (int(match[1]), int(match[2]), entry.name)
        for entry in entries
        if (match := re.fullmatch(TRACE_NAME, entry.name)) and untrusted.is_regular(entry)
    ]
    # Those of a process in the order of their creation.
    files = tuple((name, pid) for pid, _, name in sorted(matches) if 0 < pid < untrusted.PID_MAX)
    states = dict(_read_states(entries))
    notes = list(_list_missing(states, recording.processes))
    waiting = sorted(pid for pid, state in states.items() if state.state == WAITING)
    if waiting and not files:
        text = f"{_format_pids(waiting)} imported torch but did not use CUDA through it: there is no GPU activity"
        notes.append(Message("cuda_not_used", text))
    infos = []
    # They also reported it on stderr themselves.
    without_cuda = sorted(pid for pid, state in states.items() if state.state == NO_CUDA)
    if without_cuda:
        text = f"the torch of {_format_pids(without_cuda)} is built without CUDA: GPU activity is not recorded"
        infos.append(Message("torch_without_cuda", text))
    return GpuRecording(files, tuple(notes), tuple(infos))


def _read_states(entries: Iterable[Path]) -> Iterator[tuple[int, _State]]:
    for path in entries:
        match = _STATE.fullmatch(path.name)
        if match is None:
            continue
        try:
            content = untrusted.read_json_object(path, untrusted.GPU_STATE)
            yield int(match[1]), _State(content["state"], content["detail"])
        except (OSError, ValueError):
            # Ours are written whole or not at all: this is another file.
            continue


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
    without_torch = []
    for process in by_pid.values():
        parent = by_pid.get(process.parent_pid)
        # A fork without an exec: it would have a state file if torch had used CUDA in it.
        is_fork = parent is not None and parent.command == process.command
        if process.pid not in states and not is_fork:
            without_torch.append(process.pid)
    if without_torch:
        whose = "their" if len(without_torch) > 1 else "its"
        text = f"{_format_pids(without_torch)} never imported torch: {whose} GPU activity, if any, is not recorded"
        yield Message("torch_not_imported", text)


def _format_pids(pids: list[int]) -> str:
    more = f" and {len(pids) - _MAX_PIDS_SHOWN} more" if len(pids) > _MAX_PIDS_SHOWN else ""
    return f"process{'es' if len(pids) > 1 else ''} {', '.join(map(str, pids[:_MAX_PIDS_SHOWN]))}{more}"
