"""The channel of a sandbox's agent, opened anew when it was lost, and its lease."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from skillyard.domain.errors import SandboxFault, SandboxGone
from skillyard.sandbox.agent_channel import (
    HELLO_S,
    STALLED_S,
    AgentRefused,
    Agreed,
    Behind,
    Channel,
    ChannelLost,
    Exchange,
    Opener,
)
from skillyard.sandbox.agent_stream import fault
from skillyard.values import dataclass

T = TypeVar("T")

ATTEMPTS = 3
"""How often an operation is tried on a new channel when its own was lost."""


@dataclass(frozen=True, slots=True)
class Reach:
    """The way to an agent: an opener of channels, its key and, where known, its instance.

    An agent with another instance is a new one that has none of the programs. The first channel may take ``first_s``
    to say hello, where its agent begins meanwhile. It may be ``agreed`` with an agent that was just made.
    """

    open: Opener
    key: bytes
    instance: str = ""
    first_s: float = HELLO_S
    agreed: Agreed | None = None


class Link:
    """The channel of a sandbox, which is opened anew when it was lost."""

    def __init__(self, reach: Reach, handle: str, lease_s: float | None) -> None:
        self._reach, self._handle, self._lease_s = reach, handle, lease_s
        self._instance, self._agreed = reach.instance, reach.agreed
        self._channel: Channel | None = None
        self._opening = asyncio.Lock()
        self.closed = False
        self._renewal: asyncio.TimerHandle | None = None
        self._renewing: asyncio.Task[None] | None = None

    @property
    def cut_off(self) -> bool:
        return self._channel is None or self._channel.lost

    async def channel(self) -> Channel:
        """Returns a channel that is open. Raises SandboxGone, ChannelLost."""
        async with self._opening:
            if self.closed:
                raise SandboxGone(f"sandbox {self._handle} is unknown here")
            if self._channel is None or self._channel.lost:
                self._channel = await self._open()
                self._renew_later()
            return self._channel

    async def _open(self) -> Channel:
        reach, before = self._reach, self._channel
        agreed, self._agreed = self._agreed, None
        if before is None:
            channel = await Channel.open(reach.open, reach.key, reach.first_s, agreed)
        else:
            self._instance = self._instance or before.instance
            channel = await Channel.open(reach.open, reach.key)
        if self._instance and channel.instance != self._instance:
            await channel.close()
            raise SandboxGone(f"the agent of sandbox {self._handle} has died, and all that it held")
        self._instance = channel.instance  # which an agreed one tells later
        return channel

    async def call(
        self,
        op: str,
        fields: Mapping[str, object],
        data: bytes = b"",
        bound_s: float | None = STALLED_S,
        behind: Behind | None = None,
    ) -> Mapping[str, Any]:
        """Does an operation that can be repeated. Raises SandboxGone, SandboxFault."""

        async def once(channel: Channel) -> Mapping[str, Any]:
            return await channel.call(op, fields, data, bound_s, behind)

        try:
            return await self._repeated(once)
        except AgentRefused as refused:
            raise fault(refused) from None

    async def begin(self, op: str, **fields: object) -> Exchange:
        return (await self.channel()).begin(op, **fields)

    async def _repeated(self, once: Callable[[Channel], Awaitable[T]]) -> T:
        for _ in range(ATTEMPTS - 1):
            try:
                return await once(await self.channel())
            except ChannelLost:
                continue
        return await once(await self.channel())

    def _renew_later(self) -> None:
        if self._lease_s is not None:
            if self._renewal is not None:
                self._renewal.cancel()
            self._renewal = asyncio.get_running_loop().call_later(self._lease_s / 3, self._renew)

    def _renew(self) -> None:
        """A renewal that fails is repeated by the next: the agent waits for three."""
        if self._renewing is None or self._renewing.done():
            self._renewing = asyncio.get_running_loop().create_task(self._lease())
        self._renew_later()

    async def _lease(self) -> None:
        try:
            await self.call("lease", {})
        except SandboxGone:
            self._stop_renewing()
        except SandboxFault:
            return

    async def keep(self) -> None:
        """Has the agent live without a lease. Raises SandboxGone, SandboxFault."""
        if (await self.call("lease", {"kept": True})).get("kept") is not True:
            raise SandboxFault("the sandbox's agent knows no life without a lease")
        self._stop_renewing()

    def _stop_renewing(self) -> None:
        if self._renewal is not None:
            self._renewal.cancel()
            self._renewal = None
        self._lease_s = None

    async def close(self) -> None:
        self.closed = True
        self._stop_renewing()
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.gather(self._renewing, return_exceptions=True)
        if self._channel is not None:
            await self._channel.close()
