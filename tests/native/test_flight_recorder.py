"""The flight recorder keeps what came last, whole, and no more memory than it may; whatever ends the process."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from traceable.collectors.recorder.recording import ProcessRecording, read_recording

pytestmark = pytest.mark.slow

Session = Any  # conftest.Session
Emit = Callable[..., subprocess.CompletedProcess[str]]

RING = "TRACEABLE_FLIGHT_RECORDER"
SMALL = "1000000B"
HELD = "SELECT name, start, end, traceableClipped FROM named WHERE name LIKE 'held%' ORDER BY name"


def process(session: Session) -> ProcessRecording:
    (result,) = read_recording(session.run_dir / "recording").processes
    return result


def ring_bytes(session: Session) -> int:
    return sum(path.stat().st_size for path in session.run_dir.rglob("ring"))


def numbers_by_thread(session: Session) -> dict[object, list[int]]:
    """Check that every numbered range says the same in all its places; return the numbers of each thread."""
    query = (
        "SELECT tid, int64Value, name, color FROM named"
        " WHERE eventType = 59 AND int64Value IS NOT NULL ORDER BY tid, int64Value"
    )
    result: dict[object, list[int]] = {}
    for tid, number, name, color in session.rows(query):
        assert name == f"number {number}" + "." * (number % 64)
        assert color == (number if number % 3 else None)
        result.setdefault(tid, []).append(number)
    return result


# ---- deaths


@pytest.mark.parametrize("seed", range(16))
def test_whenever_it_is_killed_each_thread_has_its_last_ranges_without_a_gap(
    session: Session, emitter: str, seed: int
) -> None:
    choice = random.Random(seed)
    limit = choice.choice(["100000B", SMALL, "2000000ns", "20000000ns,400000B", "10000000ns"])
    threads, least = choice.choice([1, 1, 2, 5]), choice.randrange(1, 30_000)
    environment = session.environment(**{RING: limit})
    with subprocess.Popen([emitter, "numbered", str(threads), "0"], env=environment, stdout=subprocess.PIPE) as program:
        assert program.stdout is not None
        output = b""
        while len(output) < least * 8:
            output += os.read(program.stdout.fileno(), 65536)
        program.kill()
        output += program.stdout.read()
    last = len(output) // 8
    assert session.finalise().notes == ()
    result = numbers_by_thread(session)
    for numbers in result.values():
        assert numbers == list(range(numbers[0], numbers[-1] + 1))
    # Of several threads this one may not have run within what is shown.
    if program.pid in result or threads == 1:
        assert result[program.pid][-1] in (last, last + 1)
    window = process(session).window
    assert window is not None
    if "ns" in limit:
        assert window.end_ns - window.start_ns <= int(limit.partition("ns")[0])
    if limit.endswith("B"):
        assert ring_bytes(session) <= int(limit.rpartition(",")[2].removesuffix("B"))
    ((first, last_ns),) = session.rows("SELECT min(start), max(coalesce(end, start)) FROM named WHERE eventType = 59")
    assert 0 <= first <= last_ns <= window.end_ns - window.start_ns


@pytest.mark.parametrize(
    ("scene", "code"),
    [("_exit", 9), ("segv", -signal.SIGSEGV), ("abort", -signal.SIGABRT), ("threads", 0)],
)
def test_however_it_ends_its_last_ranges_are_there(session: Session, emitter: str, scene: str, code: int) -> None:
    words = ["1", "100000"] if scene == "threads" else ["100000"]
    assert session.run(emitter, scene, *words, **{RING: SMALL}).returncode == code
    ((inner, whole),) = session.rows("SELECT count(*), sum(traceableClipped IS NULL) FROM named WHERE name = 'inner'")
    assert 10_000 < inner < 20_000
    assert inner - whole <= 1
    opened = session.rows("SELECT count(*), sum(traceableClipped) FROM named WHERE name = 'open'")
    assert opened == [(1, 1) if scene == "segv" else (0, None)]


# ---- what was open before


def test_ranges_whose_beginning_is_forgotten_are_shown_from_the_window_on_and_clipped(
    session: Session, emit: Emit
) -> None:
    emit("held", 4, 100_000, **{RING: SMALL})
    window = process(session).window
    assert window is not None
    length = window.end_ns - window.start_ns
    rows = session.rows(HELD)
    # `held 3` ended before what is shown began.
    assert [(name, start, clipped) for name, start, _, clipped in rows] == [
        ("held 0", 0, 1),
        ("held 1", 0, 1),
        ("held 2", 0, 1),
        ("held in other", 0, 1),
    ]
    ends = {name: end for name, _, end, _ in rows}
    assert ends["held 2"] < ends["held 1"] < ends["held 0"] <= length
    assert ends["held in other"] == length, "it was open at the end"
    assert session.rows("SELECT int64Value, category FROM named WHERE name = 'held in other'") == [(42, 7)]
    assert session.rows("SELECT count(*) FROM named WHERE name = 'after'") == [(1,)]
    assert session.rows("SELECT count(*) FROM named WHERE eventType = 59 AND end < start") == [(0,)]


def test_of_a_stack_that_takes_too_much_room_the_innermost_ranges_are_kept(session: Session, emit: Emit) -> None:
    emit("held", 3000, 100_000, **{RING: SMALL})
    held = [int(str(name).split()[1]) for name, *_ in session.rows(HELD) if str(name) != "held in other"]
    held.sort()
    assert 10 < len(held) < 1000
    assert held == list(range(2999 - len(held), 2999))
    ((inner, whole),) = session.rows("SELECT count(*), sum(traceableClipped IS NULL) FROM named WHERE name = 'inner'")
    assert inner - whole <= 1


def test_with_nothing_forgotten_nothing_is_clipped(session: Session, emit: Emit) -> None:
    emit("held", 4, 10, **{RING: "60000000000ns"})
    assert session.rows("SELECT count(*), count(traceableClipped) FROM named WHERE name LIKE 'held _'") == [(4, 0)]
    assert process(session).window.start_ns == 0  # type: ignore[union-attr]


# ---- memory


def test_a_thread_for_each_request_takes_no_more_room_than_one_for_all(session: Session, emit: Emit) -> None:
    emit("thread-each", 10_000, **{RING: "200000B"})
    assert ring_bytes(session) <= 200_000
    requests = [number for (number,) in session.rows("SELECT int64Value FROM named WHERE name = 'request' ORDER BY 1")]
    assert requests == list(range(requests[0], 10_000))
    assert len(requests) > 500
    query = (
        "SELECT DISTINCT s.value FROM named n JOIN ThreadNames t ON t.globalTid = n.globalTid"
        " JOIN StringIds s ON s.id = t.nameId WHERE n.int64Value = 9999"
    )
    assert session.rows(query) == [("served 9999",)]


def test_threads_that_ended_are_forgotten_when_they_are_too_old(session: Session, emit: Emit) -> None:
    emit("thread-each", 10_000, **{RING: "1000000ns"})
    assert ring_bytes(session) <= 2_000_000, "10,000 threads at 64 KiB each would be 655 MB"
    requests = [number for (number,) in session.rows("SELECT int64Value FROM named WHERE name = 'request' ORDER BY 1")]
    assert requests == list(range(requests[0], 10_000))


def test_what_more_threads_than_there_is_room_for_record_is_counted_as_dropped(session: Session, emit: Emit) -> None:
    emit("crowd", 60, **{RING: "100000B"})
    assert ring_bytes(session) <= 100_000
    dropped = process(session).dropped
    ((shown,),) = session.rows("SELECT count(*) FROM named WHERE eventType = 59")
    assert dropped > 0
    assert shown >= 20
    (note,) = session.finalise().notes
    assert note.code == "events_dropped"
    assert note.startswith(f"{dropped} ")
    ((lost,),) = session.rows("SELECT value FROM TRACEABLE_COMPLETENESS WHERE kind = 'lost'")
    assert json.loads(str(lost))["reason"] == "ring_full"


def test_a_long_message_is_cut_and_the_ones_around_it_are_whole(session: Session, emit: Emit) -> None:
    emit("messages", 1_000_000, **{RING: "60000000000ns"})
    texts = [str(name) for (name,) in session.rows("SELECT name FROM named WHERE length(name) > 4000 ORDER BY start")]
    assert texts == [("abcdefghijklmnopqrstuvwxyz" * 400)[: 64 * 1024 // 8], "é" * (64 * 1024 // 8 // 2)]
    repeated = session.rows("SELECT name FROM named WHERE name LIKE 'repeated%' ORDER BY start")
    assert [name for (name,) in repeated] == [f"repeated {k}" for _ in range(3) for k in range(500)]


def test_a_full_disk_makes_the_ring_smaller_and_nothing_else(
    new_session: Callable[[Path], Session], full_disk: Path, emitter: str, tmp_path: Path
) -> None:
    done = new_session(full_disk).run(emitter, "numbered", "0", "50000", **{RING: "64000000B"})
    assert (done.returncode, done.stderr) == (0, "")
    elsewhere = new_session(tmp_path / "elsewhere")
    shutil.copytree(full_disk / "recording", elsewhere.run_dir / "recording")
    (numbers,) = numbers_by_thread(elsewhere).values()
    assert numbers == list(range(numbers[0], 50_001))
    assert len(numbers) > 1000


def test_a_file_size_limit_does_not_kill_the_program(session: Session, emit: Emit) -> None:
    emit("file-size", 200_000, 100_000, **{RING: "64000000B"})
    ((remaining,),) = session.rows("SELECT count(*) FROM named")
    assert 0 < remaining < 100_000
    assert session.finalise().notes == ()


# ---- dumps


@pytest.mark.parametrize(("limit", "count"), [("50000000ns", 2), ("300000B", 6)])
def test_a_dump_among_recording_threads_is_whole_up_to_its_moment(
    session: Session, emit: Emit, new_session: Callable[[Path], Session], limit: str, count: int, tmp_path: Path
) -> None:
    dumps = tmp_path / "dumps"
    dumps.mkdir()
    output = [line.split() for line in emit("dumps", 3, count, dumps, **{RING: limit}).stdout.splitlines()]
    assert [line[-1] for line in output] == ["0"] * count
    seen = 0
    for number, line in enumerate(output):
        dump = new_session(tmp_path / f"run{number}")
        (dumps / str(number)).rename(dump.run_dir / "recording")
        window = process(dump).window
        assert window is not None
        assert (window.dumped, window.dumped_by) == (True, "the emitter")
        assert dump.finalise().notes == ()
        result = numbers_by_thread(dump)
        for numbers in result.values():
            assert numbers == list(range(numbers[0], numbers[-1] + 1))
        # A thread that did not run within what is shown is not there.
        ended = dict(zip(map(int, line[:-1:2]), map(int, line[1:-1:2]), strict=True))
        assert all(numbers[-1] >= ended[tid] for tid, numbers in result.items())
        seen += len(result)
    assert seen > 0
    assert session.finalise().database is not None, "the recorder went on"


def test_without_a_ring_there_is_nothing_to_dump(session: Session, emitter: str, tmp_path: Path) -> None:
    done = session.run(emitter, "dumps", "1", "1", str(tmp_path))
    assert done.stdout.split()[-1] == str(errno.ENODATA)
    assert list((tmp_path / "0").iterdir()) == []


# ---- processes, signals, a variable that is none


def test_forked_children_have_rings_of_their_own(session: Session, emit: Emit) -> None:
    emit("fork", 3, 50_000, **{RING: SMALL})
    assert len(list(session.run_dir.rglob("ring"))) == 4
    rows = session.rows(
        "SELECT count(*), sum(traceableClipped) FROM named WHERE name = 'registered before' GROUP BY pid ORDER BY 1"
    )
    assert len(rows) == 4
    assert all(5_000 < count < 50_000 for count, _ in rows[1:])
    assert session.rows("SELECT count(*) FROM named WHERE name = 'child'") == [(3,)]


def test_a_fork_while_other_threads_record_disturbs_neither_side(session: Session, emit: Emit) -> None:
    emit("fork-among-threads", 4, 20_000, 30, **{RING: "60000000000ns"})
    rows = session.rows("SELECT name, count(*), count(DISTINCT pid) FROM named GROUP BY name ORDER BY name")
    assert rows == [("child", 30, 30), ("forking", 30, 1), ("inner", 80_000, 1), ("outer", 80_000, 1)]


def test_a_signal_handler_may_call_nvtx_at_any_moment(session: Session, emit: Emit) -> None:
    _, handled = map(int, emit("signals", 20, **{RING: "60000000000ns"}).stdout.split())
    ((recorded,),) = session.rows("SELECT count(*) FROM named WHERE name = 'handler'")
    assert recorded + process(session).dropped == handled


@pytest.mark.parametrize("value", ["5s", "0ns", "5000000000", "1ns;2B", "-1B", "99999999999999999999ns", "ns", "1B,"])
def test_a_value_that_is_none_is_said_and_everything_is_kept(session: Session, emit: Emit, value: str) -> None:
    done = emit("marks", 10, **{RING: value})
    assert done.stderr.startswith(f"traceable: {RING} ")
    assert done.stderr.endswith(f" {value} [variable_invalid]\n")
    assert session.rows("SELECT count(*) FROM named") == [(10,)]
