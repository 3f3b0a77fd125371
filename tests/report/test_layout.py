"""Tables in lines: aligned, cut where a name is long, and never wider than they may be."""

from __future__ import annotations

import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traceable.report.layout import Cells, get_line_width, lay_out_columns, wrap_text
from traceable.report.text import measure_width, truncate, truncate_distinct

WORDS = st.text("ab \u65e5\u00e9", max_size=90)
NUMBERS = st.text("0123456789", max_size=12)


@st.composite
def columns(draw: st.DrawFn) -> list[Cells]:
    rows = draw(st.integers(1, 4))
    made = []
    for rank in range(draw(st.integers(1, 6))):
        words = rank == 0 or draw(st.booleans())
        lines = draw(st.lists(WORDS if words else NUMBERS, min_size=rows, max_size=rows))
        made.append(Cells(f"heading{rank}", lines, is_text=words, rank=draw(st.integers(0, 9))))
    return made


@settings(deadline=None)
@given(columns(), st.integers(1, 200))
def test_no_line_is_wider_than_asked(made: list[Cells], width: int) -> None:
    lines = lay_out_columns(made, width)[0]
    assert len(lines) == 1 + len(made[0].lines)
    assert max(map(measure_width, lines)) <= width


@settings(deadline=None)
@given(columns(), st.integers(1, 200))
def test_a_column_goes_only_if_none_of_a_higher_rank_stays(made: list[Cells], width: int) -> None:
    heading = lay_out_columns(made, width)[0][0]
    gone = [column.rank for column in made[1:] if column.heading not in heading]
    remaining = [column.rank for column in made[1:] if column.heading in heading]
    assert not gone or not remaining or min(gone) >= max(remaining)


@settings(deadline=None)
@given(columns())
def test_without_a_width_every_number_is_whole(made: list[Cells]) -> None:
    lines = lay_out_columns(made, None)[0]
    for column in made:
        assert column.heading in lines[0]
        if not column.is_text:
            assert all(cell in line for cell, line in zip(column.lines, lines[1:], strict=True))


def test_numbers_stand_right_and_words_left() -> None:
    made = [
        Cells("name", ["a", "bbbbbb"], is_text=True),
        Cells("n", ["1", "100"]),
        Cells("why", ["x", "-"], is_text=True),
    ]
    assert lay_out_columns(made, None)[0] == ["name      n  why", "a         1  x", "bbbbbb  100  -"]


def test_what_is_left_of_the_width_is_shared_by_the_words() -> None:
    made = [Cells("a", ["x" * 60], is_text=True), Cells("b", ["y" * 30], is_text=True)]
    assert lay_out_columns(made, 82)[0][1] == "x" * 24 + ".." + "x" * 24 + "  " + "y" * 30


@given(WORDS, st.integers(1, 40))
def test_a_cut_text_fits_and_a_short_one_is_whole(text: str, width: int) -> None:
    assert measure_width(truncate(text, width)) <= width
    assert truncate(text, measure_width(text) or 1) == text


def test_sentences_are_wrapped_between_words_but_not_within_numbers() -> None:
    text = "GPU 0 waits for launches in 10 292 gaps, beside 15 580 kernels"
    for width in range(1, 70):
        lines = wrap_text(text, width)
        assert all(measure_width(line) <= width for line in lines)
        assert "".join(lines).replace(" ", "") == text.replace(" ", "")
        if width >= 8:
            assert " ".join(lines) == text
            assert any("10 292" in line for line in lines)


def test_wide_characters_are_wrapped_by_their_width() -> None:
    assert wrap_text("前向 forward", 4) == ["前向", "forw", "ard"]
    assert wrap_text("前向", 1) == ["前", "向"]


@given(st.lists(WORDS, min_size=1, max_size=6), st.integers(1, 40))
def test_texts_that_are_cut_fit_and_those_that_fit_are_whole(texts: list[str], width: int) -> None:
    for text, short in zip(texts, truncate_distinct(texts, width), strict=True):
        assert measure_width(short) <= width
        assert short == text or measure_width(text) > width


@given(
    st.text("ab.", max_size=40),
    st.lists(st.text("abc", min_size=1, max_size=3), min_size=2, max_size=4, unique=True),
    st.text("ab.", max_size=40),
)
def test_names_that_differ_in_a_few_characters_still_do_when_cut(begin: str, differing: list[str], end: str) -> None:
    names = [f"{begin}<{one}>{end}" for one in differing]
    assert len(set(truncate_distinct(names, 16))) == len(differing)


def test_columns_says_how_wide_where_there_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert get_line_width(io.StringIO()) is None
    monkeypatch.setenv("COLUMNS", "70")
    assert get_line_width(io.StringIO()) == 70
