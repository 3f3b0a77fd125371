"""The usual reasons why a mock differs from the full model, as far as grids, names and shares of kernels show them.

All of them are inferred: nothing in a recording says how many heads a model has. A hint has the evidence in its text.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from fractions import Fraction

import numpy as np

from traceable.analysis.alignment import EXTRA, MISSING, REPLACED, Pairs
from traceable.analysis.excerpts import Excerpt
from traceable.analysis.labels import extract_base_name
from traceable.analysis.table import Table, pack_objects
from traceable.errors import Message
from traceable.units import format_percent

INFERRED = "inferred"
"""The certainty of every hint."""

PARALLEL_SIZES = (2, 4, 8, 16)
"""Usual tensor-parallel sizes, by which the heads of a model are divided."""

MIN_KERNELS_SCALED = 3
"""From how many kernels with grids of one ratio that is the size of the work, not the choice of a kernel."""

MIN_SHARE_SCALED = 0.5
"""Share of the kernels with other grids that must have that one ratio."""

_ATTENTION = frozenset({"attention", "kv_cache", "rotary"})
_COMMUNICATION = frozenset({"nccl", "communication"})

_DTYPES = (
    ("fp8", re.compile(r"e4m3|e5m2|fp8|float8", re.IGNORECASE)),
    ("int8", re.compile(r"(?<![a-z0-9])(?:[usi]8)+(?![0-9a-hj-rt-z])|int8|imma", re.IGNORECASE)),
    ("bf16", re.compile(r"bf16|bfloat16", re.IGNORECASE)),
    ("f16", re.compile(r"(?<!b)f16(?!\d)|fp16|(?<![a-z])half(?![a-z])|half_t|hgemm", re.IGNORECASE)),
    ("tf32", re.compile(r"tf32|s1688gemm", re.IGNORECASE)),
    ("f32", re.compile(r"f32|(?<![a-z])float(?![a-z0-9])|sgemm", re.IGNORECASE)),
)
"""The types of elements, from the narrowest: what is computed in one is often summed up in a wider one."""

_TENSOR_CORES = re.compile(r"tensorop|wgmma|hmma|imma|(?<![a-z])[hsi]\d{4,5}(gemm|cudnn|fprop)|xmma", re.IGNORECASE)
_NO_TENSOR_CORES = re.compile(r"simt|ffma|(?<![a-z])sgemm", re.IGNORECASE)
_QUANTIZED = re.compile(r"quant|awq|gptq|marlin|machete|w4a16|w8a8|nvfp4|mxfp|fp8|e4m3|e5m2", re.IGNORECASE)
_ARCHITECTURE = re.compile(
    r"(?<![0-9A-Za-z])(volta|turing|ampere|ada|hopper|blackwell|sm_?\d{2,3})(?=[_x\d]|\b)", re.IGNORECASE
)


def find_hints(pairs: Pairs, reference: Excerpt, candidate: Excerpt) -> list[Message]:
    """Return the reasons that the evidence supports, each with it."""
    of_pairs = (_find_scaled_grids, _find_other_dtypes, _find_tensor_cores, _find_quantization, _find_other_attention)
    of_all = (_find_other_architecture, _find_communication, _find_graphs)
    return [
        *(hint for rule in of_pairs for hint in rule(pairs, reference, candidate)),
        *(hint for rule in of_all for hint in rule(reference, candidate)),
    ]


def tabulate_hints(hints: Sequence[Message]) -> Table:
    """Return one row a hint."""
    return Table(
        {
            "hint": pack_objects(hint.code for hint in hints),
            "certainty": pack_objects(INFERRED for _ in hints),
            "text": pack_objects(map(str, hints)),
        }
    )


def _find_scaled_grids(pairs: Pairs, reference: Excerpt, candidate: Excerpt) -> Iterator[Message]:
    """Heads that are divided change the grids of attention alone; another batch or length those of all kernels."""
    both = np.flatnonzero((pairs.reference >= 0) & (pairs.candidate >= 0))
    left, right = pairs.reference[both], pairs.candidate[both]
    grids = [excerpt.shape[at, :3] for excerpt, at in ((reference, left), (candidate, right))]
    blocks = [np.where(grid[:, 0] > 0, grid.prod(axis=1), 0) for grid in grids]
    heads: Counter[tuple[Fraction, str]] = Counter()
    others: Counter[tuple[Fraction, str]] = Counter()
    kernels = Counter(zip(reference.sequence.label[left].tolist(), *(part.tolist() for part in blocks), strict=True))
    for (label, before, after), count in kernels.items():
        if before and after:
            name = extract_base_name(reference.sequence.names[label] or "")
            is_head = reference.sequence.families[label] in _ATTENTION
            (heads if is_head else others)[Fraction(after, before), name] += count
    scaled: Counter[Fraction] = Counter()
    for (ratio, _), count in others.items():
        if ratio != 1:
            scaled[ratio] += count
    common, count = scaled.most_common(1)[0] if scaled else (Fraction(1), 0)
    # Grids are rounded up to whole blocks, so that not all of one batch have the same ratio.
    if count < max(MIN_KERNELS_SCALED, MIN_SHARE_SCALED * sum(scaled.values())):
        common = Fraction(1)
    if common != 1:
        name = next(name for ratio, name in others if ratio == common)
        yield Message(
            "other_batch_or_length",
            f"the grids of {count} kernels, as of {name}, are x{_format_ratio(common)} of the reference's: another "
            "batch or sequence length",
        )
    ratios = {ratio for ratio, _ in heads}
    if len(ratios) == 1 and (ratio := ratios.pop()) != common and _get_parallel_size(ratio):
        excerpt = "candidate" if ratio < 1 else "reference"
        yield Message(
            "heads_divided",
            f"the grids of attention, as of {next(iter(heads))[1]}, are x{_format_ratio(ratio)} of the reference's: "
            f"the heads of the {excerpt} are divided by a tensor-parallel size of {_get_parallel_size(ratio)}",
        )


def _get_parallel_size(ratio: Fraction) -> int | None:
    size = 1 / ratio if ratio < 1 else ratio
    return next((one for one in PARALLEL_SIZES if one == size), None)


def _format_ratio(ratio: Fraction) -> str:
    """Return a ratio as text.

    Examples:
        >>> _format_ratio(Fraction(2)), _format_ratio(Fraction(1, 8)), _format_ratio(Fraction(100, 33))
        ('2', '1/8', '3.030')
    """
    return str(ratio) if ratio.denominator <= max(PARALLEL_SIZES) else f"{float(ratio):.3f}"


def _find_other_dtypes(pairs: Pairs, reference: Excerpt, candidate: Excerpt) -> Iterator[Message]:
    changes: Counter[tuple[str, str]] = Counter()
    examples: dict[tuple[str, str], str] = {}
    for before, after in _list_replaced(pairs, reference, candidate):
        change = _get_dtype(before), _get_dtype(after)
        if None not in change and change[0] != change[1]:
            known = str(change[0]), str(change[1])
            changes[known] += 1
            examples.setdefault(known, f"{_shorten(after)} in place of {_shorten(before)}")
    for (before, after), count in changes.most_common():
        yield Message("other_dtype", f"{count} kernels are of {after} in place of {before}: {examples[before, after]}")


def _get_dtype(name: str) -> str | None:
    """Return the narrowest type that is in a kernel's name.

    Examples:
        >>> [_get_dtype(one) for one in ("sm90_xmma_gemm_bf16bf16_bf16f32_tn", "ampere_sgemm_128x64_tn", "copy_kernel")]
        ['bf16', 'f32', None]
        >>> [_get_dtype(one) for one in ("cutlass::half_t gemm", "add<c10::Half>", "add<float>", "gemm_e4m3_bf16")]
        ['f16', 'f16', 'f32', 'fp8']
        >>> [_get_dtype(one) for one in ("tensorop_s1688gemm_256x128_tn", "i16832gemm_s8_128x128", "gemm_i8i32_i8")]
        ['tf32', 'int8', 'int8']
    """
    return next((dtype for dtype, pattern in _DTYPES if pattern.search(name)), None)


def _find_tensor_cores(pairs: Pairs, reference: Excerpt, candidate: Excerpt) -> Iterator[Message]:
    for before, after in _list_replaced(pairs, reference, candidate):
        if any(
            _TENSOR_CORES.search(one) and _NO_TENSOR_CORES.search(other) and not _TENSOR_CORES.search(other)
            for one, other in ((before, after), (after, before))
        ):
            excerpt = "reference" if _TENSOR_CORES.search(before) else "candidate"
            yield Message(
                "tensor_cores",
                f"the {excerpt} alone uses tensor cores: {_shorten(after)} in place of {_shorten(before)}",
            )
            return


def _find_quantization(pairs: Pairs, reference: Excerpt, candidate: Excerpt) -> Iterator[Message]:
    for word, excerpt, other in (("reference", reference, candidate), ("candidate", candidate, reference)):
        alone = [name for name in _list_unpaired(pairs, excerpt, excerpt is reference) if _QUANTIZED.search(name)]
        if alone and not any(_QUANTIZED.search(name) for name in set(other.names) if name):
            yield Message("quantized", f"the {word} alone is quantized: {_shorten(alone[0])}")


def _find_other_attention(pairs: Pairs, reference: Excerpt, candidate: Excerpt) -> Iterator[Message]:
    ours, theirs = (
        {extract_base_name(name) for name in _list_unpaired(pairs, excerpt, is_left, "attention")}
        for excerpt, is_left in ((reference, True), (candidate, False))
    )
    if ours and theirs and not ours & theirs:
        yield Message(
            "other_attention",
            f"attention is computed by {min(theirs)} in the candidate, by {min(ours)} in the reference",
        )


def _find_other_architecture(reference: Excerpt, candidate: Excerpt) -> Iterator[Message]:
    ours, theirs = (
        {match[0].lower() for name in set(excerpt.names) if name for match in _ARCHITECTURE.finditer(name)}
        for excerpt in (reference, candidate)
    )
    if ours and theirs and not ours & theirs:
        yield Message(
            "other_architecture",
            f"names of kernels have {', '.join(sorted(theirs))} in the candidate, {', '.join(sorted(ours))} in the "
            "reference: another GPU; --match-kernels family matches them",
        )


def _find_communication(reference: Excerpt, candidate: Excerpt) -> Iterator[Message]:
    ours, theirs = (
        [name or "" for name, family in zip(excerpt.names, excerpt.families, strict=True) if family in _COMMUNICATION]
        for excerpt in (reference, candidate)
    )
    if bool(ours) != bool(theirs):
        there, without = ("reference", "candidate") if ours else ("candidate", "reference")
        yield Message(
            "no_communication",
            f"the {there} has {len(ours or theirs)} kernels of communication, as {_shorten((ours or theirs)[0])}, and "
            f"the {without} none: it runs on one GPU",
        )


def _find_graphs(reference: Excerpt, candidate: Excerpt) -> Iterator[Message]:
    ours, theirs = (float(excerpt.sequence.graph_node.mean()) for excerpt in (reference, candidate))
    if abs(ours - theirs) > MIN_SHARE_SCALED:
        yield Message(
            "graph_against_eager",
            f"CUDA graphs launch {format_percent(theirs)} of the kernels in the candidate, {format_percent(ours)} in "
            "the reference",
        )


def _list_replaced(pairs: Pairs, reference: Excerpt, candidate: Excerpt) -> Iterator[tuple[str, str]]:
    """Yield the names of both kernels of each replaced one."""
    rows = np.flatnonzero(pairs.state == REPLACED)
    for left, right in zip(pairs.reference[rows].tolist(), pairs.candidate[rows].tolist(), strict=True):
        before, after = reference.names[left], candidate.names[right]
        if before is not None and after is not None:
            yield before, after


def _list_unpaired(pairs: Pairs, excerpt: Excerpt, is_reference: bool, family: str | None = None) -> list[str]:
    """Return the names of the kernels of an excerpt that have no equal in the other one."""
    at = (pairs.reference if is_reference else pairs.candidate)[
        (pairs.state == REPLACED) | (pairs.state == (MISSING if is_reference else EXTRA))
    ]
    names = [excerpt.names[one] for one in at.tolist() if family in (None, excerpt.families[one])]
    return [name for name in names if name is not None]


def _shorten(name: str) -> str:
    """Return a kernel's name with so much of its template arguments as a line has room for."""
    return name if len(name) <= 80 else f"{name[:77]}..."
