"""The frames of an agent's channel."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillyard.guest.agent import wire

FRAMES = st.one_of(
    st.tuples(st.just(wire.DATA), st.integers(1, 2**32 - 1), st.binary(max_size=300)),
    st.tuples(st.just(wire.REPLY), st.integers(0, 2**32 - 1), st.binary(max_size=300)),
    st.tuples(st.just(wire.END), st.integers(0, 2**32 - 1), st.just(b"")),
    st.tuples(st.just(wire.CREDIT), st.integers(0, 2**32 - 1), st.binary(min_size=4, max_size=4)),
)


@given(st.lists(FRAMES, max_size=20), st.lists(st.integers(1, 400), max_size=200))
def test_frames_come_as_they_were_packed_however_they_are_cut(
    frames: list[tuple[int, int, bytes]], cuts: list[int]
) -> None:
    data = b"".join(wire.pack(*frame) for frame in frames)
    parser, found = wire.Parser(wire.FROM_AGENT), []
    for cut in cuts:
        found += parser.feed(data[:cut])
        data = data[cut:]
    assert found + parser.feed(data) == frames


@given(st.binary(max_size=2000), st.sampled_from([wire.FROM_AGENT, wire.TO_AGENT]))
def test_any_bytes_are_frames_within_their_bounds_or_a_fault(data: bytes, largest: dict[int, int]) -> None:
    try:
        frames = wire.Parser(largest).feed(data)
    except wire.BadFrame:
        return
    assert all(len(payload) <= largest[kind] for kind, _, payload in frames)


@pytest.mark.parametrize("kind", [*wire.FROM_AGENT, 0, 255, wire.OPEN])
def test_a_frame_over_its_bound_is_a_fault_before_its_payload_is_there(kind: int) -> None:
    head = wire.pack(kind, 1)[:5] + (wire.FROM_AGENT.get(kind, -1) + 1).to_bytes(4, "big")
    with pytest.raises(wire.BadFrame):
        wire.Parser(wire.FROM_AGENT).feed(head)


@pytest.mark.parametrize("version", wire.VERSIONS)
def test_a_proof_holds_for_its_key_its_side_and_its_nonces_alone(version: int) -> None:
    key = bytes(32)
    proof = wire.prove(key, "agent", "a", "b", version)
    assert wire.is_proof(proof, key, "agent", "a", "b", version)
    for other in ((bytes(31) + b"x", "agent", "a", "b"), (key, "host", "a", "b"), (key, "agent", "b", "a")):
        assert not wire.is_proof(proof, *other, version)
    for said in (None, 1, "", "é" * 64, proof[:-1]):
        assert not wire.is_proof(said, key, "agent", "a", "b", version)


def test_credit_is_four_bytes() -> None:
    assert wire.credit_of(wire.credit(1, 77)[9:]) == 77
    with pytest.raises(wire.BadFrame):
        wire.credit_of(b"123")
