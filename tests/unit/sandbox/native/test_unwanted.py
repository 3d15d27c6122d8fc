"""The answer to a question whose asker went away goes to the one that undoes it, whenever it comes."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from skillyard.ipc.channel import encode
from skillyard.sandbox.native.link import Link

pytestmark = pytest.mark.anyio


class Asked:
    """A link whose keeper is the test."""

    def __init__(self) -> None:
        ours, self.keeper = socket.socketpair()
        self.link = Link(ours, lambda *_: None, lambda: None)
        self.undone: list[dict[str, Any]] = []
        self.answer = self.link.ask({"op": "create"}, unwanted=self.undone.append)
        self.task = asyncio.ensure_future(self._wait())

    async def _wait(self) -> None:
        await self.answer

    def say(self) -> None:
        self.keeper.sendall(encode({"a": 1, "handle": "s1"}))

    async def until_undone(self) -> None:
        async with asyncio.timeout(60):
            while not self.undone:
                await asyncio.sleep(0)

    async def close(self) -> None:
        await asyncio.gather(self.task, return_exceptions=True)
        self.link.close()
        self.keeper.close()


async def test_it_comes_long_after_the_asker_went_away() -> None:
    asked = Asked()
    await asyncio.sleep(0)
    asked.task.cancel()
    await asyncio.gather(asked.task, return_exceptions=True)
    asked.say()
    await asked.until_undone()
    assert asked.undone == [{"a": 1, "handle": "s1"}]
    await asked.close()


async def test_it_comes_in_the_turn_in_which_the_asker_goes_away() -> None:
    asked = Asked()
    await asyncio.sleep(0)
    asked.say()
    asked.task.cancel()  # nobody has read the answer yet
    await asked.until_undone()
    await asked.close()


async def test_an_answer_that_is_wanted_is_not_undone() -> None:
    asked = Asked()
    asked.say()
    async with asyncio.timeout(60):
        header, _ = await asked.answer
    assert header["handle"] == "s1"
    assert asked.undone == []
    await asked.close()
