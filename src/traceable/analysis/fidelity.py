"""How faithful a mock is: its kernels against those of the full model, with the difference of time by cause.

An `Excerpt` is what is compared of one recording: a steady step, a range or a layer, as many times as it ran with
the same kernels. Its times are typical ones: at each position the lower median over these instances, so that sums of
them are exact. `alignment` finds which kernel of the reference is which of the candidate.

The time of an excerpt is from the start of its first operation to the end of its last one, and is split without a rest:

- `exposed_ns` of each kernel: the time that it makes the union of the operations before it longer. Without concurrent
  kernels that is its duration.
- `copy_ns`, `other_ns`: the same of copies and memory sets, and of kernels that are not of the selection
- `idle_ns`: time in which the GPU ran none of them, which counts at the kernel that ended it

docs/align.md has the formulas.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from traceable.analysis.alignment import (
    EQUAL,
    EXTRA,
    MISSING,
    REORDERED,
    REPLACED,
    STATES,
    Alignment,
    KernelSequence,
)
from traceable.analysis.expected_shares import FAMILY, KINDS, RANGE, ExpectedShare, resolve_kind
from traceable.analysis.fail_conditions import FAILED, PASSED, UNKNOWN
from traceable.analysis.fail_conditions import STATES as CHECK_STATES
from traceable.analysis.grouping import sum_groups
from traceable.analysis.kernel_families import OTHER
from traceable.analysis.labels import extract_base_name
from traceable.analysis.samples import FASTER, SLOWER, Change, compare_samples, judge_changes
from traceable.analysis.table import Table, compute_ratios, mask_integers, pack_objects
from traceable.errors import Message, MissingDataError
from traceable.trace.model import Bool, Int8, Int64, NDArray
from traceable.units import format_count, format_duration, format_percent

MISSING_KERNELS, EXTRA_KERNELS, OTHER_KERNELS = "missing_kernels", "extra_kernels", "other_kernels"
KERNEL_SPEED, OVERLAP, LAUNCH_GAPS, GRAPH = "kernel_speed", "overlap", "launch_gaps", "graph_vs_eager"
COPIES, OTHER_WORK = "copies", "other_work"

CAUSES = (
    *(MISSING_KERNELS, EXTRA_KERNELS, OTHER_KERNELS, KERNEL_SPEED, OVERLAP, LAUNCH_GAPS, GRAPH),
    *(COPIES, OTHER_WORK),
)
"""The causes of a difference of time, in the order of the table."""

RESOLUTION_NS = 32
"""The step of the GPU's clock in recordings of recent GPUs: a difference of it says nothing."""

UNCLEAR = "unclear"
"""The verdict on a difference that may be noise."""


@dataclass(frozen=True, eq=False)
class Typical:
    """The typical instance of an excerpt: the lower median of each of its columns."""

    duration_ns: Int64
    exposed_ns: Int64
    idle_ns: Int64
    copy_ns: Int64
    other_ns: Int64

    @property
    def total_ns(self) -> int:
        """The whole time."""
        return self.measure_ns(0, len(self.exposed_ns) + 1)

    def measure_ns(self, first: int, stop: int) -> int:
        """Return the time of the kernels from `first` until `stop`, with what is before each of them."""
        kernels = slice(first, stop)
        parts = (self.exposed_ns, self.idle_ns, self.copy_ns, self.other_ns)
        return int(sum(part[kernels].sum() for part in parts))


