"""Where the steps of a trace are: named by the user, or found because something repeats. Nothing is measured here.

Three kinds, which differ in what operations are a step's:

- RANGE: a step is an instance of a range; its operations are those that belong to the range.
- CYCLE: ranges follow one another in the same order again and again, and nothing is around them; a step lasts from the
  start of the first to the start of the next first. Its operations are those whose launch call starts in it.
- BOUNDARY: a step ends with a kernel, or a CUDA graph, that ends every step. For each process and device a step lasts
  from the end of one boundary to the end of the next; its operations are those that start in it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase

import numpy as np

from traceable.analysis.context import Context
from traceable.analysis.grouping import numbered
from traceable.analysis.instances import Instances
from traceable.analysis.operations import GRAPH, KERNEL
from traceable.analysis.step_period import period_of
from traceable.errors import UnanswerableError, UsageError
from traceable.trace.model import PUSH_POP, Bool, Int64, Trace

RANGE, CYCLE, BOUNDARY = range(3)

_FEWEST = 3
"""How often something must come to be taken for a repetition."""

_REGULAR = 0.9
"""Share of the steps that must look alike: the ranges of a cycle come once in them and do not overlap."""

_COVER = 0.5
"""Share of the time that ranges, or of the GPU's time that a graph, must take to be steps."""

_LONGEST = 1 << 18
"""How many operations of a stream, from its middle, are looked at for a period."""

_STEP_WORD = re.compile(r"((?<![A-Za-z])(step|iter|iteration)|Step|Iter|Iteration|(?<![A-Za-z])(STEP|ITER))$")
_NUMBER_BEHIND = re.compile(r"[\s#:=_.\-\[(]*\d+[\])]?$")
_NOT_A_STEP = re.compile(r"optim|sched|zero_grad", re.IGNORECASE)
"""torch names a range `Optimizer.step#AdamW.step`, which is a part of a step."""


@dataclass(frozen=True)
class Steps:
    """Where the steps are, as equally long columns by lane and start. A lane is what steps follow one another in.

    Attributes:
        kind: RANGE, CYCLE or BOUNDARY.
        lane: a process, or for BOUNDARY a process and device; numbered from 0.
        process, device: of each lane: index into `Trace.processes`, and CUDA's number, -1 for all devices.
        thread: that the step is of: that of the range, or that launched the boundary; -1 where unknown.
        instance: of RANGE the range instance, else -1.
        edge: whether the capture may have cut it, so that it may have been longer.
        label: index into `labels`: the range, the first range of the cycle, or the boundary.
        rules: sentences that say what a step is.
    """

    kind: int
    start_ns: Int64
    end_ns: Int64
    lane: Int64
    process: Int64
    device: Int64
    thread: Int64
    instance: Int64
    edge: Bool
    label: Int64
    labels: tuple[str, ...]
    rules: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.start_ns)


def steps_of(context: Context, range_name: str | None, step_kernel: str | None) -> Steps:
    """Return the steps that the user names, or that repetition shows.

    Args:
        range_name: name of a range, `domain:name`, or a glob over names where no range has that very name.
        step_kernel: glob over kernel names, demangled or short.

    Raises:
        UsageError: both are given.
        UnanswerableError: nothing has that name; or nothing is named and nothing repeats.
    """
    if range_name is not None and step_kernel is not None:
        raise UsageError("a step is a range or ends with a kernel, not both", "give --step-range or --step-kernel")
    if range_name is not None:
        which = _named_instances(context, range_name)
        return _of_instances(context, which, (f"a step is an instance of the range {range_name!r}",))
    if step_kernel is not None:
        kernels = _matching_kernels(context.trace, step_kernel)
        rule = f"a step ends with a kernel {step_kernel!r}, and begins where the one before ended"
        return _of_boundaries(context, np.flatnonzero(kernels), (rule,))
    found = _by_word(context) or _by_ranges(context) or _by_period(context)
    if found is None:
        raise UnanswerableError(
            "no steps found: no range is named step, and neither ranges nor kernels repeat regularly",
            "name the step with --step-range or --step-kernel",
        )
    return found


def _named_instances(context: Context, name: str) -> Bool:
    trace, found = context.trace, context.found
    if name not in trace.names and re.search(r"[*?\[]", name):
        matches = np.array([fnmatchcase(one, name) for one in trace.names], np.bool_)
        which: Bool = matches[found.name]
    else:
        which = context.instances_of(name)
    which = which & ~found.replay
    if not which.any():
        raise UnanswerableError(f"no range {name!r} in the trace", "`--view ranges` lists the ranges that there are")
    return which


