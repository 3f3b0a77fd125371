"""ncu's filters of ranges and kernels: the grammar of `--nvtx-include` and `--kernel-name`.

ncu joins several `--nvtx-include` with or. In one, `domain@NAME/` is a push/pop range, which selects launches by its
own thread only, and `domain@NAME` a start/end range, which selects those of every thread of the process; without a
domain only the default one matches. `A/*/B` is B anywhere above A on the stack; `A,B` both start/end ranges at once.
All of this, including the escapes below, was tested on the filters of ncu 2022.3 and 2024.1
(tests/collectors/test_ncu.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_META = frozenset(".^$|()[]{}*+?\\")
"""Special characters of ncu's regular expressions (Boost's). Nothing else may be escaped: `\\<` begins a word."""

_QUANTIFIERS = frozenset("@,/")
"""Special characters of the grammar of ranges."""

_ANY_DOMAIN = ".*"


@dataclass(frozen=True)
class RangePath:
    """One interpretation of the value of `--range`.

    Attributes:
        names: of the enclosing ranges, the outermost first, and of the range itself.
        domain: its domain; None for any.
    """

    names: tuple[str, ...]
    domain: str | None = None


def parse_range_option(text: str) -> tuple[RangePath, ...]:
    """Return the possible meanings of `--range`, a range of exactly this name first.

    Examples:
        >>> [path.names for path in parse_range_option("outer/inner")]
        [('outer/inner',), ('outer', 'inner')]
        >>> parse_range_option("server:forward")[1]
        RangePath(names=('forward',), domain='server')
    """
    domain, colon, name = text.partition(":")
    paths = []
    for path in (RangePath((text,)), *([RangePath((name,), domain)] if colon and domain and name else [])):
        paths.append(path)
        parts = tuple(path.names[0].split("/"))
        if len(parts) > 1 and all(parts):
            paths.append(RangePath(parts, path.domain))
    return tuple(paths)


def format_nvtx_includes(paths: Iterable[RangePath]) -> list[str]:
    """Return the values of `--nvtx-include` for launches inside any of these ranges, push/pop or start/end."""
    values = []
    for path in paths:
        domain = _ANY_DOMAIN if path.domain is None else _match_whole(path.domain)
        names = [_match_whole(name) for name in path.names]
        values.append(f"regex:{domain}@{'/*/'.join(names)}{'/' if len(names) == 1 else ''}")
        values.append(f"regex:{domain}@{','.join(names)}")
    return list(dict.fromkeys(values))


def make_kernel_regex(expressions: Sequence[str]) -> str:
    """Return the value of `--kernel-name` for names that wholly match one of these regular expressions."""
    return f"regex:^({'|'.join(dict.fromkeys(expressions))})$"


def escape_regex(name: str) -> str:
    r"""Return the regular expression that matches exactly this name.

    Examples:
        >>> print(escape_regex("f<(int)4>(char *)"))
        f<\(int\)4>\(char \*\)
    """
    return "".join(f"\\{c}" if c in _META else c for c in name)


def convert_glob(glob: str) -> str:
    """Return the regular expression for a glob of `*` and `?`, whatever the function's namespace is.

    Examples:
        >>> convert_glob("rms_norm*")
        '(?:.*::)?rms_norm.*'
    """
    return "(?:.*::)?" + "".join({"*": ".*", "?": "."}.get(c) or escape_regex(c) for c in glob)


def _match_whole(name: str) -> str:
    return "^" + "".join(f"\\{c}" if c in _META or c in _QUANTIFIERS else c for c in name) + "$"
