"""Ranks and workers: which rank this launcher belongs to, and which processes of a run are selected.

There are two ways. Inside: the ranks' own launcher starts `traceable run`, which is a run of one rank, with a directory
of its own next to those of the other ranks. Outside: `traceable run` starts the ranks' launcher, and each process
decides for itself whether it is recorded (`decision.py`). `processes.py` reads the outcome of both.
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
"""Key of the run's rank in `run.json`; null for none."""

SELECTION_KEY = "selection"
"""Key of the selected processes; null for all."""

NSYS = "nsys"

_RANK_LAUNCHERS = frozenset(
    {"torchrun", "mpirun", "mpiexec", "orterun", "prterun", "srun", "accelerate", "deepspeed", "horovodrun"}
)
_RANK_LAUNCHER_MODULES = frozenset({"torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch"})
_ABSENT_MAX = 8
_RANGE_MAX = 10_000
_RANKS_FORM = "use numbers and ranges such as 0,3 or 0-3, and !1 to exclude one"
_PROCESSES_FORM = "use comma-separated patterns such as 'worker*', and '!worker-1' to exclude one"


# ---- options


@dataclass(frozen=True)
class ProcessFilter:
    """Which processes of a run are recorded.

    Attributes:
        ranks: in the syntax of `--ranks`; None for all.
        processes: in the syntax of `--processes`; None for all.
        name: the base name of ranks; None for torchrun's role, or the program.
        options: command-line options to pass on to the run of a selected process under nsys.
    """

    ranks: str | None = None
    processes: str | None = None
    name: str | None = None
    options: tuple[str, ...] = ()

    def adapt_plan(self, plan: Plan, command: Iterable[str], variables: Mapping[str, str], collector: str) -> Plan:
        """Return how to start the program so that each of its processes decides whether it is recorded.

        Args:
            plan: the collector's.
            command: the program's own command line.
            variables: the variables for a recorded process.
            collector: its name. Under nsys each selected process becomes a run of its own.
        """
        # PYTHONPATH is set for all processes, below.
        selected_variables = {name: value for name, value in variables.items() if name != "PYTHONPATH"}
        argv = plan.argv
        if collector == NSYS:
            argv = tuple(command)
            selected_variables[selection.LAUNCHER] = "\n".join(
                (sys.executable, str(Path(__file__).parents[2]), *self.options)
            )
        if self.name is not None:
            selected_variables[selection.NAME] = self.name
        options = {environment.RANKS: self.ranks, environment.PROCESSES: self.processes}
        decision_variables = {
            **{name: text for name, text in options.items() if text is not None},
            environment.CHOSEN: selection.to_text(selected_variables),
            "PYTHONPATH": make_bootstrap_path(os.environ),
        }
        return replace(plan, argv=argv, environment=decision_variables, detached=False)


def check_ranks_option(text: str) -> str:
    """Check the value of --ranks, and return it without spaces.

    Raises:
        UsageError: a word is not a rank.
    """
    try:
        ranks_in(text)
    except ValueError as error:
        raise UsageError(
            "ranks_invalid", f"invalid rank {str(error)[:20]!r} in --ranks {text[:60]!r}", _RANKS_FORM
        ) from None
    return "".join(text.split())


def check_processes_option(text: str) -> str:
    """Check the value of --processes, and return it without spaces.

    Raises:
        UsageError: a pattern is empty.
    """
    words = [word.strip() for word in text.split(",")]
    if not all(word.removeprefix("!") for word in words):
        raise UsageError("processes_invalid", f"empty pattern in --processes {text[:60]!r}", _PROCESSES_FORM)
    return ",".join(words)


# ---- a launcher that is started once for each rank


def is_rank_launcher(target: Target) -> bool:
    """Whether the program starts ranks, so that they are its children and not this process."""
    if target.kind == COMMAND:
        return Path(target.program).name in _RANK_LAUNCHERS or any(
            one == "-m" and other in _RANK_LAUNCHER_MODULES
            for one, other in zip(target.arguments, target.arguments[1:], strict=False)
        )
    return target.kind == MODULE and target.program in _RANK_LAUNCHER_MODULES


