"""Sandboxes with an agent inside: the sandbox port over any byte channel.

A backend makes a place in which the agent runs, gives an opener of channels, and takes the place away again. A lying
agent harms its own sandbox alone: what it says is bounded by what was asked (:mod:`skillyard.sandbox.agent_channel`),
and its endings and sizes are checked here.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, TypeVar

from skillyard.domain.errors import InvalidInput, OutputDropped, SandboxFault, SandboxGone, shown
from skillyard.domain.network.session import PROXY_PORT, Egress
from skillyard.domain.sandbox.spec import (
    DEFAULT_STREAMS,
    AtCap,
    Guest,
    Program,
    Start,
    Stream,
    StreamLimits,
    Terminal,
)
from skillyard.domain.work.record import Ending, Outcome, Usage
from skillyard.ports.gate import Plug
from skillyard.sandbox.agent_channel import AgentRefused, Channel, ChannelLost, Exchange
from skillyard.sandbox.agent_link import ATTEMPTS, Link, Reach
from skillyard.sandbox.agent_start import OVERDUE_S, Ahead, Follower, order_of
from skillyard.sandbox.agent_stream import AgentStream, fault
from skillyard.sandbox.agent_way_out import WayOut
from skillyard.sandbox.file_programs import Files, FilesOfSandbox

S = TypeVar("S", bound="AgentSandbox")

_MOST_LEFT_MS = 30 * 24 * 3600 * 1000
_MOST_REASON = 500
_MOST = float(1 << 53)
_TOLD = {
    outcome.value: outcome
    for outcome in (
        Outcome.EXIT, Outcome.SIGNAL, Outcome.TIMEOUT, Outcome.MEMORY, Outcome.DISK, Outcome.OUTPUT,
        Outcome.CANCELLED, Outcome.LOST,
    )
}  # fmt: skip


class AgentProcess:
    """A program that an agent supervises."""

    def __init__(self, link: Link, id: str, streams: StreamLimits, left_ms: float, ahead: Ahead | None = None) -> None:
        self._link, self._id, self._streams = link, id, streams
        self._ahead = ahead or Ahead(id, channel=False)
        self._until = time.monotonic() + left_ms / 1000 + OVERDUE_S
        self._ending: Ending | None = None
        self._sizes: Mapping[str, Any] = {}

    @property
    def id(self) -> str:
        return self._id

    @property
    def ended(self) -> bool:
        """Returns whether its ending is known here."""
        return self._ending is not None

    async def output(self, stream: Stream, offset: int = 0) -> AsyncIterator[bytes]:
        failures = 0
        while self._sizes.get(stream.value) != offset:
            try:
                async for piece in self._pieces(stream, offset):
                    failures = 0
                    offset += len(piece)
                    self._check(stream, offset)
                    yield piece
                return
            except OutputDropped as dropped:
                if dropped.first <= offset:
                    raise SandboxFault("the sandbox's agent dropped output that is still to come") from None
                if self._streams.at_cap is AtCap.RING:
                    raise
                raise SandboxGone("the sandbox's agent keeps this output no longer") from None
            except ChannelLost:
                failures += 1
                if failures == ATTEMPTS:
                    raise
            except SandboxGone:
                if (await self.wait()).outcome is not Outcome.LOST:
                    raise
                return

    async def _pieces(self, stream: Stream, offset: int) -> AsyncIterator[bytes]:
        exchange = self._ahead.take(stream.value) if offset == 0 else None
        if exchange is None:
            exchange = await self._link.begin("output", id=self._id, stream=stream.value, offset=offset)
        try:
            async for piece in exchange.pieces():
                yield piece
        except AgentRefused as refused:
            if refused.kind == "dropped":
                raise OutputDropped(refused.first) from None
            raise fault(refused) from None
        finally:
            exchange.give_up()

    def _check(self, stream: Stream, offset: int) -> None:
        """Raises SandboxFault when a stream is longer than it can be."""
        limits = self._streams
        if stream is Stream.CHANNEL:
            most = limits.channel_bytes
        elif limits.at_cap is not AtCap.END:
            return
        else:
            most = limits.log_bytes
            if stream is Stream.STDERR and limits.stderr_bytes is not None:
                most = limits.stderr_bytes
        if offset > most:
            raise SandboxFault(f"the sandbox's agent gave more than {most} bytes of {stream}, which is the limit")

    async def send(self, data: bytes) -> None:
        channel = await self._link.channel()
        try:
            await channel.call("input", {"id": self._id}, data, bound_s=None)
        except AgentRefused as refused:
            raise fault(refused) from None
        except ChannelLost as lost:
            raise SandboxGone(lost.message) from lost

    async def close_stdin(self) -> None:
        await self._link.call("close", {"id": self._id})

    async def resize(self, size: Terminal) -> None:
        fields = {"id": self._id, "rows": size.rows, "columns": size.columns}
        if not (await self._link.call("resize", fields)).get("resized"):
            raise InvalidInput("terminal", "the program has none; start it on one")

    async def wait(self) -> Ending:
        if self._ending is None:
            try:
                async with asyncio.timeout(max(0.0, self._until - time.monotonic())):
                    told = await self._told()
            except TimeoutError:
                self._ending = Ending(Outcome.LOST, reason="the sandbox's agent did not end it at its deadline")
            except SandboxGone as gone:
                if self._link.closed:
                    raise
                self._ending = Ending(Outcome.LOST, reason=gone.message[:_MOST_REASON])
            else:
                self._ending = _ending(told)
                self._sizes = _sizes(told)
        return self._ending

    async def _told(self) -> Mapping[str, Any]:
        if (exchange := self._ahead.take("")) is not None:
            try:
                return await exchange.result(None)
            except AgentRefused as refused:
                raise fault(refused) from None
            except ChannelLost:  # another channel is asked
                pass
            finally:
                exchange.give_up()
        return await self._link.call("wait", {"id": self._id}, bound_s=None)

    async def kill(self, reason: str = "") -> None:
        if self._ending is not None and self._ending.outcome is not Outcome.LOST:
            return  # an ended program keeps its ending
        await self._link.call("kill", {"id": self._id, "reason": reason[:_MOST_REASON]})


class AgentSandbox(FilesOfSandbox):
    """A sandbox behind an agent.

    ``timeout_ms`` is the deadline of programs that are given none. With ``lease_s`` the agent's lease is renewed for as
    long as this object is open. ``image`` is the digest of the image that it was made of, where that is known.
    ``gate`` is where its programs find a network, once it is plugged in; they find it at ``proxy_port``.
    """

    def __init__(
        self,
        reach: Reach,
        handle: str,
        enforced: Mapping[str, str],
        *,
        timeout_ms: int,
        lease_s: float | None = None,
        image: str = "",
        gate: Plug | None = None,
        proxy_port: int = PROXY_PORT,
    ) -> None:
        self.handle = handle
        self.image = image
        self.new = False
        """Whether this server made it, so that nobody else started a program in it."""
        self.enforced = dict(enforced)
        self.timeout_ms = timeout_ms
        self._link = Link(reach, handle, lease_s)
        self.way_out = WayOut(self._link, gate, proxy_port)
        self.proxy_port = proxy_port
        self._processes: dict[str, AgentProcess] = {}
        self._behind: Follower | None = None

    @property
    def cut_off(self) -> bool:
        """Returns whether its channel is lost, and no other was opened."""
        return self._link.cut_off

    @property
    def at_rest(self) -> bool:
        """Returns whether all programs have ended for sure: its place may be taken away at once."""
        return self.new and all(process.ended for process in self._processes.values())

    async def connect(self) -> None:
        """Opens the first channel. Raises SandboxGone, SandboxFault."""
        await self._link.channel()

    async def start(
        self,
        program: Program,
        *,
        id: str,
        timeout_ms: int | None = None,
        streams: StreamLimits = DEFAULT_STREAMS,
    ) -> AgentProcess:
        if id in self._processes:
            return self._processes[id]
        left_ms = self.timeout_ms if timeout_ms is None else timeout_ms
        op, fields, data = order_of(Start(program, id, left_ms, streams))
        ahead = Ahead(id, channel=isinstance(program, Guest))
        behind = self._behind if self._behind is not None and self._behind.after == id else None
        if behind is None:
            self._touched()

        def begin(channel: Channel) -> None:
            ahead.begin(channel)
            if behind is not None:
                behind.begin(channel)

        try:
            await self._link.call(op, fields, data, behind=begin)
        except BaseException:
            ahead.give_up()
            self._touched()
            raise
        return self._processes.setdefault(id, AgentProcess(self._link, id, streams, left_ms, ahead))

    def follow(self, after: str, then: Start) -> None:
        """Has a program start behind another one (:class:`skillyard.ports.sandbox.Following`)."""
        self._touched()
        self._behind = Follower(after, then)

    async def followed(self) -> tuple[bytes, Ending] | None:
        behind, self._behind = self._behind, None
        if behind is None or (told := await behind.told()) is None:
            return None
        try:
            return bytes.fromhex(told["channel"]), _ending(told)
        except (LookupError, TypeError, ValueError):
            raise SandboxFault("the sandbox's agent told of a program in no form that we know") from None

    def _touched(self) -> None:
        """Gives up what follows a program: something else is begun, which it would be too early for."""
        if self._behind is not None:
            self._behind.give_up()
            self._behind = None

    @property
    def files(self) -> Files:
        self._touched()
        return super().files

    async def process(self, id: str) -> AgentProcess:
        if id not in self._processes:
            if self.new:
                raise SandboxGone("no program was started under this id")
            told = await self._link.call("process", {"id": id})
            process = AgentProcess(self._link, id, *_known(told))
            return self._processes.setdefault(id, process)
        return self._processes[id]

    async def start_files(self) -> _FilesWorker:
        return _FilesWorker(await self._link.begin("files"))

    async def forward(self, port: int) -> AgentStream:
        """Connects to a TCP port on loopback inside. Raises InvalidInput, SandboxGone."""
        if type(port) is not int or not 1 <= port <= 65535:
            raise InvalidInput("port", "must be a number from 1 to 65535", shown(port))
        exchange = await self._link.begin("forward", port=port)
        stream = AgentStream(exchange)
        try:
            await stream.begin(port)
        except BaseException:
            exchange.give_up()
            raise
        return stream

    async def plug(self, egress: Egress) -> None:
        """Has programs that know a proxy find the session of the gate. Ports for others are not listened on."""
        await self.way_out.open(egress)

    async def keep(self) -> None:
        """Has it outlive this server. Raises SandboxGone, SandboxFault."""
        await self._link.keep()

    async def end(self) -> Usage:
        """Ends everything inside and the agent itself; returns the usage. Raises SandboxGone, SandboxFault."""
        try:
            told = await self._link.call("end", {})
        finally:
            await self.close()
        return _usage(told)

    async def close(self) -> None:
        """Lets go of the sandbox, which lives on as long as its lease."""
        self.lost_files()
        await self.way_out.close()
        await self._link.close()


async def plugged(sandbox: S, egress: Egress | None, destroy: Callable[[str], Awaitable[object]]) -> S:
    """Returns a new sandbox with its network. One that cannot be plugged in is destroyed. Raises GateFault."""
    if egress is not None:
        try:
            await sandbox.plug(egress)
        except BaseException:
            await asyncio.shield(destroy(sandbox.handle))
            raise
    return sandbox


class _FilesWorker:
    """A worker for files, as the process that the file operations speak to."""

    id = "files"

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    async def output(self, stream: Stream, offset: int = 0) -> AsyncIterator[bytes]:
        if stream is Stream.STDOUT and offset == 0:
            try:
                async for piece in self._exchange.pieces():
                    yield piece
            except AgentRefused as refused:
                raise fault(refused) from None
            except ChannelLost:
                return

    async def send(self, data: bytes) -> None:
        try:
            await self._exchange.send(data)
        except AgentRefused as refused:
            raise fault(refused) from None
        except ChannelLost as lost:
            raise SandboxGone(lost.message) from lost

    async def close_stdin(self) -> None:
        self._exchange.end()

    async def wait(self) -> Ending:
        with suppress(AgentRefused, ChannelLost):
            await self._exchange.result(None)
        return Ending(Outcome.LOST, reason="its channel ended")

    async def kill(self, reason: str = "") -> None:  # noqa: ARG002 - nobody asks a worker for its ending
        self._exchange.give_up()


def _known(told: Mapping[str, Any]) -> tuple[StreamLimits, float]:
    """Returns limits and time of a program that another server started, as its agent tells them."""
    match told:
        case {"caps": {"stdout": int(out), "stderr": int(error), "channel": int(channel)}, "ring": bool(ring)}:
            at_cap = AtCap.RING if ring else AtCap.END
            log = min(max(out, error), DEFAULT_STREAMS.log_bytes)
            streams = StreamLimits(log, min(channel, DEFAULT_STREAMS.channel_bytes), at_cap)
            return streams, _number(told.get("left_ms"), _MOST_LEFT_MS) or 0.0
    raise SandboxFault("the sandbox's agent told of a program in no form that we know")


def _ending(told: Mapping[str, Any]) -> Ending:
    """Returns an ending that an agent told. Raises SandboxFault for one that cannot be."""
    said = told.get("outcome")
    outcome = _TOLD.get(said) if isinstance(said, str) else None
    code, signal, reason = told.get("code"), told.get("signal"), told.get("reason", "")
    fit = isinstance(reason, str) and (code is None or (type(code) is int and 0 <= code <= 255))
    fit = fit and (signal is None or (type(signal) is int and 1 <= signal <= 64))
    fit = fit and (outcome is Outcome.EXIT) == (code is not None)
    fit = fit and (outcome is Outcome.SIGNAL) == (signal is not None)
    if outcome is None or not fit:
        raise SandboxFault("the sandbox's agent told of an ending that cannot be")
    hits = frozenset({"memory"} if told.get("hits") == ["memory"] else ())
    text = "".join(c if c.isprintable() else "?" for c in reason[:_MOST_REASON])
    return Ending(outcome, code=code, signal=signal, reason=text, usage=_usage(told), hits=hits)


def _sizes(told: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the sizes of an ended program's output, as far as they are told."""
    sizes = told.get("sizes")
    return sizes if isinstance(sizes, dict) else {}


def _usage(told: Mapping[str, Any]) -> Usage:
    peak = _number(told.get("rss"), _MOST)
    return Usage(
        cpu_ms=_number(told.get("cpu_ms"), _MOST),
        peak_memory_bytes=None if peak is None else int(peak),
        wall_ms=_number(told.get("wall_ms"), _MOST),
    )


def _number(value: object, most: float) -> float | None:
    """Returns a number of at least 0, at most ``most``; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        return None
    return float(min(value, most))
