"""Counters: a number that changes while the program runs (`queue_depth`, `batch_size`), on the timeline.

NVTX's own counters are an extension that nsys 2022.4 and 2023.4 reject, so a sample is a mark (see `protocol.nvtx`).
"""

from __future__ import annotations

from collections.abc import Callable

from traceable.annotation.ranges import annotate
from traceable.protocol.nvtx import COUNTER_DOMAIN

_CACHE_MAX = 4096  # as many as ranges are interned


class Counter:
    """A counter, to be sampled whenever its number changes. Several may share a name; sampling is thread-safe.

    Args:
        name: the counter's name.
        domain: the name of the domain it belongs to.
        level: as `annotate`'s.

    Raises:
        TypeError, ValueError: an argument is not accepted; the text begins with its name.

    Example:
        >>> depth = Counter("queue_depth")
        >>> depth.sample(3)
    """

    __slots__ = ("_domain", "_range", "sample")

    sample: Callable[[float], None]
    """Emit the number now: an int of 64 bits, a float or a numpy scalar; TypeError or ValueError for anything else."""

    def __init__(self, name: str, domain: str | None = None, *, level: int | None = None) -> None:
        if not isinstance(name, str):
            raise TypeError(f"name must be a string, not {type(name).__name__}")
        if domain is not None and not isinstance(domain, str):
            raise TypeError(f"domain must be a string, not {type(domain).__name__}")
        self._domain = domain
        self._range = annotate(name, None, COUNTER_DOMAIN, domain, level=level)
        self.sample = self._range._sample

    @property
    def name(self) -> str:
        """The counter's name."""
        name: str = self._range._arguments[0]
        return name

    @property
    def domain(self) -> str | None:
        """The name of the domain it belongs to."""
        return self._domain

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (self.name, self._domain, self._range._level)

    def __repr__(self) -> str:
        return f"Counter({self.name!r}, domain={self._domain!r})"


def _rebuild(name: str, domain: str | None, level: int) -> Counter:
    """Make the counter that was pickled or copied."""
    return Counter(name, domain, level=level)


_samplers: dict[tuple[str, str | None, int | None], Callable[[float], None]] = {}


def counter(name: str, value: float, domain: str | None = None, *, level: int | None = None) -> None:
    """Emit one sample of the counter `name`. In a hot loop, keep a `Counter` and call its `sample`.

    Raises:
        TypeError, ValueError: an argument is not accepted; the text begins with its name.
    """
    key = (name, domain, level)
    try:
        sample = _samplers[key]
    except (KeyError, TypeError):
        sample = Counter(name, domain, level=level).sample
        if len(_samplers) < _CACHE_MAX:
            _samplers[key] = sample
    sample(value)
