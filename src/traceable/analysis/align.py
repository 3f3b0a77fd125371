"""A mock held against the full model: what is compared of both, its alignment, the result and the hints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from traceable.analysis.alignment import align_sequences
from traceable.analysis.context import Context
from traceable.analysis.excerpts import build_excerpt
from traceable.analysis.expected_shares import ExpectedShare
from traceable.analysis.fidelity import CompareSamples, Excerpt, Fidelity, measure_fidelity
from traceable.analysis.fidelity_hints import find_hints, tabulate_hints
from traceable.analysis.kernel_families import Family
from traceable.errors import Message


@dataclass(frozen=True)
class Selection:
    """Which part of a recording is compared.

    Attributes:
        range_name: instances of this range; None for steps.
        step: the step of this number; None for all steady ones.
        layer: the layer of this number, from 0; None for all.
    """

    range_name: str | None = None
    step: int | None = None
    layer: int | None = None


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
    compare: CompareSamples | None = None,
) -> AlignedPart:
    """Hold the candidate against the reference.

    Args:
        selections: what is compared of the reference and of the candidate.
        tolerance: what is accepted; the defaults for None.
        match, families: see `kernel_names.make_kernel_keys`.
        compare: of the samples of several instances; None to judge the medians alone.

    Raises:
        MissingDataError: one of them has no kernels, or none such, or they have no kernel in common.
        UsageError: rapidfuzz is not installed, or an expected share matches nothing.
    """
    tolerance = tolerance or Tolerance()
    ours, theirs = (
        build_excerpt(context, range_name=one.range_name, step=one.step, match=match, families=families)
        for context, one in zip((reference, candidate), selections, strict=True)
    )
    alignment = align_sequences(ours.sequence, theirs.sequence)
    fidelity = measure_fidelity(
        ours,
        theirs,
        alignment,
        within=tolerance.within,
        expected=tolerance.expected,
        min_score=tolerance.min_score,
        compare=compare,
    )
    hints = tabulate_hints(find_hints(fidelity.pairs, ours, theirs))
    return AlignedPart(ours, theirs, replace(fidelity, tables={**fidelity.tables, "hints": hints}), alignment.notes)
