"""What Nsight Compute measured, out of the CSV that `ncu --csv` prints: one `Launch` for each profiled launch.

Both layouts are read: the wide one of `--page raw` (a column a metric, a row of units below the header) and the long
one of `--page details` and of `--csv` without a page (a row a metric). Metrics go by their names or, on the details
page, by their labels, which have changed (`Compute (SM) [%]`, `Compute (SM) Throughput`); columns are found by their
headers, which have changed too (2022.3 has `Kernel Time`, 2024.1 `Block Size`). What else a program or ncu printed
around the table is passed over. Values in other units and with thousands apart (`1,205.00`) are understood.
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
"""What is read, and what ncu is told to collect: known for Volta to Hopper; a Tegra has no metric of DRAM."""

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
"""Other names of these metrics. Of the labels `Memory Throughput` is two: a share, and bytes a second."""

_TIMES_NS = {
    **dict.fromkeys(("ns", "nsecond"), 1.0),
    **dict.fromkeys(("us", "usecond"), 1e3),
    **dict.fromkeys(("ms", "msecond"), 1e6),
    **dict.fromkeys(("s", "second"), 1e9),
}
_NO_VALUE = frozenset({"", "n/a", "nan", "inf", "-nan", "-inf", "(!) nan", "(!) n/a"})
_NUMBER = re.compile(r"[-+]?[\d.,]*\d[\d.,]*(?:[eE][-+]?\d+)?")
_LOOKED_AT_BYTES = 4096
_TELL = "give what `ncu --csv --page raw` or `--page details` printed, or the .ncu-rep itself"


@dataclass(frozen=True)
class Launch:
    """One profiled launch of a kernel.

    Attributes:
        name: of the kernel, as the file has it.
        process: its id.
        grid, block: such as `12288x1x1`; empty where not said.
        device: number and, where it is said, name of the GPU.
        values: by metric: times in ns, throughputs and occupancy from 0 to 1. What was not measured is not in it.
    """

    name: str
    process: str
    grid: str
    block: str
    device: str
    values: dict[str, float] = field(default_factory=dict)


def read(path: Path) -> list[Launch]:
    """Return the launches in a CSV file, in its order.

    Raises:
        TraceError: the file can't be read, is none of ncu's, holds no launch or no metric of METRICS, or a value in it
            is no number.
    """
    try:
        with untrusted.open_regular(path, follow=True) as file:
            # A recording of gigabytes, given by mistake, is not read whole for that.
            begin = file.read(_LOOKED_AT_BYTES)
            content = b"" if b"\0" in begin else begin + file.read()
        text = content.decode("utf-8-sig", "replace")
    except OSError as error:
        found = f"{path} can't be read: {error.strerror}"
        raise TraceError("file_unreadable", found, "check the path and its permissions") from None
    return parse(text, str(path))


def parse(text: str, source: str) -> list[Launch]:
    """Return the launches in a CSV text; `source` is what errors call it. Raises as `read`."""
    lines = text.splitlines()
    start, header = _header(lines, source)
    rows = list(_rows(lines, start, header, source))
    long = {"Metric Name", "Metric Value"} <= set(header)
    launches = _long(header, rows, source) if long else _wide(header, rows, source)
    if not launches:
        found = f"{source} holds no launch of a kernel"
        raise TraceError("no_kernel_launches", found, "profile again: nothing matched, or nothing ran")
    if not any(launch.values for launch in launches):
        raise TraceError(
            "no_metrics",
            f"{source} holds no metric of {len(launches)} launches that says what holds them back",
            "profile with `traceable ncu`, or collect ncu's section SpeedOfLight",
        )
    return launches


def _header(lines: Sequence[str], source: str) -> tuple[int, list[str]]:
    """Return the number of the header line and its columns."""
    for number, line in enumerate(lines):
        if "Kernel Name" in line:
            columns = _fields(line, number, source)
            if "Kernel Name" in columns and ("ID" in columns or "Metric Value" in columns):
                return number, columns
    found = f"{source} is no CSV of ncu's: no line of it names the column Kernel Name"
    raise TraceError("not_an_ncu_csv", found, _TELL)


def _rows(lines: Sequence[str], start: int, header: Sequence[str], source: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows below the header with their line numbers, as wide as it is."""
    # ncu quotes every field, so that what it or the program prints in between can be told apart.
    quoted = lines[start].startswith('"')
    needed = header.index("Metric Value") + 1 if "Metric Value" in header else len(header)
    for number, line in enumerate(lines[start + 1 :], start + 1):
        if not line.strip() or line.startswith("==") or (quoted and not line.startswith('"')):
            continue
        row = _fields(line, number, source)
        # The rows of the details page end early where a metric has no rule, 2022.3's in a comma more.
        if not needed <= len(row) <= len(header) + 1:
            raise TraceError(
                "csv_columns_differ",
                f"{source}, line {number + 1}: {len(row)} columns where the header has {len(header)}",
                "the file was cut off or mixed with other output; profile or export again",
            )
        yield number + 1, row + [""] * (len(header) - len(row))


