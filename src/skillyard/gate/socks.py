"""SOCKS5 (RFC 1928): connections by name or address.

Endpoints ask for a user and a password (RFC 1929). There is no other command, and no SOCKS4.
"""

from __future__ import annotations

import asyncio
import ipaddress

from skillyard.domain.network.address import parse_address
from skillyard.domain.network.rule import canonical_name
from skillyard.gate.addresses import Host
from skillyard.gate.relay.guard import Failure, Refused, Unreachable
from skillyard.gate.relay.relay import tunnel
from skillyard.gate.relay.stream import Stream
from skillyard.gate.session import Door, Session

VIA = "socks5"
VERSIONS = (4, 5)
"""The first byte of a SOCKS client."""
_NO_AUTHENTICATION, _NONE_OF_THEM = b"\x05\x00", b"\x05\xff"
_PASSWORD = 2
_CONNECT = 1
_COMMANDS = {2: "BIND", 3: "UDP ASSOCIATE"}
_IPV4, _NAME, _IPV6 = 1, 3, 4
_DONE, _FAILED, _NOT_ALLOWED, _UNREACHABLE, _NO_SUCH_COMMAND, _NO_SUCH_ADDRESS = 0, 1, 2, 4, 7, 8
_SOCKS4_REJECTED = b"\x00\x5b" + bytes(6)


class _Gone(Exception):
    """The client ended before it had sent its request."""


class _Denied(Refused):
    """A refusal with ``code``, the reply's (RFC 1928 §6), and the target as far as it is known."""

    def __init__(self, code: int, reason: str, host: str = "", port: int = 0) -> None:
        super().__init__(reason)
        self.code, self.host, self.port = code, host, port


async def serve(session: Session, client: Stream, door: Door | None = None) -> None:
    """Serves one connection, which ``door`` lets in. Raises as streams do, and Failure once the client was told."""
    try:
        async with asyncio.timeout(session.limits.header_s):
            host, port = await _asked(client, door)
    except _Gone:
        client.close()
        return
    except _Denied as denied:
        session.refuse(VIA, denied.host, denied.port, denied.reason)
        await client.write(_SOCKS4_REJECTED if denied.code < 0 else _reply(denied.code))
        await client.finish()
        return
    try:
        upstream = await session.reach(VIA, host, port)
    except Failure as failure:
        await client.write(_reply(_code_of(failure)))
        await client.finish()
        raise
    try:
        await client.write(_reply(_DONE))
    except BaseException:
        upstream.close()
        raise
    await tunnel(session, client, upstream)


async def _asked(client: Stream, door: Door | None) -> tuple[Host, int]:
    """Returns the target that the client asks for. Raises _Gone, _Denied, and Refused of ``door``."""
    version = (await _exactly(client, 1))[0]
    if version != 5:
        raise _Denied(-1, "SOCKS4, which is not spoken here: use SOCKS5 (socks5h)")
    methods = await _exactly(client, (await _exactly(client, 1))[0])
    if (0 if door is None else _PASSWORD) not in methods:
        await client.write(_NONE_OF_THEM)
        await client.finish()
        if door is not None:
            door.check(VIA, None)
        raise _Gone
    if door is None:
        await client.write(_NO_AUTHENTICATION)
    else:
        await _let_in(client, door)
    version, command, reserved, kind = await _exactly(client, 4)
    if version != 5 or reserved:
        raise _Denied(_FAILED, "a malformed SOCKS5 request")
    text, host = await _host(client, kind)
    port = int.from_bytes(await _exactly(client, 2))
    if command != _CONNECT:
        raise _Denied(_NO_SUCH_COMMAND, f"SOCKS5 {_COMMANDS.get(command, 'command')}: only CONNECT is", text, port)
    if host is None:
        raise _Denied(_NOT_ALLOWED, "SOCKS5 to what is neither a host name nor an address", "", port)
    if not port:
        raise _Denied(_NOT_ALLOWED, "SOCKS5 to port 0", text, port)
    return host, port


async def _let_in(client: Stream, door: Door) -> None:
    """Asks for user and password (RFC 1929). Raises Refused once the client was told, and _Gone."""
    await client.write(bytes([5, _PASSWORD]))
    version = (await _exactly(client, 1))[0]
    user = await _exactly(client, (await _exactly(client, 1))[0])
    password = await _exactly(client, (await _exactly(client, 1))[0])
    try:
        door.check(VIA, user + b":" + password if version == 1 else None)
    except Refused:
        await client.write(b"\x01\x01")
        await client.finish()
        raise
    await client.write(b"\x01\x00")


async def _host(client: Stream, kind: int) -> tuple[str, Host | None]:
    """Returns the host as the log shows it, and the host to reach."""
    if kind == _IPV4:
        address: Host = ipaddress.IPv4Address(await _exactly(client, 4))
        return str(address), address
    if kind == _IPV6:
        address = ipaddress.IPv6Address(await _exactly(client, 16))
        return str(address), address
    if kind != _NAME:
        raise _Denied(_NO_SUCH_ADDRESS, "SOCKS5 to an unknown kind of address")
    written = await _exactly(client, (await _exactly(client, 1))[0])
    text = written.decode("latin-1")
    host = parse_address(text) or canonical_name(text)
    return "" if host is None else str(host), host


async def _exactly(client: Stream, count: int) -> bytes:
    data = b""
    while len(data) < count:
        piece = await client.read(count - len(data))
        if not piece:
            raise _Gone
        data += piece
    return data


def _reply(code: int) -> bytes:
    """Returns a reply; it never tells the bound address, for which RFC 1928 §6 has a place."""
    return bytes([5, code, 0, _IPV4]) + bytes(6)


def _code_of(failure: Failure) -> int:
    if isinstance(failure, Refused):
        return _NOT_ALLOWED
    return _UNREACHABLE if isinstance(failure, Unreachable) else _FAILED
