"""Connections to ports of a sandbox, and refusals, as an agent inside tells them."""

from __future__ import annotations

import asyncio

from skillyard.domain.errors import InvalidInput, SandboxFault, SandboxGone, shown
from skillyard.sandbox.agent_channel import AgentRefused, ChannelLost, Exchange

_BOUND_S = 30.0
"""How long an agent may take to connect."""


class AgentStream:
    """A connection to a port inside (:class:`skillyard.ports.sandbox.ByteStream`)."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._pieces = exchange.pieces()
        self._left = b""
        self._ended = False

    async def begin(self, port: int) -> None:
        """Returns when there is a connection. Raises InvalidInput, SandboxGone."""
        try:
            async with asyncio.timeout(_BOUND_S):
                self._left = await anext(self._pieces, b"")
        except TimeoutError:
            raise _nobody(port) from None
        except AgentRefused as refused:
            raise (_nobody(port) if refused.kind == "refused" else fault(refused)) from None
        except ChannelLost as lost:
            raise SandboxGone(lost.message) from lost

    async def read(self, most: int = 65536) -> bytes:
        if not self._left:
            try:
                self._left = await anext(self._pieces, b"")
            except (ChannelLost, AgentRefused):
                return b""
        piece, self._left = self._left[:most], self._left[most:]
        return piece

    async def write(self, data: bytes) -> None:
        try:
            await self._exchange.send(data)
        except (ChannelLost, AgentRefused) as error:
            raise SandboxGone("nobody reads this connection") from error
        if self._exchange.over:
            raise SandboxGone("nobody reads this connection")

    async def end(self) -> None:
        if not self._ended:
            self._ended = True
            self._exchange.end()

    def quiet(self) -> bool:
        return not self._left and self._exchange.quiet

    async def close(self) -> None:
        self._exchange.give_up()


def _nobody(port: int) -> InvalidInput:
    return InvalidInput("port", "no program of the sandbox listens there", shown(port))


def fault(refused: AgentRefused) -> SandboxFault:
    kind = SandboxGone if refused.kind == "gone" else SandboxFault
    return kind(f"the sandbox's agent refuses: {refused.text}")
