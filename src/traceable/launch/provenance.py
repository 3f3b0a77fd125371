"""What the manifest says of the circumstances of a run: versions, git, host, GPUs.

Every fact is asked for with a short time limit and is null where there is no answer: the program must not wait for a
slow file system or a driver. Of the environment only names are taken, never a value.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

GIT_SECONDS = 2.0
GPU_SECONDS = 5.0

PACKAGES = ("traceable", "nvtx", "numpy", "torch")


def collect_provenance() -> dict[str, Any]:
    """Return the circumstances, as they stand in `run.json`."""
    with ThreadPoolExecutor(max_workers=1) as pool:
        gpus = pool.submit(_gpus)
        commit = read_git_state()
    return {
        "cwd": str(Path.cwd()),
        "python": {
            "executable": sys.executable,
            "version": platform.python_version(),
            "implementation": platform.python_implementation(),
        },
        "versions": {name: get_package_version(name) for name in PACKAGES},
        "git": commit,
        "host": {
            "name": os.uname().nodename,
            "system": platform.platform(),
            "cpus": os.cpu_count(),
        },
        "gpus": gpus.result(),
        "environment_names": sorted(os.environ),
    }


def read_git_state() -> dict[str, Any] | None:
    """Return the commit of the working directory, and whether what git knows of was changed since; None for none."""
    with ThreadPoolExecutor(max_workers=2) as pool:
        commit = pool.submit(_answer, ["git", "rev-parse", "HEAD"], GIT_SECONDS)
        changes = pool.submit(_answer, ["git", "status", "--porcelain", "--untracked-files=no"], GIT_SECONDS)
        found, changed = commit.result(), changes.result()
    return {"commit": found.strip(), "dirty": None if changed is None else bool(changed)} if found else None


def get_versions() -> dict[str, str | None]:
    """Return the versions of Python and of the packages that the manifest names."""
    return {"python": platform.python_version(), **{name: get_package_version(name) for name in PACKAGES}}


def get_package_version(package: str) -> str | None:
    """Return the version of an installed package; None where it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _gpus() -> list[dict[str, str]] | None:
    """Each GPU's index, name, driver and memory; null where there is no nvidia-smi or no driver."""
    fields = ("index", "name", "driver_version", "memory.total")
    said = _answer(["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader"], GPU_SECONDS)
    if said is None:
        return None
    rows = [[cell.strip() for cell in line.split(",")] for line in said.splitlines()]
    names = ("index", "name", "driver", "memory")
    return [dict(zip(names, row, strict=True)) for row in rows if len(row) == len(names)]


def _answer(words: list[str], seconds: float) -> str | None:
    try:
        answer = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            errors="replace",
            timeout=seconds,
            check=True,
            # `git status` would otherwise refresh the index under a lock that the user's own git may want.
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout
