"""What of a table is shown: filters, order and number of rows. The same for every output."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

TYPE_CHECKING = False
if TYPE_CHECKING:
    from traceable.analysis.table import Table

Row = dict[str, Any]

LARGEST = "cpu_total_ns"
"""By what the rows of the ranges are the largest where nothing else is said."""

_ABOUT = ("{}", "{}_ns", "{}_bytes", "{}_share", "cpu_{}", "cpu_{}_ns", "{}_total_ns", "cpu_{}_total_ns")
"""How a column may be named: without its unit and, the commonest, without `cpu_`."""


@dataclass(frozen=True)
class Choice:
    """Which rows, in which order.

    Attributes:
        sort: column to sort by, largest first; None keeps the order.
        top: how many rows to keep; None for all.
        domain: keep what is of this domain; "" is the default domain; None for all.
        match: keep what has a name that matches this glob, upper and lower case apart; None for all.
        name: keep what has this very name, or is `domain:name`; None for all.
    """

    sort: str | None = None
    top: int | None = None
    domain: str | None = None
    match: str | None = None
    name: str | None = None

    def rows(self, table: Table, largest: str | None = None) -> list[Row]:
        """Return the rows to show; arguments as for `places`."""
        return list(table.take(self.places(table, largest)).rows())

    def places(self, table: Table, largest: str | None = None) -> list[int]:
        """Return which rows of a table to show, in order.

        Args:
            table: has the columns that this choice names.
            largest: column whose largest values `top` keeps where there is no `sort`; None for the first rows.
        """
        kept = self.matching(table)
        by = self.sort or largest
        if by is None or (self.sort is None and (self.top is None or self.top >= len(kept))):
            return kept[: self.top]
        values = table.column(by)
        ranked = sorted(kept, key=lambda place: _largest_first(values[place]))[: self.top]
        # Without a column to sort by, what is kept stays in order: that of the tree, for the ranges.
        return ranked if self.sort else sorted(ranked)

    def matching(self, table: Table) -> list[int]:
        """Return which rows have a domain and a name that are wanted, however many."""
        places = list(range(len(table)))
        if self.domain is not None:
            domains = table.column("domain")
            places = [place for place in places if (domains[place] or "") == self.domain]
        if self.match is not None:
            names = table.column("name")
            places = [place for place in places if fnmatch.fnmatchcase(names[place] or "", self.match)]
        if self.name is not None:
            full = list(zip(table.column("domain"), table.column("name"), strict=True))
            places = [p for p in places if self.name in (full[p][1], f"{full[p][0]}:{full[p][1]}")]
        return places


def column_meant(asked: str, columns: Sequence[str]) -> str | None:
    """Return the column that is asked for, which may be named without its unit; None where there is none.

    Examples:
        >>> column_meant("p99", ["name", "cpu_p99_ns"])
        'cpu_p99_ns'
    """
    word = asked.strip().lower().replace("-", "_").replace(" ", "_")
    forms = [form.format(word) for form in _ABOUT]
    return next((form for form in forms if form in columns and form != "path"), None)


def _largest_first(value: Any) -> tuple[bool, Any]:
    """Order numbers from large to small and words from A to Z; absent values come last."""
    if value is None:
        return True, 0.0
    return False, value if isinstance(value, str | list) else -value