def _matching_kernels(trace: Trace, pattern: str) -> Bool:
    kernels = trace.kernels
    if not len(kernels):
        raise UnanswerableError(
            "no kernel in the trace", "record with --trace=cuda, and CUDA graphs with --cuda-graph-trace=node"
        )
    used = np.unique(np.concatenate([np.unique(kernels.name), np.unique(kernels.short_name)]))
    matches = np.zeros(len(trace.names) + 1, np.bool_)
    for index in used[used >= 0].tolist():
        matches[index] = trace.names[index] == pattern or fnmatchcase(trace.names[index], pattern)
    which: Bool = matches[kernels.name] | matches[kernels.short_name]
    if not which.any():
        raise UnanswerableError(f"no kernel matches {pattern!r}", "`--view kernels` lists the kernels that there are")
    return which


def _of_instances(context: Context, which: Bool, rules: tuple[str, ...]) -> Steps:
    """Return the instances `which` as steps."""
    trace, found = context.trace, context.found
    process = _process_of_thread(trace)[found.thread]
    rows = np.flatnonzero(which)
    rows = rows[np.lexsort((found.start_ns[rows], process[rows]))]
    lane, first = numbered(process[rows])
    label, first_of_label = numbered(found.name[rows])
    return Steps(
        kind=RANGE,
        start_ns=found.start_ns[rows],
        end_ns=found.end_ns[rows],
        lane=lane,
        process=process[rows][first],
        device=np.full(len(first), -1, np.int64),
        thread=found.thread[rows].astype(np.int64),
        instance=rows,
        edge=found.clipped[rows],
        label=label,
        labels=tuple(trace.names[name] for name in found.name[rows][first_of_label].tolist()),
        rules=rules,
    )


def _of_boundaries(context: Context, boundary: Int64, rules: tuple[str, ...]) -> Steps:
    """Return the steps that the operations `boundary` end. The first begins with the first operation of its lane."""
    trace, gpu = context.trace, context.gpu
    code, first_of_pair = numbered(gpu.process, gpu.device)
    begins = np.full(len(first_of_pair), np.iinfo(np.int64).max)
    np.minimum.at(begins, code, gpu.start_ns)
    rows = boundary[np.lexsort((gpu.start_ns[boundary], gpu.end_ns[boundary], code[boundary]))]
    lane, first = numbered(code[rows])
    ends = gpu.end_ns[rows]
    starts = np.concatenate([ends[:1], ends[:-1]])
    starts[first] = begins[code[rows[first]]]
    edge = np.zeros(len(rows), np.bool_)
    edge[first] = True
    call = context.launched.call_of[rows]
    thread = np.full(len(rows), -1, np.int64)
    thread[call >= 0] = trace.calls.thread[call[call >= 0]]
    is_graph = gpu.kind[rows] == GRAPH
    label, first_of_label = numbered(np.where(is_graph, -1, gpu.name[rows]))
    names = gpu.name[rows][first_of_label].tolist()
    return Steps(
        kind=BOUNDARY,
        start_ns=starts,
        end_ns=ends,
        lane=lane,
        process=gpu.process[rows][first].astype(np.int64),
        device=gpu.device[rows][first].astype(np.int64),
        thread=thread,
        instance=np.full(len(rows), -1, np.int64),
        edge=edge,
        label=label,
        labels=tuple(trace.names[name] if name >= 0 else "[CUDA graph]" for name in names),
        rules=rules,
    )


def _by_word(context: Context) -> Steps | None:
    """Return the ranges called step or iteration, with or without a number; of several such names the longest in all.

    A process without the name has no steps.
    """
    trace, found = context.trace, context.found
    stems: dict[str, list[int]] = {}
    for index in np.flatnonzero(np.bincount(found.name, minlength=len(trace.names))).tolist():
        # Names may be thousands and long: what can't be a word for a step is left out at once.
        name = trace.names[index][-64:]
        if ("ep" in name or "ter" in name or "EP" in name or "TER" in name) and not _NOT_A_STEP.search(name):
            stem = _NUMBER_BEHIND.sub("", name)
            if _STEP_WORD.search(stem):
                stems.setdefault(_NUMBER_BEHIND.sub("", trace.names[index]), []).append(index)
    best: tuple[int, str, Bool] | None = None
    for stem, indices in sorted(stems.items()):
        which = np.isin(found.name, indices) & ~found.replay
        total = int((found.end_ns - found.start_ns)[which].sum())
        if which.sum() >= _FEWEST and (best is None or total > best[0]):
            best = total, stem, which
    if best is None:
        return None
    return _of_instances(context, best[2], (f"a step is an instance of the range {best[1]!r}, found by its name",))


