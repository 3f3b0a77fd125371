"""Run random programs of annotated calls, as data, in a recorded process. The programs: a JSON file, the argument.

A node is a dict: `kind`, `name`, `ops` (nodes, "suspend", "yield"), `raises`, `caught` (its error is caught by whoever
called it), `limit` (items taken from a generator before it is closed; null for all), `cancel` (a coroutine is run as a
task and cancelled after so many turns of the loop; null for a plain await).
"""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import suppress
from typing import Any

from traceable import annotate

Node = dict[str, Any]


class BoomError(Exception):
    pass


def run_sync(node: Node) -> None:
    try:
        if node["kind"] == "with":
            with annotate(node["name"]):
                body(node)
        elif node["kind"] == "function":
            annotate(node["name"])(body)(node)
        else:
            take(node)
    except BoomError:
        if not node["caught"]:
            raise


def body(node: Node) -> None:
    for op in node["ops"]:
        run_sync(op)
    if node["raises"]:
        raise BoomError


def generate(node: Node) -> Any:
    for op in node["ops"]:
        if op == "yield":
            yield
        else:
            run_sync(op)
    if node["raises"]:
        raise BoomError


def take(node: Node) -> None:
    generator = annotate(node["name"])(generate)(node)
    if node["limit"] is None:
        for _item in generator:
            pass
        return
    with suppress(StopIteration):
        for _count in range(node["limit"]):
            next(generator)
    generator.close()


async def run_async(node: Node) -> None:
    kind = node["kind"]
    if kind in ("with", "function", "generator"):
        return run_sync(node)
    try:
        if kind == "async_with":
            async with annotate(node["name"]):
                await coroutine(node)
        elif kind == "async_generator":
            await take_async(node)
        elif node["cancel"] is None:
            await annotate(node["name"])(coroutine)(node)
        else:
            await cancel_task(node)
    except BoomError:
        if not node["caught"]:
            raise


async def coroutine(node: Node) -> None:
    for op in node["ops"]:
        if op == "suspend":
            await asyncio.sleep(0)
        else:
            await run_async(op)
    if node["raises"]:
        raise BoomError


async def generate_async(node: Node) -> Any:
    for op in node["ops"]:
        if op == "suspend":
            await asyncio.sleep(0)
        elif op == "yield":
            yield
        else:
            await run_async(op)
    if node["raises"]:
        raise BoomError


async def take_async(node: Node) -> None:
    generator = annotate(node["name"])(generate_async)(node)
    if node["limit"] is None:
        async for _item in generator:
            pass
        return
    with suppress(StopAsyncIteration):
        for _count in range(node["limit"]):
            await generator.__anext__()
    await generator.aclose()


async def cancel_task(node: Node) -> None:
    task = asyncio.ensure_future(annotate(node["name"])(coroutine)(node))
    for _turn in range(node["cancel"]):
        await asyncio.sleep(0)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def main(path: str) -> None:
    with open(path) as file:  # noqa: PTH123 - the fewest imports in the recorded process
        programs = json.load(file)
    for program in programs:
        with suppress(BoomError):
            await run_async(program)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
