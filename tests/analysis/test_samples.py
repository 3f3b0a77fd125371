"""Two sets of times: when they differ, when that is noise, and when nobody can tell."""

from __future__ import annotations

import numpy as np
import pytest

from traceable.analysis.samples import (
    FASTER,
    NO_DIFFERENCE,
    NOT_ENOUGH_DATA,
    SLOWER,
    Change,
    compare_samples,
    compute_t_p_value,
    compute_t_quantile,
    judge_changes,
)

MS = 1_000_000


def judge(change: Change) -> str:
    return judge_changes([change])[0].code


@pytest.mark.parametrize(("factor", "code"), [(1.1, SLOWER), (1 / 1.1, FASTER), (1.0, NO_DIFFERENCE)])
def test_a_change_is_called_what_it_is(factor, code):
    random = np.random.default_rng(3)
    before, after = (random.lognormal(16, 0.02, (2, 100)) * [[1], [factor]]).astype(np.int64)
    change = compare_samples([before], [after], 0.5)
    assert judge(change) == code
    assert change.low_share < factor - 1 < change.high_share
    assert (change.baseline, change.candidate) == (np.median(before), np.median(after))


def test_the_same_times_differ_by_nothing():
    times = 100 * MS + np.random.default_rng(4).integers(0, MS, 200)
    change = compare_samples([times], [times], 0.5)
    assert (change.change_share, change.p_value, judge(change)) == (0, 1, NO_DIFFERENCE)


@pytest.mark.parametrize(("count", "quantile"), [(0, 0.5), (9, 0.5), (100, 0.99)])
def test_too_few_times_prove_nothing(count, quantile):
    change = compare_samples([np.full(count, MS)], [np.full(count, 9 * MS)], quantile)
    assert (change.p_value, change.low_share, change.high_share, change.detectable_share) == (None,) * 4
    assert (judge(change), change.baseline_count) == (NOT_ENOUGH_DATA, count)


@pytest.mark.parametrize(("t", "freedom", "p_value"), [(12.706, 1, 0.05), (4.303, 2, 0.05), (3.169, 10, 0.01)])
def test_the_tails_of_t_are_those_of_the_tables(t, freedom, p_value):
    assert compute_t_p_value(t, freedom) == pytest.approx(p_value, rel=2e-3)
    assert compute_t_quantile(p_value, freedom) == pytest.approx(t, rel=2e-3)
