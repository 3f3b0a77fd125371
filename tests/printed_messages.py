"""Messages of ours in what a command printed, by their code: tests hold on to codes, never to sentences."""

from __future__ import annotations

from traceable.errors import Message

_NONE = "note"


def messages(printed: str) -> list[Message]:
    """Return the lines that have a code."""
    parsed = [Message.parse(line.removeprefix("traceable: ")) for line in printed.splitlines()]
    return [said for said in parsed if said.code != _NONE]


def message(printed: str, code: str) -> Message:
    """Return the one message with this code."""
    (found,) = [said for said in messages(printed) if said.code == code]
    return found
