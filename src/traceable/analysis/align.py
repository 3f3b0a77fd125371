"""A mock held against the full model: what is compared of both, its alignment, the result and the hints."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np

from traceable.analysis.alignment import (
    Alignment,
    Layers,
    align_sequences,
    carry_bounds,
    find_closest_layer,
    find_layers,
    select_layer,
)
from traceable.analysis.context import Context
from traceable.analysis.excerpts import build_excerpt
from traceable.analysis.expected_shares import ExpectedShare
from traceable.analysis.fidelity import Excerpt, Fidelity, measure_fidelity
from traceable.analysis.fidelity_hints import find_hints, tabulate_hints
from traceable.analysis.kernel_families import Family
from traceable.analysis.table import Table, pack_objects
from traceable.errors import Message, MissingDataError
from traceable.trace.model import Int64

MIN_LAYER_SHARE = 0.5
"""A layer of the candidate has more than this share of the kernels of one of the reference."""

MIN_LAYERS_SHARE = 0.5
"""Layers are tabulated if they have more than this share of the kernels of a sequence: other repetitions are none."""


@dataclass(frozen=True, eq=False)
class Selection:
    """Which part of a recording is compared.

    Attributes:
        range_name: instances of this range; None for steps.
        step: the step of this number; None for all steady ones.
        layer: the layer of this number, from 0; None for all.
        may_be_layer: compare all of it if it has no such layers: it may be a layer itself.
        excluded_ns: (n, 2): starts and ends of times whose instances are left out; None for none.
    """

    range_name: str | None = None
    step: int | None = None
    layer: int | None = None
    may_be_layer: bool = False
    excluded_ns: Int64 | None = None


@dataclass(frozen=True)
class Tolerance:
    """What is accepted.

    Attributes:
        within: how much of the reference's time a difference may be.
        expected: shares of kernels in the candidate.
        min_score: the least score; None for any.
    """

    within: float = 0.02
    expected: tuple[ExpectedShare, ...] = ()
    min_score: float | None = None


@dataclass(frozen=True, eq=False)
class AlignedPart:
    """The result for one part of both recordings: all of what was selected, or one phase of it.

    Attributes:
        reference, candidate: what was compared.
        fidelity: the result.
        notes: on the alignment.
    """

    reference: Excerpt
    candidate: Excerpt
    fidelity: Fidelity
    notes: tuple[Message, ...]


def align(
    reference: Context,
    candidate: Context,
    selections: tuple[Selection, Selection] = (Selection(), Selection()),
    tolerance: Tolerance | None = None,
    *,
    match: str,
    families: Sequence[Family],
) -> AlignedPart:
    """Hold the candidate against the reference.

    Args:
        selections: what is compared of the reference and of the candidate.
        tolerance: what is accepted; the defaults for None.
        match, families: see `kernel_names.make_kernel_keys`.

    Raises:
        MissingDataError: one of them has no kernels, or none such, or they have no kernel in common.
        UsageError: rapidfuzz is not installed, or an expected share matches nothing.
    """
    tolerance = tolerance or Tolerance()
    with _name_recording("reference"):
        ours = _select_excerpt(reference, selections[0], match, families)
        if selections[0].layer is not None:
            ours = _take_layer(ours, find_layers(ours.sequence), selections[0].layer)
    with _name_recording("candidate"):
        theirs = _select_excerpt(candidate, selections[1], match, families)
        if selections[1].layer is not None:
            theirs = _take_candidate_layer(theirs, selections[1].layer, selections[1].may_be_layer, len(ours))
    alignment = align_sequences(ours.sequence, theirs.sequence)
    fidelity = measure_fidelity(
        ours,
        theirs,
        alignment,
        within=tolerance.within,
        expected=tolerance.expected,
        min_score=tolerance.min_score,
    )
    hints = find_hints(fidelity.pairs, ours, theirs)
    tables = dict(fidelity.tables)
    if selections[0].layer is None:
        layers = find_layers(ours.sequence)
        if int((layers.stop - layers.first).sum()) > MIN_LAYERS_SHARE * len(ours):
            tables["layers"] = tabulate_layers(layers, alignment, ours, theirs)
            hints += _suggest_layer(layers, alignment)
    tables["hints"] = tabulate_hints(hints)
    return AlignedPart(ours, theirs, replace(fidelity, tables=tables), alignment.notes)


@contextmanager
def _name_recording(word: str) -> Iterator[None]:
    """Put the word for a recording before the reason why it can't be compared."""
    try:
        yield
    except MissingDataError as error:
        raise MissingDataError(error.code, f"{word}: {error.problem}", error.remedy) from None