@dataclass(frozen=True, eq=False)
class Excerpt:
    """What is compared of one recording: a sequence of kernels, and the times of several instances that ran it.

    Attributes:
        sequence: the kernels of a typical instance.
        duration_ns, exposed_ns: (instances, kernels), see the module.
        idle_ns, copy_ns, other_ns: (instances, kernels + 1): before each kernel, and after the last one.
        fields: by range and field the value that all instances have; without fields whose value changes.
        notes: on the instances.
    """

    sequence: KernelSequence
    duration_ns: Int64
    exposed_ns: Int64
    idle_ns: Int64
    copy_ns: Int64
    other_ns: Int64
    fields: Mapping[tuple[str, str], Any] = field(default_factory=dict)
    notes: tuple[Message, ...] = ()

    def __len__(self) -> int:
        return len(self.sequence)

    @property
    def instances(self) -> int:
        """How many times the sequence was measured."""
        return len(self.duration_ns)

    @property
    def span_ns(self) -> Int64:
        """The time of each instance."""
        parts = (self.exposed_ns, self.idle_ns, self.copy_ns, self.other_ns)
        span: Int64 = np.sum([part.sum(axis=1) for part in parts], axis=0)
        return span

    @cached_property
    def typical(self) -> Typical:
        """The typical instance."""
        middle = (self.instances - 1) // 2
        columns = ("duration_ns", "exposed_ns", "idle_ns", "copy_ns", "other_ns")
        return Typical(**{name: np.partition(getattr(self, name), middle, axis=0)[middle] for name in columns})

    @cached_property
    def keys(self) -> list[str | None]:
        """What each kernel is matched by."""
        return [self.sequence.keys[label] for label in self.sequence.label.tolist()]

    @cached_property
    def names(self) -> list[str | None]:
        """The demangled name of each kernel."""
        return [self.sequence.names[label] for label in self.sequence.label.tolist()]

    @cached_property
    def families(self) -> list[str]:
        """The family of each kernel."""
        return [self.sequence.families[label] for label in self.sequence.label.tolist()]

    @cached_property
    def paths(self) -> list[tuple[str, ...]]:
        """The path of the innermost range of each kernel; empty outside ranges."""
        return [self.sequence.paths[path] if path >= 0 else () for path in self.sequence.path.tolist()]

    @property
    def shape(self) -> Int64:
        """Grid and block of each kernel, three columns each; negative where not recorded."""
        return self.sequence.geometry[:, :6]

    def take_sequence(self, sequence: KernelSequence) -> Excerpt:
        """Return the part whose kernels are a slice of this one's: one layer of a step, say.

        The time before its first kernel and after its last one is not part of it.
        """
        first = int(np.flatnonzero(self.sequence.kernel == sequence.kernel[0])[0])
        stop = first + len(sequence)
        between = {}
        for column in ("idle_ns", "copy_ns", "other_ns"):
            values = getattr(self, column)[:, first : stop + 1].copy()
            values[:, [0, -1]] = 0
            between[column] = values
        kernels = slice(first, stop)
        return replace(
            self,
            sequence=sequence,
            duration_ns=self.duration_ns[:, kernels],
            exposed_ns=self.exposed_ns[:, kernels],
            notes=(*self.notes, *(note for note in sequence.notes if note not in self.sequence.notes)),
            **between,
        )


@dataclass(frozen=True, eq=False)
class Pairs:
    """The kernels of both, each once, as equally long columns in the order of the reference.

    Attributes:
        reference, candidate: position in the excerpt; -1 where it has none.
        state: index into `alignment.STATES`.
    """

    reference: Int64
    candidate: Int64
    state: Int8

    def __len__(self) -> int:
        return len(self.state)

    @property
    def is_paired(self) -> Bool:
        """Which are a kernel of each with the same key."""
        paired: Bool = (self.state == EQUAL) | (self.state == REORDERED)
        return paired

    def count(self, state: int) -> int:
        """Return how many are of a state."""
        return int((self.state == state).sum())


def pair_kernels(alignment: Alignment) -> Pairs:
    """Return the rows of an alignment."""
    reference, candidate = alignment.list_rows()
    state = np.where(reference >= 0, alignment.reference_state[reference], EXTRA)
    return Pairs(reference, candidate, state.astype(np.int8))


# ---- the difference of time, by cause


