"""Two sets of times: when they differ, when that is noise, and when nobody can tell."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.analysis.samples_oracle import adjust, estimate_variance

from traceable.analysis.samples import (
    FASTER,
    NO_DIFFERENCE,
    NOT_ENOUGH_DATA,
    RUN_SHARE,
    SLOWER,
    Change,
    compare_samples,
    compute_ratio_interval,
    compute_t_p_value,
    compute_t_quantile,
    estimate_run,
    judge_changes,
)

MS = 1_000_000


def judge(change: Change) -> str:
    return judge_changes([change])[0].code


def make_times(kind: str, random: np.random.Generator, count: int) -> np.ndarray:
    """Return the times of one run of a program that does not change, with noise of some kind."""
    noise = random.normal(0, 0.01, count)
    if kind == "autocorrelated":
        for place in range(1, count):
            noise[place] += 0.9 * noise[place - 1]
    elif kind == "drifting":
        noise = noise + np.cumsum(random.normal(0, 0.005, count))
    elif kind == "bimodal":
        noise = noise + (random.random(count) < 0.4)
    elif kind == "heavy":
        noise = noise + 0.05 * random.pareto(1.5, count).clip(0, 20)
    elif kind == "delayed":  # more in one run than in the next: other load on the machine
        noise = noise + (random.random(count) < random.uniform(0, 0.8)) * random.uniform(0, 1, count)
    return (5 * MS * np.exp(noise)).astype(np.int64)


@pytest.mark.parametrize(("factor", "code"), [(1.1, SLOWER), (1 / 1.1, FASTER), (1.0, NO_DIFFERENCE)])
@pytest.mark.parametrize("runs", [1, 3])
def test_a_change_is_called_what_it_is(factor, code, runs):
    random = np.random.default_rng(3)
    before, after = ([make_times("plain", random, 100) for _ in range(runs)] for _ in range(2))
    change = compare_samples(before, [(times * factor).astype(np.int64) for times in after], 0.5)
    assert judge(change) == code
    assert change.low_share < factor - 1 < change.high_share
    assert change.baseline == pytest.approx(math.exp(np.mean([math.log(np.median(times)) for times in before])))
    assert (change.statistic, change.baseline_count, change.candidate_count) == ("p50", 100 * runs, 100 * runs)


def test_a_tail_is_compared_where_there_is_one():
    random = np.random.default_rng(6)
    before, after = (make_times("plain", random, 1000) for _ in range(2))
    change = compare_samples([before], [after * 2], 0.99)
    assert (change.statistic, judge(change)) == ("p99", SLOWER)
    assert change.low_share < 1 < change.high_share


def test_the_same_times_differ_by_nothing():
    times = 100 * MS + np.random.default_rng(4).integers(0, MS, 200)
    change = compare_samples([times], [times], 0.5)
    (verdict,) = judge_changes([change])
    assert (change.change_share, change.p_value, verdict.code) == (0, 1, NO_DIFFERENCE)
    assert RUN_SHARE <= verdict.bound_share == max(-change.low_share, change.high_share) < 0.05


@pytest.mark.parametrize(("count", "quantile"), [(0, 0.5), (19, 0.5), (999, 0.99)])
def test_too_few_times_prove_nothing(count, quantile):
    change = compare_samples([np.full(count, MS)], [np.full(count, 9 * MS)], quantile)
    assert (change.p_value, change.low_share, change.high_share, change.detectable_share) == (None,) * 4
    assert (judge(change), change.baseline_count) == (NOT_ENOUGH_DATA, count)
    assert change.baseline == (MS if count else None)


def test_one_run_of_several_that_is_too_short_proves_nothing():
    long, short = np.full(100, MS), np.full(5, MS)
    assert judge(compare_samples([long, short], [long], 0.5)) == NOT_ENOUGH_DATA


def test_data_that_could_hide_a_doubling_are_not_enough():
    random = np.random.default_rng(8)
    before, after = ((MS * np.exp(random.normal(0, 1, 50))).astype(np.int64) for _ in range(2))
    assert judge(compare_samples([before], [after], 0.5)) == NOT_ENOUGH_DATA


def test_a_time_that_was_0_has_no_ratio_but_a_verdict():
    zero, some = np.zeros(100, np.int64), np.full(100, MS)
    change = compare_samples([zero], [some], 0.5)
    assert (change.baseline, change.change_share, change.low_share, judge(change)) == (0, None, None, SLOWER)
    assert judge(compare_samples([some], [zero], 0.5)) == FASTER
    same = judge_changes([compare_samples([zero], [zero], 0.5)])[0]
    assert (same.code, same.bound_share) == (NO_DIFFERENCE, None)


def test_some_delayed_instances_are_not_a_slower_program():
    random = np.random.default_rng(9)
    before = make_times("plain", random, 200)
    after = make_times("plain", random, 200)
    after[random.random(200) < 0.6] *= 2
    change = compare_samples([before], [after], 0.5)
    assert change.change_share > 0.5
    assert judge(change) not in (SLOWER, FASTER)


@pytest.mark.parametrize("wait_share", [None, 0.01])
@pytest.mark.parametrize("kind", ["plain", "autocorrelated", "drifting", "bimodal", "heavy", "delayed"])
def test_noise_is_seldom_taken_for_a_change(kind, wait_share):
    random = np.random.default_rng(5)
    pairs = [[make_times(kind, random, 100) for _ in range(2)] for _ in range(100)]
    changes = [compare_samples([one], [other], 0.5, wait_shares=(wait_share,) * 2) for one, other in pairs]
    assert sum(judge(change) in (SLOWER, FASTER) for change in changes) <= 5


def test_ten_percent_are_found_on_a_quiet_machine():
    random = np.random.default_rng(7)
    found = wrong = 0
    for _ in range(40):
        rows = [[(5 * MS * np.exp(random.normal(0, 0.05, 100))).astype(np.int64) for _ in range(2)] for _ in range(8)]
        rows[0][1] = (rows[0][1] * 1.1).astype(np.int64)
        changes = [compare_samples([row[0]], [row[1]], 0.5, wait_shares=(0.01, 0.01)) for row in rows]
        codes = [verdict.code for verdict in judge_changes(changes)]
        found += codes[0] == SLOWER
        wrong += any(code in (SLOWER, FASTER) for code in codes[1:])
    assert found >= 38
    assert wrong <= 2


def test_what_waiting_for_a_cpu_explains_is_no_change():
    """A candidate that waited for a third of the time may take half as long again, and a baseline less."""
    random = np.random.default_rng(15)
    before, after = (make_times("plain", random, 100) for _ in range(2))
    slower, faster = ((after * factor).astype(np.int64) for factor in (1.4, 1 / 1.4))
    third = 1 / 3
    codes = {
        (name, waits): judge(compare_samples([before], [times], 0.5, wait_shares=waits))
        for name, times in (("slower", slower), ("faster", faster))
        for waits in ((0.0, third), (third, 0.0), (0.0, 0.0))
    }
    assert codes == {
        ("slower", (0.0, third)): NO_DIFFERENCE,
        ("slower", (third, 0.0)): SLOWER,
        ("slower", (0.0, 0.0)): SLOWER,
        ("faster", (0.0, third)): FASTER,
        ("faster", (third, 0.0)): NO_DIFFERENCE,
        ("faster", (0.0, 0.0)): FASTER,
    }
    change = compare_samples([before], [slower], 0.5, wait_shares=(0.0, third))
    assert change.low_share < 0 < change.high_share < 0.5
    assert judge(compare_samples([before], [slower], 0.5, wait_shares=(0.0, 1.0))) == NO_DIFFERENCE


def test_waits_concern_medians_of_single_runs_alone():
    random = np.random.default_rng(16)
    runs = [[make_times("delayed", random, 1000) for _ in range(2)] for _ in range(2)]
    assert compare_samples(*runs, 0.5, wait_shares=(0.0, 0.0)) == compare_samples(*runs, 0.5)
    single = [side[:1] for side in runs]
    assert compare_samples(*single, 0.99, wait_shares=(0.0, 0.0)) == compare_samples(*single, 0.99)
    assert compare_samples(*single, 0.5, wait_shares=(0.0, None)) == compare_samples(*single, 0.5)


def test_microseconds_are_not_told_apart():
    random = np.random.default_rng(17)
    before, after = ((2000 * np.exp(random.normal(0, 0.05, 200))).astype(np.int64) for _ in range(2))
    change = compare_samples([before], [after * 3 // 2], 0.5, wait_shares=(0.0, 0.0))
    assert judge(change) == NOT_ENOUGH_DATA
    assert change.detectable_share > 1


def test_ten_percent_are_found_among_many_rows():
    random = np.random.default_rng(7)
    found = 0
    for _ in range(40):
        rows = [[make_times("plain", random, 100) for _ in range(2)] for _ in range(20)]
        rows[0][1] = (rows[0][1] * 1.1).astype(np.int64)
        found += judge_changes([compare_samples([row[0]], [row[1]], 0.5) for row in rows])[0].code == SLOWER
    assert found >= 38


def test_runs_that_differ_from_each_other_are_no_change():
    """What one run a side can't show, three do: here each run is 5 % off in one piece."""
    random = np.random.default_rng(11)
    wrong = 0
    for _ in range(100):
        runs = [
            (make_times("plain", random, 100) * math.exp(random.normal(0, 0.05))).astype(np.int64) for _ in range(6)
        ]
        wrong += judge(compare_samples(runs[:3], runs[3:], 0.5)) != NO_DIFFERENCE
    assert wrong <= 10


