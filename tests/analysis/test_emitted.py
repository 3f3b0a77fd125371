"""The rules of emission stand twice, in the process and in the reader, and say the same."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from traceable.protocol import nvtx
from traceable.trace import payload_marks as emitted
from traceable.trace.model import NULL

numbers = st.integers(1, nvtx.INSTANCE_BITS)


def test_the_domains_are_the_same() -> None:
    assert emitted.ACTIVE_DOMAIN == nvtx.ACTIVE_DOMAIN
    assert emitted.GENERATOR_DOMAIN == nvtx.GENERATOR_DOMAIN
    assert emitted.PAYLOAD_DOMAIN == nvtx.PAYLOAD_DOMAIN
    assert emitted.COUNTER_DOMAIN == nvtx.COUNTER_DOMAIN


@given(numbers, st.one_of(st.just(0), numbers))
def test_an_identity_is_read_as_it_was_packed(number: int, parent: int) -> None:
    payload = np.array([nvtx.pack_identity(number, parent)])
    assert emitted.is_identity(payload).all()
    assert emitted.decode_number(payload).tolist() == [number] == [nvtx.unpack_instance(int(payload[0]))]
    assert emitted.decode_parent_number(payload).tolist() == [parent] == [nvtx.unpack_parent(int(payload[0]))]


@given(st.integers(-(1 << 63), (1 << 63) - 1))
def test_a_number_of_the_users_is_no_identity(number: int) -> None:
    if emitted.is_identity(np.array([number]))[0]:
        assert nvtx.is_identity(number)
        assert nvtx.pack_identity(nvtx.unpack_instance(number), nvtx.unpack_parent(number)) == number
    if not nvtx.is_identity(number):
        assert not emitted.is_identity(np.array([number]))[0]


def test_absent_is_no_identity() -> None:
    assert not emitted.is_identity(np.array([NULL, 0, -1, 1 << 62])).any()
