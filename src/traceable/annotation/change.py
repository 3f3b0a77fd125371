"""One attribute that was replaced from outside: how it is put back, and what its original needs meanwhile.

Which attributes, by what and when is `patching`.
"""

from __future__ import annotations

import sys
import types

from traceable.annotation import lookup

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_THROUGH_OURS = ".__wrapped__"


class Change:
    """What stood in a place (`own`: in the owner's own namespace, or inherited there) and what stands there now."""

    __slots__ = ("attribute", "original", "own", "owner", "replacement")

    def __init__(self, owner: Any, attribute: str, original: Any, replacement: object, own: bool = True) -> None:
        self.owner = owner
        self.attribute = attribute
        self.original = original
        self.replacement = replacement
        self.own = own

    def undo(self) -> None:
        """Put the very same object back, unless someone else has replaced ours meanwhile."""
        if getattr(self.original, "__qualname__", "").endswith(_THROUGH_OURS):
            self.original.__qualname__ = self.original.__qualname__[: -len(_THROUGH_OURS)]
        if lookup.namespace(self.owner).get(self.attribute) is not self.replacement:
            return
        if self.own:
            setattr(self.owner, self.attribute, self.original)
        else:
            delattr(self.owner, self.attribute)


def is_held_elsewhere(place: lookup.Place) -> bool:
    """Whether a function is also in a table, a partial, a default: what its module's body made of it."""
    return type(place.value) is types.FunctionType and sys.getrefcount(place.value) > _references_of_an_unshared_one()


def _references_of_an_unshared_one() -> int:
    def function() -> None: ...

    place = lookup.Place(None, "", function, "")
    holder = {"function": function}
    del function
    return sys.getrefcount(place.value) if holder else 0


def keep_picklable(place: lookup.Place) -> None:
    """Give the original the name by which it can still be found: pickle wants to find what it pickles, and refuses.

    Without this a program that sends `table["step"]` to a process pool would fail for being annotated.
    """
    function: Any = place.value
    if place.own and function.__qualname__ == place.qualname:
        function.__qualname__ += _THROUGH_OURS
