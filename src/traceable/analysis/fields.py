"""Named fields: the values that the instances of a range carried, summarized field by field."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from traceable.analysis.context import Context
from traceable.analysis.grouping import number_groups
from traceable.analysis.table import pack_objects
from traceable.errors import MissingDataError
from traceable.trace.model import NULL, Int32, Int64, NDArray

FIELDS_MAX = 32
VALUES_MAX = 10
TEXT_MAX = 200
"""The limits of a row: the number of fields, of values of each, and of characters of each. Most common first."""

Fields = dict[str, dict[str, Any]]
"""By the name of a field its `count`, and `min`, `max`, `mean` of numbers or `distinct` and `values` of all else."""


def summarize_fields(names: Sequence[str], fields: Int32, group: Int64, groups: int) -> list[Fields | None]:
    """Return for each group of instances the fields they carried; None where none carried fields.

    Args:
        names: those of the trace.
        fields: index into `names` of each instance's fields as JSON text, -1 for none.
        group: group of each instance, 0..groups-1.

    `count` is how many carried the field. Truth values, texts, lists and null count by value, numbers by size. Text
    that is not a JSON object is left out: only a damaged trace holds it.
    """
    fields_by_group: list[Fields | None] = [None] * groups
    which = np.flatnonzero(fields >= 0)
    if not len(which):
        return fields_by_group
    pairs, number = np.unique(np.stack([group[which], fields[which]]), axis=1, return_counts=True)
    parts: dict[int, list[tuple[dict[str, Any], int]]] = {}
    for of_group, text, times in zip(*pairs.tolist(), number.tolist(), strict=True):
        parts.setdefault(of_group, []).append((_parse_fields(names[text]), times))
    for of_group, fields_and_times in parts.items():
        by_name: dict[str, list[tuple[Any, int]]] = {}
        for one, times in fields_and_times:
            for name, value in one.items():
                by_name.setdefault(name, []).append((value, times))
        counts = {name: sum(times for _, times in values) for name, values in by_name.items()}
        commonest = sorted(counts, key=lambda name: (-counts[name], name))[:FIELDS_MAX]
        summary = {
            _shorten(name): {"count": counts[name], **_summarize_values(by_name[name])} for name in sorted(commonest)
        }
        fields_by_group[of_group] = summary or None
    return fields_by_group


def get_field_values(context: Context, field: str) -> tuple[NDArray[Any], Int64]:
    """Return the distinct values of a field of the range instances, sorted, and the index of each instance's.

    A field is what an instance carried as payload (docs/annotation.md) or, where it carried none of that name, what
    was taken out of its name (docs/names.md). Whole numbers are an integer column; other numbers a float column; if
    there are other values too all are text: as JSON those that are not. Absent comes last, and is always among the
    values.

    Raises:
        MissingDataError: no instance has the field.
    """
    combinations, pair = _combine_fields(context)
    of_pair = [fields.get(field) for fields in combinations]
    there = {name for fields in combinations for name in fields}
    if all(value is None for value in of_pair):
        remedy = f"ranges have the fields {', '.join(sorted(there)[:20])}" if there else "no range has fields"
        raise MissingDataError("field_not_found", f"no range has a field {field!r}", remedy)
    known_values = [value for value in of_pair if value is not None]
    if all(_is_number(value) for value in known_values):
        # The smallest integer is NULL.
        whole = all(isinstance(value, int) and NULL < value < 1 << 63 for value in known_values)
        kind, absent = (np.int64, NULL) if whole else (np.float64, np.nan)
        column = np.array([absent if value is None else value for value in of_pair], kind)
        distinct, number = np.unique(column[[value is not None for value in of_pair]], return_inverse=True)
    else:
        absent = None
        texts = [value if isinstance(value, str) or value is None else json.dumps(value) for value in of_pair]
        order = sorted({text for text in texts if text is not None})
        distinct = pack_objects(order)
        index = {text: i for i, text in enumerate(order)}
        number = np.array([index[text] for text in texts if text is not None], np.int64)
    code = np.full(len(of_pair), len(distinct), np.int64)
    code[[value is not None for value in of_pair]] = number.reshape(-1)
    values = np.append(distinct, np.array([absent], distinct.dtype))
    return values, code[pair]


def get_instance_fields(context: Context) -> NDArray[Any]:
    """Return the fields of each range instance, as of `get_field_values`, a dict; None where it has none."""
    combinations, pair = _combine_fields(context)
    column: NDArray[Any] = pack_objects(fields or None for fields in combinations)[pair]
    return column


def _combine_fields(context: Context) -> tuple[list[dict[str, Any]], Int64]:
    """Return the distinct combinations of fields, and which of them each range instance has."""
    instances, names, naming = context.instances, context.trace.names, context.names
    pair, first = number_groups(instances.recorded_name, instances.fields)
    combinations = []
    for name, text in zip(instances.recorded_name[first].tolist(), instances.fields[first].tolist(), strict=True):
        fields = naming.extract_fields(name) if naming is not None and name >= 0 else {}
        combinations.append({**fields, **(_parse_fields(names[text]) if text >= 0 else {})})
    return combinations, pair


def _parse_fields(text: str) -> dict[str, Any]:
    try:
        fields = json.loads(text, parse_constant=lambda _: None)
    except (ValueError, RecursionError):
        return {}
    return fields if isinstance(fields, dict) else {}


def _summarize_values(values: Iterable[tuple[Any, int]]) -> dict[str, Any]:
    numbers: Counter[int | float] = Counter()
    others: Counter[str] = Counter()
    for value, times in values:
        if _is_number(value):
            numbers[value] += times
        else:
            others[json.dumps(value, sort_keys=True)] += times
    summary: dict[str, Any] = {}
    if numbers:
        summary |= {"min": min(numbers), "max": max(numbers), "mean": _compute_mean(numbers)}
    if others:
        commonest = sorted(others.items(), key=lambda item: (-item[1], item[0]))[:VALUES_MAX]
        summary |= {
            "distinct": len(others),
            "values": [{"value": _shorten_value(text), "count": times} for text, times in commonest],
        }
    return summary


def _is_number(value: Any) -> bool:
    """Whether a value is a number that a double can hold; a truth value is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return -(1 << 63) <= value < 1 << 64 if isinstance(value, int) else math.isfinite(value)


def _compute_mean(numbers: Counter[int | float]) -> float:
    total = numbers.total()
    try:
        mean = math.fsum(value * times for value, times in numbers.items()) / total
    except OverflowError:
        mean = math.inf
    if not math.isfinite(mean):
        # The sum of the largest doubles overflows, which fractions don't.
        mean = float(sum(Fraction(value) * times for value, times in numbers.items()) / total)
    return float(min(max(mean, min(numbers)), max(numbers)))


def _shorten_value(text: str) -> Any:
    """Return the value of a JSON text; one that is long as text, cut."""
    value = json.loads(text, parse_constant=lambda _: None)
    if isinstance(value, str):
        return _shorten(value)
    return value if len(text) <= TEXT_MAX else _shorten(text)


def _shorten(text: str) -> str:
    return text if len(text) <= TEXT_MAX else text[:TEXT_MAX] + "..."
