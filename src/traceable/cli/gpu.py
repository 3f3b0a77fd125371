"""The option `--gpu` of `run`: the embedded recorder, and with it the GPU's work by the program's own torch."""

from __future__ import annotations

import argparse
import sqlite3
from contextlib import closing
from pathlib import Path

from traceable import collect
from traceable.collect.base import Recorded
from traceable.errors import UsageError

RECORDER = "recorder"

_WITHOUT = {
    "nsys": ("nsys records the GPU itself", "leave --gpu out"),
    "torch": ("torch.profiler records the GPU itself", "leave --gpu out"),
    "none": ("nothing is recorded with --collector none", "use --collector recorder"),
}
"""Why a collector has no use for the option, and what to do."""

_OPERATIONS = tuple(f"CUPTI_ACTIVITY_KIND_{kind}" for kind in ("KERNEL", "MEMCPY", "MEMSET", "GRAPH_TRACE"))
"""The tables in which GPU operations stand; of a CUDA graph as a whole in the last."""


def add_gpu_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the option."""
    parser.add_argument(
        "--gpu",
        action="store_true",
        help="with the recorder, record the GPU too, by Kineto in the program's torch (traceable help recorder-gpu)",
    )


def check(arguments: argparse.Namespace) -> None:
    """Refuse the option where it says nothing.

    Raises:
        UsageError: with a collector that is not the recorder.
    """
    if arguments.gpu and arguments.collector not in (collect.AUTO, RECORDER):
        found, remedy = _WITHOUT[arguments.collector]
        raise UsageError("gpu_needs_recorder", f"--gpu is for the recorder: {found}", remedy)


def operations(recorded: Recorded | None) -> int:
    """Return how many GPU operations a run has recorded, in all of its databases."""
    databases = (recorded.database, *recorded.more) if recorded else ()
    return sum(_operations(database) for database in databases if database is not None)


def _operations(database: Path) -> int:
    with closing(sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro", uri=True)) as connection:
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
        found = [table for table in _OPERATIONS if table in tables]
        return sum(int(connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]) for table in found)
