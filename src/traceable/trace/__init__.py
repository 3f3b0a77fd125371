"""After the process: readers of recordings, one columnar `Trace` for all of them."""

from traceable.trace.model import Trace
from traceable.trace.nsys import load

__all__ = ["Trace", "load"]
