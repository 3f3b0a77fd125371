"""Which rank of a distributed job a process is, from the environment that its launcher gave it; and lists of ranks.

The launcher reads its own rank with this, and so does each process for its record. A rank that a program assigns itself
in code is not detected.
"""

from __future__ import annotations

from typing import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

RANK_KEY = "rank"
"""Key of the run's rank in `run.json`; null for none."""


class Rank(NamedTuple):
    """Which rank a process is.

    Attributes:
        rank: its number among all, from 0.
        local_rank: its number on this host; None if unknown.
        world_size: how many there are; None if unknown.
        by: the launcher that set it: `torchrun`, `Open MPI`, `PMI`, `MVAPICH2` or `Slurm`.
        role: of torchrun's --role; None for no name.
        restarts: how often torchrun has restarted the ranks.
    """

    rank: int
    local_rank: int | None
    world_size: int | None
    by: str
    role: str | None = None
    restarts: int = 0


_LAUNCHERS = (
    # Launcher, a variable that must be set too, rank, rank on this host, number of ranks.
    ("torchrun", "WORLD_SIZE", "RANK", ("LOCAL_RANK",), ("WORLD_SIZE",)),
    ("Open MPI", "", "OMPI_COMM_WORLD_RANK", ("OMPI_COMM_WORLD_LOCAL_RANK",), ("OMPI_COMM_WORLD_SIZE",)),
    ("MVAPICH2", "", "MV2_COMM_WORLD_RANK", ("MV2_COMM_WORLD_LOCAL_RANK",), ("MV2_COMM_WORLD_SIZE",)),
    ("PMI", "", "PMI_RANK", ("PMI_LOCAL_RANK", "MPI_LOCALRANKID"), ("PMI_SIZE",)),
    ("PMI", "", "PMIX_RANK", (), ("PMI_SIZE",)),
    # SLURM_PROCID alone is also set in the batch script, which is not a rank: only a step has a number.
    ("Slurm", "SLURM_STEP_ID", "SLURM_PROCID", ("SLURM_LOCALID",), ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")),
)

VARIABLES = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
"""The best-known variables of a rank, for messages."""


def read_rank(environ: Mapping[str, str]) -> Rank | None:
    """Return which rank a process with this environment is; None for none. The innermost launcher counts."""
    for by, required, rank, local, world in _LAUNCHERS:
        number = _parse_number(environ.get(rank))
        if number is None or (required and not environ.get(required)):
            continue
        is_torchrun = by == "torchrun"
        role = environ.get("ROLE_NAME") if is_torchrun else None
        return Rank(
            number,
            _read_first(environ, local),
            _read_first(environ, world),
            by,
            None if role in ("", "default") else role,
            (_parse_number(environ.get("TORCHELASTIC_RESTART_COUNT")) or 0) if is_torchrun else 0,
        )
    return None


def get_rank_number(manifest: Mapping[str, Any]) -> int | None:
    """Return the rank of a run, from its manifest; None where it is not the run of a rank."""
    rank = (manifest.get(RANK_KEY) or {}).get("rank")
    return rank if isinstance(rank, int) else None


def _read_first(environ: Mapping[str, str], names: tuple[str, ...]) -> int | None:
    return next((number for name in names if (number := _parse_number(environ.get(name))) is not None), None)


def _parse_number(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 10 else None


def parse_ranks(text: str) -> list[tuple[bool, int, int]]:
    """Parse `0,3`, `0-3` or `!1`: for each word whether it includes or excludes, and the first and the last rank.

    Raises:
        ValueError: a word is not a rank; it is the error's text.
    """
    spans = []
    for word in text.split(","):
        word = word.strip()
        bare = word[1:] if word.startswith("!") else word
        first, dash, last = bare.partition("-")
        low, high = _parse_number(first.strip()), _parse_number((last if dash else first).strip())
        if low is None or high is None or high < low:
            raise ValueError(word)
        spans.append((word is bare, low, high))
    return spans


def has_rank(text: str, rank: int) -> bool:
    """Whether a list of ranks has this one. A list that only excludes ranks has all others.

    Raises:
        ValueError: as for `parse_ranks`.
    """
    spans = parse_ranks(text)
    verdicts = [includes for includes, low, high in spans if low <= rank <= high]
    return all(verdicts) and (bool(verdicts) or not any(includes for includes, _, _ in spans))
