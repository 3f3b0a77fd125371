"""Nsight Compute's measurements, from the output of `ncu --csv`: one `Launch` for each profiled launch.

Both layouts are read: the wide one of `--page raw` (a column a metric, a row of units below the header) and the long
one of `--page details` and of `--csv` without a page (a row a metric). Metrics go by their names or, on the details
page, by their labels, which have changed (`Compute (SM) [%]`, `Compute (SM) Throughput`); columns are found by their
headers, which have changed too (2022.3 has `Kernel Time`, 2024.1 `Block Size`). Other output of the program or ncu
around the table is skipped. Values in other units and with separators (`1,205.00`) are converted.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from traceable.errors import TraceError
from traceable.protocol import untrusted

DURATION = "gpu__time_duration.sum"
COMPUTE = "sm__throughput.avg.pct_of_peak_sustained_elapsed"
MEMORY = "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed"
DRAM = "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed"
OCCUPANCY = "sm__warps_active.avg.pct_of_peak_sustained_active"
WAVES = "launch__waves_per_multiprocessor"

METRICS = (DURATION, COMPUTE, MEMORY, DRAM, OCCUPANCY, WAVES)
"""The metrics that are always collected and read: available from Volta to Hopper; a Tegra has none for DRAM."""

_LABELS = {
    "Duration": DURATION,
    "Compute (SM) Throughput": COMPUTE,
    "Compute (SM) [%]": COMPUTE,
    "SM [%]": COMPUTE,
    "Memory Throughput": MEMORY,
    "Memory [%]": MEMORY,
    "DRAM Throughput": DRAM,
    "Achieved Occupancy": OCCUPANCY,
    "Waves Per SM": WAVES,
    "dram__throughput.avg.pct_of_peak_sustained_elapsed": DRAM,
    "gpu__time_duration.avg": DURATION,
}
"""Other names of these metrics. The label `Memory Throughput` is ambiguous: a share, or bytes per second."""

_TIMES_NS = {
    **dict.fromkeys(("ns", "nsecond"), 1.0),
    **dict.fromkeys(("us", "usecond"), 1e3),
    **dict.fromkeys(("ms", "msecond"), 1e6),
    **dict.fromkeys(("s", "second"), 1e9),
}
_NO_VALUE = frozenset({"", "n/a", "nan", "inf", "-nan", "-inf", "(!) nan", "(!) n/a"})
_NUMBER = re.compile(r"[-+]?[\d.,]*\d[\d.,]*(?:[eE][-+]?\d+)?")
_SNIFFED_BYTES = 4096
_FIX = "pass the output of `ncu --csv --page raw` or `--page details`, or the .ncu-rep itself"

_Row = tuple[int, list[str]]
"""A row of the file and the number of its line."""


@dataclass(frozen=True)
class Launch:
    """One profiled launch of a kernel.

    Attributes:
        name: of the kernel, as the file has it.
        process: its id.
        grid, block: such as `12288x1x1`; empty if not in the file.
        device: number and, if in the file, name of the GPU.
        values: by metric of METRICS: times in ns, throughputs and occupancy from 0 to 1; only those that were measured.
        requested: by name of a requested metric, its value and unit, both as in the file.
    """

    name: str
    process: str
    grid: str
    block: str
    device: str
    values: dict[str, float] = field(default_factory=dict)
    requested: dict[str, tuple[float | str, str]] = field(default_factory=dict)


def read(path: Path, metrics: Sequence[str] = ()) -> list[Launch]:
    """Return the launches in a CSV file, in its order.

    Args:
        path: the file.
        metrics: as for `parse`.

    Raises:
        TraceError: the file can't be read, is not from ncu, has no launch or no metric, or a value in it is invalid.
    """
    try:
        with untrusted.open_regular(path, follow=True) as file:
            # A recording of gigabytes, passed by mistake, is not read whole.
            begin = file.read(_SNIFFED_BYTES)
            content = b"" if b"\0" in begin else begin + file.read()
        text = content.decode("utf-8-sig", "replace")
    except OSError as error:
        problem = f"{path} can't be read: {error.strerror}"
        raise TraceError("file_unreadable", problem, "check the path and its permissions") from None
    return parse(text, str(path), metrics)


def parse(text: str, source: str, metrics: Sequence[str] = ()) -> list[Launch]:
    """Return the launches in a CSV text. Raises as `read`.

    Args:
        text: of the file.
        source: its name in errors.
        metrics: names of further metrics to read; one without a suffix stands for all with one (`.avg`, `.sum`).
    """
    lines = text.splitlines()
    start, header = _find_header(lines, source)
    rows = _read_rows(lines, start, header, source)
    is_long = {"Metric Name", "Metric Value"} <= set(header)
    launches: dict[tuple[str, ...], Launch] = {}
    for number, key, cells, measurements in _read_long(header, rows) if is_long else _read_wide(header, rows):
        launch = launches.setdefault(key, _make_launch(cells))
        for name, unit, value in measurements:
            metric = name if name in METRICS else _LABELS.get(name)
            if metric is not None and not (metric == MEMORY and unit not in ("%", "")):
                _add_value(launch.values, metric, value, unit, f"{source}, line {number}")
            if any(name == one or name.startswith(f"{one}.") for one in metrics) and not _is_absent(value):
                parsed = _parse_number(_strip_instances(value))
                launch.requested[name] = (value if parsed is None else parsed, unit)
    if not launches:
        problem = f"{source} has no launch of a kernel"
        raise TraceError("no_kernel_launches", problem, "profile again with other filters")
    if not any(launch.values or launch.requested for launch in launches.values()):
        raise TraceError(
            "no_metrics",
            f"{source} has none of the metrics that tell what limits its {len(launches)} launches",
            "profile with `traceable ncu`, or collect ncu's section SpeedOfLight",
        )
    return list(launches.values())


def _find_header(lines: Sequence[str], source: str) -> tuple[int, list[str]]:
    """Return the number of the header line and its columns."""
    for number, line in enumerate(lines):
        if "Kernel Name" in line:
            columns = _split_line(line, number, source)
            if "Kernel Name" in columns and ("ID" in columns or "Metric Value" in columns):
                return number, columns
    problem = f"{source} is not CSV output of ncu: it has no column Kernel Name"
    raise TraceError("not_an_ncu_csv", problem, _FIX)


def _read_rows(lines: Sequence[str], start: int, header: Sequence[str], source: str) -> Iterator[_Row]:
    """Yield the rows below the header, as wide as it is."""
    # ncu quotes every field, which distinguishes other output of ncu or the program.
    quoted = lines[start].startswith('"')
    needed = header.index("Metric Value") + 1 if "Metric Value" in header else len(header)
    for number, line in enumerate(lines[start + 1 :], start + 1):
        if not line.strip() or line.startswith("==") or (quoted and not line.startswith('"')):
            continue
        row = _split_line(line, number, source)
        # The rows of the details page end early where a metric has no rule, with an extra comma in 2022.3.
        if not needed <= len(row) <= len(header) + 1:
            raise TraceError(
                "csv_columns_differ",
                f"{source}, line {number + 1}: {len(row)} columns where the header has {len(header)}",
                "the file is truncated or mixed with other output; profile or export again",
            )
        yield number + 1, row + [""] * (len(header) - len(row))


def _split_line(line: str, number: int, source: str) -> list[str]:
    try:
        return next(csv.reader([line], strict=True))
    except (csv.Error, StopIteration) as error:
        raise TraceError("csv_malformed", f"{source}, line {number + 1} is not valid CSV: {error}", _FIX) from None


_Measured = tuple[int, tuple[str, ...], dict[str, str], Sequence[tuple[str, str, str]]]
"""Line number, key of the launch, cells by column, and the measurements: name, unit and value."""


def _read_wide(header: Sequence[str], rows: Iterator[_Row]) -> Iterator[_Measured]:
    units = [""] * len(header)
    for number, row in rows:
        cells = dict(zip(header, row, strict=False))
        if not cells["Kernel Name"] and not cells.get("ID"):
            units = row
            continue
        yield number, (str(number),), cells, list(zip(header, units, row, strict=False))


def _read_long(header: Sequence[str], rows: Iterator[_Row]) -> Iterator[_Measured]:
    for number, row in rows:
        cells = dict(zip(header, row, strict=False))
        key = (cells.get("Process ID", ""), cells.get("ID", ""), cells["Kernel Name"])
        yield number, key, cells, [(cells["Metric Name"], cells.get("Metric Unit", ""), cells["Metric Value"])]


def _make_launch(cells: dict[str, str]) -> Launch:
    def size(column: str, metric: str) -> str:
        # Without base units 2022.3 writes 256.000000.
        each = [cells.get(f"{metric}_{axis}", "").partition(".")[0] for axis in "xyz"]
        three = re.findall(r"\d+", cells.get(column, "")) or each
        return "x".join(three) if all(three) else ""

    name = cells.get("device__attribute_display_name", "")
    device = " ".join(filter(None, (cells.get("Device") or cells.get("launch__device_id", ""), name)))
    grid, block = size("Grid Size", "launch__grid_dim"), size("Block Size", "launch__block_dim")
    return Launch(cells["Kernel Name"], cells.get("Process ID", ""), grid, block, device)


def _add_value(values: dict[str, float], metric: str, text: str, unit: str, where: str) -> None:
    """Add a value, in the unit of `Launch.values`.

    Raises:
        TraceError: it is not a number, or has an unknown unit.
    """
    if _is_absent(text):
        return
    number = _parse_number(_strip_instances(text))
    if number is None or number < 0:
        raise TraceError("metric_invalid", f"{where}: {text[:60]!r} is not a valid value of {metric}", _FIX)
    if metric == DURATION:
        if unit not in _TIMES_NS:
            problem = f"{where}: {unit[:40]!r} is not a unit of time ({metric})"
            raise TraceError("unit_unknown", problem, "export with --print-units base")
        values[metric] = number * _TIMES_NS[unit]
    else:
        values[metric] = number if metric == WAVES else number / 100


def _strip_instances(text: str) -> str:
    """Return the total of a metric with a value per instance, which is written `total; one; one` or `total (one; one)`.

    The parenthesis of `(!) nan` has no total before it.
    """
    return text.strip() if text.startswith("(") else re.split(r"[;(]", text, maxsplit=1)[0].strip()


def _is_absent(text: str) -> bool:
    return _strip_instances(text).lower() in _NO_VALUE


def _parse_number(text: str) -> float | None:
    """Parse a number in any locale's format.

    Examples:
        >>> [_parse_number(text) for text in ("1,205.00", "27.595.520", "65,77", "239008", "12,288")]
        [1205.0, 27595520.0, 65.77, 239008.0, 12288.0]
    """
    if not _NUMBER.fullmatch(text):
        return None
    dots, commas = text.count("."), text.count(",")
    if dots and commas:
        group, point = (",", ".") if text.rfind(".") > text.rfind(",") else (".", ",")
    elif commas:
        group, point = (",", ".") if commas > 1 or re.fullmatch(r"[-+]?\d{1,3},\d{3}", text) else (".", ",")
    else:
        group, point = (".", ",") if dots > 1 else (",", ".")
    try:
        return float(text.replace(group, "").replace(point, "."))
    except ValueError:
        return None
