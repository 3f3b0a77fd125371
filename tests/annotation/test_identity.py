"""Which instance each instance began in: by a context variable, whoever runs the tasks."""

from __future__ import annotations

import pytest

from traceable.protocol.nvtx import (
    ACTIVE_DOMAIN,
    INSTANCE_BITS,
    PAYLOAD_DOMAIN,
    is_identity,
    pack_identity,
    unpack_instance,
    unpack_parent,
)

from .conftest import Event, Listen, NvtxLog

Tree = dict[str, str | None]
START = """
import asyncio
from traceable import annotate
def named(name, **more):
    @annotate(name, **more)
    async def run(*parts):
        for part in parts: await part
    return run
"""


def next_range(nvtx_log: NvtxLog, mark: Event) -> Event:
    here = (e for e in nvtx_log.events if e.thread == mark.thread and e.start_ns >= mark.start_ns)
    return next(e for e in here if e.kind in ("push", "start") and e.domain != ACTIVE_DOMAIN)


def parents(nvtx_log: NvtxLog) -> Tree:
    """Return the name of each instance's parent."""
    numbers: dict[int, str] = {}
    above: dict[str, int] = {}
    for event in nvtx_log.events:
        if event.domain == PAYLOAD_DOMAIN and event.name == "{}":
            payload = event.payload
            event = next_range(nvtx_log, event)
        elif event.domain == PAYLOAD_DOMAIN or not is_identity(int(event.payload or 0)):
            continue
        else:
            payload = event.payload
        assert payload is not None and event.name is not None
        numbers[unpack_instance(int(payload))] = event.name
        above[event.name] = unpack_parent(int(payload))
    return {name: numbers[number] if number else None for name, number in above.items()}


def test_an_identity_is_taken_apart_as_it_was_packed() -> None:
    for instance in (1, 77, INSTANCE_BITS):
        for parent in (0, 5, INSTANCE_BITS):
            packed = pack_identity(instance, parent)
            assert is_identity(packed) and 0 < packed < 1 << 63
            assert (unpack_instance(packed), unpack_parent(packed)) == (instance, parent)
    assert not any(is_identity(number) for number in (0, 1, -1, 1 << 61, -(1 << 63), -(1 << 62)))


def test_awaiting_creating_and_gathering_hand_the_parent_on(listen: Listen) -> None:
    nvtx_log = listen(
        START
        + """
async def main():
    inner = named("inner")
    await named("outer")(named("first")(), named("second")(named("third")()))
    async def fan():
        await asyncio.gather(named("left")(asyncio.sleep(0)), named("right")(named("deep")(asyncio.sleep(0))))
        task = asyncio.create_task(named("task")(asyncio.sleep(0)))
        await task
    await named("fan")(fan())
    await named("last")()
asyncio.run(main())
"""
    )
    assert parents(nvtx_log) == {
        "outer": None, "first": "outer", "second": "outer", "third": "second",
        "fan": None, "left": "fan", "right": "fan", "deep": "right", "task": "fan", "last": None,
    }  # fmt: skip


def test_blocks_generators_and_fields_are_parents_and_children(listen: Listen) -> None:
    nvtx_log = listen(
        START
        + """
@annotate("generator")
def generator():
    with annotate("in generator", payload={"n": 1}): pass
    yield
    with annotate("in generator again", payload={"n": 2}): pass
    yield
@annotate("stream")
async def stream():
    await named("token 1")()
    yield
    async with annotate("block in stream"):
        yield
        await named("token 2")()
async def consume():
    turn = 0
    async for _ in stream():
        turn += 1
        await named(f"consumer {turn}")()
    pair = generator(), generator()
    next(pair[0])
    with annotate("between", payload={"n": 3}): pass
    next(pair[0])
async def main():
    async with annotate("block"):
        await named("in block")(asyncio.sleep(0))
        async with annotate("numbered", payload=7):
            await asyncio.sleep(0)
            async with annotate("fields", payload={"a": 1}): await named("deepest")()
        with annotate("plain"): await_nothing = annotate("later", payload={"z": 1}); await_nothing.__enter__()
        await_nothing.__exit__(None, None, None)
    await named("consume")(consume())
asyncio.run(main())
"""
    )
    assert parents(nvtx_log) == {
        "block": None, "in block": "block", "numbered": "block", "fields": "numbered", "deepest": "fields",
        "later": "block", "consume": None, "stream": "consume", "token 1": "stream", "consumer 1": "consume",
        "block in stream": "stream", "consumer 2": "consume", "token 2": "block in stream", "generator": "consume",
        "in generator": "generator", "between": "consume", "in generator again": "generator", "plain": "block",
    }  # fmt: skip


