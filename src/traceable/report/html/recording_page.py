"""The page of a recording: the data of its screens as blocks."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traceable.analysis.comparability import WHOLE_RUN
from traceable.analysis.distributions import build_histograms
from traceable.analysis.table import Table
from traceable.analysis.timeline import build_timeline
from traceable.checks.completeness import COMPLETE, UNKNOWN
from traceable.errors import MissingDataError
from traceable.report.document import MAX_ROWS, build_bounded_report, missing_data_to_dict, table_to_dict
from traceable.report.expectations import format_expectations
from traceable.report.flight import format_flight_recorder
from traceable.report.html.blocks import pack_block
from traceable.report.html.page import REPORT, write_html
from traceable.report.html.pages import QUERIES, build_screen_blocks, load_diagnoses
from traceable.report.html.timeline import build_timeline_blocks
from traceable.report.overhead import format_overhead
from traceable.report.row_filter import DEFAULT_SORT, RowFilter
from traceable.report.terminal import format_coverage, format_selection, format_side
from traceable.report.windows import format_capture
from traceable.units import format_bytes, format_count, format_duration

TYPE_CHECKING = False
if TYPE_CHECKING:
    from traceable.analysis.expectations import ExpectationResult
    from traceable.recording import Recording

BINS = 48
"""Bins of the histogram of a range."""

MAX_STEPS = 100_000
"""How many steps are drawn at most; of more, the slowest of so many consecutive ones stands for them."""

_STATES = {None: 0, "warm-up": 1, "other phase": 2, "edge of the capture": 3}
"""Numbers of `exclusion_reason` in the block `steps`; 0 is a steady step."""

_WINDOWS_LISTED = 8


def write_recording_page(
    recording: Recording,
    path: Path,
    conditions: Mapping[str, Any],
    verdicts: Sequence[ExpectationResult] = (),
) -> None:
    """Write the page of a recording.

    Args:
        recording: a recording or a part of it.
        path: the file.
        conditions: what it was made with, as `traceable.conditions` reads it.
        verdicts: on expected ranges.

    Raises:
        TraceableError: it can't be written there.
    """
    answers = recording.query_all([("ranges", {}), ("findings", {}), *QUERIES.values()])
    tables = dict(zip(QUERIES, answers[2:], strict=True))
    # Most of either is in numpy and zlib, which release the GIL.
    with ThreadPoolExecutor(1) as worker:
        timeline = worker.submit(_build_timeline_blocks, recording)
        blocks = [*_build_blocks(recording, tables, conditions, verdicts), *timeline.result()]
    names = [one.resolve().name for one in recording.paths]
    title = " + ".join(names[:3]) + (f" + {len(names) - 3}" if len(names) > 3 else "")
    write_html(path, kind=REPORT, title=title or "recording", blocks=blocks)


def _build_timeline_blocks(recording: Recording) -> list[str]:
    return build_timeline_blocks(build_timeline(recording.context, recording.client_records))


def _build_blocks(
    recording: Recording,
    tables: Mapping[str, Table | MissingDataError],
    conditions: Mapping[str, Any],
    verdicts: Sequence[ExpectationResult],
) -> list[str]:
    """Return the blocks of all screens but the timeline.

    Args:
        tables: what each of QUERIES returned.
        conditions, verdicts: as of `write_recording_page`.
    """
    document = build_bounded_report(recording, verdicts)
    path_of_step, steps = tables["critical_path"], tables["steps"]
    if isinstance(path_of_step, MissingDataError):
        document["critical_path"] = missing_data_to_dict(path_of_step)
    else:
        document["critical_path"] = table_to_dict(path_of_step, RowFilter(top=MAX_ROWS))
    if isinstance(steps, MissingDataError):
        document["steps"] = missing_data_to_dict(steps)
    document["conditions"] = dict(conditions)
    document["diagnoses"] = load_diagnoses(recording.paths)
    document["facts"] = [
        {"term": term, "texts": texts} for term, texts in _list_facts(recording, document, verdicts) if texts
    ]
    blocks = [pack_block("report", document), _pack_distributions(recording)]
    if isinstance(steps, Table):
        blocks.append(_pack_steps(steps))
    return [*blocks, *build_screen_blocks(recording, tables)]


# ---- what was recorded, in words


def _list_facts(
    recording: Recording, document: Mapping[str, Any], verdicts: Sequence[ExpectationResult]
) -> Iterable[tuple[str, list[str]]]:
    """Yield what was run, on what, over which window, and how that is known: a term and its lines."""
    source, conditions = document["source"], document["conditions"]
    yield "Program", [source["command"] or "its command line is not in the recording"]
    yield "Machine", list(_describe_machine(conditions))
    yield "Recorded", [_describe_time(document), *map(format_side, document["sides"])]
    yield "Window", [*_describe_window(document), *format_flight_recorder(document["flight_recorder"])]
    yield "Part shown", [format_selection(document["selection"])] if document["selection"] else []
    yield "Complete", _describe_completeness(recording, document)
    yield "Expected", format_expectations(verdicts) if verdicts else []
    yield "Attribution", [format_coverage(document["coverage"])] if document["coverage"]["gpu_operations"] else []
    yield "Cost of recording", format_overhead(document["overhead"])
    yield "Notes", [note["text"] for note in source["notes"]]


def _describe_machine(conditions: Mapping[str, Any]) -> Iterable[str]:
    """Yield the hardware, and the software, as far as they are known."""

    def join(value: Any) -> str:
        return ", ".join(map(str, value)) if isinstance(value, list) else str(value)

    def describe(*templates: tuple[str, str]) -> str:
        return ", ".join(
            template.format(join(value))
            for key, template in templates
            if (value := conditions.get(key)) not in (None, [])
        )

    count, models = conditions.get("gpu_count"), conditions.get("gpu_models")
    if models:
        yield f"{count} x {join(models)}" if count and count != 1 else join(models)
    elif count:
        yield format_count(count, "GPU")
    yield from filter(
        None,
        (
            describe(("sm_clock_mhz", "SM clock {} MHz"), ("power_limit_w", "power limit {} W")),
            describe(("cpu_model", "{}"), ("cpu_count", "{} CPUs"), ("host", "host {}")),
            describe(
                *(("python", "Python {}"), ("torch", "torch {}"), ("driver", "driver {}"), ("cuda", "CUDA {}")),
                *(("numpy", "numpy {}"), ("traceable", "traceable {}"), ("commit", "commit {}")),
            ),
        ),
    )


def _describe_time(document: Mapping[str, Any]) -> str:
    source, window = document["source"], document["window"]
    collector = " ".join(filter(None, (source["collector"], source["collector_version"]))) or "an unknown collector"
    recorded = window["recorded_ns"]
    parts = [
        f"by {collector}",
        None if window["utc_epoch_ns"] is None else _format_utc(window["utc_epoch_ns"] + (window["start_ns"] or 0)),
        "no events" if recorded is None else f"{format_duration(recorded)} of events",
        format_count(len(source["processes"]), "process", "processes"),
        format_count(source["threads"], "thread"),
        format_count(source["range_instances"], "range"),
        None if source["size_bytes"] is None else format_bytes(source["size_bytes"]),
    ]
    return ", ".join(filter(None, parts))


def _describe_window(document: Mapping[str, Any]) -> list[str]:
    """Return what was requested and captured, and what the records of the run say opened and closed each window."""
    capture, window = document["capture"], document["window"]
    if capture is None:
        if window["start_ns"] is None:
            return ["no events"]
        steps = document["conditions"].get("window")
        what = "the whole run" if steps == WHOLE_RUN else f"steps {steps}" if steps else "not known what was requested"
        times = f"{format_duration(window['start_ns'])} to {format_duration(window['end_ns'])} of the collection"
        return [f"{what}: events from {times}"]
    rows = capture["windows"]
    lines = [*format_capture(capture), *(_describe_opening(row) for row in rows[:_WINDOWS_LISTED])]
    if len(rows) > _WINDOWS_LISTED:
        lines.append(f"and {format_count(len(rows) - _WINDOWS_LISTED)} more windows")
    return lines


def _describe_opening(row: Mapping[str, Any]) -> str:
    """Return the evidence for a window: when its process opened and closed it, and into which file it was recorded."""
    parts = [f"{row['process'] or 'process'} {row['pid']}"]
    for word in ("opened", "closed"):
        if (wall_ns := row[f"{word}_wall_ns"]) is None:
            parts.append(f"not {word}")
            continue
        step = row[f"{word}_step"]
        parts.append(f"{word} at {_format_utc(wall_ns)}" + ("" if step is None else f" before step {step}"))
    if row["file"]:
        parts.append(f"recorded in {row['file']}")
    return ", ".join(parts)


def _describe_completeness(recording: Recording, document: Mapping[str, Any]) -> list[str]:
    state = document["completeness"]
    if state["state"] == COMPLETE:
        emitted = sum(one["emitted"] or 0 for one in state["processes"])
        return [f"yes: all {format_count(emitted, 'range')} that the program counted are in the recording"]
    if state["state"] == UNKNOWN:
        return [f"not known: {state['reason'] or 'the program did not count its ranges'}"]
    return ["no", *recording.completeness.notes]


def _format_utc(wall_ns: int) -> str:
    seconds, rest = divmod(wall_ns, 1_000_000_000)
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(seconds)) + f".{rest // 1_000_000:03} UTC"


# ---- columns


def _pack_distributions(recording: Recording) -> str:
    """Return the block with a histogram for each of the ranges of the report, in their order."""
    profile = recording.profile
    selected = recording.context.selected_instances
    instances = recording.context.instances.take(selected)
    whole = instances.entered & ~instances.clipped
    histograms = build_histograms(
        profile.row, np.maximum(instances.end_ns - instances.start_ns, 0), len(profile.ranges), whole, BINS
    )
    places = RowFilter(top=MAX_ROWS).select_indices(profile.ranges, DEFAULT_SORT)
    columns: dict[str, NDArray[Any]] = {
        "counts": histograms.counts[places].reshape(-1).astype(np.uint32),
        "low_ns": histograms.low_ns[places],
        "high_ns": histograms.high_ns[places],
    }
    return pack_block("distributions", {"bins": BINS}, columns)


def _pack_steps(table: Table) -> str:
    """Return the block with the time of each step, by lane: the steps of one process, or of a process and GPU."""
    values = table.values
    keys = list(zip(table.column("pid"), table.column("device"), table.column("process"), strict=True))
    numbers: dict[tuple[Any, ...], int] = {}
    lane = np.array([numbers.setdefault(key, len(numbers)) for key in keys], np.int32)
    shown = _select_slowest_of_each(lane, values["wall_ns"], -(-len(keys) // MAX_STEPS))
    state = np.array([_STATES[reason] for reason in values["exclusion_reason"].tolist()], np.uint8)
    index = table.column("index")
    # A program that has two loops of steps counts each from 0.
    is_numbered_by_program = None not in index and len(set(zip(lane.tolist(), index, strict=True))) == len(index)
    meta = {
        "lanes": [dict(zip(("pid", "device", "process"), key, strict=True)) for key in numbers],
        "steps": len(keys),
        "shown": len(shown),
        "numbered_by_program": is_numbered_by_program,
        # Its rows are the columns.
        **table_to_dict(table.take(slice(0)), RowFilter()),
    }
    columns: dict[str, NDArray[Any]] = {
        "lane": lane[shown],
        "step": (values["index"] if is_numbered_by_program else values["step"])[shown],
        "start_ns": values["start_ns"][shown],
        "wall_ns": values["wall_ns"][shown],
        "state": state[shown],
    }
    return pack_block("steps", meta, columns)


def _select_slowest_of_each(lane: NDArray[Any], wall_ns: NDArray[Any], size: int) -> NDArray[Any]:
    """Return the rows of the slowest of `size` consecutive steps of a lane each, in their order."""
    if size <= 1:
        return np.arange(len(lane))
    group = np.arange(len(lane)) // size + lane * len(lane)
    order = np.lexsort((-wall_ns, group))
    return np.sort(order[np.diff(group[order], prepend=-1) > 0])
