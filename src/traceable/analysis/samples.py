"""Whether two sets of times differ, or whether it is noise: a block bootstrap with what runs and machines add to it.

Steps of one run are autocorrelated, and slow drifts (clocks, other load) are in all of them, so that an ordinary
bootstrap, which takes them for independent, calls two runs of one program different far too often. This is done about
it (docs/compare-noise.md has the rates that were measured):

- A run is resampled in `SEGMENTS` long consecutive blocks, and not sample by sample: correlation within a block stays
  as it is. As few blocks say little about their own spread, p-values are those of Student's t.
- Where neighboring blocks are alike, as in a drift, there are fewer independent ones, and the variance is larger.
- With one run a side, a change of the median is one only where the faster instances changed as well (`_COMPANIONS`):
  other load on the machine delays some instances, a slower program slows all. And it has to exceed a band for what no
  single run shows: `RUN_SHARE`, and what the instances of a run differ by, from the least of these quantiles to the
  median.
- Where it is known for how long the program waited for a CPU, what that could explain replaces the spread of the
  instances, and a quantile of the faster ones decides alone: it is much more stable from run to run. The others only
  have to have changed in the same direction.
- With several runs a side, what runs differ by is measured instead.
- Where many rows are judged together, their p-values are adjusted by Holm's method.

All is done on the logarithms of the times, so that differences are ratios.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from traceable.trace.model import Int64, NDArray

SEGMENTS = 10
"""Into how many blocks a run is split. With 100 steps a block has ten; more would be too short to hold a drift."""

MIN_TAIL = 10
"""How many samples there must be on either side of a quantile: 20 for a median, 1000 for a p99."""

RUN_SHARE = 0.02
"""By how much two runs of one program may differ for reasons that no single run shows."""

RESOLUTION_NS = 2000
"""And by how much more, of times of the CPU: the median of a range of 2 us differed by 1 us in every tenth pair."""

_MAX_WAIT_SHARE = 0.99
"""The largest share of waiting that is taken into account: times are divided by 1 less this, or more."""

PRIOR_FREEDOM = 1
"""Where there are several runs: how many degrees of freedom the variances of single runs are worth among them. With
more, three runs a side that differ by 5 % were called different in 15 % of synthetic pairs rather than in 8 %."""

MAX_BOUND_SHARE = 1.0
"""Data that could not have shown that a time doubled is not enough."""

LEVEL = 0.05
"""The level of intervals; and the rate of errors among all rows of a comparison, unless another one is given."""

POWER = 0.8
"""With which probability the least detectable change is detected."""

SLOWER, FASTER, NO_DIFFERENCE, NOT_ENOUGH_DATA = "slower", "faster", "no_difference", "not_enough_data"

_COMPANIONS = {0.5: (0.25, 0.1), 0.99: (0.5,)}
"""Which other quantiles must have changed as well for one to have changed between two single runs."""

REPLICATES = 200
_GRID = 64
_MIN_P_VALUE = 1e-12
"""What rounding leaves of smaller ones is not a number to print."""

Float64 = NDArray[np.float64]


@dataclass(frozen=True)
class Change:
    """How a quantile of the times of something differs between two sides.

    Attributes:
        statistic: "p50" or "p99".
        baseline, candidate: the quantile on each side in ns; of several runs, the geometric mean of theirs. None
            without samples.
        change_share: the second divided by the first, less 1; None where the first is 0 or not known.
        low_share, high_share: the interval of the change of the program at the confidence 1 - `LEVEL`, as the quantiles
            that decide show it; it contains `change_share`. None where there is too little data.
        p_value: the probability that noise alone makes such a difference; None where there is too little data.
        detectable_share: the least slowdown that data like this shows in `POWER` of all cases, judged alone.
        baseline_count, candidate_count: the number of samples.
    """

    statistic: str
    baseline: float | None
    candidate: float | None
    change_share: float | None
    low_share: float | None
    high_share: float | None
    p_value: float | None
    detectable_share: float | None
    baseline_count: int
    candidate_count: int


@dataclass(frozen=True)
class Verdict:
    """What a change amounts to among all that are judged with it.

    Attributes:
        code: `slower`, `faster`, `no_difference` or `not_enough_data`.
        p_value: adjusted for their number; None where there is too little data.
        bound_share: with `no_difference`, no change is larger than this, at the confidence of the interval.
    """

    code: str
    p_value: float | None
    bound_share: float | None


def compare_samples(
    baseline: Sequence[Int64],
    candidate: Sequence[Int64],
    quantile: float,
    *,
    wait_shares: tuple[float | None, float | None] = (None, None),
    seed: int = 0,
) -> Change:
    """Compare a quantile of the times of two sides.

    Args:
        baseline, candidate: of each run its times in ns, in their order.
        quantile: 0.5 for the median, 0.99 for the p99.
        wait_shares: of each side for which part of the time the program waited for a CPU; None if not known. Only for
            times that waiting makes longer by about as much. It concerns medians of one run a side: the tail of the
            times may consist of waits.
        seed: of the bootstrap.
    """
    sides = [[run for run in runs if len(run)] for runs in (baseline, candidate)]
    counts = [sum(map(len, runs)) for runs in sides]
    before, after = (_average([float(np.quantile(run, quantile)) for run in runs]) for runs in sides)
    change = after / before - 1 if before and after is not None else None
    low = high = p_value = detectable = None
    if all(counts) and all(is_enough(len(run), quantile) for runs in sides for run in runs):
        is_single = len(sides[0]) == len(sides[1]) == 1
        companions = _COMPANIONS.get(quantile, ()) if is_single else ()
        # A time of 0 has no logarithm, and 1 ns is what clocks can tell from it.
        estimates = [
            [estimate_run(np.maximum(run, 1), (*companions, quantile), seed + side) for run in runs]
            for side, runs in enumerate(sides)
        ]
        before_wait, after_wait = wait_shares
        if not is_single:
            low, high, p_value, detectable = _combine_runs(estimates)
        elif quantile == 0.5 and before_wait is not None and after_wait is not None:
            own = math.log1p(RUN_SHARE + RESOLUTION_NS / max(before or 0, 1))
            bands = own + explain_by_wait(before_wait), own + explain_by_wait(after_wait)
            low, high, p_value, detectable = _combine_pair(estimates[0][0], estimates[1][0], bands, 1)
        else:
            spread = max(float(np.ptp(run.value)) for runs in estimates for run in runs)
            bands = (math.log1p(RUN_SHARE) + spread,) * 2
            low, high, p_value, detectable = _combine_pair(estimates[0][0], estimates[1][0], bands, len(companions) + 1)
    if change is None:
        low = high = detectable = None
    return Change(f"p{quantile * 100:g}", before, after, change, low, high, p_value, detectable, counts[0], counts[1])


def compute_ratio_interval(ratios: Float64, *, seed: int = 0) -> tuple[float, float] | None:
    """Return the interval of the median of the ratios of two runs' times, of the same work each, in their order.

    None where there are too few of them. It is that of one series: what both runs went through together is not in it.
    """
    if not is_enough(len(ratios), 0.5):
        return None
    estimate = estimate_run(ratios, (0.5,), seed)
    center, error = estimate.value[0], math.sqrt(estimate.variance[0])
    reach = math.log1p(RUN_SHARE) + compute_t_quantile(LEVEL, SEGMENTS - 1) * error
    return math.exp(center - reach), math.exp(center + reach)


def explain_by_wait(share: float) -> float:
    """Return by how much waiting for a CPU for this share of the time made times longer, as a logarithm."""
    return -math.log1p(-min(share, _MAX_WAIT_SHARE))


def judge_changes(changes: Sequence[Change], *, level: float = LEVEL) -> list[Verdict]:
    """Return the verdict on each of the changes, which are judged together.

    Args:
        changes: all rows and statistics of one comparison.
        level: the probability that any of them is wrongly called slower or faster (Holm 1979, "A simple sequentially
            rejective multiple test procedure").
    """
    verdicts = [Verdict(NOT_ENOUGH_DATA, None, None)] * len(changes)
    tested = [(change.p_value, place) for place, change in enumerate(changes) if change.p_value is not None]
    adjusted = 0.0
    for rank, (p_value, place) in enumerate(sorted(tested)):
        adjusted = min(1.0, max(adjusted, p_value * (len(tested) - rank)))
        change = changes[place]
        bound = None
        if adjusted <= level:
            code = SLOWER if (change.candidate or 0) > (change.baseline or 0) else FASTER
        elif change.low_share is None or change.high_share is None:
            code = NO_DIFFERENCE
        else:
            bound = max(-change.low_share, change.high_share)
            code, bound = (NO_DIFFERENCE, bound) if bound <= MAX_BOUND_SHARE else (NOT_ENOUGH_DATA, None)
        verdicts[place] = Verdict(code, adjusted, bound)
    return verdicts


def is_enough(count: int, quantile: float) -> bool:
    """Return whether so many samples of a run say anything about that quantile."""
    return count * min(quantile, 1 - quantile) >= MIN_TAIL - 1e-9


@dataclass(frozen=True, eq=False)
class RunEstimate:
    """The logarithms of some quantiles of one run, and the variance of each."""

    value: Float64
    variance: Float64


def estimate_run(run: NDArray[Any], quantiles: Sequence[float], seed: int) -> RunEstimate:
    """Estimate quantiles of one run and how far they may be off, from blocks of it.

    A quantile of any mixture of blocks lies between the least and the largest of theirs, so a resampled one is looked
    for among samples between these, `_GRID` of them at most.

    Args:
        run: at least `SEGMENTS` times or ratios, all above 0, in their order.
        quantiles: which ones.
        seed: of the resampling.
    """
    length = len(run) // SEGMENTS
    ordered = np.sort(run)
    # At most nine samples at the end are in no block.
    blocks = np.sort(run[: length * SEGMENTS].reshape(SEGMENTS, length), axis=1)
    of_blocks = [blocks[:, math.ceil(quantile * length - 1e-9) - 1] for quantile in quantiles]
    grids = []
    for values in of_blocks:
        first, last = (
            np.searchsorted(ordered, values.min(), "left"),
            np.searchsorted(ordered, values.max(), "right") - 1,
        )
        grids.append(ordered[np.linspace(first, last, min(_GRID, last - first + 1)).astype(np.int64)])
    thresholds = np.concatenate(grids)
    counts = np.array([np.searchsorted(block, thresholds, "right") for block in blocks], np.float64)
    resampled = _draw_weights(seed) @ counts
    variances, start = [], 0
    for quantile, values, grid in zip(quantiles, of_blocks, grids, strict=True):
        reached = resampled[:, start : start + len(grid)] >= quantile * blocks.size - 1e-6
        start += len(grid)
        replicates = np.log(grid)[np.argmax(reached, axis=1)]
        # Resampling so many blocks has this much less variance than drawing new ones.
        variances.append(replicates.var() * SEGMENTS / (SEGMENTS - 1) * _count_alike(np.log(values)))
    return RunEstimate(np.log(_compute_quantiles(ordered, quantiles)), np.array(variances))


def _compute_quantiles(ordered: NDArray[Any], quantiles: Sequence[float]) -> Float64:
    """Return quantiles of ordered values, interpolated as by `numpy.quantile`, which would order them again."""
    place = np.array(quantiles) * (len(ordered) - 1)
    below = place.astype(np.int64)
    above = np.minimum(below + 1, len(ordered) - 1)
    interpolated: Float64 = ordered[below] + (ordered[above] - ordered[below]) * (place - below)
    return interpolated


def _count_alike(of_blocks: Float64) -> float:
    """Return as how many blocks an independent one counts, from the correlation of neighbors (as in an AR(1) series).

    Their correlation is estimated too low by 1 / `SEGMENTS` (Kendall 1954). At most all of them are one.
    """
    deviation = of_blocks - of_blocks.mean()
    total = float(deviation @ deviation)
    correlation = float(deviation[1:] @ deviation[:-1]) / total + 1 / SEGMENTS if total else 0.0
    correlation = min(max(correlation, 0.0), (SEGMENTS - 1) / (SEGMENTS + 1))
    return (1 + correlation) / (1 - correlation)


@lru_cache(maxsize=8)
def _draw_weights(seed: int) -> Float64:
    """Return how often each block is in each replicate."""
    draws = np.random.default_rng(seed).multinomial(SEGMENTS, np.full(SEGMENTS, 1 / SEGMENTS), size=REPLICATES)
    return draws.astype(np.float64)


def _combine_runs(sides: Sequence[Sequence[RunEstimate]]) -> tuple[float, float, float, float]:
    """Return the interval of the change, its p-value and the least detectable change, with several runs a side.

    As in the moderated t of Smyth 2004 ("Linear models and empirical Bayes methods for assessing differential
    expression"), the variance is the mean of that between runs and that expected of each run by itself, weighted by
    their degrees of freedom.

    Args:
        sides: the estimates of one quantile of each run; on one of them at least two.
    """
    values = [np.array([run.value for run in runs]) for runs in sides]
    freedom = PRIOR_FREEDOM + sum(map(len, sides)) - 2
    between = sum(((side - side.mean(axis=0)) ** 2).sum(axis=0) for side in values)
    prior = np.mean([run.variance for runs in sides for run in runs], axis=0) + (math.log1p(RUN_SHARE) / 2) ** 2
    of_run = (PRIOR_FREEDOM * prior + between) / freedom
    error = np.sqrt(of_run * sum(1 / len(side) for side in values))
    return _test_difference(values[1].mean(axis=0) - values[0].mean(axis=0), error, (0.0, 0.0), freedom)


def _combine_pair(
    baseline: RunEstimate, candidate: RunEstimate, bands: tuple[float, float], deciding: int
) -> tuple[float, float, float, float]:
    """Return the same with one run a side.

    Args:
        baseline, candidate: the estimates of several quantiles.
        bands: by how much what is not in a run may have made the times of each of them longer, as logarithms.
        deciding: how many of the quantiles must have changed by more; the others only in the same direction.
    """
    difference = candidate.value - baseline.value
    error = np.sqrt(baseline.variance + candidate.variance)[:deciding]
    low, high, p_value, detectable = _test_difference(difference[:deciding], error, bands, 2 * (SEGMENTS - 1))
    if len(set(np.sign(difference))) > 1:
        p_value = 1.0
    change = math.expm1(difference[-1])
    return min(low, change), max(high, change), p_value, detectable


def _test_difference(
    difference: Float64, error: Float64, bands: tuple[float, float], freedom: int
) -> tuple[float, float, float, float]:
    """Return the interval, p-value and least detectable change of differences of logarithms that must all be there.

    The interval is the hull of theirs, the p-value the largest.
    """
    reach = compute_t_quantile(LEVEL, freedom) * error
    p_value = 1.0
    if len(set(np.sign(difference))) == 1:
        beyond = np.abs(difference) - bands[1 if difference[0] > 0 else 0]
        with np.errstate(divide="ignore", invalid="ignore"):
            t = np.where(beyond > 0, beyond / error, 0.0)
        p_value = compute_t_p_value(float(t.min()), freedom)
    detectable = (bands[1] + reach + compute_t_quantile(2 * (1 - POWER), freedom) * error).max()
    return (
        math.expm1((difference - reach).min() - bands[1]),
        math.expm1((difference + reach).max() + bands[0]),
        p_value,
        math.expm1(detectable),
    )


def _average(values: Sequence[float]) -> float | None:
    """Return the geometric mean of the quantiles of runs; None of none."""
    if len(values) < 2:
        return values[0] if values else None
    return math.exp(sum(map(math.log, values)) / len(values)) if min(values) > 0 else 0.0


@lru_cache(maxsize=64)
def compute_t_quantile(p_value: float, freedom: int) -> float:
    """Return the absolute value that Student's t exceeds with that probability."""
    low, high = 0.0, 1.0
    while compute_t_p_value(high, freedom) > p_value:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if compute_t_p_value(middle, freedom) > p_value else (low, middle)
    return high


def compute_t_p_value(t: float, freedom: int) -> float:
    """Return the probability that the absolute value of Student's t is larger (Abramowitz and Stegun 26.7.3, 26.7.4).

    Examples:
        >>> round(compute_t_p_value(2.228, 10), 4)
        0.05
    """
    angle = math.atan2(abs(t), math.sqrt(freedom))
    cosine, odd = math.cos(angle), freedom % 2
    term = cosine if odd else 1.0
    total = term if freedom > 1 else 0.0
    for number in range(2 + odd, freedom - 1, 2):
        term *= (number - 1) / number * cosine**2
        total += term
    total *= math.sin(angle)
    inside = 2 / math.pi * (angle + total) if odd else total
    return max(1 - inside, _MIN_P_VALUE)
