"""The provenance of a run in its manifest: versions, git, host, GPUs.

Each query has a short time limit and is null if it fails: the program must not wait for a slow file system or a driver.
Only names of environment variables are stored, never a value.
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
    """Return the provenance, as stored in `run.json`."""
    with ThreadPoolExecutor(max_workers=1) as pool:
        gpus = pool.submit(_query_gpus)
        commit = _read_git_state()
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


def _read_git_state() -> dict[str, Any] | None:
    """Return the commit of the working directory, and whether tracked files differ from it; None without git."""
    with ThreadPoolExecutor(max_workers=2) as pool:
        commit = pool.submit(_run_query, ["git", "rev-parse", "HEAD"], GIT_SECONDS)
        changes = pool.submit(_run_query, ["git", "status", "--porcelain", "--untracked-files=no"], GIT_SECONDS)
        head, status = commit.result(), changes.result()
    return {"commit": head.strip(), "dirty": None if status is None else bool(status)} if head else None


def get_package_version(package: str) -> str | None:
    """Return the version of an installed package; None where it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _query_gpus() -> list[dict[str, str]] | None:
    """Return index, name, driver and memory of each GPU; None where there is no nvidia-smi or no driver."""
    fields = ("index", "name", "driver_version", "memory.total")
    output = _run_query(["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader"], GPU_SECONDS)
    if output is None:
        return None
    rows = [[cell.strip() for cell in line.split(",")] for line in output.splitlines()]
    names = ("index", "name", "driver", "memory")
    return [dict(zip(names, row, strict=True)) for row in rows if len(row) == len(names)]


def _run_query(words: list[str], seconds: float) -> str | None:
    try:
        done = subprocess.run(
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
    return done.stdout
