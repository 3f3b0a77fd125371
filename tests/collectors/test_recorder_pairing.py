"""The vectorised pairing of pushes with pops and starts with ends, against slow simulations of what NVTX defines."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.example_count import scale_examples

from traceable.collectors.recorder.rows import pair_ids, pair_push_pop

EVENTS = st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=200)


def stacks(events: list[tuple[int, bool]]) -> list[int]:
    """One stack a domain; a pop that finds nothing is ignored."""
    partner = [-1] * len(events)
    opened: dict[int, list[int]] = {}
    for place, (domain, is_push) in enumerate(events):
        stack = opened.setdefault(domain, [])
        if is_push:
            stack.append(place)
        elif stack:
            partner[place] = stack.pop()
            partner[partner[place]] = place
    return partner


def pair_events(events: list[tuple[int, bool]]) -> list[int]:
    domain = np.array([domain for domain, _ in events], np.int64)
    is_push = np.array([is_push for _, is_push in events], np.bool_)
    return pair_push_pop(domain, is_push).tolist()


@settings(max_examples=scale_examples(1000), deadline=None)
@given(EVENTS)
def test_pairs_are_those_of_a_stack_a_domain(events: list[tuple[int, bool]]) -> None:
    assert pair_events(events) == stacks(events)


@settings(max_examples=scale_examples(300), deadline=None)
@given(EVENTS, st.integers(0, 200))
def test_a_sequence_may_be_cut_anywhere_when_open_pushes_are_carried_over(
    events: list[tuple[int, bool]], cut: int
) -> None:
    first, rest = events[:cut], events[cut:]
    open_pushes = [place for place, partner in enumerate(pair_events(first)) if partner < 0 and first[place][1]]
    second = pair_events([first[place] for place in open_pushes] + rest)
    where = open_pushes + list(range(len(first), len(events)))
    whole = stacks(events)
    for place, partner in zip(where, second, strict=True):
        assert whole[place] == (where[partner] if partner >= 0 else -1)


def test_a_very_deep_stack_pairs_first_with_last() -> None:
    depth = 100_000
    is_push = np.repeat([True, False], depth)
    partner = pair_push_pop(np.zeros(2 * depth, np.int64), is_push)
    assert (partner == np.arange(2 * depth)[::-1]).all()


@settings(max_examples=scale_examples(300), deadline=None)
@given(st.lists(st.integers(1, 30), unique=True), st.lists(st.integers(1, 30)))
def test_a_start_takes_the_first_end_of_its_id(starts: list[int], ends: list[int]) -> None:
    partner = pair_ids(np.array(starts, np.int64), np.array(ends, np.int64)).tolist()
    assert partner == [ends.index(start) if start in ends else -1 for start in starts]
