"""A finding about operations that had been launched and did not run. docs/findings.md explains the bound."""

from __future__ import annotations

from traceable.analysis.rules.evidence import (
    Evidence,
    Finding,
    Rule,
    Values,
    gaps_called_queued,
    gpu_words,
    share_of,
)
from traceable.analysis.units import count, time
from traceable.trace.rows import distinct


def queued_gaps(evidence: Evidence, _: Values) -> list[Finding]:
    """Return which GPUs ran nothing although the next operation had been launched, and nothing recorded says why.

    won_ns: the summed length of the gaps whose cause is `queued`. The operations become no shorter by beginning at
    once.
    """
    gaps = gaps_called_queued(evidence)
    found = []
    for lane in distinct(gaps.lane).tolist():
        mine = gaps.take(gaps.lane == lane)
        length = evidence.inside_ns(mine.start_ns, mine.end_ns)
        before = int(evidence.before_ns(mine.start_ns, mine.end_ns).sum())
        longest, number = int(length.argmax()), int((length > 0).sum())
        device = evidence.device(lane)
        found.append(
            Finding(
                sentence=(
                    f"{gpu_words(device)} runs nothing for {time(int(length.sum()))} in {count(number, 'gap')} "
                    f"although the operation after each had been launched; the longest gap is "
                    f"{time(int(length[longest]))} at {int(mine.start_ns[longest]) / 1e9:.6f} s"
                ),
                advice=(
                    "look for what holds the GPU: another process on it (nvidia-smi), a host function or a wait in the "
                    "stream; on Windows, launches that the driver collects before it submits them"
                ),
                won_ns=int(length.sum()),
                total_ns=int((mine.end_ns - mine.start_ns).sum()),
                before_steady_ns=evidence.before_steady(before),
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
    (share_of(0.005),),
    queued_gaps,
)
