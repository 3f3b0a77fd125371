"""What the rules of the findings say, slowly: sets of nanoseconds, and one operation after another.

What other questions answer (who waits how long, why a gap is there, which steps are steady) and which range something
belongs to is taken from them: they have oracles of their own.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from fractions import Fraction
from typing import Any

from tests.analysis.gpu_work import ALLOCATE, COPY_CALL, RELEASE, instants, is_nccl, operations_of
from tests.analysis.made import PROCESS_OF_THREAD, rows_of

from traceable.analysis.context import Context
from traceable.analysis.gaps import gaps
from traceable.analysis.named import call_name
from traceable.analysis.steps import steps
from traceable.analysis.sync import sync
from traceable.errors import UnanswerableError
from traceable.trace.model import Trace

Said = dict[str, Any]
"""A finding without its sentences; what it does not say is left out."""

UNSUPPORTED = None
"""In place of the findings, where the trace can't support the rule."""


def between_windows(trace: Trace) -> set[int]:
    """The nanoseconds after the first window and before the last that lie in none."""
    opened = rows_of(trace.windows)
    inside = {at for row in opened for at in range(row["start_ns"], row["end_ns"])}
    last = max((row["start_ns"] for row in opened), default=0)
    return {at for at in range(min(inside, default=0), last) if at not in inside}


class Facts:
    def __init__(self, trace: Trace) -> None:
        self.trace, self.context = trace, Context(trace)
        self.operations = operations_of(trace)
        self.calls = rows_of(trace.calls)
        self.ranges = list(zip(self.context.found.name.tolist(), self.context.found.domain.tolist(), strict=True))
        for i, row in enumerate(self.operations):
            row["instance"] = int(self.context.innermost[i])
            row["call"] = int(self.context.launched.call_of[i])
        self.by_gpu: dict[int, list[dict[str, Any]]] = defaultdict(list)
        for row in sorted(self.operations, key=lambda row: (row["start_ns"], row["order"])):
            self.by_gpu[row["gpu"]].append(row)
        start, end = trace.extent_ns() or (0, 0)
        self.unrecorded = between_windows(trace)
        self.window = end - start - len(self.unrecorded & set(range(start, end)))

    def range_of(self, instance: int) -> tuple[str | None, str | None]:
        if instance < 0:
            return None, None
        name, domain = self.ranges[instance]
        return self.trace.names[name], self.trace.names[domain] if domain >= 0 else None

    def room(self, process: int) -> int:
        mine = [row for row in self.operations if row["process"] == process]
        busy = [len(instants([row for row in mine if row["gpu"] == gpu])) for gpu in self.by_gpu]
        return self.window - max(busy)

    def users(self, gpu: int) -> int | None:
        users = {row["process"] for row in self.by_gpu[gpu]}
        return users.pop() if len(users) == 1 else None


def lasting(rows: list[tuple[int, int]]) -> int:
    return len({at for start, end in rows for at in range(start, end)})


# -- copies


def small_h2d_copies(facts: Facts, v: dict[str, float]) -> list[Said] | None:
    h2d = [row for row in facts.operations if row["kind"] == "copy" and row["kind_of_copy"] in (1, 3)]
    streams: dict[tuple[int, ...], list[dict[str, Any]]] = defaultdict(list)
    for row in facts.operations:
        streams[row["process"], row["device"], row["context"], row["stream"]].append(row)
    runs: list[list[dict[str, Any]]] = []
    for rows in streams.values():
        run: list[dict[str, Any]] = []
        for row in sorted(rows, key=lambda row: (row["start_ns"], row["order"])):
            small = row in h2d and row["size_bytes"] <= v["bytes"]
            alike = run and all(run[-1][key] == row[key] for key in ("instance", "source_kind")) if small else False
            if not alike:
                runs.append(run)
                run = []
            if small:
                run.append(row)
        runs.append(run)
    groups: dict[tuple[Any, ...], list[tuple[bool, dict[str, Any]]]] = defaultdict(list)
    for run in runs:
        if run and len(run) >= v["run"]:
            for i, row in enumerate(run):
                groups[(*facts.range_of(row["instance"]), row["process"], row["gpu"])].append((i == 0, row))
    said = []
    for (name, domain, pid, gpu), members in groups.items():
        least = Fraction(0)
        for _, row in members:
            alike = [one for one in h2d if (one["gpu"], one["source_kind"]) == (gpu, row["source_kind"])]
            rate = fastest(alike)
            least += row["size_bytes"] / rate if rate else 0
        rows = [row for _, row in members]
        took = copying_ns(facts, members)
        said.append(copied(facts, rows, name, domain, pid, gpu, took - least))
    return said