PLAIN = """
import asyncio, threading
from traceable import annotate, end_range, pop_range, push_range, start_range

@annotate("decorated")
def decorated(): pass

@annotate("method", payload=5)
def numbered(): pass

def plain(where):
    with annotate(f"bare {where}"): pass
    with annotate(f"int {where}", payload=3):
        with annotate(f"inner {where}", payload=4): pass
    with annotate(f"float {where}", payload=2.5): pass
    with annotate(f"fields {where}", payload={"n": 1}): pass
    push_range(f"pushed {where}", payload=7); pop_range()
    end_range(start_range(f"started {where}"))
    end_range(start_range(f"started int {where}", payload=8))

@annotate("run")
async def run():
    plain("run")
    async with annotate("block", payload=9): plain("block")
    plain("after")

async def main():
    plain("before")
    await run()
    plain("outside")
asyncio.run(main())
"""
FORMS = ("bare", "int", "inner", "float", "fields", "pushed", "started", "started int")


def test_what_the_thread_does_not_say_is_said_of_every_plain_range(listen: Listen) -> None:
    nvtx_log = listen(PLAIN)
    tree = parents(nvtx_log)
    assert {form: tree[f"{form} block"] for form in FORMS} == dict.fromkeys(FORMS, "block")
    # In a stretch the thread says it, but of start/end ranges; outside of all there is nothing to say.
    output = {"fields", "started", "started int"}
    for where, parent in {"run": "run", "after": "run", "before": None, "outside": None}.items():
        assert {form: tree[f"{form} {where}"] for form in FORMS if f"{form} {where}" in tree} == dict.fromkeys(
            output if parent else ["fields"], parent
        )
    numbers = {event.name: event.payload for event in nvtx_log.events if event.domain is None}
    for where in ("block", "run", "outside"):
        of_form = {form: numbers[f"{form} {where}"] for form in ("int", "inner", "float", "pushed", "started int")}
        assert of_form == {"int": 3, "inner": 4, "float": 2.5, "pushed": 7, "started int": 8}


def test_interleaved_tasks_keep_their_parents(listen: Listen) -> None:
    nvtx_log = listen(
        START
        + """
@annotate("request")
async def request(n):
    async with annotate(f"request {n}"):
        for step in range(3):
            async with annotate(f"block {n}.{step}"):
                await named(f"step {n}.{step}")(asyncio.sleep(0))
async def main(): await asyncio.gather(*map(request, range(4)))
asyncio.run(main())
"""
    )
    tree = parents_by_prefix(nvtx_log)
    assert len(tree) == 4 * (1 + 3 + 3)
    for name, above in tree.items():
        kind, _, rest = name.partition(" ")
        n = rest.partition(".")[0]
        assert above == {"request": "request", "block": f"request {n}", "step": f"block {rest}"}[kind]


def parents_by_prefix(nvtx_log: NvtxLog) -> Tree:
    numbers = {
        unpack_instance(int(event.payload or 0)): event.name
        for event in nvtx_log.events
        if event.domain not in (ACTIVE_DOMAIN, PAYLOAD_DOMAIN) and event.payload
    }
    return {
        str(event.name): numbers[unpack_parent(int(event.payload))]
        for event in nvtx_log.events
        if event.domain is None and event.payload and unpack_parent(int(event.payload))
    }


CARRIED: dict[str, tuple[str, Tree]] = {
    "to_thread": (
        """
def blocking():
    with annotate("in thread", payload={"n": 1}): pass
async def body(): await asyncio.to_thread(blocking)
""",
        {"in thread": "request"},
    ),
    "call_soon": (
        """
async def body():
    done = asyncio.get_running_loop().create_future()
    def callback():
        with annotate("callback", payload={"n": 1}): done.set_result(1)
    asyncio.get_running_loop().call_soon(callback)
    await done
""",
        {"callback": "request"},
    ),
    "copy_context": (
        """
import concurrent.futures, contextvars
async def body():
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        pool.submit(contextvars.copy_context().run, blocking).result()
def blocking():
    with annotate("copied", payload={"n": 1}): pass
""",
        {"copied": "request"},
    ),
    "executors": (
        """
import contextvars, inspect, threading
from concurrent.futures import ThreadPoolExecutor
theirs = contextvars.ContextVar("theirs", default="pool's")
async def body():
    loop = asyncio.get_running_loop()
    theirs.set("request's")
    with ThreadPoolExecutor(1, initializer=theirs.set, initargs=("thread's",)) as pool:
        # Of the context nothing else is carried, and the thread is left as it was.
        assert await loop.run_in_executor(pool, blocking, "executor") == "thread's"
        assert pool.submit(blocking, name="submitted").result() == "thread's"
        assert list(pool.map(blocking, ["mapped"])) == ["thread's"]
        try: await loop.run_in_executor(pool, blocking, 1, 2)
        except TypeError as error: assert "blocking()" in str(error)
    await loop.run_in_executor(None, blocking, "default executor")
    thread = threading.Thread(target=blocking, args=("thread",))
    thread.start(); thread.join()
def blocking(name):
    with annotate(name): return theirs.get()
async def after():
    with ThreadPoolExecutor(1) as pool:
        pool.submit(asyncio.run, named("alone")()).result()
        pool.submit(blocking, "detached").result()
asyncio.run(after())
assert list(inspect.signature(ThreadPoolExecutor.submit).parameters) == ["self", "fn", "args", "kwargs"]
""",
        {
            **dict.fromkeys(["executor", "submitted", "mapped", "default executor"], "request"),
            "alone": None,
        },
    ),
}


