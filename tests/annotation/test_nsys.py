"""Under real nsys. 2022.4 and 2023.4 make nvtx >= 0.2.12 silent; through us every range arrives, both ways."""

from __future__ import annotations

import pytest

from .conftest import Listen


def test_no_nsys_makes_the_ranges_silent(listen_nsys: Listen) -> None:
    nvtx_log = listen_nsys("""
import traceable
@traceable.annotate(domain="server", color="green", category="stage")
def forward(): pass
for batch in range(20):
    with traceable.annotate("pack", payload=batch): forward()
traceable.mark("done")
""")
    assert len(nvtx_log.find("pack")) == len(nvtx_log.find("forward")) == 20
    assert [event.payload for event in nvtx_log.find("pack")] == list(range(20))
    assert {event.domain for event in nvtx_log.find("forward")} == {"server"}
    assert len(nvtx_log.find("done")) == 1


SLEEPERS = """
from traceable import annotate
import asyncio
@annotate("decorated")
async def decorated(seconds): await asyncio.sleep(seconds)
async def block(seconds):
    async with annotate("request"): await asyncio.sleep(seconds)
async def main():
    await asyncio.gather(*(kind(s) for s in (0.05, 0.1, 0.15) for kind in (block, decorated)))
asyncio.run(main())
"""


@pytest.mark.parametrize("name", ["request", "decorated"])
def test_three_requests_at_once_keep_their_own_durations_under_nsys(listen_nsys: Listen, name: str) -> None:
    check_durations(listen_nsys, name)


@pytest.mark.parametrize("name", ["request", "decorated"])
def test_three_requests_at_once_keep_their_own_durations_under_the_recorder(listen: Listen, name: str) -> None:
    check_durations(listen, name)


def check_durations(listen: Listen, name: str) -> None:
    """Each range lasts at least its own sleep, and is over when the next longer sleep is: 150, 101, 50 would not be."""
    ranges = [event for event in listen(SLEEPERS).find(name) if event.kind == "start"]
    durations = [(event.end_ns or 0) - event.start_ns for event in ranges]
    assert len(ranges) == 3
    assert durations == sorted(durations)
    assert all(duration >= sleep for duration, sleep in zip(durations, (50e6, 100e6, 150e6), strict=True))
    assert sorted(event.end_ns or 0 for event in ranges) == [event.end_ns for event in ranges]


HOSTILE = """
import threading
from traceable import annotate, counter, get_domain, mark
texts = ["", "\\0", "a\\0b", "\\ud800", "x" * 65536, "\\U0010ffff", "\\x1b[31m", "%s%n"]
def named():
    with annotate("in a thread"): pass
for text in texts:
    with annotate(text, domain=text, category=text, payload={text: text}): pass
    with annotate("own domain", domain="d", category=text): pass
    mark(text)
    counter(text, 1, domain=text)
    get_domain(text)
    thread = threading.Thread(target=named)
    thread.name = text
    thread.start()
    thread.join()
mark("last", payload=len(texts))
"""


def test_no_text_makes_nsys_refuse_the_report(listen_nsys: Listen) -> None:
    """An empty domain, category or thread name is one that the importer of 2022.4 stops at: all would be lost."""
    nvtx_log = listen_nsys(HOSTILE)
    (last,) = nvtx_log.find("last")
    assert len(nvtx_log.find("own domain")) == len(nvtx_log.find("in a thread")) == last.payload
    (empty,) = (event for event in nvtx_log.find("") if event.kind == "push")
    assert empty.domain is None
    assert not empty.category
    assert {"\N{SYMBOL FOR NULL}", "a\N{SYMBOL FOR NULL}b", "?"} <= {event.domain for event in nvtx_log.events}