def split_difference(pairs: Pairs, reference: Excerpt, candidate: Excerpt) -> dict[str, Int64]:
    """Return for each cause the difference of time (candidate less reference) of each pair, and of the ends.

    The sum of all is the difference of the total times of the typical instances.

    Returns:
        By cause of CAUSES one value a pair, in ns, and a last one for the time after the last kernel.
    """
    ours, theirs = reference.typical, candidate.typical
    has_left, has_right = pairs.reference >= 0, pairs.candidate >= 0

    def take(name: str) -> tuple[Int64, Int64]:
        """Return the values of a column for each pair, 0 where an excerpt has no kernel."""
        return (
            np.where(has_left, getattr(ours, name)[pairs.reference], 0),
            np.where(has_right, getattr(theirs, name)[pairs.candidate], 0),
        )

    def difference(name: str) -> Int64:
        """Return the same, right less left, with that of the end."""
        left, right = take(name)
        return np.append(right - left, getattr(theirs, name)[-1] - getattr(ours, name)[-1])

    exposed, duration = (np.subtract(*take(name)[::-1]) for name in ("exposed_ns", "duration_ns"))
    idle = difference("idle_ns")
    by_state = {MISSING_KERNELS: MISSING, EXTRA_KERNELS: EXTRA, OTHER_KERNELS: REPLACED}
    parts = {cause: np.where(pairs.state == state, exposed, 0) for cause, state in by_state.items()}
    parts[KERNEL_SPEED] = np.where(pairs.is_paired, duration, 0)
    parts[OVERLAP] = np.where(pairs.is_paired, exposed - duration, 0)
    other_launch = np.append(
        has_left
        & has_right
        & (reference.sequence.graph_node[pairs.reference] != candidate.sequence.graph_node[pairs.candidate]),
        False,
    )
    whole = {cause: np.append(part, 0) for cause, part in parts.items()}
    whole[LAUNCH_GAPS] = np.where(other_launch, 0, idle)
    whole[GRAPH] = np.where(other_launch, idle, 0)
    whole[COPIES] = difference("copy_ns")
    whole[OTHER_WORK] = difference("other_ns")
    return {cause: whole[cause] for cause in CAUSES}


def compute_score(differences: Mapping[str, Int64], reference_ns: int) -> float | None:
    """Return the fidelity: 1 - (sum of the absolute differences) / (time of the reference), and never less than 0.

    Differences of one pair and cause are added as they are, without regard of their sign: time that is missing at one
    place does not make up for time that is too much at another.

    Args:
        differences: as `split_difference` returns them.
        reference_ns: the total time of the reference; None is returned for 0.

    Examples:
        >>> compute_score({"kernel_speed": np.array([-30, 10]), "launch_gaps": np.array([0, 20])}, 1000)
        0.94
    """
    if reference_ns <= 0:
        return None
    absolute = sum(int(np.abs(part).sum()) for part in differences.values())
    return max(0.0, (reference_ns - absolute) / reference_ns)


def tabulate_residual(differences: Mapping[str, Int64], reference_ns: int) -> Table:
    """Return one row a cause: its difference, signed and absolute, and their share of the reference."""
    signed = np.array([part.sum() for part in differences.values()], np.int64)
    absolute = np.array([np.abs(part).sum() for part in differences.values()], np.int64)
    whole = reference_ns or np.nan
    return Table(
        {
            "cause": pack_objects(differences),
            "places": np.array([np.count_nonzero(part) for part in differences.values()], np.int64),
            "difference_ns": signed,
            "difference_share": signed / whole,
            "absolute_ns": absolute,
            "absolute_share": absolute / whole,
        }
    )


# ---- the tables


@dataclass(frozen=True, eq=False)
class KernelRows:
    """The pairs by kernel and shape, of the reference if it has the kernel.

    Attributes:
        number: row of each pair.
        heads: of each row one of its kernels: the excerpt and the position.
    """

    number: Int64
    heads: list[tuple[Excerpt, int]]

    def sum(self, which: Bool, values: Int64 | None = None) -> Int64:
        """Return the sum of one value a pair by row, of some of the pairs; their number without values."""
        ones = np.ones(len(self.number), np.int64)
        return sum_groups(self.number[which], (ones if values is None else values)[which], len(self.heads))