def _by_ranges(context: Context) -> Steps | None:
    """Return the outermost ranges that come again and again, in each process on the thread where they take longest."""
    trace, found = context.trace, context.found
    top = _outermost_repeated(found)
    process_of_thread = _process_of_thread(trace)
    duration = np.where(top, found.end_ns - found.start_ns, 0)
    busy = np.zeros(len(trace.threads), np.int64)
    np.add.at(busy, found.thread, duration)
    cycles = []
    for process in np.unique(process_of_thread[found.thread[top]]).tolist():
        thread = int(np.argmax(np.where(process_of_thread == process, busy, -1)))
        cycle = _cycle(found, np.flatnonzero(top & (found.thread == thread)))
        if cycle is not None:
            cycles.append(cycle)
    if not cycles:
        return None
    names = [tuple(trace.names[found.name[rows[0]]] for rows in cycle) for cycle in cycles]
    if all(len(cycle) == 1 for cycle in cycles):
        which = np.zeros(len(found), np.bool_)
        which[np.concatenate([cycle[0] for cycle in cycles])] = True
        said = ", ".join(sorted({repr(name) for (name,) in names}))
        return _of_instances(context, which, (f"a step is an instance of the range {said}, found by its repetition",))
    return _of_cycles(context, cycles, names)


def _outermost_repeated(found: Instances) -> Bool:
    """Return which instances are of a path that comes often enough on its thread, and inside no other such."""
    if not len(found):
        return np.zeros(0, np.bool_)
    code, _ = numbered(found.path, found.thread)
    nested = (found.style == PUSH_POP) | found.task
    repeated = (np.bincount(code)[code] >= _FEWEST) & nested & ~found.replay
    inside = np.zeros(len(found), np.bool_)
    above = found.parent.copy()
    while (above >= 0).any():
        known = above >= 0
        inside[known] |= repeated[above[known]]
        above[known] = found.parent[above[known]]
    top: Bool = repeated & ~inside
    return top


def _cycle(found: Instances, rows: Int64) -> list[Int64] | None:
    """Return the ranges of one thread that together make a step, each as its instances by start, the first first.

    Of the paths that come as often as the one that takes longest in all (or once more or less), those stay that come
    once between two of the first.
    """
    rows = rows[np.argsort(found.start_ns[rows], kind="stable")]
    if not len(rows):
        return None
    start, length = found.start_ns[rows], found.end_ns[rows] - found.start_ns[rows]
    path, first = numbered(found.path[rows])
    total = np.zeros(len(first), np.int64)
    np.add.at(total, path, length)
    count = np.bincount(path)
    longest = int(np.argmax(total))
    # Those inside another that repeats are not among them, so that few may be left of a path that comes often.
    if count[longest] < _FEWEST:
        return None
    often = np.flatnonzero(np.abs(count - count[longest]) <= 1)
    anchors = start[path == longest]
    fits = []
    for one in often[np.argsort(first[often])].tolist():
        here = np.searchsorted(anchors, start[path == one], "right") - 1
        # The capture may begin or end within a step, so that one of them lacks a range.
        once = np.bincount(here[here >= 0], minlength=len(anchors)) == 1
        apart = start[path == one][1:] >= (start + length)[path == one][:-1]
        if once.mean() >= _REGULAR - 1 / len(anchors) and apart.mean() >= _REGULAR:
            fits.append(one)
    if longest not in fits:
        return None
    members = [rows[path == one] for one in fits]
    together = np.concatenate(members)
    span = int(found.end_ns[together].max() - found.start_ns[together].min())
    explained = int((found.end_ns - found.start_ns)[together].sum())
    return members if explained >= _COVER * span else None


