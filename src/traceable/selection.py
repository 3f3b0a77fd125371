"""Which processes of a run are recorded: the words that ask for it, and what a process is told by whoever started it.

Pure functions over an environment, a command line and a stack. `annotation/bootstrap/hook.py` loads this file
and `decision.py`, which decides with it, before traceable is imported; the launcher reads the same words with it. It
imports nothing that the interpreter has not imported already, but `fnmatch` where names are asked for.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

LAUNCHER = "TRACEABLE_LAUNCHER"
"""In `TRACEABLE_CHOSEN` alone, a line each: the interpreter of the launcher, where its traceable lies, and the options
with which a chosen process is to become a run under nsys."""

NAME = "TRACEABLE_NAME"
"""In `TRACEABLE_CHOSEN` alone: what ranks are called, before torchrun's role and the program (`run --name`)."""

SCHEMA = "traceable.process/1"
"""Of `process.<pid>.json`, by which a process says in the run directory what it is."""

_FRAMES_MAX = 100
"""How far up the stack a name is looked for: an application that a worker imports lies 30 frames below its start."""


# ---- ranks, as those who start them say


class Rank:
    """Which rank a process is.

    Attributes:
        rank: its number among all, from 0.
        local_rank: its number on this host; None where that is not said.
        world_size: how many there are; None where that is not said.
        role: as torchrun's --role names it; None for no name.
        by: who says so: `torchrun`, `Open MPI`, `PMI`, `MVAPICH2` or `Slurm`.
        restarts: how often torchrun has started the ranks anew.
    """

    __slots__ = ("by", "local_rank", "rank", "restarts", "role", "world_size")

    def __init__(
        self,
        rank: int,
        local_rank: "int | None",
        world_size: "int | None",
        by: str,
        role: "str | None" = None,
        restarts: int = 0,
    ) -> None:
        self.rank = rank
        self.local_rank = local_rank
        self.world_size = world_size
        self.by = by
        self.role = role
        self.restarts = restarts


_LAUNCHERS = (
    # Whoever says it, a variable that must be there as well, rank, rank on this host, number of ranks.
    ("torchrun", "WORLD_SIZE", "RANK", ("LOCAL_RANK",), ("WORLD_SIZE",)),
    ("Open MPI", "", "OMPI_COMM_WORLD_RANK", ("OMPI_COMM_WORLD_LOCAL_RANK",), ("OMPI_COMM_WORLD_SIZE",)),
    ("MVAPICH2", "", "MV2_COMM_WORLD_RANK", ("MV2_COMM_WORLD_LOCAL_RANK",), ("MV2_COMM_WORLD_SIZE",)),
    ("PMI", "", "PMI_RANK", ("PMI_LOCAL_RANK", "MPI_LOCALRANKID"), ("PMI_SIZE",)),
    ("PMI", "", "PMIX_RANK", (), ("PMI_SIZE",)),
    # SLURM_PROCID alone is also set in the batch script, which is no rank: only a step has a number.
    ("Slurm", "SLURM_STEP_ID", "SLURM_PROCID", ("SLURM_LOCALID",), ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")),
)


def rank_of(environ: "Mapping[str, str]") -> "Rank | None":
    """Return which rank a process with this environment is; None for none. The innermost launcher counts."""
    for by, needed, rank, local, world in _LAUNCHERS:
        number = _number(environ.get(rank))
        if number is None or (needed and not environ.get(needed)):
            continue
        role = (environ.get("ROLE_NAME") or None) if by == "torchrun" else None
        return Rank(
            number,
            _first(environ, local),
            _first(environ, world),
            by,
            None if role == "default" else role,
            (_number(environ.get("TORCHELASTIC_RESTART_COUNT")) or 0) if by == "torchrun" else 0,
        )
    return None


def _first(environ: "Mapping[str, str]", names: "tuple[str, ...]") -> "int | None":
    return next((found for name in names if (found := _number(environ.get(name))) is not None), None)


def _number(text: "str | None") -> "int | None":
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 10 else None


# ---- what is asked for


def ranks_in(text: str) -> "list[tuple[bool, int, int]]":
    """Read `0,3`, `0-3` or `!1`: for each word whether it chooses or leaves out, and from which rank to which.

    Raises:
        ValueError: a word is no rank; it is the error's text.
    """
    found = []
    for word in text.split(","):
        word = word.strip()
        bare = word[1:] if word.startswith("!") else word
        first, dash, last = bare.partition("-")
        low, high = _number(first.strip()), _number((last if dash else first).strip())
        if low is None or high is None or high < low:
            raise ValueError(word)
        found.append((word is bare, low, high))
    return found


def rank_asked(text: str, rank: int) -> bool:
    """Whether `text` asks for this rank. What only leaves ranks out asks for all others.

    Raises:
        ValueError: as of `ranks_in`.
    """
    words = ranks_in(text)
    said = [takes for takes, low, high in words if low <= rank <= high]
    return all(said) and (bool(said) or not any(takes for takes, _, _ in words))


def name_asked(text: str, name: str) -> bool:
    """Whether one of the patterns in `text` (`worker*,!worker-1`) matches this name, and none that leaves it out."""
    from fnmatch import fnmatchcase

    words = [word.strip() for word in text.split(",")]
    out = any(fnmatchcase(name, word[1:]) for word in words if word.startswith("!"))
    takes = [word for word in words if not word.startswith("!")]
    return not out and (not takes or any(fnmatchcase(name, word) for word in takes))


def to_text(variables: "Mapping[str, str]") -> str:
    """Return variables as one value of an environment."""
    return "\n".join(
        f"{name}={value}".replace("\\", "\\\\").replace("\n", "\\n") for name, value in sorted(variables.items())
    )


def from_text(text: str) -> "dict[str, str]":
    """Return what `to_text` was given."""
    pairs = {}
    for line in text.split("\n"):
        name, equals, value = line.partition("=")
        if equals:
            pairs[name] = "\\".join(part.replace("\\n", "\n") for part in value.split("\\\\"))
    return pairs


# ---- what a process is called


def program_of(words: "list[str]") -> "tuple[str, str]":
    """Return a name for the program of an interpreter's command line, and its code where it is `-c code`."""
    rest = iter(words[1:])
    for word in rest:
        if word == "-" or not word.startswith("-"):
            name = word.replace("\\", "/").rstrip("/").rpartition("/")[2]
            return (name[:-3] if name.endswith(".py") else name) if word != "-" else "python", ""
        if word.startswith("--"):  # --check-hash-based-pycs takes a word
            next(rest, None)
            continue
        for position, letter in enumerate(word[1:], 1):
            if letter in "cm":
                value = word[position + 1 :] or next(rest, "")
                return (value, "") if letter == "m" else ("python", value)
            if letter in "WX":
                if position == len(word) - 1:
                    next(rest, None)
                break
    return "python", ""


def name_while_started(frame: "Any") -> "str | None":
    """Return the name of the process that the code of `frame` is about to start, or of which it is the beginning.

    multiprocessing has it in `Process.start`, gunicorn numbers its workers in `Arbiter.spawn_worker`. Both are read
    where they stand, so that nothing of theirs has to be replaced.
    """
    for _ in range(_FRAMES_MAX):
        if frame is None:
            return None
        code, module = frame.f_code, frame.f_globals.get("__name__")
        if code.co_name == "start" and module == "multiprocessing.process":
            return str(frame.f_locals["self"].name)
        if code.co_name == "spawn_worker" and module == "gunicorn.arbiter":
            return f"worker-{frame.f_locals['self'].worker_age}"
        frame = frame.f_back
    return None
