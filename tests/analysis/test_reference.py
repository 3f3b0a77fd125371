"""The numbers of real captures against what `nsys stats` says of them, to the nanosecond."""

from __future__ import annotations

import csv
import gzip
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path
from typing import Any

import pytest
from tests.report.sample_export import NAME_COLUMNS

from traceable.analysis.columns import RANGE_COLUMNS
from traceable.analysis.context import Context
from traceable.analysis.profile import profile_ranges
from traceable.analysis.ranges import list_range_instances
from traceable.trace import load

CAPTURES = (
    "a100-lm-training",
    "a100-transformer-forward",
    "h100x2-torchrun-before",
    "h100x2-torchrun-after",
    "windows-three-adapters",
)


STYLES = {"PushPop": "push_pop", "StartEnd": "start_end"}


def reference(captures: Path, name: str, report: str) -> list[dict[str, str]]:
    with gzip.open(captures / "nsys" / "reference" / f"{name}.{report}.csv.gz", "rt", newline="") as file:
        return list(csv.DictReader(line for line in file if line.strip()))


def names_of(captures: Path, name: str) -> dict[str, dict[str, Any]]:
    """Rows of `names` by the name that nsys gives them: the domain before it, where there is one."""
    rows = profile_ranges(Context(load(captures / "nsys" / f"{name}.sqlite"))).names.rows()
    result = {f"{row['domain']}:{row['name']}" if row["domain"] else row["name"]: row for row in rows}
    assert result
    return result


def round_half_up(value: float | int | None, digits: int = 1) -> str | None:
    """A number as nsys prints it: half away from zero."""
    if value is None:
        return None
    return str(Decimal(repr(float(value))).quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP))


@pytest.mark.parametrize("name", CAPTURES)
def test_gpu_projection_equals_nsys(captures: Path, name: str) -> None:
    names = names_of(captures, name)
    expected = reference(captures, name, "nvtx_gpu_proj_sum")
    assert expected
    for line in expected:
        row = names[line["Range"]]
        # nsys lists instances that put something on the GPU, by launch calls on their own thread alone.
        assert row["nsys_gpu_count"] == int(line["Range Instances"])
        assert row["nsys_cpu_total_ns"] == int(line["Total Range Time (ns)"])
        assert row["nsys_gpu_span_total_ns"] == int(line["Total Proj Time (ns)"])
        assert row["nsys_launches"] == int(line["Total GPU Ops"])
        assert round_half_up(row["nsys_launches"] / row["nsys_gpu_count"]) == line["Avg GPU Ops"]
        assert row["nsys_gpu_span_min_ns"] == int(line["Proj Min (ns)"])
        assert row["nsys_gpu_span_max_ns"] == int(line["Proj Max (ns)"])
        assert round_half_up(row["nsys_gpu_span_mean_ns"]) == line["Proj Avg (ns)"]
        assert round_half_up(row["nsys_gpu_span_p50_ns"]) == line["Proj Med (ns)"]
        assert round_half_up(row["nsys_gpu_span_stddev_ns"]) == line["Proj StdDev (ns)"]
        assert round_half_up(row["nsys_level_mean"]) == line["Avg Range Lvl"]
        assert round_half_up(row["nsys_children_mean"]) == line["Avg Num Child"]
        assert STYLES[line["Style"]] == row["style"]
    listed = {row_name for row_name, row in names.items() if row["nsys_gpu_count"]}
    assert listed == {line["Range"] for line in expected}


