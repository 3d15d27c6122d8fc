"""Lines of a program that speaks MCP, honest or hostile, cut anywhere."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillyard.domain.errors import ToolServerFault
from skillyard.mcp_servers.framing import Frames
from skillyard.ports.tools import LinkBounds

BOUNDS = LinkBounds(message_bytes=1000, flood=3)
ANSWER = {"jsonrpc": "2.0", "id": 1, "result": {"a": "ü"}}


def line(message: Any) -> bytes:
    return json.dumps(message, ensure_ascii=False).encode() + b"\n"


def fed(data: bytes, bounds: LinkBounds = BOUNDS) -> list[dict[str, Any]]:
    return Frames(bounds).feed(data)


@given(st.lists(st.integers(1, 9), min_size=1), st.integers(1, 40))
def test_messages_come_whole_wherever_they_are_cut(numbers: list[int], size: int) -> None:
    wire = b"".join(line({**ANSWER, "id": number}) for number in numbers)
    frames = Frames(BOUNDS)
    found = [message for at in range(0, len(wire), size) for message in frames.feed(wire[at : at + size])]
    assert [message["id"] for message in found] == numbers


@given(st.binary(max_size=300))
def test_any_bytes_give_messages_or_a_fault(data: bytes) -> None:
    with suppress(ToolServerFault):
        assert all(isinstance(message, dict) for message in fed(data + b"\n"))


def test_a_line_without_an_end_breaks_at_the_bound() -> None:
    frames = Frames(BOUNDS)
    assert frames.feed(b"x" * 1000) == []
    with pytest.raises(ToolServerFault, match="more than 1000 bytes"):
        frames.feed(b"x")


@pytest.mark.parametrize("hostile", [b"[" * 400 + b"]" * 400, b'{"a":' * 300 + b"1" + b"}" * 300, b"[]", b"NaN", b"hi"])
def test_hostile_or_foreign_lines_break_it(hostile: bytes) -> None:
    with pytest.raises(ToolServerFault):
        fed(hostile + b"\n")


def test_notifications_without_an_end_break_it_and_answers_begin_anew() -> None:
    noise = line({"jsonrpc": "2.0", "method": "notifications/message", "params": {}})
    frames = Frames(BOUNDS)
    assert frames.feed(noise * 3 + line(ANSWER) + noise * 3) == [ANSWER]
    with pytest.raises(ToolServerFault, match="more than 3 notifications"):
        frames.feed(noise)


def test_only_notifications_that_mean_something_are_passed_on() -> None:
    changed = {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}
    asked = {"jsonrpc": "2.0", "method": "sampling/createMessage", "id": 7}
    assert fed(line({"jsonrpc": "2.0", "method": "notifications/progress"}) + line(changed) + line(asked)) == [
        changed,
        asked,
    ]
