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
    r"(?:^|[^a-z0-9])[a-z0-9]*(?:key|token|secrets?|password|passwd|passphrase|pwd|credentials?)(?:$|[^a-z0-9])",
    re.IGNORECASE,
)
"""A word of the name ends so: `API_KEY`, `--hf-token`, `PGPASSWORD`; not `--max-tokens`, `TOKENIZERS_PARALLELISM`."""

_LOGIN = re.compile(r"(?<=://)([^/\s:@]*):([^/\s@]+)(?=@)")
"""User and password in an address."""

_NAMED = re.compile(r"(--?[A-Za-z][\w.-]*|[A-Za-z_]\w*)=(.*)", re.DOTALL)


def is_secret(name: str) -> bool:
    """Whether `name`, of a variable or of an option, is that of a secret."""
    return _SECRET.search(name) is not None


def without_values(words: Iterable[str]) -> list[str]:
    """Return a command line with `***` for each value of an option or a variable that has the name of a secret.

    The password in an address is one, too.
    """
    found: list[str] = []
    value_follows = False
    for word in words:
        named = _NAMED.fullmatch(word)
        if value_follows and not word.startswith("-"):
            found.append(NOT_WRITTEN)
        elif named is not None and is_secret(named[1]):
            found.append(f"{named[1]}={NOT_WRITTEN}")
        else:
            found.append(_LOGIN.sub(rf"\1:{NOT_WRITTEN}", word))
        value_follows = re.fullmatch(r"--?[A-Za-z][\w.-]*", word) is not None and is_secret(word)
    return found