def _of_cycles(context: Context, cycles: list[list[Int64]], names: list[tuple[str, ...]]) -> Steps:
    """Return the steps of cycles, one a process."""
    trace, found = context.trace, context.found
    starts, ends, edges, threads = [], [], [], []
    for cycle in cycles:
        start = found.start_ns[cycle[0]]
        last = max(int(found.end_ns[rows].max()) for rows in cycle)
        starts.append(start)
        ends.append(np.append(start[1:], max(last, int(start[-1]))))
        # What came after the last range of the last step, before a next one, is not known.
        edges.append(found.clipped[cycle[0]] | (np.arange(len(start)) == len(start) - 1))
        threads.append(found.thread[cycle[0]].astype(np.int64))
    size = [len(start) for start in starts]
    firsts = [name[0] for name in names]
    labels = tuple(sorted(set(firsts)))
    rules = [f"a step lasts from one {one[0]!r} to the next: {' > '.join(one)} repeat" for one in names]
    return Steps(
        kind=CYCLE,
        start_ns=np.concatenate(starts),
        end_ns=np.concatenate(ends),
        lane=np.repeat(np.arange(len(cycles)), size),
        process=np.array([_process_of_thread(trace)[thread[0]] for thread in threads], np.int64),
        device=np.full(len(cycles), -1, np.int64),
        thread=np.concatenate(threads),
        instance=np.full(sum(size), -1, np.int64),
        edge=np.concatenate(edges),
        label=np.repeat([labels.index(name) for name in firsts], size),
        labels=labels,
        rules=tuple(dict.fromkeys(rules)),
    )


def _by_period(context: Context) -> Steps | None:
    """Return the steps that the sequence of kernels and graphs of each process and device shows."""
    trace, gpu = context.trace, context.gpu
    token = gpu.name.astype(np.int64)
    graph = gpu.kind == GRAPH
    if graph.any():
        token[graph] = len(trace.names) + numbered(trace.graph_launches.graph)[0]
    useful = np.flatnonzero((gpu.kind == KERNEL) | graph)
    useful = useful[np.argsort(gpu.start_ns[useful], kind="stable")]
    if not len(useful):
        return None
    lane, first = numbered(gpu.process[useful], gpu.device[useful])
    lanes = [useful[lane == i] for i in range(len(first))]
    candidates = [_candidates(context, rows, token) for rows in lanes]
    # One kernel ends the step of all that have it, so that the ranks of one program are cut at the same place.
    idle: dict[int, int] = {}
    for one in candidates:
        for end, time in one.idle_after.items():
            idle[end] = idle.get(end, 0) + time
    boundaries, rules = [], []
    for rows, one in zip(lanes, candidates, strict=True):
        if one.idle_after:
            end = max(one.idle_after, key=lambda name: (name >= len(trace.names), idle[name]))
            boundaries.append(rows[token[rows] == end])
            what = f"the kernel {trace.names[end][:80]!r}" if end < len(trace.names) else "the launch of a CUDA graph"
            rules.append(f"a step ends with {what}, {one.why}")
    return _of_boundaries(context, np.concatenate(boundaries), tuple(dict.fromkeys(rules))) if boundaries else None


@dataclass(frozen=True)
class _Candidates:
    """What may end the steps of one process and device, by first place: how long in all the GPU was idle after it."""

    idle_after: dict[int, int]
    why: str


def _candidates(context: Context, rows: Int64, token: Int64) -> _Candidates:
    """Return what may end a step, given the operations of one process and device by start."""
    gpu = context.gpu
    streams, of_stream = np.unique(gpu.stream[rows], return_inverse=True)
    main = rows[of_stream.reshape(-1) == np.argmax(np.bincount(of_stream.reshape(-1), minlength=len(streams)))]
    begin = max(0, (len(main) - _LONGEST) // 2)
    main = main[begin : begin + _LONGEST]
    found = period_of(token[main])
    if found is not None:
        period, alike, ends = found
        why = f"which comes every {period} operations ({alike:.0%} of them are the same one step later)"
        return _Candidates({end: _idle_after(context, main, token, end) for end in ends}, why)
    duration = gpu.end_ns[rows] - gpu.start_ns[rows]
    graph = np.flatnonzero(gpu.kind[rows] == GRAPH)
    kinds, of_kind = np.unique(token[rows[graph]], return_inverse=True)
    total = np.zeros(len(kinds), np.int64)
    np.add.at(total, of_kind.reshape(-1), duration[graph])
    often = np.bincount(of_kind.reshape(-1), minlength=len(kinds)) >= _FEWEST
    ends = [int(kinds[i]) for i in np.flatnonzero(often & (total >= _COVER * duration.sum())).tolist()]
    return _Candidates(dict.fromkeys(ends[:1], 0), "which takes most of the GPU's time")


def _idle_after(context: Context, rows: Int64, token: Int64, one: int) -> int:
    """Return for how long in all nothing followed the operations called `one`, in ns."""
    gpu = context.gpu
    at = np.flatnonzero(token[rows[:-1]] == one)
    return int(np.maximum(0, gpu.start_ns[rows[at + 1]] - gpu.end_ns[rows[at]]).sum())


def _process_of_thread(trace: Trace) -> Int64:
    return np.array([thread.process for thread in trace.threads], np.int64)
