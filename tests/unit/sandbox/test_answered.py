"""Requests that make something at a server are waited for, also by callers that were cancelled."""

from __future__ import annotations

import asyncio

import pytest

from skillyard.threads import answered

pytestmark = pytest.mark.anyio


async def test_a_cancelled_caller_goes_on_behind_the_answer() -> None:
    asked, may_answer, made = asyncio.Event(), asyncio.Event(), list[str]()

    async def request() -> str:
        asked.set()
        await may_answer.wait()
        made.append("one")
        return "one"

    seen: list[list[str]] = []

    async def caller() -> None:
        try:
            await answered(request())
        except BaseException:
            seen.append([*made])
            raise

    calling = asyncio.create_task(caller())
    await asked.wait()
    calling.cancel()
    await asyncio.sleep(0)
    assert not calling.done()
    may_answer.set()
    with pytest.raises(asyncio.CancelledError):
        await calling
    assert seen == [["one"]]


async def test_an_answer_and_a_failure_are_the_callers() -> None:
    async def answer() -> int:
        return 7

    async def fail() -> int:
        raise OSError("refused")

    assert await answered(answer()) == 7
    with pytest.raises(OSError, match="refused"):
        await answered(fail())