@pytest.mark.parametrize("name", CAPTURES)
def test_every_instance_equals_nsys(captures: Path, name: str) -> None:
    """nsys numbers instances by their row in the file, which is no order since 2025.6: numbers are translated."""
    rows = list(list_range_instances(Context(load(captures / "nsys" / f"{name}.sqlite"))).rows())
    lines = [line for line in reference(captures, name, "nvtx_gpu_proj_trace") if line["Name"]]
    ours: dict[tuple[str, ...], dict[str, Any]] = {}
    for row in rows:
        title = f"{row['domain']}:{row['name']}" if row["domain"] else row["name"]
        ours[title, str(row["start_ns"]), str(row["cpu_ns"]), str(row["tid"])] = row
    columns = ("Name", "Orig Start (ns)", "Orig Duration (ns)", "TID")
    theirs = {line["RangeId"]: ours[tuple(line[column] for column in columns)] for line in lines}
    assert len({row["instance"] for row in theirs.values()}) == len(lines) > 0
    for line in lines:
        row = theirs[line["RangeId"]]
        assert row["nsys_gpu_start_ns"] == int(line["Projected Start (ns)"])
        assert row["nsys_gpu_span_ns"] == int(line["Projected Duration (ns)"])
        assert row["pid"] == int(line["PID"])
        assert row["style"] == STYLES[line["Style"]]
        assert row["nsys_launches"] == int(line["NumGPUOps"])
        assert (row["level"], row["nsys_children"]) == (int(line["Lvl"]), int(line["NumChild"]))
        # What lies around a range with GPU work has that work too, so that nsys lists it as well.
        parent = theirs[line["ParentId"]]["instance"] if line["ParentId"] else None
        assert row["parent_instance"] == parent
        assert [theirs[number]["instance"] for number in line["RangeStack"].split(":")[1:]] == stack(rows, row)
    assert sum(row["nsys_launches"] is not None for row in rows) == len(lines)


def stack(rows: list[dict[str, Any]], row: dict[str, Any]) -> list[int]:
    above = stack(rows, rows[row["parent_instance"] - 1]) if row["parent_instance"] else []
    return [*above, row["instance"]]


def test_counts_and_totals_equal_nsys_where_every_range_used_the_gpu(captures: Path) -> None:
    names = names_of(captures, "a100-transformer-forward")
    for line in reference(captures, "a100-transformer-forward", "nvtx_gpu_proj_sum"):
        row = names[line["Range"]]
        assert row["count"] == int(line["Range Instances"])
        assert row["cpu_total_ns"] == int(line["Total Range Time (ns)"])


@pytest.mark.parametrize("name", CAPTURES)
def test_cpu_times_equal_nsys(captures: Path, name: str) -> None:
    names = names_of(captures, name)
    expected = reference(captures, name, "nvtx_pushpop_sum")
    assert {line["Range"] for line in expected} == set(names)
    for line in expected:
        row = names[line["Range"]]
        assert round_half_up(100 * row["nsys_cpu_share"]) == line["Time (%)"]
        assert row["count"] == int(line["Instances"])
        assert row["cpu_total_ns"] == int(line["Total Time (ns)"])
        assert row["cpu_min_ns"] == int(line["Min (ns)"])
        assert row["cpu_max_ns"] == int(line["Max (ns)"])
        assert round_half_up(row["cpu_mean_ns"]) == line["Avg (ns)"]
        assert round_half_up(row["cpu_p50_ns"]) == line["Med (ns)"]
        assert round_half_up(row["cpu_stddev_ns"]) == line["StdDev (ns)"]


def test_autograd_is_inherited_and_nsys_says_what_it_says(captures: Path) -> None:
    result = profile_ranges(Context(load(captures / "nsys" / "a100-lm-training.sqlite")))
    backward = next(row for row in result.names.rows() if row["name"] == "backward")
    assert backward["attribution"] == "inherited"
    assert backward["nsys_launches"] == 40
    assert backward["kernels"] > 10_000
    # The 114 copies before the first range are outside every range; all 62 195 kernels belong to one.
    assert result.coverage.attributed_kernels == result.coverage.kernels
    assert result.coverage.kernels.operations == 62195
    assert result.coverage.unattributed["outside_ranges"].operations == 114


def test_a_graph_traced_as_a_whole_counts_with_its_duration(captures: Path) -> None:
    coverage = profile_ranges(Context(load(captures / "nsys" / "a100-cuda-graphs-graph-level.sqlite"))).coverage
    assert coverage.total.gpu_ns // 1_000_000 == 7811
    assert coverage.unattributed["outside_ranges"].operations == coverage.total.operations == 40


def test_columns_are_those_announced(captures: Path) -> None:
    result = profile_ranges(Context(load(captures / "nsys" / "no-cuda-tables-non-utf8.sqlite")))
    assert result.ranges.columns == RANGE_COLUMNS
    assert result.names.columns == NAME_COLUMNS