def group_kernels(pairs: Pairs, reference: Excerpt, candidate: Excerpt) -> KernelRows:
    """Return the rows of the table of kernels, in the order of the first pair of each."""
    numbers: dict[Any, int] = {}
    heads: list[tuple[Excerpt, int]] = []
    number = np.empty(len(pairs), np.int64)
    for pair, (left, right) in enumerate(zip(pairs.reference.tolist(), pairs.candidate.tolist(), strict=True)):
        excerpt, at = (reference, left) if left >= 0 else (candidate, right)
        word = (excerpt.keys[at], *excerpt.shape[at].tolist())
        if word not in numbers:
            numbers[word] = len(heads)
            heads.append((excerpt, at))
        number[pair] = numbers[word]
    return KernelRows(number, heads)


@dataclass(frozen=True, eq=False)
class TimePair:
    """One time in both: of a row of kernels, or the whole.

    Attributes:
        reference_ns, candidate_ns: of the typical instances.
        kernels: how many it is of.
        samples: the time of each instance of the reference and of the candidate.
    """

    reference_ns: int
    candidate_ns: int
    kernels: int
    samples: tuple[Int64, Int64]


@dataclass(frozen=True)
class TimeVerdict:
    """Whether a time is the same.

    Attributes:
        code: `slower` or `faster`; `unclear` for what may be noise; None for the same.
        low_share, high_share: the interval of the change; None where it is not known, or was not needed.
    """

    code: str | None = None
    low_share: float | None = None
    high_share: float | None = None


def judge_times(times: Sequence[TimePair], within: float) -> list[TimeVerdict]:
    """Return whether each time differs by more than a share of the reference, and not by noise alone.

    A difference of `RESOLUTION_NS` a kernel is none. Larger ones are tested together (`analysis.samples`) as far as
    there are enough instances; with fewer the typical instances decide.
    """
    verdicts = [TimeVerdict()] * len(times)
    changes: list[tuple[int, Change]] = []
    for place, time in enumerate(times):
        difference = time.candidate_ns - time.reference_ns
        if abs(difference) > max(within * time.reference_ns, RESOLUTION_NS * time.kernels):
            ours, theirs = time.samples
            changes.append((place, compare_samples([ours], [theirs], 0.5)))
            verdicts[place] = TimeVerdict(SLOWER if difference > 0 else FASTER)
    judged = judge_changes([change for _, change in changes])
    for (place, change), verdict in zip(changes, judged, strict=True):
        if change.p_value is not None:
            code = verdicts[place].code if verdict.code in (SLOWER, FASTER) else UNCLEAR
            verdicts[place] = TimeVerdict(code, change.low_share, change.high_share)
    return verdicts


def list_times(pairs: Pairs, rows: KernelRows, reference: Excerpt, candidate: Excerpt) -> list[TimePair]:
    """Return the time of the paired kernels of each row."""
    ours, theirs = reference.typical.duration_ns, candidate.typical.duration_ns
    order = np.argsort(rows.number, kind="stable")
    bounds = np.searchsorted(rows.number[order], np.arange(len(rows.heads) + 1)).tolist()
    times = []
    for low, high in pairwise(bounds):
        mine = order[low:high][pairs.is_paired[order[low:high]]]
        left, right = pairs.reference[mine], pairs.candidate[mine]
        samples = reference.duration_ns[:, left].sum(axis=1), candidate.duration_ns[:, right].sum(axis=1)
        times.append(TimePair(int(ours[left].sum()), int(theirs[right].sum()), len(mine), samples))
    return times


