"""Ranks and workers around the process: which rank this launcher is of, and how a run is told which processes it is of.

There are two ways. Inside: the ranks' own launcher starts `traceable run`, which is a run of one rank, with a directory
of its own beside those of the other ranks. Outside: `traceable run` starts whatever starts the processes, each of which
decides for itself (`decision.py`). What became of either is read by `processes.py`.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from traceable import selection
from traceable.annotation.bootstrap import make_bootstrap_path
from traceable.collectors.base import Plan
from traceable.errors import Message, UsageError
from traceable.launch import run_dir
from traceable.launch.target import COMMAND, MODULE, Target
from traceable.protocol import environment
from traceable.selection import Rank, rank_asked, ranks_in

RANK_KEY = "rank"
"""Where `run.json` keeps which rank the run is of; null for none."""

SELECTION_KEY = "selection"
"""Where it keeps which processes were chosen; null for all."""

NSYS = "nsys"

_STARTERS = frozenset(
    {"torchrun", "mpirun", "mpiexec", "orterun", "prterun", "srun", "accelerate", "deepspeed", "horovodrun"}
)
_STARTING_MODULES = frozenset({"torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch"})
_ABSENT_MAX = 8
_RANGE_MAX = 10_000
_RANKS_FORM = "write numbers and ranges as in 0,3 or 0-3, and !1 to leave one out"
_PROCESSES_FORM = "write patterns as in 'worker*', several with commas, and '!worker-1' to leave one out"


# ---- what is asked for


@dataclass(frozen=True)
class ProcessFilter:
    """Which processes of a run are recorded.

    Attributes:
        ranks: as `--ranks` takes them; None for all.
        processes: as `--processes` takes them; None for all.
        name: what ranks are called; None for torchrun's role, or the program.
        options: of the command line, those that a run of a chosen process under nsys is to have too.
    """

    ranks: str | None = None
    processes: str | None = None
    name: str | None = None
    options: tuple[str, ...] = ()

    def adapt_plan(self, plan: Plan, command: Iterable[str], given: Mapping[str, str], collector: str) -> Plan:
        """Return how to start the program so that each of its processes decides whether it is recorded.

        Args:
            plan: the collector's.
            command: the program's own command line.
            given: the variables that a recorded process is to have.
            collector: its name. nsys is started by the chosen processes, each of which becomes a run of its own.
        """
        # What is on it already stays; that folder is put there for all.
        variables = {name: value for name, value in given.items() if name != "PYTHONPATH"}
        argv = plan.argv
        if collector == NSYS:
            argv = tuple(command)
            variables[selection.LAUNCHER] = "\n".join((sys.executable, str(Path(__file__).parents[2]), *self.options))
        if self.name is not None:
            variables[selection.NAME] = self.name
        asked = {environment.RANKS: self.ranks, environment.PROCESSES: self.processes}
        decided_by = {
            **{name: text for name, text in asked.items() if text is not None},
            environment.CHOSEN: selection.to_text(variables),
            "PYTHONPATH": make_bootstrap_path(os.environ),
        }
        return replace(plan, argv=argv, environment=decided_by, detached=False)


def check_ranks_option(text: str) -> str:
    """Check what --ranks is given, and return it without spaces.

    Raises:
        UsageError: a word is no rank.
    """
    try:
        ranks_in(text)
    except ValueError as error:
        raise UsageError(
            "ranks_invalid", f"--ranks {text[:60]!r}: {str(error)[:20]!r} is no rank", _RANKS_FORM
        ) from None
    return "".join(text.split())


def check_processes_option(text: str) -> str:
    """Check what --processes is given.

    Raises:
        UsageError: a pattern is empty.
    """
    words = [word.strip() for word in text.split(",")]
    if not all(word.removeprefix("!") for word in words):
        raise UsageError("processes_invalid", f"--processes {text[:60]!r} has an empty pattern", _PROCESSES_FORM)
    return ",".join(words)


# ---- a launcher that is started once for each rank


def is_rank_launcher(target: Target) -> bool:
    """Whether the program is one that starts ranks, so that they are its children and not this process."""
    if target.kind == COMMAND:
        return Path(target.program).name in _STARTERS or any(
            one == "-m" and other in _STARTING_MODULES
            for one, other in zip(target.arguments, target.arguments[1:], strict=False)
        )
    return target.kind == MODULE and target.program in _STARTING_MODULES


def is_requested_for(rank: Rank, text: str) -> bool:
    """Whether --ranks asks for this one.

    Raises:
        UsageError: it asks for none that there is.
    """
    world = rank.world_size
    if world is not None and not any(rank_asked(text, one) for one in range(world)):
        there = f"{rank.by} has started ranks 0 to {world - 1}" if world > 1 else f"{rank.by} has started rank 0 only"
        raise UsageError(
            "no_rank_matches", f"--ranks {text}: {there}, so nothing would be recorded", "name ranks that there are"
        )
    return rank_asked(text, rank.rank)


def find_absent_ranks(text: str, there: Collection[int]) -> Message | None:
    """Return a sentence on ranks that --ranks names and that there are not; None where all are there."""
    named = (range(low, min(high, low + _RANGE_MAX) + 1) for takes, low, high in ranks_in(text) if takes and there)
    missing = sorted({rank for ranks in named for rank in ranks} - set(there))
    if not missing:
        return None
    more = ", ..." if len(missing) > _ABSENT_MAX else ""
    numbers = ", ".join(map(str, missing[:_ABSENT_MAX]))
    return Message("ranks_absent", f"--ranks {text}: there was no rank {numbers}{more}")


def make_rank_name(rank: Rank, name: str) -> str:
    """Return what the run of this rank is called: `decode_0`."""
    return f"{name}_{rank.rank}"


def make_rank_directory_path(rank: Rank, name: str, asked: Path | None) -> Path:
    """Return the run directory of this rank, which lies beside those of the other ranks.

    Args:
        rank: the rank.
        name: what the ranks are called, without their numbers.
        asked: the directory of -o, which holds them all; None for `traceable-runs/<name>-<UTC time>`, the time being
            when the ranks' launcher was started: all ranks of a host agree on it.

    Raises:
        UsageError: that directory is a run's itself.
    """
    own = make_rank_name(rank, name) + (f"-restart{rank.restarts}" if rank.restarts else "")
    if asked is not None:
        if (asked / run_dir.MANIFEST).exists():
            raise UsageError("not_a_dir_of_ranks", f"{asked} holds a run, not the ranks of one", "name another with -o")
        return asked / own
    group = run_dir.make_dated_path(name, at_s=(get_parent_start_ns() or time.time_ns()) / 1e9) / own
    # Ranks that a shell started, which goes on to start others, are told apart by their own time.
    return run_dir.make_dated_path(name) / own if group.exists() else group


def get_parent_start_ns() -> int | None:
    """Return when the parent of this process was started, in ns since 1970; None where that can't be told."""
    try:
        ticks = int(Path(f"/proc/{os.getppid()}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[19])
        booted = next(
            int(line.split()[1]) for line in Path("/proc/stat").read_text().splitlines() if line.startswith("btime")
        )
    except (OSError, ValueError, IndexError, StopIteration):
        return None
    return booted * 10**9 + ticks * 10**9 // os.sysconf("SC_CLK_TCK")


def exec_program(command: list[str]) -> None:
    """Become the program of a rank that is not recorded, as if traceable had not been asked for.

    Raises:
        UsageError: it can't be executed.
    """
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        # Python ignores them itself, which a program that is none would inherit.
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        raise UsageError(
            "program_not_executed",
            f"{command[0]} can't be executed: {error.strerror}",
            "name its interpreter before it",
        ) from None


def make_rank_entry(rank: Rank | None, *, grouped: bool) -> dict[str, Any] | None:
    """Return what the manifest says of the rank that a run is of; None for none.

    Args:
        rank: the rank.
        grouped: whether the run directory lies in one for all ranks.
    """
    if rank is None:
        return None
    return {
        "rank": rank.rank,
        "local_rank": rank.local_rank,
        "world_size": rank.world_size,
        "role": rank.role,
        "launcher": rank.by,
        "restarts": rank.restarts,
        "grouped": grouped,
        "launcher_started_ns": get_parent_start_ns(),
    }


def make_selection_entry(chosen: ProcessFilter | None, collector: str | None) -> dict[str, Any] | None:
    """Return what the manifest says of which processes were chosen; None for all.

    Args:
        chosen: what was asked.
        collector: its name where each of them is a run of its own, below this one's directory; else None.
    """
    if chosen is None:
        return None
    return {"ranks": chosen.ranks, "processes": chosen.processes, "parts": collector == NSYS}
