"""Several recordings side by side, against the same looked up row by row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from traceable.analysis.compare import COUNTS, LETTERS, MEASURES, STEP_COLUMNS, compare_ranges, compare_step_summaries
from traceable.analysis.table import Table, pack_objects

Row = tuple[tuple[str, ...], str | None, str, int, float | None]

paths = st.lists(st.sampled_from("abc"), min_size=1, max_size=3).map(tuple)
rows = st.tuples(
    paths,
    st.sampled_from([None, "d"]),
    st.sampled_from(["push_pop", "start_end"]),
    st.integers(0, 9),
    st.one_of(st.none(), st.integers(0, 9).map(float)),
)
recordings = st.lists(rows, max_size=8, unique_by=lambda row: row[:3])


def table(result: list[Row], *, by_path: bool = True) -> Table:
    """A table as `ranges` answers; parents come before what lies inside them."""
    if by_path:
        result = sorted(result, key=lambda row: len(row[0]))
    values: dict[str, Any] = {"path": pack_objects([list(row[0]) for row in result])} if by_path else {}
    values |= {
        "name": pack_objects([row[0][-1] for row in result]),
        "domain": pack_objects([row[1] for row in result]),
        "style": pack_objects([row[2] for row in result]),
        "count": np.array([row[3] for row in result], np.int64),
    }
    measured = np.array([np.nan if row[4] is None else row[4] for row in result], float)
    return Table(values | {name: measured + place for place, name in enumerate(MEASURES)})


@given(st.lists(recordings, min_size=1, max_size=4))
def test_every_range_of_any_recording_has_one_row_with_what_each_says_of_it(several):
    result = list(compare_ranges([table(one) for one in several]).rows())
    keys = [(tuple(row["path"]), row["domain"], row["style"]) for row in result]
    assert sorted(keys, key=repr) == sorted({row[:3] for one in several for row in one}, key=repr)
    for key, row in zip(keys, result, strict=True):
        assert row["name"] == key[0][-1]
        for letter, one in zip(LETTERS, several, strict=False):
            output = {known[:3]: known for known in one}.get(key)
            for place, name in enumerate(MEASURES):
                expected = None if output is None or output[4] is None else output[4] + place
                assert row[f"{letter.lower()}_{name}"] == expected
            for name in COUNTS:
                assert row[f"{letter.lower()}_{name}"] == (None if output is None else output[3])


@given(st.lists(recordings, min_size=2, max_size=4))
def test_ratios_are_to_the_first_and_absent_where_there_is_nothing_to_divide(several):
    for row in compare_ranges([table(one) for one in several]).rows():
        for letter in LETTERS[1 : len(several)]:
            for name in MEASURES:
                first, other = row[f"a_{name}"], row[f"{letter.lower()}_{name}"]
                expected = None if not first or other is None else other / first
                ratio = row[f"{letter.lower()}_{name.removesuffix('_ns')}_ratio"]
                assert ratio == (None if expected is None else pytest.approx(expected))


@given(st.lists(recordings, min_size=1, max_size=4))
def test_a_range_comes_after_what_it_lies_inside_and_beside_what_lies_there_too(several):
    result = [tuple(path) for path in compare_ranges([table(one) for one in several]).column("path")]
    for place, path in enumerate(result):
        inside = [later for later, other in enumerate(result) if other[: len(path)] == path]
        assert inside == list(range(min(inside), max(inside) + 1))
        above = [earlier for earlier, other in enumerate(result) if path[: len(other)] == other and other != path]
        assert all(earlier < place for earlier in above)


def test_ranges_keep_the_order_of_the_first_recording_and_then_that_of_the_next():
    first = [(("step",), None, "push_pop", 1, 1.0), (("step", "b"), None, "push_pop", 1, 1.0)]
    second = [
        (("init",), None, "push_pop", 1, 1.0),
        (("step",), None, "push_pop", 1, 1.0),
        (("step", "a"), None, "push_pop", 1, 1.0),
        (("step", "b"), None, "push_pop", 1, 1.0),
    ]
    result = compare_ranges([table(first), table(second)]).column("path")
    assert result == [["step"], ["step", "b"], ["step", "a"], ["init"]]


def test_by_name_paths_play_no_part():
    one = table([(("x", "a"), None, "push_pop", 2, 4.0)], by_path=False)
    other = table([(("a",), None, "push_pop", 3, 6.0)], by_path=False)
    (row,) = compare_ranges([one, other]).rows()
    assert "path" not in row
    assert (row["name"], row["a_count"], row["b_count"], row["b_cpu_mean_ratio"]) == ("a", 2, 3, 1.5)


def summary(*wall_ns: float) -> Table:
    columns: dict[str, Any] = {name: np.arange(len(wall_ns), dtype=float) for name in STEP_COLUMNS}
    place = {"pid": np.arange(len(wall_ns)) + 7, "device": np.zeros(len(wall_ns), np.int64)}
    return Table({**place, **columns, "wall_p50_ns": np.array(wall_ns)})


def test_steps_stand_beside_each_other_with_the_ratio_of_their_medians():
    result = compare_step_summaries([summary(2e6), None, summary(3e6)])
    assert result.column("recording") == ["A", "C"]
    assert result.column("wall_p50_ratio") == [1.0, 1.5]
    assert result.column("pid") == [7, 7]


def test_steps_of_several_processes_have_no_ratio():
    assert compare_step_summaries([summary(2e6), summary(2e6, 3e6)]).column("wall_p50_ratio") == [1.0, None, None]
    assert compare_step_summaries([summary(2e6, 3e6), summary(2e6)]).column("wall_p50_ratio") == [None, None, None]
    assert compare_step_summaries([None, summary(2e6)]).column("wall_p50_ratio") == [None]
    assert len(compare_step_summaries([None, None])) == 0
