"""What `nsys profile --help` offers, and the user's own options (`--nsys-args`) read against it.

Options come, go and are renamed from one nsys to the next, so the one that is installed is asked. What traceable asks
of it is in `nsys_presets.py`; nothing here starts nsys.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from traceable.errors import UsageError

_HEADER = re.compile(
    r"^[ \t]+(?:(?P<short>-\w), )?--(?P<name>[a-z][a-z0-9-]*)(?:\[(?P<either>[a-z|-]+)\])?"
    r"(?P<value>=(?:[<\[].*)?)?[ \t]*$",
    re.MULTILINE,
)
"""The line that begins an option: `-t, --trace=`, `--help=[<tag>]`, `--nvtx-domain-[include|exclude]=`. A line of prose
that happens to begin with an option goes on after it."""

_POSSIBLE = re.compile(r"Possible values(?: for <[^>]*>)? are:?\s+(?P<list>.*?)\.(?=\s|$)", re.DOTALL)
_QUOTED = re.compile(r"['`]([^'`\s]+)'")
_PLAIN = re.compile(r"[\w-]+")


@dataclass(frozen=True)
class Option:
    """One option of `nsys profile`.

    Attributes:
        name: its long name, `--trace`.
        short: its short one, `-t`; None for none.
        takes_value: whether something must follow it.
        values: what the help lists as possible, as it writes it (`repeat[:N]`); empty where it lists nothing. nsys
            accepts more than it lists, so what is not here is not refused.
        text: what the help says of it.
    """

    name: str
    short: str | None
    takes_value: bool
    values: tuple[str, ...]
    text: str

    def offers(self, value: str) -> bool:
        """Whether the help lists `value`, what may be appended to it left aside."""
        return any(re.split(r"[\[:]", listed)[0] == value for listed in self.values)

    def takes(self, value: str) -> bool:
        """Whether nothing in the help speaks against `value`, or a list of values: it lists none, or each of them."""
        return not self.values or all(self.offers(part.partition(":")[0]) for part in value.split(","))

    def mentions(self, word: str) -> bool:
        """Whether the help speaks of `word` anywhere."""
        return re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", self.text) is not None


class Options:
    """The options of one nsys, by name.

    Args:
        options: all of them.
    """

    def __init__(self, options: Iterable[Option]) -> None:
        self._by_name = {name: one for one in options for name in (one.name, one.short) if name}

    def __contains__(self, name: str) -> bool:
        return name in self._by_name

    def get(self, name: str) -> Option | None:
        """Return the option that nsys takes `name` for: so called, or the only one whose long name begins so."""
        if name in self._by_name:
            return self._by_name[name]
        near = [one for one in self._by_name if one.startswith(name)] if name.startswith("--") and name != "--" else []
        return self._by_name[near[0]] if len(near) == 1 else None

    def offers(self, name: str, value: str) -> bool:
        """Whether there is an option `name` that lists `value`."""
        return name in self._by_name and self._by_name[name].offers(value)

    def takes(self, name: str, value: str) -> bool:
        """Whether there is an option `name`, and nothing in the help speaks against `value`."""
        return name in self._by_name and self._by_name[name].takes(value)

    def nearest(self, name: str) -> str | None:
        """Return the option whose name is most like `name`; None where none is."""
        near = difflib.get_close_matches(name, [one for one in self._by_name if one.startswith("--")], n=1)
        return near[0] if near else None


def parse(text: str) -> Options:
    """Read the output of `nsys profile --help`; what is no option in it is passed over."""
    headers = list(_HEADER.finditer(text))
    ends = [header.start() for header in headers[1:]] + [len(text)]
    found = []
    for header, end in zip(headers, ends, strict=False):
        said = text[header.end() : end]
        takes_value = header["value"] is not None and not header["value"].startswith("=[")
        for last in (header["either"] or "").split("|"):
            name = f"--{header['name']}{last}"
            found.append(Option(name, header["short"], takes_value, _values(said), said))
    return Options(found)


def _values(said: str) -> tuple[str, ...]:
    match = _POSSIBLE.search(said)
    if match is None or "for example" in match["list"]:
        return ()
    quoted = _QUOTED.findall(match["list"])
    if quoted:
        return tuple(dict.fromkeys(quoted))
    words = re.split(r",\s*(?:or\s+)?|\s+or\s+", match["list"])
    return tuple(words) if all(_PLAIN.fullmatch(word) for word in words) else ()


@dataclass(frozen=True)
class Given:
    """One option of the user's.

    Attributes:
        name: the long name by which this nsys lists it; as it was typed where it lists none.
        value: what was given to it; None for nothing.
        words: as it was typed.
        known: whether this nsys lists it. There are some that it doesn't.
    """

    name: str
    value: str | None
    words: tuple[str, ...]
    known: bool

    def __str__(self) -> str:
        return " ".join(self.words)


def read_given(words: Sequence[str], options: Options) -> tuple[Given, ...]:
    """Read the user's own options as nsys does: `--opt=value`, `--opt value`, `-ovalue`, `-o value`, shortened names.

    Raises:
        UsageError: a word is neither an option nor the value of one, or a value is missing.
    """
    found: list[Given] = []
    position = 0
    while position < len(words):
        word = words[position]
        if not word.startswith("-") or word in ("-", "--"):
            raise UsageError(
                "nsys_args_not_an_option",
                f"{word!r} in --nsys-args is no option of nsys's",
                "the program follows traceable's own options",
            )
        typed, joined, value = _split(word)
        option = options.get(typed)
        taken = 1
        if not joined and (option is None or option.takes_value):
            if position + 1 == len(words):
                raise UsageError("value_missing", f"{typed} in --nsys-args needs a value", f"write {typed}=VALUE")
            value, taken = words[position + 1], 2
        name = option.name if option else typed
        found.append(Given(name, value, tuple(words[position : position + taken]), option is not None))
        position += taken
    return tuple(found)


def _split(word: str) -> tuple[str, bool, str | None]:
    """Split a word into an option, whether its value is joined to it, and that."""
    if word.startswith("--"):
        name, joined, value = word.partition("=")
        return name, bool(joined), value if joined else None
    return word[:2], len(word) > 2, word[2:] or None
