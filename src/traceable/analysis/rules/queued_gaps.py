"""A finding about operations that had been launched and did not run. docs/findings.md explains the bound."""

from __future__ import annotations

from traceable.analysis.rules.evidence import (
    Evidence,
    Finding,
    Rule,
    Values,
    format_gpu,
    make_share_threshold,
    select_queued_gaps,
)
from traceable.analysis.units import format_count, format_duration
from traceable.trace.rows import distinct


def find_queued_gaps(evidence: Evidence, _: Values) -> list[Finding]:
    """Return which GPUs ran nothing although the next operation had been launched, and nothing recorded says why.

    potential_saving_ns: the summed length of the gaps whose cause is `queued`. The operations become no shorter by beginning at
    once.
    """
    gaps = select_queued_gaps(evidence)
    found = []
    for lane in distinct(gaps.lane).tolist():
        mine = gaps.take(gaps.lane == lane)
        length = evidence.in_scope_ns(mine.start_ns, mine.end_ns)
        before = int(evidence.before_steady_ns(mine.start_ns, mine.end_ns).sum())
        longest, number = int(length.argmax()), int((length > 0).sum())
        device = evidence.device_number(lane)
        found.append(
            Finding(
                sentence=(
                    f"{format_gpu(device)} runs nothing for {format_duration(int(length.sum()))} in {format_count(number, 'gap')} "
                    f"although the operation after each had been launched; the longest gap is "
                    f"{format_duration(int(length[longest]))} at {int(mine.start_ns[longest]) / 1e9:.6f} s"
                ),
                advice=(
                    "look for what holds the GPU: another process on it (nvidia-smi), a host function or a wait in the "
                    "stream; on Windows, launches that the driver collects before it submits them"
                ),
                potential_saving_ns=int(length.sum()),
                total_ns=int((mine.end_ns - mine.start_ns).sum()),
                before_steady_ns=evidence.before_steady_or_none(before),
                device=device,
                pid=evidence.only_pid(lane),
                count=number,
                start_ns=int(mine.start_ns[longest]),
                end_ns=int(mine.end_ns[longest]),
            )
        )
    return found


QUEUED_GAPS = Rule(
    "queued_gaps",
    "GPUs that run nothing although operations had been launched",
    (make_share_threshold(0.005),),
    find_queued_gaps,
)