def _fields(line: str, number: int, source: str) -> list[str]:
    try:
        return next(csv.reader([line], strict=True))
    except (csv.Error, StopIteration) as error:
        raise TraceError("csv_malformed", f"{source}, line {number + 1} is no line of CSV: {error}", _TELL) from None


def _wide(header: Sequence[str], rows: Sequence[tuple[int, list[str]]], source: str) -> list[Launch]:
    columns = [(place, metric) for place, name in enumerate(header) if (metric := _metric(name)) is not None]
    units = [""] * len(header)
    launches = []
    for number, row in rows:
        cells = dict(zip(header, row, strict=False))
        if not cells["Kernel Name"] and not cells.get("ID"):
            units = row
            continue
        values: dict[str, float] = {}
        for place, metric in columns:
            _note(values, metric, row[place], units[place], f"{source}, line {number}")
        launches.append(_launch(cells, values))
    return launches


def _long(header: Sequence[str], rows: Sequence[tuple[int, list[str]]], source: str) -> list[Launch]:
    found: dict[tuple[str, ...], Launch] = {}
    for number, row in rows:
        cells = dict(zip(header, row, strict=False))
        metric = _metric(cells["Metric Name"])
        key = (cells.get("Process ID", ""), cells.get("ID", ""), cells["Kernel Name"])
        launch = found.setdefault(key, _launch(cells, {}))
        unit = cells.get("Metric Unit", "")
        if metric is None or (metric == MEMORY and unit not in ("%", "")):
            continue
        _note(launch.values, metric, cells["Metric Value"], unit, f"{source}, line {number}")
    return list(found.values())


def _metric(name: str) -> str | None:
    return name if name in METRICS else _LABELS.get(name)


def _launch(cells: dict[str, str], values: dict[str, float]) -> Launch:
    def size(column: str, metric: str) -> str:
        # Outside of base units 2022.3 writes 256.000000.
        each = [cells.get(f"{metric}_{axis}", "").partition(".")[0] for axis in "xyz"]
        three = re.findall(r"\d+", cells.get(column, "")) or each
        return "x".join(three) if all(three) else ""

    name = cells.get("device__attribute_display_name", "")
    device = " ".join(filter(None, (cells.get("Device") or cells.get("launch__device_id", ""), name)))
    grid, block = size("Grid Size", "launch__grid_dim"), size("Block Size", "launch__block_dim")
    return Launch(cells["Kernel Name"], cells.get("Process ID", ""), grid, block, device, values)


def _note(values: dict[str, float], metric: str, text: str, unit: str, where: str) -> None:
    """Put a value in, in the unit of `Launch.values`.

    Raises:
        TraceError: it is no number, or of an unknown unit.
    """
    # What has one value an instance is written `total; one; one` or `total (one; one)`.
    plain = re.split(r"[;(]", text, maxsplit=1)[0].strip() if not text.startswith("(") else text.strip()
    if plain.lower() in _NO_VALUE:
        return
    number = _number(plain)
    if number is None or number < 0:
        raise TraceError("metric_invalid", f"{where}: {text[:60]!r} is no value of {metric}", _TELL)
    if metric == DURATION:
        if unit not in _TIMES_NS:
            found = f"{where}: {unit[:40]!r} is no unit of time ({metric})"
            raise TraceError("unit_unknown", found, "export with --print-units base")
        values[metric] = number * _TIMES_NS[unit]
    else:
        values[metric] = number if metric == WAVES else number / 100


def _number(text: str) -> float | None:
    """Return the number that `text` is, in whichever locale it was written.

    Examples:
        >>> _number("1,205.00"), _number("27.595.520"), _number("65,77"), _number("239008"), _number("12,288")
        (1205.0, 27595520.0, 65.77, 239008.0, 12288.0)
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
