"""How GPUs and ranges are written in the sentences of findings."""

from __future__ import annotations

from collections.abc import Sequence

_LONGEST_NAME = 80


def named(name: str | None) -> str:
    """Write the name of a range, cut where it is long.

    Examples:
        >>> named("forward"), named(None)
        ('forward', 'outside every range')
    """
    if name is None:
        return "outside every range"
    return name if len(name) <= _LONGEST_NAME else name[: _LONGEST_NAME - 2] + ".."


def gpu(number: int | None) -> str:
    """Write which GPU; the trace may not tell its number.

    Examples:
        >>> gpu(1), gpu(None)
        ('GPU 1', 'the GPU')
    """
    return "the GPU" if number is None else f"GPU {number}"


def listed(words: Sequence[str]) -> str:
    """Join words.

    Examples:
        >>> listed(["a"]), listed(["a", "b", "c"])
        ('a', 'a, b and c')
    """
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))