def tabulate_kernels(
    pairs: Pairs,
    rows: KernelRows,
    times: Sequence[TimePair],
    verdicts: Sequence[TimeVerdict],
    reference: Excerpt,
    candidate: Excerpt,
) -> Table:
    """Return one row a kernel and shape, with its time in both; the longest first.

    The times are those of the typical instance, of all its kernels of the row; the ratio is of those that both have.

    Args:
        times, verdicts: of each row, as `list_times` and `judge_times` return them.
    """
    has_left, has_right = pairs.reference >= 0, pairs.candidate >= 0
    left = np.where(has_left, reference.typical.duration_ns[pairs.reference], 0)
    right = np.where(has_right, candidate.typical.duration_ns[pairs.candidate], 0)
    left_count, right_count = rows.sum(has_left), rows.sum(has_right)
    left_ns, right_ns = rows.sum(has_left, left), rows.sum(has_right, right)
    counts = {
        "missing": rows.sum(pairs.state == MISSING),
        "extra": rows.sum(pairs.state == EXTRA),
        "replaced": rows.sum(pairs.state == REPLACED),
        "reordered": rows.sum(pairs.state == REORDERED),
        "shape": rows.sum(pairs.is_paired & _has_other_shape(pairs, reference, candidate)),
    }
    reasons = [
        [reason for reason, count in counts.items() if count[row]] + ([verdict.code] if verdict.code else [])
        for row, verdict in enumerate(verdicts)
    ]
    table = Table(
        {
            "kernel": pack_objects(excerpt.keys[at] for excerpt, at in rows.heads),
            "name": pack_objects(excerpt.names[at] for excerpt, at in rows.heads),
            "family": pack_objects(excerpt.families[at] for excerpt, at in rows.heads),
            "grid": pack_objects(format_shape(excerpt.shape[at, :3]) for excerpt, at in rows.heads),
            "block": pack_objects(format_shape(excerpt.shape[at, 3:]) for excerpt, at in rows.heads),
            "reference_count": left_count,
            "candidate_count": right_count,
            "reference_ns": mask_integers(left_ns, left_count > 0),
            "candidate_ns": mask_integers(right_ns, right_count > 0),
            "ratio": compute_ratios(
                np.array([time.candidate_ns for time in times], np.int64),
                np.array([time.reference_ns for time in times], np.int64),
            ),
            "low_share": pack_objects(verdict.low_share for verdict in verdicts),
            "high_share": pack_objects(verdict.high_share for verdict in verdicts),
            "match": pack_objects(None if one == [UNCLEAR] else not one for one in reasons),
            "reasons": pack_objects(reasons),
        }
    )
    return table.take(np.argsort(-np.maximum(left_ns, right_ns), kind="stable"))


def _has_other_shape(pairs: Pairs, reference: Excerpt, candidate: Excerpt) -> Bool:
    """Return which pairs have a known grid and block in both, and not the same."""
    both = (pairs.reference >= 0) & (pairs.candidate >= 0)
    left, right = reference.shape[pairs.reference], candidate.shape[pairs.candidate]
    known = (left[:, 0] >= 0) & (right[:, 0] >= 0)
    differs: Bool = both & known & (left != right).any(axis=1)
    return differs


def format_shape(sizes: Int64) -> str | None:
    """Return a grid or block as text; None where it was not recorded.

    Examples:
        >>> format_shape(np.array([128, 4, 1])), format_shape(np.array([-1, -1, -1]))
        ('128x4x1', None)
    """
    return None if sizes[0] < 0 else "x".join(map(str, sizes.tolist()))


def tabulate_alignment(pairs: Pairs, reference: Excerpt, candidate: Excerpt) -> Table:
    """Return one row a kernel of either, in the order of the reference, with what became of it."""
    ours, theirs = reference.typical, candidate.typical
    columns: dict[str, NDArray[Any]] = {"state": pack_objects(STATES[state] for state in pairs.state.tolist())}
    places = {"reference": (pairs.reference, reference, ours), "candidate": (pairs.candidate, candidate, theirs)}
    for word, (at, _, _) in places.items():
        columns[f"{word}_position"] = mask_integers(at, at >= 0)
    for word, (at, excerpt, _) in places.items():
        columns[f"{word}_kernel"] = pack_objects(None if one < 0 else excerpt.names[one] for one in at.tolist())
    for word, (at, excerpt, _) in places.items():
        columns[f"{word}_grid"] = _list_shapes(at, excerpt.shape[:, :3])
        columns[f"{word}_block"] = _list_shapes(at, excerpt.shape[:, 3:])
    columns["path"] = pack_objects(
        list(reference.paths[left] if left >= 0 else candidate.paths[right])
        for left, right in zip(pairs.reference.tolist(), pairs.candidate.tolist(), strict=True)
    )
    for word, (at, _, typical) in places.items():
        columns[f"{word}_ns"] = mask_integers(typical.duration_ns[at], at >= 0)
        columns[f"{word}_idle_ns"] = mask_integers(typical.idle_ns[at], at >= 0)
    return Table(columns)


