"""The collectives of many ranks: their profiles have those of each, which are put on one clock and matched here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from traceable.analysis.collectives import (
    describe_matches,
    describe_sources,
    group_collectives,
    match_collectives,
    read_collectives,
    tabulate_matches,
)
from traceable.analysis.rank_clocks import (
    NONE,
    RankRecording,
    align_ranks,
    place_on_one_clock,
    tabulate_clocks,
)
from traceable.analysis.rank_profile import RankIdentity
from traceable.analysis.table import Table

WAITS = 20
"""How many of the longest waits are listed."""


def build_collective_table(ranks: Sequence[tuple[RankIdentity, Table | None]], align: str) -> Table | None:
    """Return the collectives of many ranks, as the view `collectives` of one recording; None where there are none.

    Args:
        ranks: the identity of each, and its collectives (`tabulate_collectives`), None for none.
        align: how their clocks are aligned: NONE, UTC or COLLECTIVES of `analysis.rank_clocks`.

    Returns:
        The same table, with one more: `clocks`, one row a rank.

    Raises:
        UsageError: the clocks can't be aligned like that.
    """
    recordings = []
    for identity, table in ranks:
        if table is not None and len(table):
            listed = read_collectives(table)
            # The rank may be known from the name of the file alone.
            members = tuple(
                replace(one, rank=identity.rank if one.rank is None else one.rank, host=identity.host)
                for one in listed.members
            )
            listed = replace(listed, members=members)
            recordings.append(RankRecording(identity.name, identity.host, identity.epoch_ns, listed))
    if not recordings:
        return None
    clocks, notes = align_ranks(recordings, align)
    joined = place_on_one_clock(recordings, clocks)
    matches = match_collectives(joined, is_one_clock=align != NONE)
    others = {"clocks": tabulate_clocks(clocks)}
    if len(matches) and int(matches.ranks.max()) > 1:
        others = {**tabulate_matches(matches, WAITS), **others}
    of_kinds = group_collectives(joined, by_rank=False)
    return Table(of_kinds.values, others, (*notes, *describe_sources(joined), *describe_matches(matches)))
