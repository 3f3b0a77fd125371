"""Which names are names of secrets, and command lines without their values.

What has such a name traceable writes nowhere and gives to no collector: docs/secrets.md. What the name does not tell is
not known here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

NOT_WRITTEN = "***"
"""What stands in the place of a value that is not written."""

_SECRET = re.compile(
    r"(?:^|[^a-z0-9])[a-z0-9]*(?:key|token|secrets?|password|passwd|passphrase|pwd|credentials?)(?:$|[^a-z0-9])"
    r"|[a-z0-9][-_.]pass$|(?:^|[^a-z0-9])authorization$",
    re.IGNORECASE,
)
"""A word of the name ends so: `API_KEY`, `--hf-token`, `PGPASSWORD`; not `--max-tokens`, `TOKENIZERS_PARALLELISM`.
Or it is called `SMTP_PASS`, `Authorization`."""

_FOLDERS = frozenset({"PWD", "OLDPWD"})
"""The shell's words for working directories, which are no passwords."""

_LOGIN = re.compile(r"(?<=://)([^/\s:@]*):([^/\s@]+)(?=@)")
"""User and password in an address."""

_NAMED = re.compile(r"(--?[A-Za-z][\w.-]*(?==)|[A-Za-z_]\w*(?==)|[A-Za-z][\w-]*(?=:\s))(=|:\s+)(.*)", re.DOTALL)
"""`NAME=value`, and `Name: value` as headers are given."""

_NAME_WITHIN = re.compile(r"(?<![\w.-])-{0,2}([A-Za-z_][\w.-]*)=")
_VALUE_WITHIN = re.compile(r"[^\s,;&\"']*")
"""The like inside of a word: in the query of an address, in `--env-var=A=b,C=d`."""


def is_secret(name: str) -> bool:
    """Whether `name`, of a variable or of an option, is that of a secret."""
    return name not in _FOLDERS and _SECRET.search(name) is not None


def without_values(words: Iterable[str]) -> list[str]:
    """Return a command line with `***` for each value of an option, variable or header that has the name of a secret.

    The password in an address is one, too. Code that follows `-c` is left as it is, but for that.
    """
    found: list[str] = []
    before = ""
    for word in words:
        if _takes_value(before) and not word.startswith("-"):
            found.append(NOT_WRITTEN)
        else:
            found.append(_LOGIN.sub(rf"\1:{NOT_WRITTEN}", word if before == "-c" else _without_value(word)))
        before = word
    return found


def _takes_value(word: str) -> bool:
    return re.fullmatch(r"--?[A-Za-z][\w.-]*", word) is not None and is_secret(word)


def _without_value(word: str) -> str:
    named = _NAMED.fullmatch(word)
    if named is not None and is_secret(named[1]):
        return f"{named[1]}{named[2]}{NOT_WRITTEN}"
    kept, place = "", 0
    for name in _NAME_WITHIN.finditer(word):
        value = _VALUE_WITHIN.match(word, name.end())
        if value and value[0] and name.start() >= place and is_secret(name[1]):
            kept += word[place : name.end()] + NOT_WRITTEN
            place = value.end()
    return kept + word[place:]
