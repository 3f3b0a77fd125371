"""A pytest plugin: the fixture `nvtx_events` records the NVTX calls that a test really makes, without a GPU or nsys.

Load it with `pytest -p traceable.testing`, or `pytest_plugins = ["traceable.testing"]` in the root conftest.py. It
attaches the embedded recorder to the test process, so it records every library that uses NVTX, not only ours. It starts
no profiler and records no GPU work. `docs/testing.md` shows its use.

NVTX looks for its profiler once, at the first call in each shared library. Where the plugin is loaded too late for
that, pytest's header reports it and the fixture fails with the remedy: it never returns nothing by mistake.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from traceable.errors import Message, TraceableError
from traceable.live.attachment import Host, attach
from traceable.live.recording import LiveRecording
from traceable.testing.events import Mark, NvtxEvents, Range, Sample

__all__ = ["Mark", "NvtxEvents", "Range", "Sample", "nvtx_events"]

_PLUGIN = Host(
    "traceable.testing",
    "load the plugin before any annotated module: `pytest -p traceable.testing`, or pytest_plugins in a root "
    "conftest.py that imports none of them at its top",
)


def pytest_addoption() -> None:
    """Attach. Of all hooks the one that runs as soon as a plugin is loaded, before any conftest that comes after."""
    attach(_PLUGIN)


def pytest_report_header() -> list[str]:
    """Report at the top of the run why `nvtx_events` can't record, or which ranges it will miss."""
    attachment = attach(_PLUGIN)
    if attachment.error is None:
        lines = attachment.list_missed()
    else:
        error = attachment.error
        lines = [Message(error.code, f"nvtx_events can't record: {error.message}")]
    return [f"traceable: {line.printed}" for line in lines]


@pytest.fixture
def nvtx_events() -> Iterator[NvtxEvents]:
    """The events that this process and its children emitted since this fixture was set up: a `NvtxEvents`.

    Fails, with the remedy, where nothing could be recorded.
    """
    events = _open_events()
    if isinstance(events, TraceableError):
        pytest.fail(f"nvtx_events can't record: {events}", pytrace=False)
    yield events
    events.close()


def _open_events() -> NvtxEvents | TraceableError:
    """Return the error instead of raising it: pytest shows a chain of errors where one sentence is enough."""
    try:
        return NvtxEvents(LiveRecording(*attach(_PLUGIN).find_recording()))
    except TraceableError as error:
        return error
