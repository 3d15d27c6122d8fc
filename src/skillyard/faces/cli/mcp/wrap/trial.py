"""Dry runs: a jailed server lists its tools, while the gate refuses every host."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from skillyard.domain.errors import InvalidInput, SandboxGone, SkillyardError, ToolServerFault
from skillyard.domain.network.address import closed, parse_address
from skillyard.domain.network.policy import parse_rules
from skillyard.domain.network.rule import parse_rule
from skillyard.domain.network.session import host_and_port
from skillyard.domain.sandbox.spec import Stream
from skillyard.values import dataclass

if TYPE_CHECKING:
    from skillyard.config.settings import Settings
    from skillyard.engine.commands.jail_order import JailOrder

_NOBODY = "nobody.invalid"
"""A host that never exists (RFC 6761 §6.4). With it a jail has a gate, which refuses and records."""
_PATIENCE_S = 90.0
_MOST_HOSTS = 50
_WEB = (80, 443)


@dataclass(frozen=True, slots=True)
class Trial:
    """The outcome of a dry run. ``why`` is empty where the server listed its tools.

    ``hosts`` are rules for the hosts that it asked for and was refused, ``never`` those that no rule should open.
    """

    tools: tuple[str, ...] = ()
    why: str = ""
    hosts: tuple[str, ...] = ()
    never: tuple[str, ...] = ()


async def tried(settings: Settings, isolation: str | None, orders: Mapping[str, JailOrder]) -> dict[str, Trial]:
    """Returns the dry runs of servers by name, one after another. Nothing of them is left."""
    from skillyard.faces.cli.jail import home

    found = {}
    async with home.runtime(settings, isolation) as runtime:
        for name, order in orders.items():
            watched = replace(order, rules=order.rules or parse_rules([_NOBODY]), labels={"jail": "trial"})
            found[name] = await _tried(runtime.app.jails, watched)
    return found


async def _tried(jails: Any, order: JailOrder) -> Trial:
    from skillyard.domain.principal import LOCAL
    from skillyard.mcp_servers.connecting import SdkToolServers
    from skillyard.ports.tools import LinkBounds

    streams = _Streams()

    async def run() -> Any:
        try:
            return await jails.run(LOCAL, order, streams)
        finally:
            streams.close(Stream.STDOUT)

    running = asyncio.create_task(run())
    tools: tuple[str, ...] = ()
    why = ""
    try:
        async with SdkToolServers().of_process(streams, LinkBounds(patience_s=_PATIENCE_S)) as connection:
            tools = tuple(tool.name for tool in await connection.tools())
    except ToolServerFault as fault:
        why = fault.message
    finally:
        streams.end()
        try:
            record = await running
        except SkillyardError as error:
            return Trial(why=error.message)
    if why:
        said = " ".join(streams.said.decode("utf-8", "replace").split())[-300:]
        why = f"{why}; it said: {said}" if said else why
    return Trial(tools, why, *_refused(record.network or {}))


def _refused(network: Mapping[str, Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns rules for the refused hosts, and those that are private. The names are hostile."""
    hosts: dict[str, None] = {}
    never: dict[str, None] = {}
    for connection in network.get("connections", ()):
        host, port = connection["host"], connection["port"]
        if connection["allowed"] or not host:
            continue
        web = connection["via"] == "dns" or port in _WEB
        text = host if web and ":" not in host else host_and_port(host, port)
        try:
            parse_rule(text)
        except InvalidInput:
            continue
        address = parse_address(host)
        (never if address is not None and closed(address) else hosts)[text] = None
    return tuple(hosts)[:_MOST_HOSTS], tuple(never)[:_MOST_HOSTS]


class _Streams:
    """Both ends of a jail's streams: its wires, and the program of a connection."""

    def __init__(self) -> None:
        self.gone: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.said = b""
        self._closed = False
        self._in: asyncio.Queue[bytes] = asyncio.Queue(maxsize=8)
        self._out: asyncio.Queue[bytes] = asyncio.Queue(maxsize=8)

    async def read(self) -> bytes:
        return await self._in.get()

    async def write(self, stream: Stream, data: bytes) -> None:
        if stream is Stream.STDERR:
            self.said = (self.said + data)[-4096:]
        elif not self.gone.done():
            await self._out.put(data)

    def close(self, stream: Stream) -> None:
        if stream is Stream.STDOUT and not self._closed:
            self._closed = True
            if self._out.empty():
                self._out.put_nowait(b"")

    async def output(self, _stream: Stream, _offset: int = 0) -> AsyncIterator[bytes]:
        while not (self._closed and self._out.empty()):
            if data := await self._out.get():
                yield data

    async def send(self, data: bytes) -> None:
        if self._closed:
            raise SandboxGone("the program has ended")
        await self._in.put(data)

    def end(self) -> None:
        """Ends the program, and takes no more of it."""
        if not self.gone.done():
            self.gone.set_result("its trial is over")
        while not self._out.empty():
            self._out.get_nowait()
