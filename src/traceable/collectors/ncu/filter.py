"""How ncu is told which ranges and kernels to profile: the grammar of `--nvtx-include` and `--kernel-name`.

ncu joins several `--nvtx-include` with or. Of one, `domain@NAME/` is a push/pop range, which counts for launches by its
own thread only, and `domain@NAME` a start/end range, which counts for those of every thread of the process; without a
domain the default one alone is meant. `A/*/B` is B anywhere above A on the stack; `A,B` both start/end ranges at once.
All of this, the escapes below included, was tried on the filters of ncu 2022.3 and 2024.1 (tests/collect/test_ncu.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_META = frozenset(".^$|()[]{}*+?\\")
"""What a regular expression of ncu's (Boost's) takes for itself. Nothing else may be escaped: `\\<` begins a word."""

_QUANTIFIERS = frozenset("@,/")
"""What the grammar of ranges takes for itself besides."""

_ANY_DOMAIN = ".*"


@dataclass(frozen=True)
class RangePath:
    """One way to read what `--range` says.

    Attributes:
        names: of a range, after those of ranges around it, the outermost first.
        domain: its domain; None for whichever.
    """

    names: tuple[str, ...]
    domain: str | None = None


def parse_range_option(text: str) -> tuple[RangePath, ...]:
    """Return what `--range` may mean, a range of this very name first.

    Examples:
        >>> [place.names for place in readings("outer/inner")]
        [('outer/inner',), ('outer', 'inner')]
        >>> readings("server:forward")[1]
        Place(names=('forward',), domain='server')
    """
    domain, colon, name = text.partition(":")
    found = []
    for place in (RangePath((text,)), *([RangePath((name,), domain)] if colon and domain and name else [])):
        found.append(place)
        parts = tuple(place.names[0].split("/"))
        if len(parts) > 1 and all(parts):
            found.append(RangePath(parts, place.domain))
    return tuple(found)


def format_nvtx_includes(places: Iterable[RangePath]) -> list[str]:
    """Return the values of `--nvtx-include` for launches inside any of these places, in either style of range."""
    values = []
    for place in places:
        domain = _ANY_DOMAIN if place.domain is None else _whole(place.domain)
        names = [_whole(name) for name in place.names]
        values.append(f"regex:{domain}@{'/*/'.join(names)}{'/' if len(names) == 1 else ''}")
        values.append(f"regex:{domain}@{','.join(names)}")
    return list(dict.fromkeys(values))


def make_kernel_regex(expressions: Sequence[str]) -> str:
    """Return the value of `--kernel-name` for names that wholly match one of these regular expressions."""
    return f"regex:^({'|'.join(dict.fromkeys(expressions))})$"


def escape_regex(name: str) -> str:
    r"""Return the regular expression for this very name.

    Examples:
        >>> print(literal("f<(int)4>(char *)"))
        f<\(int\)4>\(char \*\)
    """
    return "".join(f"\\{c}" if c in _META else c for c in name)


def convert_glob(glob: str) -> str:
    """Return the regular expression for a glob of `*` and `?`, in whatever namespace the function is.

    Examples:
        >>> from_glob("rms_norm*")
        '(?:.*::)?rms_norm.*'
    """
    return "(?:.*::)?" + "".join({"*": ".*", "?": "."}.get(c) or escape_regex(c) for c in glob)


def _whole(name: str) -> str:
    return "^" + "".join(f"\\{c}" if c in _META or c in _QUANTIFIERS else c for c in name) + "$"
