"""`Domain` and what it hands out: the object form of the verbs, as in the `nvtx` package.

A range emitted through it is the same as one emitted through `annotate`: attributes here are ranges kept to hand.
Of nvtx's extensions the counters are here; the attributes and timestamps of their batches have nowhere to go in a mark.
"""

from __future__ import annotations

from time import monotonic_ns

from traceable import environment
from traceable.annotation import engine
from traceable.annotation.ranges import annotate, pop, push

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from traceable.annotation.ranges import Category, Color, Payload

_KEEP: Any = object()  # tells "leave it as it is" from None, which clears


class RegisteredString:
    """A message that is registered with a domain. `string` is its text."""

    __slots__ = ("domain", "string")

    def __init__(self, domain: Domain, string: str) -> None:
        self.domain = domain
        self.string = string


class EventAttributes:
    """A message, colour, category and payload, kept for many events of one domain. Each may be set at any time.

    Made by `Domain.get_event_attributes`. A wrong value raises TypeError or ValueError where it is set.
    """

    __slots__ = ("_domain", "_range", "_values")

    def __init__(self, domain: str | None, message: Any, color: Color, category: Category, payload: Payload) -> None:
        self._domain = domain
        self._set(message, color, category, payload)

    def _set(self, message: Any, color: Color, category: Category, payload: Payload) -> None:
        text = message.string if isinstance(message, RegisteredString) else message
        self._range = annotate(text, color, self._domain, category, payload)
        self._values = (text, color, category, payload)

    @property
    def message(self) -> str | None:
        return self._values[0]

    @message.setter
    def message(self, value: str | RegisteredString | None) -> None:
        self._set(value, *self._values[1:])

    @property
    def color(self) -> Color:
        return self._values[1]

    @color.setter
    def color(self, value: Color) -> None:
        self._set(self._values[0], value, *self._values[2:])

    @property
    def category(self) -> Category:
        return self._values[2]

    @category.setter
    def category(self, value: Category) -> None:
        self._set(*self._values[:2], value, self._values[3])

    @property
    def payload(self) -> Payload:
        return self._values[3]

    @payload.setter
    def payload(self, value: Payload) -> None:
        self._set(*self._values[:3], value)


class DummyCounter:
    """What `get_counter` returns where no one can listen: a counter with every method a no-op."""

    __slots__ = ()
    name = dtype = domain = description = scope = semantics = time_domain = None

    def sample(self, value: Any) -> None:
        """Do nothing."""

    def sample_no_value(self, reason: Any) -> None:
        """Do nothing."""

    def batch_submit(self, values: Any, timestamps: Any) -> None:
        """Do nothing."""


_dummy_counter = DummyCounter()


def _counters(dtype: Any) -> tuple[Any, Any]:
    """Return the module that makes counters, and `dtype` as a numpy dtype; None for both where numpy can't be had.

    Raises:
        TypeError: `dtype` is no counter's.
    """
    try:
        from traceable.annotation import domain_counters

        return domain_counters, domain_counters.checked_dtype(dtype)
    except (ImportError, OSError, MemoryError) as error:
        environment.warn_once("counter_not_recorded", f"no counter is recorded: {type(error).__name__}: {error}")
        return None, None


class DummyDomain:
    """What `get_domain` returns where no one can listen: `Domain` with every method a no-op."""

    def get_registered_string(self, string: str) -> None:
        """Do nothing."""

    def get_category_id(self, name: str) -> None:
        """Do nothing."""

    def get_event_attributes(
        self, message: Any = None, color: Any = None, category: Any = None, payload: Any = None
    ) -> None:
        """Do nothing."""

    def set_event_attributes(self, attributes: Any, **values: Any) -> None:
        """Do nothing."""

    def mark(self, attributes: Any = None, **values: Any) -> None:
        """Do nothing."""

    def push_range(self, attributes: Any = None, **values: Any) -> None:
        """Do nothing."""

    def pop_range(self) -> None:
        """Do nothing."""

    def start_range(self, attributes: Any = None, **values: Any) -> int:  # noqa: ARG002
        """Return 0, which `end_range` takes."""
        return 0

    def end_range(self, range_id: int) -> None:
        """Do nothing."""

    def get_counter(self, name: str | bytes, dtype: Any, **_named: Any) -> Any:  # noqa: ARG002
        """Return the counter that does nothing, as far as `dtype` is that of a counter."""
        _counters(dtype)
        return _dummy_counter

    def get_timestamp(self) -> int:
        """Return 0."""
        return 0


