"""Which names are names of secrets, and command lines without their values.

What has such a name traceable writes nowhere and gives to no collector: docs/secrets.md. What the name does not tell is
not known here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

REDACTED = "***"
"""What stands in the place of a value that is not written."""

_SECRET = re.compile(
    r"(?:key|token|secrets?|password|passwd|passphrase|pwd|credentials?|cookies?|sessionid|sessid|signature)"
    r"[0-9]*(?![a-z0-9])|[a-z0-9][^a-z0-9]pass[0-9]*\Z|(?<![a-z0-9])authorization[0-9]*\Z",
    re.IGNORECASE | re.ASCII,
)
"""A word of the name ends so: `API_KEY`, `TOKEN1`, `--hf-token`, `PGPASSWORD`; not `--max-tokens`,
`TOKENIZERS_PARALLELISM`. Or it is called `SMTP_PASS`, `Authorization`."""

_FOLDERS = frozenset({"PWD", "OLDPWD"})
"""The shell's words for working directories, which are no passwords."""

_BLANKS = " \t\n\v\f\r"
_LOGIN = re.compile(rf"((?<![a-z0-9.-])(?:https?|wss?))?://([^/{_BLANKS}]*)@", re.IGNORECASE | re.ASCII)
"""User and password in an address. On the web a user without a password is a token."""

_BEARER = re.compile(rf"(?<![a-z0-9_])bearer[{_BLANKS}]+([^{_BLANKS},;&\"']+)", re.IGNORECASE | re.ASCII)

_BEARER_LAST = re.compile(r"(?<![a-z0-9_])bearer\Z", re.IGNORECASE | re.ASCII)

_NAME = re.compile(rf"(?<![\w.-])([\w.-]+)(\\*[\"'])?[{_BLANKS}]*([=:])", re.ASCII)
"""`NAME=value`, `Name: value`, `"name": "value"`: what stands before the value."""

_OPENING = re.compile(r"(\\*)([\"'])")
_END_IN_LIST = re.compile(rf"[{_BLANKS},;&\"']")
_OPTION = re.compile(r"--?[A-Za-z][\w.-]*", re.ASCII)
_HEADER = re.compile(r"([A-Za-z][\w-]*):", re.ASCII)
_NO_VALUE = re.compile(r"--[a-z]")
_SHELL = re.compile(r"(?:.*/)?(?:ba|da|z|k|a|fi|c|tc)?sh", re.DOTALL)


def is_secret(name: str) -> bool:
    """Whether `name`, of a variable or of an option, is that of a secret."""
    return name not in _FOLDERS and _SECRET.search(name) is not None


def redact_command(words: Iterable[str]) -> list[str]:
    """Return a command line with `***` for each value of an option, variable or header that has the name of a secret.

    So are the password in an address, a user who has none in one of the web, and what follows `Bearer`. Code that
    follows `-c` is left as it is, but for these; what a shell is given so is not code.
    """
    found = []
    for word, spans in find_secret_spans(words):
        kept, place = "", 0
        for begin, end in spans:
            kept += word[place:begin] + REDACTED
            place = end
        found.append(kept + word[place:])
    return found


def find_secret_spans(words: Iterable[str]) -> Iterator[tuple[str, list[tuple[int, int]]]]:
    """Yield each word of a command line with the parts of it that are secret, in order, none empty, none touching.

    `_native/recorder_secrets.c` does the same to what the recorder writes.
    """
    before = program = ""
    is_code = False
    for word in words:
        hidden = _takes_value(before) and not _NO_VALUE.match(word)
        spans = [(0, len(word))] if hidden else [*_logins(word), *_bearers(word), *([] if is_code else _values(word))]
        yield word, _merged(spans)
        before = word
        program = program if word.startswith("-") else word
        is_code = word == "-c" and not hidden and not _SHELL.fullmatch(program)


def _takes_value(word: str) -> bool:
    """Whether the next word is the value of this one."""
    header = _HEADER.fullmatch(word)
    named = header[1] if header else word if _OPTION.fullmatch(word) else ""
    return is_secret(named) or _BEARER_LAST.search(word) is not None


def _logins(word: str) -> Iterator[tuple[int, int]]:
    for login in _LOGIN.finditer(word):
        begin, end = login.span(2)
        colon = word.find(":", begin, end)
        if login[1] is not None:
            yield begin, end
        elif colon >= 0:
            yield colon + 1, end


def _bearers(word: str) -> Iterator[tuple[int, int]]:
    return (one.span(1) for one in _BEARER.finditer(word))


def _values(word: str) -> Iterator[tuple[int, int]]:
    """Find the value behind each name of a secret.

    Behind what begins the word, and behind `Name:`, it goes on to the end of the word, or to the quote that was opened
    before the name. Elsewhere it ends as a value does in a list, in the query of an address, in JSON.
    """
    place = 0
    while (named := _NAME.search(word, place)) is not None:
        name, closed, separator = named.groups()
        before, place = word[named.start() - 1] if named.start() else "", named.end()
        if closed is None and separator == ":":
            is_path = "." in name or before in ("/", ":", "@") or word.startswith((":", "//"), place)
            if is_path:  # and `module:function`, `host:port`
                continue
        if not is_secret(name):
            continue
        begin = _behind_blanks(word, place)
        if closed is None and before in ('"', "'"):
            place = _closing_quote(word, begin, before, _backslashes_before(word, 0, named.start() - 1))
        elif closed is None and (not before or separator == ":"):
            place = len(word)
        else:
            begin, place = _value_in_list(word, begin)
        yield begin, place


def _behind_blanks(word: str, place: int) -> int:
    while place < len(word) and word[place] in _BLANKS:
        place += 1
    return place


def _value_in_list(word: str, begin: int) -> tuple[int, int]:
    opening = _OPENING.match(word, begin)
    if opening is not None:
        return opening.end(), _closing_quote(word, opening.end(), opening[2], len(opening[1]))
    if word.startswith(("{", "[", "("), begin):
        return begin, len(word)
    found = _END_IN_LIST.search(word, begin)
    return begin, len(word) if found is None else found.start()


def _closing_quote(word: str, begin: int, quote: str, backslashes: int) -> int:
    """Return where a text ends that was opened by a quote with so many backslashes before it; more of them escape."""
    place = word.find(quote, begin)
    while place >= 0:
        escaping = _backslashes_before(word, begin, place)
        if escaping <= backslashes:
            return place - escaping
        place = word.find(quote, place + 1)
    return len(word)


def _backslashes_before(word: str, begin: int, end: int) -> int:
    place = end
    while place > begin and word[place - 1] == "\\":
        place -= 1
    return end - place


def _merged(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for begin, end in sorted(span for span in spans if span[0] < span[1]):
        if found and begin <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((begin, end))
    return found
