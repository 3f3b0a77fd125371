"""The provenance of a run in its manifest: versions, host, git, GPUs.

git and nvidia-smi are run in the background while the program runs, each with a short time limit, and are null where
they fail or are late: nothing waits for a slow file system or driver. Only names of environment variables are stored,
never a value.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from traceable.collectors import gpu_device
from traceable.protocol.packages import get_package_version

QUERY_SECONDS = 0.2
"""How long git and nvidia-smi may take."""

PACKAGES = ("traceable", "nvtx", "numpy", "torch")


def collect_provenance() -> dict[str, Any]:
    """Return the provenance, as stored in `run.json`, as far as it is known without another program."""
    system = os.uname()
    return {
        "cwd": str(Path.cwd()),
        "python": {
            "executable": sys.executable,
            "version": sys.version.partition(" ")[0],
            "implementation": sys.implementation.name,
        },
        "versions": {name: get_package_version(name) for name in PACKAGES},
        "git": None,
        "host": {
            "name": system.nodename,
            "system": f"{system.sysname}-{system.release}-{system.machine}",
            "cpus": os.cpu_count(),
        },
        "gpus": None,
        "environment_names": sorted(os.environ),
    }


class BackgroundQueries:
    """What git and nvidia-smi print about this directory and machine, queried in threads."""

    def __init__(self) -> None:
        self._outputs: dict[str, str] = {}
        self._threads: list[threading.Thread] = []
        self._deadline_s = 0.0

    def start(self) -> None:
        """Start the queries. No thread of theirs takes a signal that is meant for the launcher."""
        self._deadline_s = time.monotonic() + QUERY_SECONDS
        queries = {
            "head": ("git", "rev-parse", "HEAD"),
            "changes": ("git", "status", "--porcelain", "--untracked-files=no"),
        }
        if gpu_device.list_device_files():
            queries["gpus"] = ("nvidia-smi", f"--query-gpu={','.join(_GPU_FIELDS)}", "--format=csv,noheader")
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            for name, words in queries.items():
                thread = threading.Thread(target=self._run, args=(name, words), name="traceable-facts", daemon=True)
                with contextlib.suppress(RuntimeError):  # no thread can be started
                    thread.start()
                    self._threads.append(thread)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def get_results(self) -> dict[str, Any]:
        """Return `git` and `gpus` of the manifest: None where a query failed or has not ended yet."""
        outputs = dict(self._outputs)
        head, changes, gpus = (outputs.get(name) for name in ("head", "changes", "gpus"))
        dirty = None if changes is None else bool(changes)
        rows = [[cell.strip() for cell in line.split(",")] for line in (gpus or "").splitlines()]
        names = ("index", "name", "driver", "memory")
        return {
            "git": {"commit": head.strip(), "dirty": dirty} if head else None,
            "gpus": None
            if gpus is None
            else [dict(zip(names, row, strict=True)) for row in rows if len(row) == len(names)],
        }

    def wait(self) -> None:
        """Wait until each query has ended or is late."""
        for thread in self._threads:
            thread.join(max(0.0, self._deadline_s - time.monotonic()))

    def _run(self, name: str, words: tuple[str, ...]) -> None:
        """Store the output of a program, unless it fails, or is late and killed."""
        with (
            contextlib.suppress(OSError, subprocess.SubprocessError),
            subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                errors="replace",
                start_new_session=True,
                # `git status` would otherwise refresh the index under a lock that the user's own git may want.
                env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
            ) as process,
        ):
            try:
                output, _ = process.communicate(timeout=QUERY_SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                return
            if process.returncode == 0:
                self._outputs[name] = output


_GPU_FIELDS = ("index", "name", "driver_version", "memory.total")
