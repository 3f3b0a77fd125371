"""Expected shares of kernel time, as a TOML file lists them: `sparse_attn = "60-65 %"`.

A name is one of a kernel, a family or a range. Which kernels there are is not known here.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from traceable.errors import UsageError

FAMILY, KERNEL, RANGE = "family", "kernel", "range"

KINDS = (FAMILY, KERNEL, RANGE)
"""What a name may be of. A name without a prefix is of the first kind in which it matches something."""

_NUMBER = r"(\d+(?:\.\d+)?)"
_BETWEEN = re.compile(rf"{_NUMBER}\s*%?\s*(?:-|to|\.\.)\s*{_NUMBER}\s*%")
_LIMIT = re.compile(rf"(<=|>=|<|>)\s*{_NUMBER}\s*%")
_FORM = 'write NAME = "60-65 %", ">= 60 %" or "<= 5 %", a line for each name (traceable help align)'


@dataclass(frozen=True)
class ExpectedShare:
    """One line of the file.

    Attributes:
        name: as it stands in the file.
        kind: one of KINDS, as the prefix of the name says; None without one.
        pattern: the glob after the prefix.
        low, high: shares of the kernel time, both inclusive.
    """

    name: str
    kind: str | None
    pattern: str
    low: float
    high: float

    def matches(self, names: Iterable[str]) -> bool:
        """Whether one of the names matches the glob, upper and lower case apart."""
        return any(fnmatchcase(name, self.pattern) for name in names)

    def includes(self, share: float) -> bool:
        """Whether a share is as expected."""
        return self.low <= share <= self.high


def load_expected_shares(path: Path) -> tuple[ExpectedShare, ...]:
    """Return the expected shares of a TOML file, in its order.

    Raises:
        UsageError: the file can't be read, or holds anything but names with shares.
    """
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError("file_unreadable", f"{path} can't be read: {error.strerror}", "name another file") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError("expected_shares_invalid", f"{path} is not TOML: {error}", _FORM) from None
    if not document:
        raise UsageError("expected_shares_invalid", f"{path} has no expected share", _FORM)
    return tuple(_parse_share(path, name, value) for name, value in document.items())


def _parse_share(path: Path, name: str, value: Any) -> ExpectedShare:
    bounds = parse_share_bounds(value) if isinstance(value, str) else None
    prefix, colon, pattern = name.partition(":")
    kind = prefix if colon and prefix in KINDS else None
    if bounds is None or not name or (kind and not pattern):
        raise UsageError("expected_shares_invalid", f"{path}: {name} = {value!r} is not an expected share", _FORM)
    return ExpectedShare(name, kind, pattern if kind else name, *bounds)


def parse_share_bounds(text: str) -> tuple[float, float] | None:
    """Return the least and the largest share that a text allows; None if it is not one.

    Examples:
        >>> parse_share_bounds("60-65 %"), parse_share_bounds(">= 12.5%"), parse_share_bounds("<5 %")
        ((0.6, 0.65), (0.125, 1.0), (0.0, 0.05))
        >>> parse_share_bounds("65-60 %"), parse_share_bounds("60"), parse_share_bounds("> 130 %")
        (None, None, None)
    """
    if match := _BETWEEN.fullmatch(text.strip()):
        low, high = float(match[1]) / 100, float(match[2]) / 100
    elif match := _LIMIT.fullmatch(text.strip()):
        limit = float(match[2]) / 100
        low, high = (limit, 1.0) if match[1].startswith(">") else (0.0, limit)
    else:
        return None
    return (low, high) if low <= high <= 1 else None


def resolve_kind(expected: ExpectedShare, names: Sequence[tuple[str, Iterable[str]]]) -> str:
    """Return what the name of an expected share is of.

    Args:
        names: the names of each of KINDS, of both recordings.

    Raises:
        UsageError: it matches nothing.
    """
    for kind, there in names:
        if expected.kind in (None, kind) and expected.matches(there):
            return kind
    where = f"no {expected.kind} of the two recordings" if expected.kind else "no family, kernel or range"
    raise UsageError(
        "share_matches_nothing",
        f"the expected share {expected.name!r} matches {where}",
        "list names with `traceable report PATH --view kernels`",
    )
