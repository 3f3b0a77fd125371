"""Name the parts of a program, run it under a profiler, and read the profile by those names.

The public names, and nothing else. Importing this loads no numpy, torch, rich or nvtx: a server can afford it.
"""

import os as _os

from traceable import environment as _environment
from traceable.annotation.ranges import annotate, enabled, end_range, mark, pop_range, push_range, start_range
from traceable.capture import witness as _witness

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from traceable.annotation.contract import expect
    from traceable.annotation.counters import Counter, counter
    from traceable.annotation.domain_counters import ExtCounter, Float64Counter, Int64Counter
    from traceable.annotation.domains import Domain, DummyDomain, get_domain
    from traceable.annotation.patching import annotate_targets
    from traceable.annotation.pauses import record_gc, record_loop_pauses
    from traceable.annotation.profile import Profile
    from traceable.annotation.torch_copies import instrument_copies
    from traceable.annotation.torch_modules import instrument
    from traceable.capture.flight import dump
    from traceable.capture.steps import step, steps, window
    from traceable.capture.triggers import capture_when
    from traceable.recording import Recording, load

__all__ = [
    "Counter",
    "Domain",
    "DummyDomain",
    "ExtCounter",
    "Float64Counter",
    "Int64Counter",
    "Profile",
    "Recording",
    "annotate",
    "annotate_targets",
    "capture_when",
    "counter",
    "dump",
    "enabled",
    "end_range",
    "expect",
    "get_domain",
    "instrument",
    "instrument_copies",
    "load",
    "mark",
    "pop_range",
    "push_range",
    "record_gc",
    "record_loop_pauses",
    "start_range",
    "step",
    "steps",
    "window",
]

_LATER = {
    "Counter": "traceable.annotation.counters",
    "Domain": "traceable.annotation.domains",
    "DummyDomain": "traceable.annotation.domains",
    "ExtCounter": "traceable.annotation.domain_counters",
    "Float64Counter": "traceable.annotation.domain_counters",
    "Int64Counter": "traceable.annotation.domain_counters",
    "Profile": "traceable.annotation.profile",
    "Recording": "traceable.recording",
    "annotate_targets": "traceable.annotation.patching",
    "capture_when": "traceable.capture.triggers",
    "counter": "traceable.annotation.counters",
    "dump": "traceable.capture.flight",
    "expect": "traceable.annotation.contract",
    "get_domain": "traceable.annotation.domains",
    "instrument": "traceable.annotation.torch_modules",
    "instrument_copies": "traceable.annotation.torch_copies",
    "load": "traceable.recording",
    "record_gc": "traceable.annotation.pauses",
    "record_loop_pauses": "traceable.annotation.pauses",
    "step": "traceable.capture.steps",
    "steps": "traceable.capture.steps",
    "window": "traceable.capture.steps",
}

_OF_NVTX = frozenset(
    (
        "BatchOrdering",
        "CounterInterpolation",
        "CounterNoValueReason",
        "CounterSemantics",
        "CounterValueType",
        "EntryKind",
        "EventKind",
        "PayloadEntryType",
        "PredefinedScope",
        "TimestampType",
        "colors",
        "numpy_dtype",
    )
)
"""Names that are the nvtx package's own, for `import traceable as nvtx`: they describe, and emit nothing."""


def __getattr__(name: str) -> "Any":
    """Load the names that few programs use when they are first asked for."""
    if name == "__version__":
        from importlib.metadata import version

        return version("traceable")
    if name in _OF_NVTX:
        return _of_nvtx(name)
    if name == "nvtx":
        import sys

        return sys.modules[__name__]
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    try:
        value = getattr(importlib.import_module(_LATER[name]), name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        return _without_torch(name)
    globals()[name] = value
    return value


def _of_nvtx(name: str) -> "Any":
    try:
        import nvtx  # type: ignore[import-untyped]

        value = getattr(nvtx, name)
    except (ImportError, AttributeError) as error:
        raise AttributeError(f"traceable.{name} needs nvtx >= 0.2.17, which has it ({error})") from None
    globals()[name] = value
    return value


def _without_torch(name: str) -> "Any":
    def refuse(*_arguments: object, **_named: object) -> None:
        raise ImportError(f"traceable.{name} needs torch; install traceable[torch]", name="torch")

    return refuse


if _os.environ.get(_environment.GC) or _os.environ.get(_environment.LOOP_PAUSES):
    from traceable.annotation import pauses as _pauses

    _pauses.record_from_environment()

if _os.environ.get(_environment.COLLECTOR) == "nsys" and _os.environ.get(_environment.RUN_DIR):
    from traceable.capture import process as _process

    _process.tell_of_forks()

_witness.testify()

if any(_os.environ.get(name) for name in _environment.CONDITIONS):
    from traceable.capture import conditions as _conditions

    _conditions.begin_from_environment()

if _os.environ.get(_environment.CONTROL) or _os.environ.get(_environment.CONTROL_SIGNAL):
    from traceable.capture import triggers as _triggers

    _triggers.listen_from_environment()
