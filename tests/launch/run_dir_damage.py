"""Damages a run directory as somebody who means harm would, or a disk: by name of a damage, or by a random number."""

from __future__ import annotations

import copy
import json
import os
import random
import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

DEEP = b"[" * 100_000
VALUES: tuple[Any, ...] = (
    *(None, True, -1, 0, 1, 1 << 31, 1 << 62, 1 << 63, -(1 << 70), 10**400, 1.5, 1e308, float("nan"), float("inf")),
    *(
        "",
        "x",
        ".",
        "..",
        "../victim/mine",
        "/etc/passwd",
        "mine\0",
        "\ud800",
        "\x1b[2J",
        "a" * 70_000,
        "0-3",
        "9" * 5000,
    ),
    *([], [[]], [None], ["x", 1], {}, {"": []}, {"pid": [], "name": {}}, [[1, 2, 3]], [[5, 1 << 61]]),
)


def places(content: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every value in a JSON document."""
    if path:
        yield path
    members = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for key, value in members:
        yield from places(value, (*path, key))


def change_values(path: Path, random_: random.Random) -> None:
    content = json.loads(path.read_bytes())
    for _ in range(random_.choice((1, 1, 2, 5))):
        result = list(places(content))
        if not result:
            continue
        *parents, last = random_.choice(result)
        holder = content
        for key in parents:
            holder = holder[key]
        if random_.random() < 0.15 and isinstance(holder, dict):
            del holder[last]
        else:
            holder[last] = copy.deepcopy(random_.choice(VALUES))
    path.write_bytes(json.dumps(content).encode())


def change_bytes(path: Path, random_: random.Random) -> None:
    data = bytearray(path.read_bytes()) or bytearray(b"{}")
    for _ in range(random_.choice((1, 3, 30))):
        data[random_.randrange(len(data))] = random_.randrange(256)
    path.write_bytes(data)


def change_a_number(path: Path, random_: random.Random) -> None:
    """Write a number of 4 or 8 bytes, of which headers and counters consist."""
    data = bytearray(path.read_bytes())
    size = random_.choice((4, 8))
    limit = max(1, min(len(data), random_.choice((64, 256, 4096))) // size)
    value = random_.choice(
        (0, 1, 3, 1 << 22, 1 << 31, (1 << 31) - 1, (1 << 32) - 1, 1 << 62, (1 << 63) - 1, (1 << 64) - 1)
    )
    at = size * random_.randrange(limit)
    data[at : at + size] = struct.pack("<Q", value)[:size]
    path.write_bytes(data)


def cut_off(path: Path, random_: random.Random) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: random_.randrange(len(data) + 1)])


def nest_deeply(path: Path, random_: random.Random) -> None:
    path.write_bytes(random_.choice((DEEP, b'{"schema": ' + DEEP, DEEP + b"]" * len(DEEP), b'{"a":' * 50_000)))


def replace_with_another_kind(path: Path, random_: random.Random) -> None:
    path.unlink()
    kind = random_.randrange(6)
    if kind == 0:
        os.mkfifo(path)
    elif kind == 1:
        path.mkdir()
    elif kind == 2:
        path.symlink_to("/dev/zero")
    elif kind == 3:
        path.symlink_to("../victim/mine.sqlite")
    elif kind == 4:
        path.symlink_to(path.name)
    else:
        with socket.socket(socket.AF_UNIX) as one:
            here = os.open(path.parent, os.O_PATH)
            one.bind(f"/proc/self/fd/{here}/{path.name}")
            os.close(here)


def lengthen(path: Path, random_: random.Random) -> None:
    os.truncate(path, random_.choice((64 << 20, 1 << 40)))


Damage = Callable[[Path, random.Random], None]
OF_JSON: tuple[Damage, ...] = (*[change_values] * 8, change_bytes, cut_off, nest_deeply)
OF_ANY: tuple[Damage, ...] = (change_bytes, *[change_a_number] * 4, cut_off, replace_with_another_kind, lengthen)


def damage(directory: Path, seed: int) -> str:
    """Damage one or two files of a run directory, and return what was done."""
    random_ = random.Random(seed)
    files = sorted(path for path in directory.rglob("*") if path.is_file() and not path.is_symlink())
    done = []
    for path in random_.sample(files, random_.choice((1, 1, 2))):
        is_json = path.suffix == ".json"
        kinds = (*OF_JSON, *([] if path.name == "run.json" else OF_ANY[-2:])) if is_json else OF_ANY
        kind = random_.choice(kinds)
        kind(path, random_)
        done.append(f"{kind.__name__} {path.relative_to(directory)}")
    return ", ".join(done)