def _list_shapes(at: Int64, sizes: Int64) -> NDArray[Any]:
    return pack_objects(None if one < 0 else format_shape(sizes[one]) for one in at.tolist())


def tabulate_shares(expected: Sequence[ExpectedShare], reference: Excerpt, candidate: Excerpt) -> Table:
    """Return one row an expected share: the shares of the kernel time in both, and whether the candidate's is met.

    Raises:
        UsageError: a name matches nothing in either.
    """
    excerpts = (reference, candidate)
    words = {kind: [_list_words(excerpt, kind) for excerpt in excerpts] for kind in KINDS}
    there = [(kind, {word for names in words[kind] for one in set(names) for word in one}) for kind in KINDS]
    rows = []
    for one in expected:
        kind = resolve_kind(one, there)
        shares = []
        for excerpt, names in zip(excerpts, words[kind], strict=True):
            matching = {name: one.matches(name) for name in set(names)}
            duration = excerpt.typical.duration_ns
            inside = np.array([matching[name] for name in names], np.bool_)
            shares.append(int(duration[inside].sum()) / int(duration.sum()) if duration.any() else None)
        state = UNKNOWN if shares[1] is None else PASSED if one.includes(shares[1]) else FAILED
        rows.append((one.name, kind, *shares, one.low, one.high, state))
    columns = ("name", "kind", "reference_share", "candidate_share", "low_share", "high_share", "state")
    return Table({column: pack_objects(row[number] for row in rows) for number, column in enumerate(columns)})


def _list_words(excerpt: Excerpt, kind: str) -> list[tuple[str, ...]]:
    """Return the names by which each kernel of an excerpt is found."""
    if kind == FAMILY:
        return [(family,) for family in excerpt.families]
    if kind == RANGE:
        return list(excerpt.paths)
    words = {name: () if name is None else (name, extract_base_name(name)) for name in set(excerpt.names)}
    return [words[name] for name in excerpt.names]


# ---- the checklist


@dataclass(frozen=True)
class Check:
    """One line of the checklist.

    Attributes:
        name: stable.
        state: PASSED, FAILED, or UNKNOWN for what can't be measured or told.
        value, limit: what was measured, and how much it may be; None where it is not a number.
        message: the same in words.
    """

    name: str
    state: str
    value: float | None
    limit: float | None
    message: Message


def evaluate_checks(
    pairs: Pairs,
    reference: Excerpt,
    candidate: Excerpt,
    kernels: Table,
    within: float,
    total: TimeVerdict,
) -> list[Check]:
    """Return the checklist, without the expected shares.

    Args:
        kernels: as `tabulate_kernels` returns it.
        within: how much of the reference's time a difference may be.
        total: the verdict on the whole time.
    """
    count, others = format_count(len(reference)), format_count(len(candidate))
    replaced, missing, extra, reordered = map(pairs.count, (REPLACED, MISSING, EXTRA, REORDERED))
    return [
        _check_none(
            "kernel_names", replaced, Message("kernels_replaced", f"{_count(replaced)} of {count} have another name")
        ),
        _check_kernel_latency(kernels, within),
        _check_total_latency(reference, candidate, within, total),
        _check_none("no_missing_kernels", missing, Message("kernels_missing", f"{_count(missing)} of {count} missing")),
        _check_none("no_extra_kernels", extra, Message("kernels_extra", f"{_count(extra)} of {others} extra")),
        _check_shapes(pairs, reference, candidate),
        _check_none(
            "order", reordered, Message("kernels_reordered", f"{_count(reordered)} of {count} ran in another place")
        ),
    ]


