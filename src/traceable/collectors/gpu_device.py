"""Whether a program that is started here can reach a GPU, as far as its device files and the environment show.

Nothing is started and CUDA is not asked: every run looks, and `cuInit` may take seconds. `traceable doctor` asks it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from traceable.errors import Message

ROOT = Path("/")

VISIBLE = "CUDA_VISIBLE_DEVICES"

_DEVICES = ("dev/nvidia[0-9]*", "dev/dxg", "dev/nvhost-ctrl-gpu", "dev/nvgpu/*/ctrl")
"""Device files of GPUs: of NVIDIA's driver, of Windows below WSL, and of the two drivers for Jetson."""

_NONE_VISIBLE = ("", "-1", "NoDevFiles")
"""First words of CUDA_VISIBLE_DEVICES by which CUDA sees no GPU; Slurm sets the last for a job without one."""


def list_device_files(root: Path = ROOT) -> list[Path]:
    """Return the device files of GPUs below `root`."""
    return sorted(path for pattern in _DEVICES for path in root.glob(pattern))


def explain_no_gpu(environ: Mapping[str, str] = os.environ, root: Path = ROOT) -> Message | None:
    """Return why no program started with this environment can use a GPU, as a clause; None where one may be able to.

    Args:
        environ: the environment of the program.
        root: the folder that is taken for `/`.
    """
    visible = environ.get(VISIBLE)
    if visible is not None and visible.partition(",")[0].strip() in _NONE_VISIBLE:
        return Message("gpus_hidden", f"{VISIBLE}={visible} hides every GPU")
    found = list_device_files(root)
    if not found and not _made_when_needed(root):
        if (root / "proc/driver/nvidia/version").exists():
            return Message("no_gpu_in_dev", "the NVIDIA driver is loaded, but no GPU is in /dev")
        return Message("no_gpu", "this machine has no NVIDIA GPU")
    if found and not _permitted(found):
        return Message("gpu_not_permitted", f"{found[0]} can't be opened by this user")
    return None


def _made_when_needed(root: Path) -> bool:
    """Whether CUDA makes the device files itself: outside of containers nvidia-modprobe does, for the first user."""
    return any(root.glob("proc/driver/nvidia/gpus/*")) and (root / "usr/bin/nvidia-modprobe").exists()


def _permitted(found: Iterable[Path]) -> bool:
    return any(os.access(path, os.R_OK | os.W_OK) for path in found)