class Domain:
    """One named domain. `Domain(name)` returns a `DummyDomain` where no one can listen, as the nvtx package does.

    Args:
        name: the domain's name; None is NVTX's default domain.
    """

    __slots__ = ("_counters", "name")
    name: str | None
    _counters: dict[Any, Any]

    def __new__(cls, name: str | None = None) -> Any:
        if not engine.emits():
            engine.unheard = True
            return _dummy
        self = object.__new__(cls)
        self.name = name
        self._counters = {}
        annotate(None, None, name)  # checks the name, and creates the domain now and not at its first event
        return self

    def get_registered_string(self, string: str) -> RegisteredString:
        """Register a message with this domain."""
        annotate(string, None, self.name)
        return RegisteredString(self, string)

    def get_category_id(self, name: str) -> int:
        """Return the id of a category of this domain; a new name gets the next free one."""
        return annotate(None, None, self.name, name)._category_id

    def get_event_attributes(
        self,
        message: str | RegisteredString | None = None,
        color: Color = None,
        category: Category = None,
        payload: Payload = None,
    ) -> EventAttributes:
        """Make attributes to use for many events. Arguments as `annotate`'s."""
        return EventAttributes(self.name, message, color, category, payload)

    def set_event_attributes(
        self,
        attributes: EventAttributes,
        *,
        message: Any = _KEEP,
        color: Any = _KEEP,
        category: Any = _KEEP,
        payload: Any = _KEEP,
    ) -> None:
        """Change those of the attributes that are given; None clears."""
        given = (message, color, category, payload)
        values: list[Any] = [old if new is _KEEP else new for old, new in zip(attributes._values, given, strict=True)]
        attributes._set(*values)

    def _range(self, attributes: EventAttributes | None, values: dict[str, Any]) -> annotate:
        if attributes is None:
            attributes = self.get_event_attributes(**values)
        elif values:
            self.set_event_attributes(attributes, **values)
        return attributes._range

    def mark(self, attributes: EventAttributes | None = None, **values: Any) -> None:
        """Emit a mark. `values` are `annotate`'s arguments, and change `attributes` where both are given."""
        self._range(attributes, values)._mark()

    def push_range(self, attributes: EventAttributes | None = None, **values: Any) -> None:
        """Open a range on this thread. `values` as for `mark`."""
        push(self._range(attributes, values), self.name)

    def pop_range(self) -> None:
        """Close the innermost range of this thread in this domain."""
        pop(self.name)

    def start_range(self, attributes: EventAttributes | None = None, **values: Any) -> int:
        """Open a range that any thread may close; returns its id. `values` as for `push_range`."""
        return self._range(attributes, values)._start()

    def end_range(self, range_id: int) -> None:
        """Close the range that `start_range` returned."""
        annotate(None, None, self.name)._end(range_id)

    def get_counter(
        self,
        name: str | bytes,
        dtype: Any,
        *,
        description: str | bytes | None = None,
        scope: str | bytes | None = None,
        semantics: Any = None,
        time_domain: Any = None,
    ) -> Any:
        """Return the counter of these arguments, the same one each time: `domain_counters` tells what it emits.

        Args:
            name: its name.
            dtype: `int`, `float` or a numpy dtype; one with fields makes a counter `name.field` of each.
            description, scope, semantics, time_domain: kept, and not recorded.

        Raises:
            TypeError: `dtype` is no counter's.
        """
        counters, checked = _counters(dtype)
        if counters is None:
            return _dummy_counter
        key = (name, checked, description, scope, semantics, time_domain)
        if key not in self._counters:
            self._counters.setdefault(key, counters.make(self, *key))
        return self._counters[key]

    def get_timestamp(self) -> int:
        """Return a time for `batch_submit`, in ns."""
        return monotonic_ns()


_dummy = DummyDomain()
_domains: dict[str | None, Any] = {}


def get_domain(name: str | None = None) -> Domain | DummyDomain:
    """Return the one `Domain` of this name, or the `DummyDomain` where no one can listen."""
    if name not in _domains:
        _domains.setdefault(name, Domain(name))
    found: Domain | DummyDomain = _domains[name]
    return found
