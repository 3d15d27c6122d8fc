"""Frames of Connect are read alike however a stream is cut, and nothing that breaks the protocol is read."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillyard.faces.e2b.connect import Frames, frame
from skillyard.faces.e2b.errors import RpcRefusal

MESSAGES = st.lists(st.dictionaries(st.text(max_size=8), st.text(max_size=40), max_size=3), max_size=5)


@given(MESSAGES, st.lists(st.integers(1, 30), max_size=40))
def test_messages_do_not_depend_on_the_cuts(messages: list[dict[str, str]], cuts: list[int]) -> None:
    data, reader, found = b"".join(map(frame, messages)), Frames(4096), []
    while data:
        size = cuts.pop() if cuts else len(data)
        found += reader.feed(data[:size])
        data = data[size:]
    reader.finish()
    assert [json.loads(each) for each in found] == messages


@given(st.binary(max_size=200))
def test_any_bytes_are_messages_or_refused(data: bytes) -> None:
    reader = Frames(64)
    try:
        found = reader.feed(data)
        reader.finish()
    except RpcRefusal:
        return
    assert b"".join(b"\0" + len(each).to_bytes(4) + each for each in found) == data


@pytest.mark.parametrize("data", [b"\1\0\0\0\0", b"\2\0\0\0\2{}", b"\0\0\0\0\x41", b"\0\xff\xff\xff\xff"])
def test_what_breaks_the_protocol_is_refused_at_its_head(data: bytes) -> None:
    with pytest.raises(RpcRefusal):
        Frames(64).feed(data)