def _select_excerpt(context: Context, selection: Selection, match: str, families: Sequence[Family]) -> Excerpt:
    return build_excerpt(
        context,
        range_name=selection.range_name,
        step=selection.step,
        match=match,
        families=families,
        excluded_ns=selection.excluded_ns,
    )


def _take_layer(excerpt: Excerpt, layers: Layers, number: int) -> Excerpt:
    return excerpt.take_sequence(select_layer(excerpt.sequence, layers, number))


def _take_candidate_layer(candidate: Excerpt, number: int, may_be_layer: bool, kernels: int) -> Excerpt:
    """Return the layer of a candidate; all of it where it may be a layer itself and has none as long.

    Args:
        kernels: how many the layer of the reference has. What repeats within a layer is much shorter.
    """
    layers = find_layers(candidate.sequence)
    sizes = layers.stop - layers.first
    if may_be_layer and not (len(layers) and np.median(sizes) > kernels * MIN_LAYER_SHARE):
        note = Message("candidate_is_one_layer", "no layers repeat in the candidate: all of it is compared")
        return replace(candidate, notes=(*candidate.notes, note))
    return _take_layer(candidate, layers, number)


def tabulate_layers(layers: Layers, alignment: Alignment, reference: Excerpt, candidate: Excerpt) -> Table:
    """Return one row a layer of the reference: its kernels and time, and those of the candidate that match them.

    So the layers of an eager run are found in one with CUDA graphs, whose kernels have no ranges of their own.
    """
    ours, theirs = reference.typical, candidate.typical
    # By row: a number may come several times.
    carried = carry_bounds(replace(layers, number=np.arange(len(layers))), alignment)
    bounds = dict(
        zip(
            carried.number.tolist(),
            zip(carried.first.tolist(), carried.stop.tolist(), carried.matched.tolist(), strict=True),
            strict=True,
        )
    )
    rows = []
    for row, (number, first, stop) in enumerate(
        zip(layers.number.tolist(), layers.first.tolist(), layers.stop.tolist(), strict=True)
    ):
        begin, end, matched = bounds.get(row, (None, None, 0))
        before, after = ours.measure_ns(first, stop), None if begin is None else theirs.measure_ns(begin, end)
        ratio = after / before if after is not None and before else None
        rows.append((number, layers.name, first, stop, begin, end, stop - first, matched, before, after, ratio))
    columns = (
        *("layer", "name", "reference_first", "reference_stop", "candidate_first", "candidate_stop", "kernels"),
        *("matched", "reference_ns", "candidate_ns", "ratio"),
    )
    return Table({column: pack_objects(row[place] for row in rows) for place, column in enumerate(columns)})


def _suggest_layer(layers: Layers, alignment: Alignment) -> list[Message]:
    """Return the hint that the candidate is one layer of the reference, where most of the reference is missing."""
    reference, candidate = alignment.reference, alignment.candidate
    if len(layers) < 2 or len(alignment.missing) <= MIN_LAYER_SHARE * len(reference):
        return []
    closest = int(layers.number[find_closest_layer(reference, layers, candidate)])
    text = (
        f"the reference has {len(layers)} layers, and most of its kernels are missing in the candidate: compare with "
        f"one layer, --reference-layer {closest}"
    )
    return [Message("fewer_layers", text)]
