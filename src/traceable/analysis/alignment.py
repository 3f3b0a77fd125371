"""Which kernel of one recording is which of another: the kernels of both in the order of launch, aligned.

`collect_sequence` takes the kernels of one selection (all, a range, a step, a layer) as a sequence. `align_sequences`
aligns two of them, tolerant of kernels that are missing, extra, renamed or in another place. `find_layers` finds the
layers that repeat in a sequence.

**Order.** Kernels are ordered by process and GPU, and then by the start of their launch call. Of one program that order
is the same in every run; the order of their starts on the GPU is not, where streams run side by side. The kernels of
one launch, of a CUDA graph, are ordered by their start on the GPU; and so is a kernel whose launch was not recorded
among the others, by that start.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

import numpy as np

from traceable.analysis.context import Context
from traceable.analysis.fields import get_operation_field_values
from traceable.analysis.gpus import compute_timelines, find_gpus
from traceable.analysis.grouping import number_groups
from traceable.analysis.intervals import is_overlapping
from traceable.analysis.kernel_families import OTHER, Family, classify_kernel
from traceable.analysis.kernel_names import make_kernel_keys
from traceable.analysis.kernels import require_kernels
from traceable.analysis.name_patterns import fold_numbers
from traceable.analysis.steps import find_median_step, infer_steps, steps
from traceable.errors import Message, MissingDataError, UsageError
from traceable.trace.model import GEOMETRY, NULL, Bool, Int8, Int64, find_distinct

if TYPE_CHECKING:
    from typing import Literal

EQUAL, MISSING, EXTRA, REPLACED, REORDERED = range(5)
"""What an alignment has of a kernel; an index into STATES."""

STATES = ("equal", "missing", "extra", "replaced", "reordered")
"""The names of the states of kernels, and of the kinds of opcodes."""

PHASE = "phase"
"""The field of ranges that separates the phases of a model: context (prefill) and generation (decode)."""


@dataclass(frozen=True)
class KernelSequence:
    """The kernels of one selection of a trace in the order of launch, as equally long columns, and what they index.

    Attributes:
        kernel: index into `Trace.kernels`, and into the operations of the context.
        label: index into `names`, `keys` and `families`.
        start_ns, end_ns: on the GPU.
        gap_ns: how long the GPU was idle before it, whatever ran there before; 0 where it was not, NULL where that is
            not known: for the first operation of a GPU, and across a gap of the recording.
        geometry: shape (kernels, 9), the columns of `trace.model.GEOMETRY`; NULL where not recorded.
        path: index into `paths`, the path of the innermost range; -1 outside ranges.
        region: index into `paths`: the path below the selected range, with its numbers folded; -1 for none.
        instance: index of the innermost range instance of the context; -1 outside ranges.
        phase: index into `phases`; -1 where no range around it has the field.
        graph_node: whether it is a node of a CUDA graph.
        names: the distinct demangled names; None where it was not recorded.
        keys: of each name its key: kernels of one key are the same kernel.
        families: of each name its family.
        paths: names of ranges, normalized, from the outermost.
        phases: the values of the field `phase`.
        notes: on the selection.
    """

    kernel: Int64
    label: Int64
    start_ns: Int64
    end_ns: Int64
    gap_ns: Int64
    geometry: Int64
    path: Int64
    region: Int64
    instance: Int64
    phase: Int64
    graph_node: Bool
    names: tuple[str | None, ...]
    keys: tuple[str | None, ...]
    families: tuple[str, ...]
    paths: tuple[tuple[str, ...], ...]
    phases: tuple[str, ...]
    notes: tuple[Message, ...]

    def __len__(self) -> int:
        return len(self.kernel)

    def take(self, which: slice | Int64 | Bool) -> KernelSequence:
        """Return some of the kernels."""
        columns = (column.name for column in fields(self) if column.name not in _TABLES)
        return replace(self, **{name: getattr(self, name)[which] for name in columns})


_TABLES = frozenset(("names", "keys", "families", "paths", "phases", "notes"))
"""The attributes of a KernelSequence that are not columns."""


def collect_sequence(
    context: Context,
    *,
    range_name: str | None = None,
    step: int | Literal["median"] | None = None,
    layer: int | None = None,  # noqa: ARG001
    match: str,
    families: Iterable[Family],
) -> KernelSequence:
    """Return the kernels of a selection in the order of launch.

    Args:
        context: of the recording; where it has a selection (`--where`), only its kernels.
        range_name: the name of a range, `domain:name`, or a glob: the kernels of one instance of it. That is the one of
            the lower median time on the GPU among those that the capture did not cut, that are in no warm-up, and whose
            number of kernels is the most common one; of equal ones the first.
        step: the number of a step among all steps, from 0; `median`: the steady step of the lower median wall time
            (`analysis.steps`). None for all of the recording.
        layer: a layer of that, from 0 (`find_layers`).
        match: how kernels of two recordings are matched; one of `KERNEL_MATCHES`.
        families: as `load_families` returns them.

    Raises:
        MissingDataError: there are no kernels, or none such.
        UsageError: both a range and a step are given.
    """
    require_kernels(context)
    if range_name is not None and step is not None:
        raise UsageError(
            "selections_conflict", "kernels of a range or of a step are aligned, not of both", "give one of the two"
        )
    notes: list[Message] = []
    depth = 0
    if range_name is not None:
        kernels, depth = _select_instance(context, range_name, notes)
    elif step is not None:
        kernels, depth = _select_step(context, step, notes)
    else:
        selected = context.mask_operations(None)
        count = len(context.trace.kernels)
        kernels = np.arange(count) if selected is None else np.flatnonzero(selected[:count])
    if not len(kernels):
        raise MissingDataError(
            "no_kernels_selected", "no kernel in the selected part of the trace", "select more of it"
        )
    return _build_sequence(context, kernels, depth, match, tuple(families), tuple(notes))


def _select_instance(context: Context, range_name: str, notes: list[Message]) -> tuple[Int64, int]:
    """Return the kernels of one instance of a range, and how many names its path has."""
    selected = context.mask_instances(range_name)
    count = len(context.trace.kernels)
    instances, kernels = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for instance, operation in context.iter_operation_pairs():
        rows = np.flatnonzero(selected[instance] & (operation < count))
        instances.append(instance[rows])
        kernels.append(operation[rows])
    instance, kernel = np.concatenate(instances), np.concatenate(kernels)
    if not len(kernel):
        raise MissingDataError(
            "no_kernels_in_range",
            f"no kernel {context.describe_selection(range_name)}",
            "list the GPU work of each range with `--view ranges`",
        )
    ranges = context.instances
    distinct, of_pair, often = np.unique(instance, return_inverse=True, return_counts=True)
    whole = ~ranges.clipped[distinct]
    if not whole.any():
        whole[:] = True
    sizes = np.bincount(often[whole])
    typical = np.flatnonzero(whole & (often == np.argmax(sizes)))
    total = np.zeros(len(distinct), np.int64)
    times = context.trace.kernels
    np.add.at(total, of_pair, times.end_ns[kernel] - times.start_ns[kernel])
    best = typical[np.argsort(total[typical], kind="stable")[(len(typical) - 1) // 2]]
    one = int(distinct[best])
    if len(distinct) > 1:
        notes.append(
            Message(
                "median_instance_selected",
                f"of {len(distinct)} instances of {range_name!r} with kernels, the one of the median time among "
                f"{len(typical)} with {int(often[best])} kernels is aligned",
            )
        )
    return kernel[instance == one], len(ranges.paths[int(ranges.path[one])])


def _select_step(context: Context, step: int | str, notes: list[Message]) -> tuple[Int64, int]:
    """Return the kernels of a step, and how many names the path of its range has; 0 where it is not a range."""
    table = steps(context)
    found, work = infer_steps(context)
    here = np.arange(len(found))
    if context.selection is not None:
        here = np.flatnonzero(context.selection.instances[found.instance])
    if step == "median":
        steady = table.values["steady"]
        if not steady.any():
            raise MissingDataError("no_steady_step", "no step is in the steady state", "record more steps")
        place = find_median_step(table.values["wall_ns"], steady)
        number = int(table.values["step"][place])
        notes.append(
            Message(
                "median_step_selected",
                f"step {number}, of the median time of {int(steady.sum())} steady steps, is aligned",
            )
        )
    else:
        places = np.flatnonzero(table.values["step"] == step)
        if not len(places):
            raise MissingDataError(
                "no_such_step", f"no step {step} among {len(table)} steps", "list the steps with `--view steps`"
            )
        place = int(places[0])
    row = int(here[place])
    operation = work.operation[work.bounds[row] : work.bounds[row + 1]]
    instance = int(found.instance[row])
    ranges = context.instances
    depth = len(ranges.paths[int(ranges.path[instance])]) if instance >= 0 else 0
    return operation[operation < len(context.trace.kernels)], depth


def _build_sequence(
    context: Context,
    kernels: Int64,
    depth: int,
    match: str,
    families: Sequence[Family],
    notes: tuple[Message, ...],
) -> KernelSequence:
    """Return some kernels of a trace as a sequence.

    Args:
        depth: how many names of their paths are those of the selected range and of what is around it.
    """
    trace, ranges = context.trace, context.instances
    kernels = kernels[order_by_launch(context, kernels)]
    own = trace.kernels
    label, first = number_groups(own.name[kernels])
    names = [trace.names[name] if name >= 0 else None for name in own.name[kernels[first]].tolist()]
    instance = context.innermost[kernels]
    # One more, for the kernels outside of ranges.
    path_of_instance = np.append(ranges.path, -1)[instance]
    paths: dict[tuple[str, ...], int] = {}
    path, region = (np.full(len(kernels), -1, np.int64) for _ in range(2))
    for one in find_distinct(path_of_instance[path_of_instance >= 0]).tolist():
        texts = tuple(trace.names[name] for name in ranges.paths[one])
        here = path_of_instance == one
        path[here] = paths.setdefault(texts, len(paths))
        below = tuple(fold_numbers(text) for text in texts[depth:])
        if below:
            region[here] = paths.setdefault(below, len(paths))
    geometries = np.concatenate([trace.geometries, np.full((1, len(GEOMETRY)), NULL, np.int64)])
    phase, phases = _find_phases(context, kernels)
    return KernelSequence(
        kernel=kernels,
        label=label,
        start_ns=own.start_ns[kernels],
        end_ns=own.end_ns[kernels],
        gap_ns=_measure_gaps_before(context, kernels),
        geometry=geometries[own.geometry[kernels]],
        path=path,
        region=region,
        instance=instance,
        phase=phase,
        graph_node=own.graph_node[kernels] != NULL,
        names=tuple(names),
        keys=tuple(make_kernel_keys(names, match, families)),
        families=tuple(OTHER if name is None else classify_kernel(name, families) for name in names),
        paths=tuple(paths),
        phases=phases,
        notes=notes,
    )


def order_by_launch(context: Context, kernels: Int64) -> Int64:
    """Return the order of some kernels by process, GPU, start of the launch call and start."""
    own, launches = context.trace.kernels, context.launches
    start = own.start_ns[kernels]
    call = launches.call_of[kernels]
    launched = start.copy()
    called = call >= 0
    launched[called] = launches.calls.start_ns[call[called]]
    order: Int64 = np.lexsort((start, launched, find_gpus(context).index_of(kernels), own.process[kernels]))
    return order


def _measure_gaps_before(context: Context, kernels: Int64) -> Int64:
    """Return how long the GPU was idle before each of some kernels; NULL where that is not known."""
    gpu, timelines = context.gpu, compute_timelines(context)
    gaps = timelines.gaps
    idle = np.zeros(len(gpu), np.int64)
    idle[gaps.after] = gaps.end_ns - gaps.start_ns
    across = is_overlapping(gaps, *context.trace.windows.find_gaps())
    idle[gaps.after[across]] = NULL
    first = gpu.start_ns == timelines.first_ns[find_gpus(context).gpu_of_operation]
    idle[first] = NULL
    return idle[kernels]


def _find_phases(context: Context, kernels: Int64) -> tuple[Int64, tuple[str, ...]]:
    """Return the value of the field `phase` of each of some kernels, -1 for none, and the values."""
    try:
        values, of_operation = get_operation_field_values(context, PHASE)
    except MissingDataError:
        return np.full(len(kernels), -1, np.int64), ()
    value = of_operation[kernels]
    # Absent is the last.
    return np.where(value == len(values) - 1, -1, value), tuple(str(one) for one in values[:-1].tolist())


@dataclass(frozen=True)
class Layers:
    """Where the layers of a sequence are, as equally long columns in its order.

    Attributes:
        number: of each layer, from 0.
        first, stop: its kernels are those from `first` until `stop` of the sequence.
        differing: how many kernels would have to be inserted or removed to make it the typical layer: that to which
            all others differ least.
        name: of the ranges that are the layers, with the number folded; None where they were inferred.
        code: `layers_from_ranges`, or `layers_inferred` from the repetition of kernels.
    """

    number: Int64
    first: Int64
    stop: Int64
    differing: Int64
    name: str | None
    code: str

    def __len__(self) -> int:
        return len(self.number)


@dataclass(frozen=True)
class Opcode:
    """A run of kernels of one state, as in difflib: `reference[i1:i2]` is (or lacks) `candidate[j1:j2]`.

    Attributes:
        state: one of STATES; `reordered` has an own opcode at its place in either sequence, with the other side empty.
        reference_start, reference_stop, candidate_start, candidate_stop: half-open.
    """

    state: str
    reference_start: int
    reference_stop: int
    candidate_start: int
    candidate_stop: int


@dataclass(frozen=True)
class Alignment:
    """Which kernel of the reference is which of the candidate. Every kernel is in exactly one state.

    Attributes:
        reference, candidate: the sequences.
        reference_state: of each kernel of the reference EQUAL, MISSING, REPLACED or REORDERED.
        candidate_state: of each kernel of the candidate EQUAL, EXTRA, REPLACED or REORDERED.
        partner: of each kernel of the reference its index in the candidate; -1 for a missing one. Those of EQUAL and
            REPLACED ones together increase strictly; of EQUAL and REORDERED ones the key is equal.
        notes: where it is not the best one, and why.
    """

    reference: KernelSequence
    candidate: KernelSequence
    reference_state: Int8
    candidate_state: Int8
    partner: Int64
    notes: tuple[Message, ...]

    def list_pairs(self, *states: int) -> tuple[Int64, Int64]:
        """Return the indices of the pairs of some states in the reference and the candidate, by the reference."""
        index = np.flatnonzero(np.isin(self.reference_state, states) & (self.partner >= 0))
        return index, self.partner[index]

    @property
    def missing(self) -> Int64:
        """The kernels of the reference that the candidate lacks."""
        return np.flatnonzero(self.reference_state == MISSING)

    @property
    def extra(self) -> Int64:
        """The kernels of the candidate that the reference lacks."""
        return np.flatnonzero(self.candidate_state == EXTRA)

    def has_equal_family(self) -> Bool:
        """Return whether each kernel of the reference has a partner of its family."""
        reference, candidate = self.reference, self.candidate
        families = {family: i for i, family in enumerate(dict.fromkeys((*reference.families, *candidate.families)))}
        of_reference = np.array([families[one] for one in reference.families], np.int64)[reference.label]
        of_candidate = np.array([families[one] for one in candidate.families], np.int64)[candidate.label]
        equal: Bool = (self.partner >= 0) & (of_candidate[self.partner] == of_reference)
        return equal

    def list_rows(self) -> tuple[Int64, Int64]:
        """Return the alignment as rows: indices in the reference and the candidate, -1 where a side has none.

        In the order of the reference; an extra kernel follows the one that its predecessor is paired with in order, and
        a reordered one is a single row, at its place in the reference.
        """
        in_order, pair = self.list_pairs(EQUAL, REPLACED)
        extra = self.extra
        before = np.append(-1, in_order)[np.searchsorted(pair, extra)]
        reference = np.concatenate([np.arange(len(self.reference)), np.full(len(extra), -1)])
        candidate = np.concatenate([self.partner, extra])
        place = np.concatenate([np.arange(len(self.reference)), before])
        order = np.lexsort((candidate, reference < 0, place))
        return reference[order], candidate[order]

    def list_opcodes(self) -> list[Opcode]:
        """Return the runs of kernels of one state, in the order of both sequences.

        All kernels of the reference are in exactly one of them, and so are those of the candidate.
        """
        opcodes: list[Opcode] = []
        i = j = 0
        states, of_candidate, partner = self.reference_state.tolist(), self.candidate_state.tolist(), self.partner
        partners = partner.tolist()

        def add(state: int, i2: int, j2: int) -> None:
            nonlocal i, j
            if opcodes and opcodes[-1].state == STATES[state]:
                opcodes[-1] = replace(opcodes[-1], reference_stop=i2, candidate_stop=j2)
            else:
                opcodes.append(Opcode(STATES[state], i, i2, j, j2))
            i, j = i2, j2

        while i < len(states) or j < len(of_candidate):
            if i < len(states) and states[i] in (MISSING, REORDERED):
                add(states[i], i + 1, j)
            elif j < len(of_candidate) and of_candidate[j] in (EXTRA, REORDERED):
                add(of_candidate[j], i, j + 1)
            else:
                assert partners[i] == j, "pairs increase on both sides"
                add(states[i], i + 1, j + 1)
        return opcodes


def align_sequences(reference: KernelSequence, candidate: KernelSequence) -> Alignment:
    """Return which kernel of the reference is which of the candidate.

    No alignment in order matches more kernels by key, but for those that `notes` tell of. Kernels that have the same
    region match first, the others then between them. A kernel that is missing in one place and extra in another one of
    its region is reordered. What then is in the same place on both sides is replaced: by a kernel of the same function
    (template arguments differ), of the same family, or by one where there are as many on both sides.

    Raises:
        UsageError: the package rapidfuzz is not installed.
    """
    notes: list[Message] = []
    keys = _number_jointly(reference.keys, candidate.keys, reference.label, candidate.label)
    regions = _number_jointly((*reference.paths, None), (*candidate.paths, None), reference.region, candidate.region)
    left, right = _match_in_order(keys, regions, notes)
    partner = np.full(len(reference), -1, np.int64)
    partner[left] = right
    reference_state = np.where(partner >= 0, EQUAL, MISSING).astype(np.int8)
    candidate_state = np.full(len(candidate), EXTRA, np.int8)
    candidate_state[right] = EQUAL
    return Alignment(reference, candidate, reference_state, candidate_state, partner, tuple(notes))


def _number_jointly(
    of_reference: Sequence[object], of_candidate: Sequence[object], reference: Int64, candidate: Int64
) -> tuple[Int64, Int64]:
    """Return the columns of two sequences, indices into values of their own, as numbers of the values of both."""
    numbers = {value: number for number, value in enumerate(dict.fromkeys((*of_reference, *of_candidate)))}
    return (
        np.array([numbers[value] for value in of_reference], np.int64)[reference],
        np.array([numbers[value] for value in of_candidate], np.int64)[candidate],
    )


def _match_in_order(
    keys: tuple[Int64, Int64],
    regions: tuple[Int64, Int64],  # noqa: ARG001
    notes: list[Message],  # noqa: ARG001
) -> tuple[Int64, Int64]:
    """Return the indices of matching kernels, increasing on both sides."""
    from rapidfuzz.distance import LCSseq

    blocks = [block for block in LCSseq.opcodes(keys[0].tolist(), keys[1].tolist()) if block.tag == "equal"]
    nothing = np.empty(0, np.int64)
    left = np.concatenate([nothing, *(np.arange(block.src_start, block.src_end) for block in blocks)])
    right = np.concatenate([nothing, *(np.arange(block.dest_start, block.dest_end) for block in blocks)])
    return left, right