@given(st.lists(st.integers(1, 10**9), min_size=20, max_size=64), st.sampled_from([0.1, 0.25, 0.5]), st.integers(0, 3))
def test_the_variance_is_that_of_resampling_said_slowly(times, quantile, seed):
    """As many samples as this are all in the grid, so that both are exact."""
    result = estimate_run(np.array(times), (quantile,), seed)
    assert result.value[0] == pytest.approx(math.log(np.quantile(times, quantile)))
    assert result.variance[0] == pytest.approx(estimate_variance(times, quantile, seed), abs=1e-12)


def test_the_variance_of_many_times_is_nearly_that_of_resampling_said_slowly():
    times = make_times("autocorrelated", np.random.default_rng(2), 3000)
    result = estimate_run(times, (0.25, 0.5, 0.99), 0)
    expected = [estimate_variance(times.tolist(), quantile, 0) for quantile in (0.25, 0.5, 0.99)]
    assert result.variance == pytest.approx(expected, rel=0.15)


def test_the_seed_decides():
    random = np.random.default_rng(1)
    sides = [[make_times("plain", random, 100)] for _ in range(2)]
    first = compare_samples(*sides, 0.5)
    assert compare_samples(*sides, 0.5) == first
    assert compare_samples(*sides, 0.5, seed=1) != first