def pageable_copies(facts: Facts, v: dict[str, float]) -> list[Said] | None:
    with_host = []
    for row in facts.operations:
        if row["kind"] == "copy" and row["kind_of_copy"] in (1, 2, 3, 4):
            to_gpu = row["kind_of_copy"] in (1, 3)
            with_host.append({**row, "h2d": to_gpu, "host": row["source_kind"] if to_gpu else row["target_kind"]})
    if not with_host:
        return []
    if all(row["host"] < 0 for row in with_host):
        return UNSUPPORTED
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    for row in with_host:
        if row["host"] == 0 and row["size_bytes"] >= v["bytes"]:
            groups[(*facts.range_of(row["instance"]), row["process"], row["gpu"], row["h2d"])].append(row)
    said = []
    for (name, domain, pid, gpu, h2d), rows in groups.items():
        pinned = [row for row in with_host if (row["gpu"], row["h2d"], row["host"]) == (gpu, h2d, 1)]
        rate = fastest(pinned)
        least = sum(row["size_bytes"] / rate for row in rows) if rate else 0
        took = copying_ns(facts, [(True, row) for row in rows])
        said.append(copied(facts, rows, name, domain, pid, gpu, took - least))
    return said


def fastest(rows: list[dict[str, Any]]) -> Fraction | None:
    """Bytes a ns."""
    lengths = [(row["size_bytes"], row["end_ns"] - row["start_ns"]) for row in rows]
    return max((Fraction(size, length) for size, length in lengths if size > 0 and length > 0), default=None)


def copying_ns(facts: Facts, members: list[tuple[bool, dict[str, Any]]]) -> int:
    times = []
    for from_copy, row in members:
        times.append((row["start_ns"], row["end_ns"]))
        if row["call"] >= 0 and facts.calls[row["call"]]["name"] == COPY_CALL:
            call = facts.calls[row["call"]]
            times.append((max(call["start_ns"], row["start_ns"]) if from_copy else call["start_ns"], call["end_ns"]))
    return lasting(times)


def copied(facts: Facts, rows: Any, name: Any, domain: Any, pid: int, gpu: int, won: Any) -> Said:
    called = any(row["call"] >= 0 and facts.calls[row["call"]]["name"] == COPY_CALL for row in rows)
    place = {"range": name, "domain": domain, "pid": pid, "device": gpu}
    return {"won_ns": won, **place, "count": len(rows), "call": "cudaMemcpyAsync" if called else None}


# -- waits


def sync_in_hot_range(facts: Facts, v: dict[str, float]) -> list[Said] | None:
    if not facts.calls or not len(facts.trace.ranges):
        return UNSUPPORTED
    try:
        answer = sync(facts.context)
    except UnanswerableError:
        return []
    found = facts.context.found
    cpu: Counter[tuple[str | None, str | None]] = Counter()
    for i in range(len(found)):
        if not found.replay[i]:
            cpu[facts.range_of(i)] += int(found.end_ns[i] - found.start_ns[i])
    room = max(facts.room(process) for process in {row["process"] for row in facts.operations})
    said = []
    for row in answer.others["calls"].rows():
        long = cpu[row["range"], row["domain"]]
        if row["range"] is not None and long >= v["hot"] * facts.window and row["wait_total_ns"] >= v["wait"] * long:
            place = {name: row[name] for name in ("range", "domain", "call", "count")}
            said.append({"won_ns": min(row["wait_total_ns"], room), **place})
    return said


def allocation_in_steady_state(facts: Facts, v: dict[str, float]) -> list[Said] | None:
    if not facts.calls:
        return UNSUPPORTED
    allocating = [(i, row) for i, row in enumerate(facts.calls) if row["name"] in (ALLOCATE, RELEASE)]
    if not allocating:
        return []
    try:
        answer = [row for row in steps(facts.context).rows() if row["steady"]]
    except UnanswerableError:
        return UNSUPPORTED
    if not answer:
        return UNSUPPORTED
    said = []
    for pid in {row["pid"] for row in answer}:
        mine = [row for row in answer if row["pid"] == pid]
        calls = [
            (i, row)
            for i, row in allocating
            if PROCESS_OF_THREAD[row["thread"]] == pid
            and any(step["start_ns"] <= row["start_ns"] < step["end_ns"] for step in mine)
        ]
        if not calls or len(calls) < v["per_step"] * len(mine):
            continue
        rows = [row for _, row in calls]
        by_name: Counter[int] = Counter()
        by_range: Counter[tuple[str | None, str | None]] = Counter()
        for i, row in calls:
            by_name[row["name"]] += row["end_ns"] - row["start_ns"]
            by_range[facts.range_of(int(facts.context.innermost_of_call[i]))] += row["end_ns"] - row["start_ns"]
        took = lasting([(row["start_ns"], row["end_ns"]) for row in rows])
        said.append(
            {
                "won_ns": min(took, facts.room(pid) if pid in {row["process"] for row in facts.operations} else took),
                "pid": pid,
                "count": len(rows),
                "call": {call_name(facts.trace.names[name]) for name in most(by_name)},
                "range": {name for name, _ in most(by_range)},
                "start_ns": min(row["start_ns"] for row in rows),
                "end_ns": max(row["end_ns"] for row in rows),
            }
        )
    return said


