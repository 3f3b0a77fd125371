"""Collectives: bandwidths of a real trace against its JSON, ranks that are late, and matches against a plain loop."""

from __future__ import annotations

import gzip
import json
import math
from collections import defaultdict
from pathlib import Path

import pytest
from tests.analysis.sample_collectives import all_reduces, write_rank

import traceable
from traceable.errors import MissingDataError
from traceable.trace.collective_fields import encode_kernel_args, parse_collective_fields

RANKS = 4


def test_the_bandwidths_of_a_real_trace_equal_those_of_its_json(captures: Path) -> None:
    path = captures / "kineto" / "nccl-annotations.json.gz"
    expected: dict[tuple[str, int], list[tuple[int, float]]] = defaultdict(list)
    for event in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]:
        args = event.get("args", {})
        if event.get("cat") == "kernel" and "Collective name" in args:
            size = args["In msg nelems"] * {"Float": 4, "Long": 8}[args["dtype"]]
            name = {"allreduce": "all_reduce", "broadcast": "broadcast"}[args["Collective name"]]
            assert args["Group size"] == 2
            expected[name, size].append((size, event["dur"] * 1e3))
    rows = list(traceable.load(path).collectives().rows())
    assert {(row["name"], row["message_bytes"]) for row in rows} == set(expected)
    for row in rows:
        calls = expected[row["name"], row["message_bytes"]]
        rate = sum(size for size, _ in calls) / sum(time for _, time in calls)
        # 2 (n - 1) / n is 1 for two ranks, as is the factor of a broadcast.
        assert math.isclose(row["algorithm_gb_per_s"], rate, rel_tol=1e-9)
        assert math.isclose(row["bus_gb_per_s"], rate, rel_tol=1e-9)
        assert math.isclose(row["bus_max_gb_per_s"], max(size / time for size, time in calls), rel_tol=1e-9)
        assert row["count"] == len(calls)
        assert math.isclose(row["total_ns"], sum(time for _, time in calls), rel_tol=1e-9)
        assert (row["communicator"], row["group_size"], row["source"]) == ("0", 2, "kernel_args")


@pytest.mark.parametrize("has_sequence", [True, False])
def test_the_rank_that_is_late_is_named_though_its_kernel_is_the_shortest(tmp_path: Path, has_sequence: bool) -> None:
    arrivals = [[100_000 + 1_000 * rank for rank in range(RANKS)] for _ in range(6)]
    arrivals[3][2] = 5_100_000
    for rank in range(RANKS):
        write_rank(tmp_path, rank, RANKS, all_reduces(rank, RANKS, arrivals, has_sequence=has_sequence))
    table = traceable.load(tmp_path).collectives()
    late = next(iter(table.others["waits"].rows()))
    assert (late["last_rank"], late["cause"], late["ranks"], late["group_size"]) == (2, "launched_late", 4, 4)
    assert late["sequence"] == (10 if has_sequence else 3)
    assert late["sequence_source"] == ("recorded" if has_sequence else "counted")
    assert late["wait_max_ns"] == 5_000_000
    assert late["wait_total_ns"] == 5_000_000 + 4_999_000 + 4_997_000
    assert late["transfer_ns"] == 400_000
    assert late["bus_gb_per_s"] == pytest.approx(4 * 2**20 / 400_000 * 1.5)
    worst = next(iter(table.others["ranks"].rows()))
    assert (worst["rank"], worst["last_count"], worst["caused_wait_ns"]) == (2, 1, late["wait_total_ns"])
    by_rank = traceable.load(tmp_path).collectives(by="rank")
    shortest = min(by_rank.rows(), key=lambda row: row["total_ns"])
    assert shortest["rank"] == 2


def test_kernels_without_arguments_are_matched_by_their_order_and_told_so(tmp_path: Path) -> None:
    arrivals = [[100_000, 300_000], [100_000, 300_000], [900_000, 100_000]]
    for rank in range(2):
        write_rank(tmp_path, rank, 2, all_reduces(rank, 2, arrivals, has_args=False))
    table = traceable.load(tmp_path).collectives()
    assert table.column("source") == ["kernel_order"]
    assert table.column("message_bytes") == table.column("bus_gb_per_s") == [None]
    assert "collectives_inferred" in {note.code for note in table.notes}
    assert table.others["waits"].column("last_rank") == [0, 1, 1]


def test_a_recording_without_collectives_is_refused(captures: Path) -> None:
    with pytest.raises(MissingDataError, match=r"\[no_collectives\]"):
        traceable.load(captures / "kineto" / "gpu-user-annotation-steps.json.gz").collectives()


@pytest.mark.parametrize(
    ("args", "size_bytes", "is_even"),
    [
        ({"Collective name": "_allgather_base", "In msg nelems": 8, "Out msg nelems": 32}, 64, True),
        ({"Collective name": "_reduce_scatter_base", "In msg nelems": 32, "Out msg nelems": 8}, 64, True),
        ({"Collective name": "all_to_allv", "In msg nelems": 9, "In split size": "[4, 5]"}, 18, False),
        ({"Collective name": "allreduce", "In msg nelems": -1}, None, True),
        ({"Collective name": "allreduce", "In msg nelems": "many"}, None, True),
        ({"Collective name": 7, "In msg nelems": 1 << 80}, None, True),
    ],
)
def test_sizes_are_those_of_the_whole_array(args: dict[str, object], size_bytes: int | None, is_even: bool) -> None:
    known = parse_collective_fields(encode_kernel_args({"dtype": "BFloat16", **args}))
    assert (known.size_bytes, known.is_even) == (size_bytes, is_even)


def test_a_shortened_list_of_ranks_is_not_taken_for_the_group() -> None:
    args = {"Collective name": "allreduce", "Group size": 64, "Process Group Ranks": "[0, 1, 2, ..., 63]"}
    assert parse_collective_fields(encode_kernel_args(args)).ranks is None
    assert parse_collective_fields(encode_kernel_args({**args, "Process Group Ranks": "[0, 1]"})).ranks is None
