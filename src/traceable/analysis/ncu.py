"""What limits a kernel, from Nsight Compute's measurements of its launches.

`classify_bound` follows the rule SOLBottleneck of Nsight Compute itself (sections/SpeedOfLight.py, 2022.3) with its
thresholds. It compares the throughput of the SMs with that of the memory system, each in percent of its own peak. It is
not a roofline of floating-point operations over bytes, which needs other metrics for each kind of arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np

from traceable.analysis.table import Table, objects
from traceable.errors import TraceError
from traceable.trace.model import Float64, NDArray
from traceable.trace.ncu_csv import COMPUTE, DRAM, DURATION, MEMORY, OCCUPANCY, WAVES, Launch
from traceable.units import format_percent

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

_MEASURED = {
    "compute_share": COMPUTE,
    "memory_share": MEMORY,
    "dram_share": DRAM,
    "occupancy_share": OCCUPANCY,
    "waves": WAVES,
}


def summarize_launches(launches: Sequence[Launch]) -> Table:
    """Return one row for the launches of a kernel with equal grid and block, the largest total first.

    `duration_*_ns` are over its launches. The shares of peak, the occupancy and the waves are means weighted by
    duration, so that they are those of the whole time. `bound` is `compute`, `memory`, `balanced`, `latency`, or None
    if unknown; `reason` gives the numbers. A requested metric is a column of its name: of a share or a rate the mean
    weighted by duration, of other numbers the mean over launches, of texts the one that all launches have.
    `others["launches"]` has the single launches, `others["metrics"]` the units of the requested metrics.

    Raises:
        TraceError: the values of a metric are in several units.
    """
    units = _collect_units(launches)
    groups: dict[tuple[str, ...], list[Launch]] = {}
    for launch in launches:
        groups.setdefault((launch.name, launch.grid, launch.block, launch.device), []).append(launch)
    each = list(groups.values())
    durations = [[one.values[DURATION] for one in members if DURATION in one.values] for members in each]
    total = _reduce_each(durations, math.fsum)
    times = {
        "launches": np.array([len(members) for members in each], np.int64),
        "duration_total_ns": total,
        "duration_mean_ns": _reduce_each(durations, lambda known: math.fsum(known) / len(known)),
        "duration_min_ns": _reduce_each(durations, min),
        "duration_max_ns": _reduce_each(durations, max),
    }
    kernels = Table({**_identify(each), **times, **_measure(each, units)})
    single = [[one] for one in launches]
    time = {"duration_ns": np.array([one.values.get(DURATION, math.nan) for one in launches], np.float64)}
    others = {
        "launches": Table({**_identify(single), **time, **_measure(single, units)}),
        "metrics": Table({"metric": objects(units), "unit": objects(unit or None for unit in units.values())}),
    }
    return Table(kernels.take(np.argsort(-np.nan_to_num(total), kind="stable")).values, others)


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


def _collect_units(launches: Sequence[Launch]) -> dict[str, str]:
    """Return the unit of each requested metric."""
    units: dict[str, str] = {}
    for launch in launches:
        for name, (_, unit) in launch.requested.items():
            if units.setdefault(name, unit) != unit:
                raise TraceError(
                    "units_differ", f"{name} is in {units[name]!r} and in {unit!r}", "export with --print-units base"
                )
    return units


def _identify(groups: Sequence[Sequence[Launch]]) -> dict[str, NDArray[Any]]:
    """Return the columns that identify the kernel of each group."""
    first = [members[0] for members in groups]
    return {
        "name": objects(one.name for one in first),
        "grid": objects(one.grid or None for one in first),
        "block": objects(one.block or None for one in first),
        "device": objects(one.device or None for one in first),
    }


def _measure(groups: Sequence[Sequence[Launch]], units: Mapping[str, str]) -> dict[str, NDArray[Any]]:
    """Return the columns of the bound, the measurements, and the requested metrics of each group."""
    means = {
        column: np.array([_mean(members, _get_value(metric)) for members in groups], np.float64)
        for column, metric in _MEASURED.items()
    }
    four = (means["compute_share"], means["memory_share"], means["waves"], means["dram_share"])
    bounds = [classify_bound(*row) for row in zip(*four, strict=True)]
    requested = {name: [_reduce_metric(members, name, unit) for members in groups] for name, unit in units.items()}
    return {
        "bound": objects(bound for bound, _ in bounds),
        **means,
        "reason": objects(reason for _, reason in bounds),
        **{
            name: objects(values) if any(isinstance(value, str) for value in values) else np.array(values, np.float64)
            for name, values in requested.items()
        },
    }


def _get_value(metric: str) -> Callable[[Launch], float | None]:
    return lambda launch: launch.values.get(metric)


def _reduce_metric(launches: Sequence[Launch], name: str, unit: str) -> float | str | None:
    """Return the value of a requested metric for several launches; None where it is absent, or texts differ."""
    values = [one.requested[name][0] for one in launches if name in one.requested]
    if any(isinstance(value, str) for value in values):
        return values[0] if len(set(values)) == 1 else None
    is_ratio = unit == "%" or "/" in unit
    value = _mean(
        launches, lambda one: cast(float, one.requested[name][0]) if name in one.requested else None, is_ratio
    )
    return None if math.isnan(value) else value


def _mean(launches: Sequence[Launch], get: Callable[[Launch], float | None], weighted: bool = True) -> float:
    """Return the mean of a value over the launches that have it, weighted by their durations if all are known."""
    known = [(value, one.values.get(DURATION, math.nan)) for one in launches if (value := get(one)) is not None]
    if not known:
        return math.nan
    whole = math.fsum(weight for _, weight in known)
    if not weighted or not whole > 0:
        return math.fsum(value for value, _ in known) / len(known)
    return math.fsum(value * weight for value, weight in known) / whole


def _reduce_each(lists: Sequence[Sequence[float]], function: Callable[[Sequence[float]], float]) -> Float64:
    return np.array([function(known) if known else math.nan for known in lists], np.float64)