def most(counted: Counter[Any]) -> set[Any]:
    """All keys that have the most; any of them will do."""
    return {key for key, value in counted.items() if value == max(counted.values())}


# -- idle


def gaps_of(facts: Facts) -> dict[int, list[Said]]:
    """The gaps of each GPU, with the operation that ends each, and the cause that the question of gaps gives it."""
    answer = gaps(facts.context, top=10**6).others["largest"].rows()
    causes = {(row["device"], row["start_ns"]): row["cause"] for row in answer}
    found: dict[int, list[Said]] = {}
    for gpu, rows in facts.by_gpu.items():
        found[gpu], until = [], rows[0]["end_ns"]
        for row in rows:
            if row["start_ns"] > until and facts.unrecorded.isdisjoint(range(until, row["start_ns"])):
                cause = causes[gpu, until]
                found[gpu].append({"start": until, "end": row["start_ns"], "after": row, "cause": cause})
            until = max(until, row["end_ns"])
    return found


def launch_bound(facts: Facts, v: dict[str, float]) -> list[Said] | None:
    if not facts.calls or all(row["call"] < 0 for row in facts.operations):
        return UNSUPPORTED
    said = []
    for gpu, found in gaps_of(facts).items():
        late = [
            gap
            for gap in found
            if gap["end"] - gap["start"] <= 1_000 * v["gap"]
            and gap["cause"] in ("host_late", "launch_latency")
            and gap["after"]["call"] >= 0
            and facts.calls[gap["after"]["call"]]["end_ns"] > gap["start"]
        ]
        # By path, the outermost name first; what is outside every range has a path of its own.
        idle: Counter[Any] = Counter()
        for gap in late:
            path = path_of(facts, gap["after"])
            for depth in range(1, len(path) + 1):
                idle[path[:depth]] += gap["end"] - gap["start"]
        for top in [path for path in idle if len(path) == 1]:
            place = deepest(facts, idle, top)
            here = [row for row in facts.by_gpu[gpu] if path_of(facts, row)[: len(place)] == place]
            kernels = [row["end_ns"] - row["start_ns"] for row in here if row["kind"] == "kernel"]
            work = sum(row["end_ns"] - row["start_ns"] for row in here)
            small = kernels and sum(kernels) <= 1_000 * v["kernel"] * len(kernels)
            if small and idle[place] >= v["idle"] * (idle[place] + work):
                inside = [gap for gap in late if path_of(facts, gap["after"])[: len(place)] == place]
                name = None if place == (None,) else facts.trace.names[place[-1]]
                where = {"range": name, "device": gpu, "pid": facts.users(gpu)}
                said.append({"won_ns": idle[place], **where, "count": len(inside)})
    return said


def path_of(facts: Facts, operation: Said) -> tuple[Any, ...]:
    if operation["instance"] < 0:
        return (None,)
    return facts.context.found.paths[int(facts.context.found.path[operation["instance"]])]


def deepest(facts: Facts, idle: Counter[Any], path: tuple[Any, ...]) -> tuple[Any, ...]:
    children = [one for one in facts.context.found.paths if len(one) == len(path) + 1 and one[: len(path)] == path]
    best = max(children, key=lambda one: idle[one], default=None)
    if best is None or idle[best] < 0.8 * idle[path]:
        return path
    return deepest(facts, idle, best)


def low_utilisation(facts: Facts, v: dict[str, float]) -> list[Said] | None:
    said = []
    for gpu, found in gaps_of(facts).items():
        own = [gap for gap in found if gap["cause"] != "profiler_flush"]
        idle = sum(gap["end"] - gap["start"] for gap in own)
        busy = len(instants(facts.by_gpu[gpu]))
        if own and busy < v["utilisation"] * (busy + idle):
            longest = max(own, key=lambda gap: (gap["end"] - gap["start"], -gap["start"]))
            place = {"device": gpu, "pid": facts.users(gpu), "start_ns": longest["start"], "end_ns": longest["end"]}
            said.append({"won_ns": idle, "count": len(own), **place})
    return said


def device_imbalance(facts: Facts, v: dict[str, float]) -> list[Said] | None:
    if len(facts.by_gpu) < 2:
        return UNSUPPORTED
    work = {gpu: len(instants([row for row in rows if not is_nccl(row)])) for gpu, rows in facts.by_gpu.items()}
    most_of_all = max(work.values())
    part = {gpu: ns for gpu, ns in work.items() if ns > 0 and ns >= v["member"] * most_of_all}
    if len(part) < 2 or min(part.values()) > (1 - v["spread"]) * most_of_all:
        return []
    busiest = {gpu for gpu, ns in part.items() if ns == most_of_all}
    won = int(most_of_all - sum(part.values()) / len(part))
    return [{"won_ns": won, "device": busiest, "count": len(part)}]


ORACLES = {
    rule.__name__: rule
    for rule in (
        *(small_h2d_copies, pageable_copies, sync_in_hot_range, allocation_in_steady_state),
        *(launch_bound, low_utilisation, device_imbalance),
    )
}
