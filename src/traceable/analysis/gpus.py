"""Which GPU each operation ran on. CUDA's device number is each process's own; a GPU's timeline is that of all of them.

Under `CUDA_VISIBLE_DEVICES` two processes may call different GPUs 0. Where the trace tells the GPU behind a process's
number (TARGET_INFO_CUDA_DEVICE), that counts; where it does not, equal numbers are taken for one GPU, and said so if it
makes a difference.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traceable.analysis.context import Context
from traceable.analysis.grouping import numbered
from traceable.analysis.naming import GRAPH_LAUNCHING, names_like
from traceable.analysis.remedies import record_gpu
from traceable.analysis.select import gpu_number
from traceable.analysis.table import objects
from traceable.errors import UnanswerableError
from traceable.trace.model import NULL, Int64, Trace


@dataclass(frozen=True)
class Gpus:
    """The GPUs that ran something, by number, and where each operation ran.

    Attributes:
        number: nsys's number of each GPU, or CUDA's where that is all there is; -1 where operations carry none.
        of_operation: index into `number` of each operation of the trace.
        processes: of each GPU the indices of the processes that used it.
        notes: what must be said of the numbers.
    """

    number: tuple[int, ...]
    of_operation: Int64
    processes: tuple[tuple[int, ...], ...]
    notes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.number)

    def numbers(self) -> Int64:
        """Return the numbers as a column of a table: absent for the GPU without one."""
        return np.array([NULL if number < 0 else number for number in self.number], np.int64)

    def names(self, trace: Trace) -> NDArray[Any]:
        """Return the names as a column of a table, absent where they were not recorded."""
        known = {device.number: device.name for device in trace.devices}
        return objects(known.get(number) or None for number in self.number)


def gpus(context: Context) -> Gpus:
    """Return the GPUs of a trace and where its operations ran.

    Raises:
        UnanswerableError: there are no GPU operations; with the reason, as far as the trace tells it.
    """
    trace, gpu = context.trace, context.gpu
    if not len(gpu):
        raise _no_operations(trace)
    pair, first = distinct(gpu.process, gpu.device)
    process, device = gpu.process[first], gpu.device[first]
    number = np.maximum(gpu_number(trace, process, device), -1)
    used, place = np.unique(number, return_inverse=True)
    return Gpus(
        number=tuple(used.tolist()),
        of_operation=place.reshape(-1)[pair],
        processes=tuple(tuple(sorted(set(process[number == one].tolist()))) for one in used.tolist()),
        notes=_notes(trace, process.tolist(), device.tolist(), number.tolist()),
    )


def distinct(*columns: NDArray[Any]) -> tuple[Int64, Int64]:
    """Number the distinct rows of columns that mostly hold one value throughout, as `grouping.numbered` does."""
    varying = [column for column in columns if column.min() < column.max()]
    return numbered(*varying) if varying else (np.zeros(len(columns[0]), np.int64), np.zeros(1, np.int64))


def unseen_graphs(context: Context) -> tuple[str, ...]:
    """Return a note if CUDA graphs were launched and no operation of any was recorded: their time looks idle."""
    trace = context.trace
    names = names_like(trace, GRAPH_LAUNCHING, trace.calls.name)
    if not names.any():
        return ()
    launching = names[trace.calls.name]
    call_of = context.launched.call_of
    if launching[call_of[call_of >= 0]].any():
        return ()
    return (
        f"CUDA graphs were launched ({int(launching.sum())} times) but left no operation in the trace: their time "
        "looks idle; record with --cuda-graph-trace=node",
    )


def _notes(trace: Trace, process: list[int], device: list[int], number: list[int]) -> tuple[str, ...]:
    guessed = {
        gpu
        for index, cuda, gpu in zip(process, device, number, strict=True)
        if gpu >= 0 and (trace.processes[index].pid, cuda) not in trace.cuda_devices
    }
    shared = [str(gpu) for gpu in sorted(guessed) if number.count(gpu) > 1]
    notes = []
    if shared:
        notes.append(
            f"several processes use device {', '.join(shared)}: taken for one GPU, because the trace does not tell "
            "which GPU a process's device number stands for (CUDA_VISIBLE_DEVICES may renumber them)"
        )
    if min(number) < 0:
        notes.append("operations without a device number are shown as one device without a number")
    return tuple(notes)


def _no_operations(trace: Trace) -> UnanswerableError:
    if names_like(trace, GRAPH_LAUNCHING, trace.calls.name).any():
        return UnanswerableError(
            "CUDA graphs were launched, but no GPU operation was recorded",
            "record with --cuda-graph-trace=node: exporters before Nsight Systems 2024 leave whole graphs out",
        )
    if len(trace.calls):
        return UnanswerableError(
            "CUDA calls were recorded, but no GPU operation",
            "record a window in which the GPU works, without another user of CUPTI (torch.profiler, ncu) beside nsys",
        )
    return UnanswerableError("no GPU operation in the trace", record_gpu(trace, "record with --trace=cuda,nvtx"))
