"""How numbers, GPUs and ranges are written in the sentences of findings: as the terminal writes them in tables."""

from __future__ import annotations

from collections.abc import Sequence

_LONGEST_NAME = 80
_TIME_UNITS = (("s", 1e9), ("ms", 1e6), ("us", 1e3))
_SIZE_UNITS = (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))


def time(ns: float) -> str:
    """Write a time with four digits.

    Examples:
        >>> time(1_306_223_934), time(51_500), time(12.3)
        ('1.306 s', '51.50 us', '12 ns')
    """
    for unit, whole in _TIME_UNITS:
        # What would round up to 1000 of a unit is 1 of the next.
        if ns >= whole * 0.99995:
            return f"{_four(ns / whole)} {unit}"
    return f"{ns:.0f} ns"


def size(number: float) -> str:
    """Write a number of bytes.

    Examples:
        >>> size(4_300), size(1.36e9), size(8)
        ('4.199 KiB', '1.267 GiB', '8 B')
    """
    for unit, whole in _SIZE_UNITS:
        if number >= whole:
            return f"{_four(number / whole)} {unit}"
    return f"{number:.0f} B"


def rate(bytes_per_ns: float) -> str:
    """Write 10**9 bytes a second.

    Examples:
        >>> rate(7.1702)
        '7.17 GB/s'
    """
    return f"{bytes_per_ns:.3g} GB/s"


def share(part: float) -> str:
    """Write a fraction in percent.

    Examples:
        >>> share(0.4187)
        '41.9 %'
    """
    return f"{part * 100:.1f} %"


def count(number: int, one: str = "", many: str = "") -> str:
    """Write a number with its thousands apart and, if said, what it counts.

    Examples:
        >>> count(1536, "call"), count(1, "copy", "copies")
        ('1 536 calls', '1 copy')
    """
    noun = one if number == 1 else many or one + "s"
    return f"{number:,}".replace(",", " ") + (f" {noun}" if one else "")


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


def _four(value: float) -> str:
    return f"{value:.{max(0, 4 - len(str(int(value * 1.00005))))}f}"