def _count(number: int) -> str:
    return format_count(number) if number else "none"


def _check_none(name: str, number: int, message: Message) -> Check:
    return Check(name, FAILED if number else PASSED, number, 0, message)


def _check_kernel_latency(kernels: Table, within: float) -> Check:
    """Return the check of the rows of kernels, by the largest change of those that count; its value is that change."""
    slow = [
        (abs(ratio - 1), ratio, name, reasons)
        for ratio, name, reasons in zip(*map(kernels.column, ("ratio", "kernel", "reasons")), strict=True)
        if ratio is not None
    ]
    if not slow:
        return Check("kernel_latency", UNKNOWN, None, within, Message("no_kernel_times", "no kernel is in both"))
    failed = [one for one in slow if {SLOWER, FASTER} & set(one[3])]
    unclear = [one for one in slow if UNCLEAR in one[3]]
    state = FAILED if failed else UNKNOWN if unclear else PASSED
    change, ratio, name, _ = max(failed or unclear or slow, key=lambda one: one[0])
    if failed:
        text = f"{len(failed)} of {len(slow)} kernels differ by more than {format_percent(within)}, the most "
        text += extract_base_name(name or "one without a name")
    elif unclear:
        text = f"{len(unclear)} of {len(slow)} kernels differ by more than {format_percent(within)}, within the noise"
    else:
        text = f"all of {len(slow)} kernels within {format_percent(within)}"
    text += f" (x{ratio:.3f})" if failed or unclear else ""
    return Check("kernel_latency", state, change, within, Message("kernel_latency", text))


def _check_total_latency(reference: Excerpt, candidate: Excerpt, within: float, verdict: TimeVerdict) -> Check:
    before, after = reference.typical.total_ns, candidate.typical.total_ns
    if not before:
        return Check("total_latency", UNKNOWN, None, within, Message("no_reference_time", "the reference took no time"))
    text = f"{format_duration(after)} instead of {format_duration(before)}: x{after / before:.3f}"
    if verdict.low_share is not None and verdict.high_share is not None:
        text += f", between x{1 + verdict.low_share:.3f} and x{1 + verdict.high_share:.3f}"
    state = PASSED if verdict.code is None else UNKNOWN if verdict.code == UNCLEAR else FAILED
    return Check("total_latency", state, abs(after / before - 1), within, Message("total_latency", text))


def _check_shapes(pairs: Pairs, reference: Excerpt, candidate: Excerpt) -> Check:
    paired = np.flatnonzero(pairs.is_paired)
    known = (reference.shape[pairs.reference[paired], 0] >= 0) & (candidate.shape[pairs.candidate[paired], 0] >= 0)
    others = int((_has_other_shape(pairs, reference, candidate) & pairs.is_paired).sum())
    common = sorted(set(reference.fields) & set(candidate.fields))
    fields = [name for name in common if reference.fields[name] != candidate.fields[name]]
    if not known.any() and not common:
        return Check("shapes", UNKNOWN, None, 0, Message("shapes_not_recorded", "no kernel in both has a known grid"))
    text = f"{_count(others)} of {format_count(int(known.sum()))} have another grid or block"
    if common:
        text += f"; {_count(len(fields))} of {format_count(len(common), 'field')} of ranges differ"
    if fields:
        name, first = " of ".join(reversed(fields[0])), fields[0]
        text += f", as {name}: {candidate.fields[first]!r} instead of {reference.fields[first]!r}"
    number = others + len(fields)
    return Check("shapes", FAILED if number else PASSED, number, 0, Message("shapes", text))


def check_shares(shares: Table) -> Check:
    """Return the check of the expected shares."""
    states = shares.column("state")
    failed = [name for name, state in zip(shares.column("name"), states, strict=True) if state == FAILED]
    text = f"{_count(len(failed))} of {len(states)} outside of what is expected"
    text += f": {', '.join(failed)}" if failed else ""
    state = FAILED if failed else UNKNOWN if UNKNOWN in states else PASSED
    return Check("expected_shares", state, len(failed), 0, Message("expected_shares", text))


