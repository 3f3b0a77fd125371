"""What the recorder hears of an event: message, payload, category, color, domain, names."""

from __future__ import annotations

import sqlite3
import subprocess
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import run_nsys_profile

Session = Any  # conftest.Session
Emit = Callable[..., subprocess.CompletedProcess[str]]

PAYLOADS = "uint64Value, int64Value, doubleValue, uint32Value, int32Value, floatValue"


def test_every_payload_type_arrives_in_its_column_and_no_other(session: Session, emit: Emit) -> None:
    emit("payloads")
    rows = session.rows(f"SELECT name, {PAYLOADS} FROM named WHERE eventType = 34 ORDER BY start")
    assert rows == [
        (
            "uint64",
            -1,
            None,
            None,
            None,
            None,
            None,
        ),  # SQLite has no unsigned 64 bits: the same bits, as nsys writes them
        ("int64", None, -5, None, None, None, None),
        ("double", None, None, 0.1, None, None, None),
        ("uint32", None, None, None, 4294967295, None, None),
        ("int32", None, None, None, None, -7, None),
        ("float", None, None, None, None, None, 1.5),
        ("unknown", None, None, None, None, None, None),
    ]


def test_all_attributes_together_on_both_kinds_of_range(session: Session, emit: Emit) -> None:
    emit("payloads")
    rows = session.rows("SELECT eventType, category, color, int64Value FROM named WHERE name = 'all' ORDER BY 1")
    assert rows == [(59, 7, 0xFF00FF00, 42), (60, 7, 0xFF00FF00, 42)]


def test_messages_of_every_form_and_content(session: Session, emit: Emit) -> None:
    length = 1_000_000
    printed = emit("messages", length).stdout
    assert printed == "1\n", "a string that is registered twice has one handle"
    rows = session.rows(
        "SELECT eventType, name, text IS NULL FROM named WHERE eventType IN (34, 59, 60) ORDER BY start"
    )
    letters = "".join(chr(ord("a") + i % 26) for i in range(length))
    assert rows[:13] == [
        (59, "régistéré \U0001f600", 1),
        (34, "plain", 1),
        (34, "wide €", 0),
        (34, "x��", 0),
        (34, None, 1),  # nsys too writes an empty message as NULL
        (34, "\\xff\\xfe bytes", 0),  # and bytes that are no UTF-8 like this
        (59, "pushed wide", 0),
        (60, "started wide", 0),
        (34, None, 1),
        (34, None, 1),
        (34, letters, 1),  # too long for a row that is written as part of a page
        (34, "é" * length, 1),
        (34, "repeated 0", 0),
    ]
    assert [name for _, name, _ in rows[12:]] == [f"repeated {k}" for _ in range(3) for k in range(500)]


def test_domains_categories_and_threads_have_the_names_they_were_given(session: Session, emit: Emit) -> None:
    printed = emit("names").stdout
    assert printed == "1\n", "a destroyed domain is taken up again by the next of its name"
    rows = session.rows(
        "SELECT eventType, domainId, category, name FROM named WHERE eventType IN (33, 75) ORDER BY start"
    )
    assert rows == [
        (75, 1, None, "engine"),
        (33, 0, 1, "io"),
        (33, 0, 2, "café"),
        (33, 1, 1, "tokens"),
        (33, 1, 2, "日本"),
    ]
    names = "SELECT s.value, t.globalTid & 0xFFFFFF FROM ThreadNames t JOIN StringIds s ON s.id = t.nameId"
    ((pid,),) = session.rows("SELECT pid FROM PROCESSES")
    assert set(session.rows(names)) == {("the main one", pid), ("gewählt", 12345)}
    assert set(session.rows("SELECT name, tid FROM named WHERE eventType = 39")) == set(session.rows(names))


def test_each_domain_of_a_thread_has_its_own_stack(session: Session, emit: Emit) -> None:
    emit("domains")
    rows = session.rows("SELECT name, start, end FROM named WHERE eventType = 59 ORDER BY start")
    assert [name for name, _, _ in rows] == ["in a", "in b", "in none"]
    ends = {name: end for name, _, end in rows}
    assert None not in ends.values()
    assert ends["in a"] < ends["in none"] < ends["in b"]


def test_a_range_that_ends_on_another_thread_says_so(session: Session, emit: Emit) -> None:
    emit("end-elsewhere")
    rows = session.rows(
        "SELECT name, end >= start, globalTid = endGlobalTid, endGlobalTid IS NULL FROM named ORDER BY start"
    )
    assert rows == [("handed over", 1, 0, 0), ("kept", 1, None, 1), ("never ended", None, None, 1)]


def test_ranges_nest_ten_thousand_deep(session: Session, emit: Emit) -> None:
    emit("deep", 10_000)
    rows = session.rows("SELECT start, end FROM named ORDER BY start")
    assert len(rows) == 10_000
    ends = [end for _, end in rows]
    assert ends == sorted(ends, reverse=True)


def test_the_environment_is_not_in_the_file(session: Session, emit: Emit) -> None:
    emit("names", TRACEABLE_TEST_SECRET="hunter2-" * 4)
    database = session.finalise().database
    assert database is not None
    assert b"hunter2-" not in database.read_bytes()


# Not `messages`: nsys 2022.4.2 kills the program on it (SIGSEGV).
@pytest.mark.parametrize("scene", ["payloads", "domains", "end-elsewhere"])
def test_the_rows_are_those_that_real_nsys_writes(
    session: Session, emit: Emit, emitter: str, nsys: str, tmp_path: Path, scene: str
) -> None:
    emit(scene)
    nsys_command = (nsys, "profile", "-t", "nvtx", "-s", "none", "--cpuctxsw=none", "--export=sqlite", "-o", "real")
    run_nsys_profile((*nsys_command, emitter, scene), cwd=tmp_path)
    # Times and the process's number differ, the numbers of ranges are the tool's own, and nsys closes at the end of the
    # capture what was left open.
    query = (
        "SELECT e.eventType, coalesce(e.text, s.value), e.textId IS NULL, e.category, e.color, e.domainId,"
        f" e.rangeId IS NULL, e.endGlobalTid IS NULL, {PAYLOADS}"
        " FROM NVTX_EVENTS e LEFT JOIN StringIds s ON s.id = e.textId WHERE e.eventType != 76 ORDER BY e.start"
    )
    with closing(sqlite3.connect(tmp_path / "real.sqlite")) as database:
        real = database.execute(query).fetchall()
    assert session.rows(query) == real
