"""A finding about code that holds an event loop while other coroutines could go on.

docs/findings.md explains the bound, and how it is known what waited.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from traceable.analysis.loop_blocks import Blocks, find_blocked_coroutines, find_blocks, find_longest_instances
from traceable.analysis.rules.evidence import (
    Evidence,
    Finding,
    Rule,
    Threshold,
    Values,
    format_range_name,
    join_words,
    make_share_threshold,
    union_ns,
)
from traceable.analysis.units import format_count, format_duration, format_occurrences
from traceable.errors import MissingDataError
from traceable.trace.model import Int64

_NAMED = 2
"""How many of what waited, or was held up in, a sentence names."""

_LOOKED_AT = 500
"""Of how many blocks, the longest, it is looked what waited for them."""


def find_blocked_event_loops(evidence: Evidence, values: Values) -> list[Finding]:
    """Return which ranges hold an event loop for long without giving it back.

    potential_saving_ns: the time in which any of the blocks lasted: the loop goes on that much earlier, and not more.
    """
    evidence.require_ranges()
    context = evidence.context
    every = find_blocks(context)
    if not len(every):
        raise MissingDataError(
            "no_event_loop_recorded",
            "no active segment of a coroutine, and no callback of an event loop in the trace",
            "decorate coroutines (`async with` blocks have no active segments), or record with --record-loop-pauses",
        )
    long = np.flatnonzero(every.end_ns - every.start_ns >= values["block"] * 1e3)
    some = Blocks(every.thread[long], every.start_ns[long], every.end_ns[long], every.callback[long])
    inside = evidence.in_scope_ns(some.start_ns, some.end_ns) > 0
    culprit = find_longest_instances(context, some)
    labels = evidence.labels
    label = labels.of_instance[culprit]
    process = np.array([thread.process for thread in context.trace.threads], np.int64)[some.thread]
    # Outside all ranges the callback is all that is known.
    callback = np.where(culprit < 0, some.callback, -1)
    found = []
    for one in sorted({*zip(label.tolist(), callback.tolist(), process.tolist(), strict=True)}):
        here = np.flatnonzero((label == one[0]) & (callback == one[1]) & (process == one[2]))
        lasting = here[inside[here]]
        if not len(lasting):
            continue
        name, domain = labels.names[one[0]] if one[0] >= 0 else (None, None)
        start, end = evidence.clip_to_scope(some.start_ns[here], some.end_ns[here])
        length = (some.end_ns - some.start_ns)[lasting]
        took = union_ns(start, end)
        if name is not None:
            what = format_range_name(name)
        elif one[1] >= 0:
            what = f"{format_range_name(context.trace.names[one[1]])} (a callback, outside every range)"
        else:
            what = "code between ranges"
        each = (
            f"for {format_duration(took)}"
            if len(lasting) == 1
            else f"{format_occurrences(len(lasting))} for {format_duration(float(np.median(length)))}"
        )
        most = (
            ""
            if len(lasting) == 1
            else f" each (p50; {format_duration(int(length.max()))} at most), {format_duration(took)} in all"
        )
        found.append(
            Finding(
                sentence=(
                    f"{what} blocks the event loop {each}{most}"
                    f"{_where(evidence, culprit[lasting], one[2])}{_what_waits(evidence, some, lasting)}"
                ),
                advice=(
                    "move the work off the loop (`await asyncio.to_thread(...)`, a process pool), "
                    "or give the loop back in between"
                ),
                potential_saving_ns=took,
                total_ns=union_ns(some.start_ns[here], some.end_ns[here]),
                before_steady_ns=evidence.before_steady_or_none(
                    union_ns(*evidence.clip_before_steady(some.start_ns[here], some.end_ns[here]))
                ),
                range=name,
                domain=domain,
                pid=evidence.pids[one[2]],
                count=len(lasting),
                start_ns=int(start[inside[here]].min()),
                end_ns=int(end[inside[here]].max()),
            )
        )
    return found


def _where(evidence: Evidence, culprit: Int64, process: int) -> str:
    """Write in how many of which outermost ranges of the process blocks lie that are not the culprits themselves."""
    found, parent = evidence.context.instances, evidence.context.instances.parent
    roots = culprit[culprit >= 0]
    while len(deeper := np.flatnonzero(parent[roots] >= 0)):
        roots[deeper] = parent[roots[deeper]]
    labels, own = evidence.labels, set(culprit.tolist())
    of_process = np.array([thread.process == process for thread in evidence.context.trace.threads])[found.thread]
    every = Counter(labels.of_instance[np.flatnonzero((parent < 0) & of_process)].tolist())
    counts = Counter(int(labels.of_instance[root]) for root in set(roots.tolist()) - own)
    words = [
        f"{format_count(number)} of {format_count(every[label])} {format_range_name(labels.names[label][0])}"
        for label, number in counts.most_common(_NAMED)
    ]
    return f", in {join_words(words)}" if words else ""


def _what_waits(evidence: Evidence, some: Blocks, lasting: Int64) -> str:
    """Write what waited for the longest of the blocks."""
    longest = lasting[np.argsort(some.start_ns[lasting] - some.end_ns[lasting], kind="stable")[:_LOOKED_AT]]
    wait = find_blocked_coroutines(
        evidence.context,
        Blocks(some.thread[longest], some.start_ns[longest], some.end_ns[longest], some.callback[longest]),
    )
    labels = evidence.labels
    label = labels.of_instance[wait.instance].tolist()
    words = []
    for one, number in Counter(label).most_common(_NAMED):
        most = int(wait.blocked_ns[np.array(label) == one].max())
        words.append(
            f"{format_range_name(labels.names[one][0])} ({format_occurrences(number)}, up to {format_duration(most)})"
        )
    return f"; likely waiting meanwhile: {join_words(words)}" if words else ""


BLOCKED_EVENT_LOOP = Rule(
    "blocked_event_loop",
    "code that holds an event loop while others could go on",
    (
        Threshold("block", 10_000, "us", "a block is a time that the loop runs one thing for so long"),
        make_share_threshold(0.005),
    ),
    find_blocked_event_loops,
    needs_gpu=False,
)