@given(st.lists(st.one_of(st.none(), st.floats(1e-12, 1)), max_size=30))
def test_p_values_are_adjusted_for_their_number(p_values):
    changes = [Change("p50", 1.0, 2.0, 1.0, 0.1, 0.2, p_value, 0.1, 100, 100) for p_value in p_values]
    verdicts = judge_changes(changes)
    known = [value for value in p_values if value is not None]
    assert [one.p_value for one in verdicts if one.p_value is not None] == pytest.approx(adjust(known))
    for p_value, verdict in zip(p_values, verdicts, strict=True):
        if p_value is None:
            assert (verdict.code, verdict.bound_share) == (NOT_ENOUGH_DATA, None)
        else:
            assert verdict.code == (SLOWER if verdict.p_value <= 0.05 else NO_DIFFERENCE)
            assert verdict.bound_share == (0.2 if verdict.code == NO_DIFFERENCE else None)


def test_the_interval_of_ratios_is_around_their_median():
    ratios = 1.06 * np.exp(np.random.default_rng(12).normal(0, 0.01, 100))
    low, high = compute_ratio_interval(ratios)
    assert 1.06 / 1.05 < low < 1.06 / (1 + RUN_SHARE) < 1.06 * (1 + RUN_SHARE) < high < 1.06 * 1.05
    assert compute_ratio_interval(ratios[:19]) is None


@pytest.mark.parametrize(
    ("t", "freedom", "p_value"), [(12.706, 1, 0.05), (4.303, 2, 0.05), (5.841, 3, 0.01), (3.169, 10, 0.01)]
)
def test_the_tails_of_t_are_those_of_the_tables(t, freedom, p_value):
    assert compute_t_p_value(t, freedom) == pytest.approx(p_value, rel=2e-3)
    assert compute_t_quantile(p_value, freedom) == pytest.approx(t, rel=2e-3)
