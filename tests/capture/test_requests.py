"""A request is over when a range of that name ends, however it was opened; or when an application has answered."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.slow

COUNTED = """
import asyncio, copy, pickle
import traceable as t
from traceable.annotation.request_counter import count
seen = 0
def now():
    global seen
    new, seen = count.over - seen, count.over
    return new
"""


@pytest.mark.parametrize("pure", ["", "1"], ids=["native", "pure"])
@pytest.mark.parametrize("debug", ["", "1"], ids=["", "debug"])
def test_each_way_to_open_a_range_counts_once(program, pure, debug):
    code = """
with t.annotate("request"): print(now(), end=" ")
print(now())
with t.annotate(message="request", domain="http", payload={"a": 1}): pass
try:
    with t.annotate("request"): raise KeyError
except KeyError: pass
print(now())
@t.annotate("request", level=2)
def function(a): return a
@t.annotate
def request(): return 7
class App:
    @t.annotate("request")
    async def handle(self): return await asyncio.sleep(0, self)
    @t.annotate("request")
    def bound(self): return self
    @t.annotate("request")
    def several(self): yield from (1, 2)
app = App()
assert function(3) == 3 and request() == 7 and app.bound() is app and list(app.several()) == [1, 2]
assert asyncio.run(app.handle()) is app and asyncio.iscoroutinefunction(App.handle)
print(now())
async def block():
    async with t.annotate("request"): await asyncio.sleep(0)
asyncio.run(block())
t.push_range("request"); t.push_range("other"); t.pop_range(); t.pop_range()
t.end_range(t.start_range("request"))
t.end_range(t.start_range("other"))
print(now())
range_ = t.annotate("request")
for other in (range_, pickle.loads(pickle.dumps(range_)), copy.copy(range_)):
    with other: pass
assert isinstance(range_, t.annotate) and repr(range_) == "annotate(message='request')"
print(now())
with t.annotate("requests"): pass
@t.annotate("request")
class Routes:
    def index(self): pass
Routes().index()
print(now())
"""
    ran = program(COUNTED + code, TRACEABLE_AFTER_REQUEST="1000", TRACEABLE_PURE=pure, TRACEABLE_DEBUG=debug)
    assert ran.done.stdout.splitlines() == ["0 1", "2", "5", "3", "3", "0"], ran.done.stderr
    assert ran.messages == []


def test_without_the_question_nothing_is_counted_or_loaded(program):
    code = """
import sys, traceable
with traceable.annotate("request"): pass
print("traceable.annotation.request_counter" in sys.modules)
"""
    assert program(code).done.stdout == "False\n"


def test_a_middleware_counts_its_requests_in_the_place_of_ranges(program):
    code = """
from traceable.capture.middleware import ASGIMiddleware, WSGIMiddleware
async def app(scope, receive, send):
    with t.annotate("request"): pass
    if scope["type"] == "lifespan": raise ValueError
wrapped = ASGIMiddleware(app)
asyncio.run(wrapped({"type": "http", "path": "/"}, None, None))
try: asyncio.run(wrapped({"type": "lifespan"}, None, None))
except ValueError: pass
print(now())
def plain(environ, start_response):
    start_response("200 OK", [])
    return [b"x"]
answers = WSGIMiddleware(plain, token="secret")
assert answers({"PATH_INFO": "/work"}, lambda status, headers: None) == [b"x"]
print(now())
said = []
answers({"PATH_INFO": "/start_profile", "REQUEST_METHOD": "POST"}, lambda status, headers: said.append(status))
print(now(), said)
"""
    ran = program(COUNTED + code, TRACEABLE_AFTER_REQUEST="1000")
    assert ran.done.stdout.splitlines() == ["1", "1", "0 ['401 Unauthorized']"], ran.done.stderr