@pytest.mark.parametrize("how", CARRIED)
def test_what_carries_the_parent_to_other_threads_and_turns(listen: Listen, how: str) -> None:
    body, expected = CARRIED[how]
    nvtx_log = listen(START + body + "\nasync def main(): await named('request')(body())\nasyncio.run(main())\n")
    assert parents(nvtx_log) == {"request": None, **expected}


def test_task_groups_hand_the_parent_on(listen: Listen) -> None:
    nvtx_log = listen(
        START
        + """
import sys
async def body():
    if sys.version_info < (3, 11):
        await asyncio.gather(named("a")(asyncio.sleep(0)), named("b")(asyncio.sleep(0)))
        return
    async with asyncio.TaskGroup() as group:
        group.create_task(named("a")(asyncio.sleep(0)))
        async with annotate("block"): group.create_task(named("b")(asyncio.sleep(0)))
async def main(): await named("request")(body())
asyncio.run(main())
"""
    )
    tree = parents(nvtx_log)
    assert tree["a"] == "request"
    assert tree["b"] == ("block" if "block" in tree else "request")


LIBRARY = """
import {library} as library
from traceable import annotate, mark
@annotate("child")
async def child(n):
    async with annotate(f"block {{n}}"):
        for _ in range(n):
            with annotate(f"step {{n}}"): pass
            await library.sleep(0)
@annotate("request")
async def request():
    async with library.{group}() as group:
        for n in (1, 2, 3): group.start_soon(child, n)
    await library.to_thread.run_sync(blocking)
def blocking():
    with annotate("in thread", payload={{"n": 1}}): pass
{run}
"""


@pytest.mark.parametrize("runner", ["anyio on asyncio", "anyio on trio", "trio"])
def test_anyio_and_trio_tasks_are_right(listen: Listen, runner: str) -> None:
    library, group = ("trio", "open_nursery") if runner == "trio" else ("anyio", "create_task_group")
    for needed in {library, runner.rpartition(" ")[2]}:
        pytest.importorskip(needed)
    run = "library.run(request)" if runner == "trio" else f"library.run(request, backend={runner.split()[-1]!r})"
    nvtx_log = listen(LIBRARY.format(library=library, group=group, run=run))
    tree = parents(nvtx_log)
    assert tree["request"] is None
    assert tree["in thread"] == tree["child"] == "request"
    assert {tree[f"block {n}"] for n in (1, 2, 3)} == {"child"}
    children = [event for event in nvtx_log.find("child") if event.domain is None]
    assert len(children) == 3
    for n in (1, 2, 3):
        (block,) = nvtx_log.find(f"block {n}")
        (whole,) = (
            c for c in children if unpack_instance(int(c.payload or 0)) == unpack_parent(int(block.payload or 0))
        )
        own = [s for s in nvtx_log.find("child") if s.domain == ACTIVE_DOMAIN and s.payload == whole.payload]
        assert len(own) == n + 1
        steps = nvtx_log.find(f"step {n}")
        assert len(steps) == n
        assert all(sum(stretch.holds(step) for stretch in own) == 1 for step in steps)


def test_a_task_group_that_is_cancelled_leaves_every_range_closed(listen: Listen) -> None:
    pytest.importorskip("anyio")
    pytest.importorskip("trio")
    nvtx_log = listen("""
import anyio
from traceable import annotate, mark
@annotate("child")
async def child():
    async with annotate("block"): await anyio.sleep_forever()
async def main():
    async with anyio.create_task_group() as group:
        for _ in range(3): group.start_soon(child)
        await anyio.wait_all_tasks_blocked()
        group.cancel_scope.cancel()
    mark("after")
for backend in ("asyncio", "trio"): anyio.run(main, backend=backend)
""")
    assert len([e for e in nvtx_log.events if e.kind == "start"]) == 12
    assert all(event.end_ns is not None for event in nvtx_log.events if event.kind != "mark")
