"""The start of programs by an agent, and all that is asked of it with a start."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from skillyard.domain.errors import ProtectionMissing
from skillyard.domain.sandbox.spec import AtCap, Guest, Start, Stream, encode_request
from skillyard.guest.agent import wire
from skillyard.sandbox.agent_channel import AgentRefused, Channel, ChannelLost, Exchange

OVERDUE_S = 30.0
"""How long after its deadline a program may go on before its agent is taken for broken."""


class Ahead:
    """Exchanges that are begun with a program.

    Its ending is asked for at once, and of a guest its channel, too. So a program takes one way to the agent and back,
    where it took three.
    """

    def __init__(self, id: str, *, channel: bool) -> None:
        self._id, self._channel = id, channel
        self._begun: dict[str, Exchange] = {}

    def begin(self, channel: Channel) -> None:
        self.give_up()
        if not channel.crowded:
            if self._channel:
                stream = Stream.CHANNEL.value
                self._begun[stream] = channel.begin("output", id=self._id, stream=stream, offset=0)
            self._begun[""] = channel.begin("wait", id=self._id)

    def take(self, name: str) -> Exchange | None:
        """Returns the output of a stream, or the ending under an empty name, once."""
        return self._begun.pop(name, None)

    def give_up(self) -> None:
        while self._begun:
            self._begun.popitem()[1].give_up()


class Follower:
    """A program that the agent starts by itself as soon as another one has ended."""

    def __init__(self, after: str, then: Start) -> None:
        self.after, self._then = after, then
        self._exchange: Exchange | None = None

    def begin(self, channel: Channel) -> None:
        self.give_up()
        if channel.version >= wire.WITH_FOLLOWING and not channel.crowded:
            _, fields, data = order_of(self._then)
            self._exchange = channel.begin("follow", after=self.after, **fields)
            channel.write(b"".join(self._exchange.whole(data)))

    async def told(self) -> Mapping[str, Any] | None:
        """Returns what the agent tells of its end; None where it was not started. Raises SandboxFault."""
        if self._exchange is None:
            return None
        try:
            return await self._exchange.result((self._then.timeout_ms or 0) / 1000 + OVERDUE_S)
        except (AgentRefused, ChannelLost):
            return None
        finally:
            self.give_up()

    def give_up(self) -> None:
        if self._exchange is not None:
            self._exchange.give_up()
            self._exchange = None


def order_of(start: Start) -> tuple[str, dict[str, object], bytes]:
    """Returns the operation that starts a program, its fields and its data. Raises ProtectionMissing."""
    program, streams = start.program, start.streams
    fields: dict[str, object] = {
        "id": start.id,
        "ring": streams.at_cap is AtCap.RING,
        "waits": streams.at_cap is AtCap.WAIT,
        "log_bytes": streams.log_bytes,
        "stderr_bytes": streams.stderr_bytes,
        "channel_bytes": streams.channel_bytes,
        "timeout_ms": start.timeout_ms,
    }
    if isinstance(program, Guest):
        if program.kept:
            raise ProtectionMissing("an agent keeps no program when others are ended", protections=["keeping"])
        operation = program.request.get("op")
        without_code = {operation: True} if operation in ("clear", "command") else {}
        return "start", {"guest": True, **without_code, **fields}, encode_request(program.request)
    words = {"args": program.args, "env": dict(program.variables), "cwd": program.cwd, "stdin": program.reads}
    fields = {**words, **fields}
    if (size := program.terminal) is None:
        return "start", fields, b""
    return "terminal", {**fields, "terminal": [size.rows, size.columns]}, b""
