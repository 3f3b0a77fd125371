"""Which GPU a CUDA device of each file is, and what is known of it. CUDA counts anew in every process."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from traceable.trace import model
from traceable.trace.kineto_columns import OPERATIONS
from traceable.trace.kineto_file import File, readable
from traceable.trace.model import Int32
from traceable.trace.rows import distinct


def gpu_numbers(files: Sequence[File]) -> dict[Path, dict[int, int]]:
    """Return the number of the GPU behind each CUDA device, by file.

    Two ranks never share a GPU (NCCL refuses that): where both have a device 0, they are on two machines, or see one
    GPU each (CUDA_VISIBLE_DEVICES). The first rank keeps the number. Of files without a rank nothing is known.
    """
    owner: dict[int, int | None] = {}
    found: dict[Path, dict[int, int]] = {}
    own: dict[tuple[int | None, int], int] = {}
    for file in files:
        used: set[int] = set()
        for kind in OPERATIONS:
            used.update(distinct(getattr(file.events, kind).column("device")).tolist())
        found[file.path] = {}
        for device in sorted(used - {-1}):
            number = own.get((file.rank, device))
            if number is None:
                number = device
                if file.rank is not None and owner.get(device, file.rank) != file.rank:
                    number = next(free for free in range(len(owner) + 1) if free not in owner)
                own[file.rank, device] = number
                owner[number] = file.rank
            found[file.path][device] = number
    return found


def devices(files: Sequence[File], gpus: dict[Path, dict[int, int]]) -> tuple[model.Device, ...]:
    """Return the GPUs by number; those that no one used only where no number was changed."""
    moved = any(device != number for numbers in gpus.values() for device, number in numbers.items())
    found: dict[int, model.Device] = {}
    for file in files:
        properties = file.events.metadata.get("deviceProperties")
        for one in properties if isinstance(properties, list) else []:
            cuda = one.get("id") if isinstance(one, dict) else None
            if type(cuda) is int and (not moved or cuda in gpus[file.path]):
                number = gpus[file.path].get(cuda, cuda)
                if number not in found or cuda in gpus[file.path]:
                    found[number] = _device(number, one)
    return tuple(found[number] for number in sorted(found))


def _device(number: int, properties: dict[str, Any]) -> model.Device:
    def size(name: str) -> int | None:
        value = properties.get(name)
        return value if type(value) is int else None

    major, minor, name = size("computeMajor"), size("computeMinor"), properties.get("name")
    return model.Device(
        number=number,
        name=readable(name) if isinstance(name, str) else "",
        bus="",
        memory_bytes=size("totalGlobalMem"),
        memory_bytes_per_s=None,
        multiprocessors=size("numSms"),
        compute_capability=None if major is None or minor is None else (major, minor),
    )


def renumbered(device: Int32, numbers: dict[int, int]) -> Int32:
    """Return the number of the GPU of each event, given CUDA's number of its device."""
    if all(cuda == number for cuda, number in numbers.items()):
        return device
    found = device.copy()
    for cuda, number in numbers.items():
        found[device == cuda] = number
    return found