def check_score(score: float | None, least: float) -> Check:
    """Return the check of the score against the least one that is accepted."""
    if score is None:
        return Check("score", UNKNOWN, None, least, Message("no_score", "there is no score without a time"))
    text = f"{score:.4f}, at least {least:g} is required"
    return Check("score", PASSED if score >= least else FAILED, score, least, Message("score", text))


def tabulate_checks(checks: Sequence[Check]) -> Table:
    """Return one row a check."""
    return Table(
        {
            "check": pack_objects(one.name for one in checks),
            "state": pack_objects(one.state for one in checks),
            "value": pack_objects(one.value for one in checks),
            "limit": pack_objects(one.limit for one in checks),
            "code": pack_objects(one.message.code for one in checks),
            "text": pack_objects(str(one.message) for one in checks),
        }
    )


def summarize_states(states: Iterable[str]) -> str:
    """Return the worst of some states."""
    return max(states, key=CHECK_STATES.index, default=PASSED)


# ---- all of it


@dataclass(frozen=True, eq=False)
class Fidelity:
    """The result of holding a mock against the full model.

    Attributes:
        state: PASSED, FAILED or UNKNOWN, of all checks.
        score: from 0 to 1; None where the reference took no time.
        reference_ns, candidate_ns: the whole time of the typical instances.
        pairs: which kernel is which.
        tables: `checks`, `residual`, `kernels`, `alignment`; `shares` where shares are expected.
    """

    state: str
    score: float | None
    reference_ns: int
    candidate_ns: int
    pairs: Pairs
    tables: Mapping[str, Table]


def measure_fidelity(
    reference: Excerpt,
    candidate: Excerpt,
    alignment: Alignment,
    *,
    within: float = 0.02,
    expected: Sequence[ExpectedShare] = (),
    min_score: float | None = None,
) -> Fidelity:
    """Hold the candidate against the reference.

    Args:
        alignment: of their sequences.
        within: how much of the reference's time a difference may be.
        expected: shares of kernels of the candidate.
        min_score: the least score that is accepted.

    Raises:
        MissingDataError: the excerpts have no kernel in common.
        UsageError: an expected share matches nothing.
    """
    pairs = pair_kernels(alignment)
    # Kernels that were all replaced, by those of another type say, are of the same families still.
    known = np.array([family != OTHER for family in reference.families], np.bool_)
    if not (pairs.is_paired.any() or (alignment.has_equal_family() & known).any()):
        raise MissingDataError(
            "no_common_kernels",
            f"none of {format_count(len(reference), 'kernel')} of the reference is among "
            f"{format_count(len(candidate))} of the candidate",
            "match them by function or family (--match-kernels family), or select the same part of both",
        )
    differences = split_difference(pairs, reference, candidate)
    before, after = reference.typical.total_ns, candidate.typical.total_ns
    score = compute_score(differences, before)
    rows = group_kernels(pairs, reference, candidate)
    times = list_times(pairs, rows, reference, candidate)
    whole = TimePair(before, after, len(reference), (reference.span_ns, candidate.span_ns))
    *verdicts, total = judge_times([*times, whole], within)
    kernels = tabulate_kernels(pairs, rows, times, verdicts, reference, candidate)
    checks = evaluate_checks(pairs, reference, candidate, kernels, within, total)
    tables = {
        "residual": tabulate_residual(differences, before),
        "kernels": kernels,
        "alignment": tabulate_alignment(pairs, reference, candidate),
    }
    if expected:
        tables["shares"] = tabulate_shares(expected, reference, candidate)
        checks.append(check_shares(tables["shares"]))
    if min_score is not None:
        checks.append(check_score(score, min_score))
    state = summarize_states(check.state for check in checks)
    return Fidelity(state, score, before, after, pairs, {"checks": tabulate_checks(checks), **tables})