def is_requested_for(rank: Rank, text: str) -> bool:
    """Whether --ranks selects this rank.

    Raises:
        UsageError: it selects no rank that exists.
    """
    world = rank.world_size
    if world is not None and not any(rank_asked(text, one) for one in range(world)):
        existing = f"ranks 0 to {world - 1}" if world > 1 else "rank 0 only"
        raise UsageError(
            "no_rank_matches", f"--ranks {text} matches no rank: {rank.by} started {existing}", "select one of these"
        )
    return rank_asked(text, rank.rank)


def find_absent_ranks(text: str, existing: Collection[int]) -> Message | None:
    """Return a message on the ranks in --ranks that do not exist; None where all do."""
    selected = (
        range(low, min(high, low + _RANGE_MAX) + 1) for takes, low, high in ranks_in(text) if takes and existing
    )
    missing = sorted({rank for ranks in selected for rank in ranks} - set(existing))
    if not missing:
        return None
    more = ", ..." if len(missing) > _ABSENT_MAX else ""
    numbers = ", ".join(map(str, missing[:_ABSENT_MAX]))
    return Message("ranks_absent", f"--ranks {text}: no such rank: {numbers}{more}")


def make_rank_name(rank: Rank, name: str) -> str:
    """Return the name of the run of this rank: `decode_0`."""
    return f"{name}_{rank.rank}"


def make_rank_directory_path(rank: Rank, name: str, output: Path | None) -> Path:
    """Return the run directory of this rank, which is next to those of the other ranks.

    Args:
        rank: the rank.
        name: the base name of the ranks, without number.
        output: the directory of -o, which contains all of them; None for `traceable-runs/<name>-<UTC time>`, with the
            start time of the ranks' launcher, on which all ranks of a host agree.

    Raises:
        UsageError: that directory is itself a run.
    """
    own = make_rank_name(rank, name) + (f"-restart{rank.restarts}" if rank.restarts else "")
    if output is not None:
        if (output / run_dir.MANIFEST).exists():
            problem = f"{output} is a run, not a directory of ranks"
            raise UsageError("not_a_dir_of_ranks", problem, "give another with -o")
        return output / own
    group = run_dir.make_dated_path(name, at_s=(get_parent_start_ns() or time.time_ns()) / 1e9) / own
    # A shell may start ranks one after the other: then each has its own time.
    return run_dir.make_dated_path(name) / own if group.exists() else group


def get_parent_start_ns() -> int | None:
    """Return when the parent of this process was started, in ns since 1970; None where that is unknown."""
    try:
        ticks = int(Path(f"/proc/{os.getppid()}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[19])
        booted = next(
            int(line.split()[1]) for line in Path("/proc/stat").read_text().splitlines() if line.startswith("btime")
        )
    except (OSError, ValueError, IndexError, StopIteration):
        return None
    return booted * 10**9 + ticks * 10**9 // os.sysconf("SC_CLK_TCK")


def exec_program(command: list[str]) -> None:
    """Become the program of a rank that is not recorded, as if it had been started without traceable.

    Raises:
        UsageError: it can't be executed.
    """
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        # Python ignores them, and the program would inherit that.
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        raise UsageError(
            "program_not_executed",
            f"can't execute {command[0]}: {error.strerror}",
            "put its interpreter before it",
        ) from None


def make_rank_entry(rank: Rank | None, *, grouped: bool) -> dict[str, Any] | None:
    """Return the manifest's entry for the rank of a run; None for none.

    Args:
        rank: the rank.
        grouped: whether the run directory is inside one for all ranks.
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


def make_selection_entry(process_filter: ProcessFilter | None, collector: str | None) -> dict[str, Any] | None:
    """Return the manifest's entry for the selected processes; None for all.

    Args:
        process_filter: the selection.
        collector: the collector's name. Under nsys each process is a run of its own, below this one's directory.
    """
    if process_filter is None:
        return None
    return {"ranks": process_filter.ranks, "processes": process_filter.processes, "parts": collector == NSYS}
