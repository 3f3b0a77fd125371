"""The counters of `Domain.get_counter`, as in the `nvtx` package, emitted as every counter here is (`counters`).

Each is sampled when it is called. What a sample of ours has no room for is kept as an attribute and not recorded: the
description, the scope, the semantics. numpy is imported when the first such counter is asked for.
"""

from __future__ import annotations

from _operator import index

from traceable import environment
from traceable.annotation.counters import Counter
from traceable.annotation.domains import Domain, get_domain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

_numpy: Any = None
"""numpy, once a dtype was checked: a sample imports nothing."""


class DomainCounter(Counter):
    """A counter made by `Domain.get_counter`.

    Attributes:
        dtype: what its samples are: a numpy dtype.
        description, scope, semantics, time_domain: as they were given.
    """

    __slots__ = ("_emit", "_last", "description", "dtype", "scope", "semantics", "time_domain")

    def __init__(
        self,
        domain: Domain,
        name: str | bytes,
        dtype: Any,
        description: Any = None,
        scope: Any = None,
        semantics: Any = None,
        time_domain: Any = None,
    ) -> None:
        super().__init__(_text(name), domain.name)
        self._emit = self.sample
        self.sample = self._sample
        self._last: Any = None
        self.dtype = dtype
        self.description = description
        self.scope = scope
        self.semantics = semantics
        self.time_domain = time_domain

    def _sample(self, value: Any) -> None:
        self._last = value
        self._emit(self._number(value))

    def _number(self, value: Any) -> Any:
        raise NotImplementedError("use Domain.get_counter() to make a counter")

    def sample_no_value(self, reason: Any) -> None:
        """Sample without a value: 0, the last one again, or nothing where it is unavailable.

        Args:
            reason: an `nvtx.CounterNoValueReason`.
        """
        if reason.name == "ZERO":
            self.sample(self._zero())
        elif reason.name == "UNCHANGED" and self._last is not None:
            self.sample(self._last)

    def _zero(self) -> Any:
        return 0

    def batch_submit(self, values: Iterable[Any], timestamps: Iterable[int]) -> None:
        """Record nothing, and say so once: a mark stands where it is emitted, so samples of earlier can't be recorded.

        Raises:
            ValueError: there are not as many timestamps as values.
        """
        if len([*values]) != len([*timestamps]):
            raise ValueError("values and timestamps must have the same length.")
        environment.warn_once(
            "batch_not_recorded",
            "samples given to batch_submit() are not recorded: NVTX's marks take no time of their own",
        )

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuilt, (
            self.domain,
            (self.name, self.dtype),
            {name: getattr(self, name) for name in ("description", "scope", "semantics", "time_domain")},
        )


def _rebuilt(domain: str | None, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Make the counter that was pickled or copied."""
    return get_domain(domain).get_counter(*arguments, **named)


class Int64Counter(DomainCounter):
    """A counter of ints of 64 bits."""

    __slots__ = ()

    def _number(self, value: Any) -> int:
        return index(value)


class Float64Counter(DomainCounter):
    """A counter of floats."""

    __slots__ = ()

    def _number(self, value: Any) -> float:
        return float(value)


class ExtCounter(DomainCounter):
    """A counter of any other numpy dtype; one with fields is a counter `name.field` for each."""

    __slots__ = ("_fields",)

    def __init__(self, domain: Domain, name: str | bytes, dtype: Any, *rest: Any) -> None:
        super().__init__(domain, name, dtype, *rest)
        self._fields = [Counter(f"{_text(name)}.{field}", domain.name).sample for field in dtype.names or ()]

    def _sample(self, value: Any) -> None:
        self._last = value
        sample = _numpy.ascontiguousarray(value, self.dtype)
        if sample.size != 1:
            raise ValueError(f"sample() takes one sample of dtype {self.dtype}, not {sample.size}")
        number = sample.reshape(())[()].item()
        if self._fields:
            for emit, one in zip(self._fields, number, strict=True):
                emit(one)
        else:
            self._emit(number)

    def _zero(self) -> Any:
        return _numpy.zeros((), self.dtype)


def _text(name: str | bytes) -> str:
    return name.decode() if isinstance(name, bytes) else name


def checked_dtype(dtype: Any) -> Any:
    """Return what a counter counts, as a numpy dtype.

    Raises:
        TypeError: it is none, or holds more than numbers side by side.
        ImportError, OSError, MemoryError: numpy can't be imported.
    """
    global _numpy
    if _numpy is None:
        import numpy

        _numpy = numpy
    try:
        dtype = _numpy.dtype(_numpy.int64 if dtype is int else dtype)
    except TypeError as error:
        raise TypeError("Counter dtype must be int, float, or NumPy dtype-like.") from error
    if dtype.subdtype is not None and dtype.subdtype[0].names is not None:
        raise TypeError("A counter can't be a fixed-size array of a structured dtype.")
    for name in dtype.names or ():
        field = dtype.fields[name][0]
        if field.subdtype is not None:
            raise TypeError(f"Counter field {name!r}: array fields are not supported.")
        if field.names is not None:
            raise TypeError(f"Counter field {name!r}: Nested counter groups are not supported.")
    return dtype


def make(domain: Domain, name: str | bytes, dtype: Any, *rest: Any) -> DomainCounter:
    """Make the counter of this dtype, which is a checked one."""
    kind = {"int64": Int64Counter, "float64": Float64Counter}.get(str(dtype), ExtCounter)
    return kind(domain, name, dtype, *rest)
