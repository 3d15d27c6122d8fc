"""The gate's desk for calls of tools: form, budget and ends."""

from __future__ import annotations

import asyncio
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillyard.domain.network.session import ToolBudget
from skillyard.gate.relay.guard import Ended
from skillyard.gate.tools import MOST_AT_ONCE, Refusal, ToolDesk

CALL = json.dumps({"server": "git", "tool": "status", "arguments": {}}).encode()


class Server:
    """Takes calls, and answers each at once unless it is slow."""

    def __init__(self, budget: ToolBudget, answer: bytes = b"{}") -> None:
        self.taken: list[bytes] = []
        self.answer: bytes | None = answer
        self.here = True
        self.desk = ToolDesk(budget, self.ask)

    def ask(self, number: int, request: bytes) -> bool:
        self.taken.append(request)
        if self.answer is not None:
            asyncio.get_running_loop().call_soon(self.desk.answered, number, self.answer)
        return self.here


@pytest.mark.anyio
async def test_calls_end_with_the_budget() -> None:
    server = Server(ToolBudget(calls=2))
    assert [await server.desk.call(CALL) for _ in range(2)] == [b"{}", b"{}"]
    with pytest.raises(Refusal, match="made its 2 calls"):
        await server.desk.call(CALL)
    assert len(server.taken) == 2


@pytest.mark.anyio
async def test_bytes_of_both_ways_end_with_the_budget() -> None:
    server = Server(ToolBudget(bytes=len(CALL) + 10), b"x" * 11)
    with pytest.raises(Refusal, match="bytes"):
        await server.desk.call(CALL)
    with pytest.raises(Refusal, match="bytes"):
        await server.desk.call(CALL)
    assert len(server.taken) == 1


@pytest.mark.anyio
async def test_calls_at_once_are_bounded_and_end_with_the_session() -> None:
    server = Server(ToolBudget())
    server.answer = None
    waiting = [asyncio.ensure_future(server.desk.call(CALL)) for _ in range(MOST_AT_ONCE)]
    await asyncio.sleep(0)
    with pytest.raises(Refusal, match="at work"):
        await server.desk.call(CALL)
    server.desk.close()
    assert {type(each) for each in await asyncio.gather(*waiting, return_exceptions=True)} == {Ended}
    server.desk.answered(1, b"late")


@pytest.mark.anyio
async def test_without_a_server_a_call_is_refused() -> None:
    server = Server(ToolBudget())
    server.here = False
    with pytest.raises(Refusal, match="away"):
        await server.desk.call(CALL)


@pytest.mark.parametrize(
    "hostile",
    [
        b"",
        b"[]",
        b"{}",
        b"[" * 1000 + b"]" * 1000,
        b'{"server":"a","tool":"b","arguments":{},"method":"tools/list"}',
        b'{"server":"a","tool":"b","arguments":[]}',
        b'{"server":1,"tool":"b","arguments":{}}',
        json.dumps({"server": "a" * 65, "tool": "b", "arguments": {}}).encode(),
    ],
)
@pytest.mark.anyio
async def test_nothing_but_a_call_is_passed_on(hostile: bytes) -> None:
    server = Server(ToolBudget())
    with pytest.raises(Refusal):
        await server.desk.call(hostile)
    assert server.taken == []


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_or_a_call(data: bytes) -> None:
    async def one() -> None:
        server = Server(ToolBudget())
        try:
            await server.desk.call(data)
        except Refusal:
            return
        assert json.loads(server.taken[0]).keys() == {"server", "tool", "arguments"}

    asyncio.run(one())
