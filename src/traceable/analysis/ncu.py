"""What limits a kernel, from Nsight Compute's measurements of its launches.

`classify_bound` follows the rule SOLBottleneck of Nsight Compute itself (sections/SpeedOfLight.py, 2022.3) with its
thresholds. It compares the throughput of the SMs with that of the memory system, each in percent of its own peak. It is
not a roofline of floating-point operations over bytes, which needs other metrics for each kind of arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from traceable.analysis.table import Table, objects
from traceable.analysis.units import format_percent
from traceable.trace.model import Float64
from traceable.trace.ncu_csv import COMPUTE, DRAM, DURATION, MEMORY, OCCUPANCY, WAVES, Launch

BUSY = 0.80
"""A unit with at least this share of its peak limits the kernel by itself."""

LOW = 0.60
"""If both are below this share, neither limits the kernel: it waits for latency."""

BALANCED = 0.10
"""If the two differ by less than this, neither limits more than the other."""

SMALL_WAVES = 1.0
"""A grid of fewer waves than this does not fill the GPU once."""

_SAME = 0.001
"""The throughput of the memory system is that of its busiest part: this near, DRAM is that part."""

_SHARES = {"compute_share": COMPUTE, "memory_share": MEMORY, "dram_share": DRAM, "occupancy_share": OCCUPANCY}


def summarize_launches(launches: Sequence[Launch]) -> Table:
    """Return one row for the launches of a kernel with equal grid and block, the largest total first.

    `duration_*_ns` are over its launches. The shares of peak, the occupancy and the waves are means weighted by
    duration, so that they are those of the whole time. `bound` is `compute`, `memory`, `balanced`, `latency`, or None
    if unknown; `reason` gives the numbers. `others["launches"]` has the single launches.
    """
    groups: dict[tuple[str, str, str, str], list[Launch]] = {}
    for launch in launches:
        groups.setdefault((launch.name, launch.grid, launch.block, launch.device), []).append(launch)
    each = [list(members) for members in groups.values()]
    names = {
        "name": objects(key[0] for key in groups),
        "grid": objects(key[1] or None for key in groups),
        "block": objects(key[2] or None for key in groups),
        "device": objects(key[3] or None for key in groups),
        "launches": np.array([len(members) for members in each], np.int64),
    }
    durations = [[one.values[DURATION] for one in members if DURATION in one.values] for members in each]
    times = {
        "duration_total_ns": _reduce_each(durations, math.fsum),
        "duration_mean_ns": _reduce_each(durations, lambda known: math.fsum(known) / len(known)),
        "duration_min_ns": _reduce_each(durations, min),
        "duration_max_ns": _reduce_each(durations, max),
    }
    table = Table(
        {**names, **times, **_classify_rows([[_weighted_mean(members, of) for of in _MEASURED] for members in each])}
    )
    heaviest = np.argsort(-np.nan_to_num(times["duration_total_ns"]), kind="stable")
    return Table(table.take(heaviest).values, {"launches": _list_launches(launches)})


def classify_bound(compute: float, memory: float, waves: float, dram: float) -> tuple[str | None, str | None]:
    """Return what limits a kernel, and the numbers that show it; None for both if a throughput is unknown.

    Args:
        compute, memory: throughput of the SMs and of the memory system, 1 being the peak; NaN where unknown.
        waves: how often the grid fills the GPU; NaN where unknown.
        dram: throughput of DRAM, which is a part of the memory system; NaN where unknown.
    """
    if math.isnan(compute) or math.isnan(memory):
        return None, None
    system = "DRAM" if abs(dram - memory) <= _SAME else "the memory system"
    numbers = f"SMs at {format_percent(compute)}, {system} at {format_percent(memory)} of peak"
    high = max(compute, memory)
    if high < LOW:
        small = f", the grid is {waves:.2g} of a wave" if waves < SMALL_WAVES else ""
        return "latency", f"{numbers}: both below {format_percent(LOW)}{small}"
    side = "compute" if compute >= memory else "memory"
    if high >= BUSY:
        return side, f"{numbers}: {format_percent(BUSY)} or more"
    # 60 % and 50 % are 10 points apart, 0.6 and 0.5 a little less than 0.1.
    if round(abs(compute - memory), 9) < BALANCED:
        return "balanced", f"{numbers}: less than {format_percent(BALANCED)} apart"
    return side, f"{numbers}: {format_percent(BALANCED)} or more apart"


_MEASURED = (*_SHARES.values(), WAVES)


def _classify_rows(rows: Sequence[Sequence[float]]) -> dict[str, np.ndarray]:
    """Return the columns of measurements and of the bound; each row is in the order of `_MEASURED`."""
    compute, memory, dram, occupancy, waves = np.array(rows, np.float64).reshape(-1, len(_MEASURED)).T
    verdicts = [classify_bound(*four) for four in zip(compute, memory, waves, dram, strict=True)]
    return {
        "bound": objects(verdict for verdict, _ in verdicts),
        "compute_share": compute,
        "memory_share": memory,
        "dram_share": dram,
        "occupancy_share": occupancy,
        "waves": waves,
        "reason": objects(reason for _, reason in verdicts),
    }


def _list_launches(launches: Sequence[Launch]) -> Table:
    """Return the launches, in order."""
    values = {
        "name": objects(one.name for one in launches),
        "grid": objects(one.grid or None for one in launches),
        "block": objects(one.block or None for one in launches),
        "device": objects(one.device or None for one in launches),
        "duration_ns": np.array([one.values.get(DURATION, math.nan) for one in launches], np.float64),
    }
    return Table({**values, **_classify_rows([[one.values.get(of, math.nan) for of in _MEASURED] for one in launches])})


def _reduce_each(lists: Sequence[Sequence[float]], function: object) -> Float64:
    assert callable(function)
    return np.array([function(known) if known else math.nan for known in lists], np.float64)


def _weighted_mean(launches: Sequence[Launch], metric: str) -> float:
    """Return the mean of a metric over launches, weighted by their durations; unweighted if these are not all known."""
    known = [one.values for one in launches if metric in one.values]
    if not known:
        return math.nan
    weights = [values.get(DURATION, math.nan) for values in known]
    whole = math.fsum(weights)
    if not whole > 0:
        return math.fsum(values[metric] for values in known) / len(known)
    return math.fsum(values[metric] * weight for values, weight in zip(known, weights, strict=True)) / whole
