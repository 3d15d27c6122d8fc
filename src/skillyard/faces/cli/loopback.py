"""A port of a service as a port on this machine's loopback address, while a command runs.

Every connection goes through the server in a tunnel of its own, with the caller's token. The token opens it, not the
place of the program that connects: so only programs of the same user are let in, as the kernel tells whose a socket is.
Pages of a browser are of that user too. So whatever speaks HTTP is judged as a server on loopback must judge it.
"""

from __future__ import annotations

import asyncio
import errno
import math
import os
import re
import socket
import ssl
import struct
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from ipaddress import IPv4Address
from pathlib import Path
from secrets import token_hex
from typing import Any

import h11

from skillyard.client import Client
from skillyard.client.discovery import Server, find_server
from skillyard.client.errors import ConnectionFailed, RpcError
from skillyard.faces.cli.failures import Exit, Failure
from skillyard.faces.cli.target import Where

HOST = "127.0.0.1"
MOST = 64
"""Connections at once; one more is closed at once."""
_TABLE = Path("/proc/net/tcp")
_TABLE_6 = Path("/proc/net/tcp6")
_MAPPED = "".join(f"{int.from_bytes(part, sys.byteorder):08X}" for part in (bytes(4), bytes(4), b"\0\0\xff\xff"))
"""The beginning of an IPv4 address as an IPv6 socket has it (RFC 4291 §2.5.5.2)."""
_STANDING = ("01", "04", "05")
"""Connections that stand, also those whose program has ended its own direction."""
_TUNNEL = "skillyard-tcp"
_PIECE = 65536
_MOST_HEAD = 64 * 1024
_CONNECT_S, _HEAD_S = 30.0, 30.0
_AFTER_END_S = 5.0
"""How long the rest is waited for when the end of what a program said cannot be passed on, and it may wait for that."""
_LOOK_S = 5.0
"""The time after which a program that has said all is looked for again."""
_AGAIN_S = 1.0
_WATCH_S = 20
_LINE = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+ [^\r\n]* HTTP/1\.[0-9]\r?\n")
_MAYBE = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+( [^\r\n]*\r?)?")


class _Refused(Exception):
    """A page of another site asks, or nobody can tell whether one does."""


class Loopback:
    """Listens on loopback for a port of a service. ``say`` gets a line for people."""

    def __init__(self, where: Where, task_id: str, port: int, *, anybody: bool, say: Callable[[str], None]) -> None:
        if not anybody and not _TABLE.exists():
            said = "this system does not tell whose a connection is"
            raise Failure(said, "--any-user lets every user of this machine connect")
        self._where, self._task_id, self._port = where, task_id, port
        self._anybody, self._say = anybody, say
        self._key = f"cli-{token_hex(8)}"
        self._listens_on = 0
        self._busy: set[asyncio.Task[None]] = set()
        self._over = asyncio.Event()

    async def serve(self, wanted: int, listening: Callable[[int], None]) -> str:
        """Listens until the service has ended, and returns its last state. Calls ``listening`` with the port.

        ``wanted`` 0 is the service's own number where it is free here, else any.
        """
        server = await self._listen(wanted)
        self._listens_on = server.sockets[0].getsockname()[1]
        try:
            listening(self._listens_on)
            return await self._ended()
        finally:
            server.close()
            for task in self._busy:
                task.cancel()
            await asyncio.gather(*self._busy, return_exceptions=True)

    async def _listen(self, wanted: int) -> asyncio.Server:
        for port in (wanted,) if wanted else (self._port, 0):
            try:
                return await asyncio.start_server(self._accepted, HOST, port, limit=_PIECE)
            except OSError as error:
                taken = error.errno in (errno.EADDRINUSE, errno.EACCES)
                if wanted or not taken:
                    raise Failure(f"port {port} of {HOST} cannot be had: {error.strerror}", "name another") from None
        raise AssertionError("port 0 is taken by nobody")

    async def _ended(self) -> str:
        """Waits for the end of the service, also while its server is away."""
        where = self._where
        while True:
            with suppress(ConnectionFailed):
                async with Client(where.url, where.token, data_dir=where.data_dir) as client:
                    while (told := await self._told(client))["status"] in ("queued", "starting", "running"):
                        pass
                    return str(told["status"])
            with suppress(TimeoutError):  # the server is away: nothing tells when it is back
                await asyncio.wait_for(self._over.wait(), _AGAIN_S)

    async def _told(self, client: Client) -> dict[str, Any]:
        asked = {"task_id": self._task_id, "tail_bytes": 0, "timeout_sec": _WATCH_S, "dedupe_key": self._key}
        try:
            return await client.call("skills.task_watch", asked)
        except RpcError as error:
            if error.type != "Busy":
                raise
            with suppress(TimeoutError):
                await asyncio.wait_for(self._over.wait(), _AGAIN_S)
            return {"status": "running"}

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None, "a connection is served by a task"
        if len(self._busy) >= MOST:
            writer.transport.abort()
            return
        self._busy.add(task)
        try:
            if not self._anybody and not await asyncio.to_thread(self._is_ours, writer.get_extra_info("peername")):
                self._say("refused a connection of another user of this machine (--any-user lets them in)")
                return
            await self._tunnelled(reader, writer)
        except (OSError, EOFError, TimeoutError, h11.ProtocolError, Failure, ConnectionFailed) as error:
            self._say(f"a connection ended: {error}")
        finally:
            self._busy.discard(task)
            writer.close()

    def _is_ours(self, peer: tuple[str, int]) -> bool:
        """Returns whether the socket at the other end is of our user. One that is closed already is nobody's."""
        return self._holds(peer, (str(os.getuid()),))

    def _holds(self, peer: tuple[str, int], users: Sequence[str] = ()) -> bool:
        """Returns whether a program, of ``users`` if any, has the socket at the other end."""
        ends = [_hex(*peer), _hex(HOST, self._listens_on)]
        return _is_held(_TABLE, ends, users) or _is_held(_TABLE_6, [_MAPPED + end for end in ends], users)

    async def _tunnelled(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await self._opened()
        back = asyncio.create_task(_copied(far_reader, writer))
        forth = asyncio.create_task(self._forth(reader, writer, far_writer))
        try:
            await asyncio.wait((back, forth), return_when=asyncio.FIRST_COMPLETED)
            if forth.done() and not forth.exception():
                await self._rest(back, writer.get_extra_info("peername"), forth.result())
            elif back.done() and not back.exception() and not forth.done():
                if writer.can_write_eof():
                    writer.write_eof()
                await asyncio.wait((forth,), timeout=_AFTER_END_S)
        finally:
            if not back.done():
                _break_off(far_writer)
            for task in (back, forth):
                task.cancel()
            results = await asyncio.gather(back, forth, return_exceptions=True)
            far_writer.close()
        for result in results:
            if isinstance(result, Exception):
                raise result

    async def _rest(self, back: asyncio.Task[None], peer: tuple[str, int], most_s: float) -> None:
        """Waits for the rest of an answer to a program that has said all, while it is there."""
        end = asyncio.get_running_loop().time() + most_s
        while not back.done() and (left := end - asyncio.get_running_loop().time()) > 0:
            await asyncio.wait((back,), timeout=min(left, _LOOK_S))
            if not back.done() and _TABLE.exists() and not await asyncio.to_thread(self._holds, peer):
                return

    async def _opened(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Returns a tunnel to the port. Raises Failure with the words of a server that refuses it."""
        where = self._where
        server: Server = find_server(where.url, where.token, where.data_dir)
        url, tls = server.url, ssl.create_default_context() if server.url.scheme == "https" else None
        async with asyncio.timeout(_CONNECT_S):
            reader, writer = await asyncio.open_connection(url.host, url.port, ssl=tls, limit=_MOST_HEAD)
            try:
                token = f"authorization: Bearer {server.token}\r\n" if server.token else ""
                head = (
                    f"GET {url.prefix}/services/{self._task_id}/{self._port}/ HTTP/1.1\r\nhost: {url.netloc}\r\n{token}"
                )
                writer.write(f"{head}connection: Upgrade\r\nupgrade: {_TUNNEL}\r\n\r\n".encode("ascii"))
                answer = await reader.readuntil(b"\r\n\r\n")
            except BaseException:
                writer.close()
                raise
        status = answer.partition(b"\r\n")[0].decode("latin-1").split(" ", 2)[1:2]
        if status != ["101"] or f"upgrade: {_TUNNEL}\r\n".encode() not in answer.lower():
            writer.close()
            known = {"503": "nothing listens there yet", "404": "the service has ended, or does not expose the port"}
            raise Failure(known.get("".join(status), f"the server refused it ({' '.join(status)})"), code=Exit.FAILED)
        return reader, writer

    async def _forth(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, far: asyncio.StreamWriter
    ) -> float:
        """Passes on what a program says, judged where it is HTTP.

        Returns how many seconds the rest of the answer is waited for.
        """
        try:
            first = await _first(reader)
            if _LINE.match(first):
                return await self._one_request(first, reader, far)
            far.write(first)
            await _copied(reader, far)
            if not far.can_write_eof():
                return _AFTER_END_S
            far.write_eof()
            return math.inf
        except _Refused as refused:
            said = f"{refused}\n".encode()
            head = f"HTTP/1.1 403 Forbidden\r\ncontent-type: text/plain\r\ncontent-length: {len(said)}\r\n"
            writer.write(f"{head}connection: close\r\n\r\n".encode() + said)
            await writer.drain()
            raise Failure(f"refused: {refused}") from None

    async def _one_request(self, first: bytes, reader: asyncio.StreamReader, far: asyncio.StreamWriter) -> float:
        """Passes one request on, written anew. A connection serves one, since each of them is judged.

        Returns how many seconds its answer is waited for. The end of a whole request is not passed on: servers take it
        for a client that went away.
        """
        ours, theirs = h11.Connection(h11.SERVER, _MOST_HEAD), h11.Connection(h11.CLIENT)
        ours.receive_data(first)
        while True:
            event = ours.next_event()
            if event is h11.NEED_DATA:
                ours.receive_data(await reader.read(_PIECE))
            elif isinstance(event, h11.Request):
                self._judge(event)
                upgrades = any(name == b"upgrade" for name, _ in event.headers)
                fields = [(name, value) for name, value in event.headers if name != b"connection"]
                fields.append((b"connection", b"Upgrade" if upgrades else b"close"))
                request = h11.Request(method=event.method, target=event.target, headers=fields)
                far.write(theirs.send(request) or b"")
                if upgrades:  # a websocket: its page was judged, and bytes follow
                    far.write(ours.trailing_data[0])
                    await _copied(reader, far)
                    return _AFTER_END_S
            elif isinstance(event, h11.Data | h11.EndOfMessage):
                far.write(theirs.send(event) or b"")
                await far.drain()
                if isinstance(event, h11.EndOfMessage):
                    await reader.read(1)  # its end, or a request that "connection: close" does not allow
                    return math.inf
            else:
                return _AFTER_END_S

    def _judge(self, request: h11.Request) -> None:
        """Raises _Refused for a request that a page of another site made.

        Such a page may have made its own name one of this address.
        """
        names = {f"{host}:{self._listens_on}" for host in (HOST, "localhost")}
        hosts = [value.decode("latin-1").lower() for name, value in request.headers if name == b"host"]
        if len(hosts) != 1 or hosts[0] not in names:
            raise _Refused(f"Host: must be {HOST}:{self._listens_on}")
        origins = [value.decode("latin-1").lower() for name, value in request.headers if name == b"origin"]
        if any(origin.removeprefix("http://") not in names or "://" not in origin for origin in origins):
            raise _Refused("Origin: other sites may not call this service")
        said = {name: value.lower() for name, value in request.headers if name.startswith(b"sec-fetch-")}
        if said.get(b"sec-fetch-site", b"none") in (b"none", b"same-origin"):
            return
        opened = said.get(b"sec-fetch-mode") == b"navigate" and said.get(b"sec-fetch-dest") == b"document"
        if not opened or request.method not in (b"GET", b"HEAD"):
            raise _Refused("Sec-Fetch-Site: other sites may open this service, and neither call nor frame it")


async def _first(reader: asyncio.StreamReader) -> bytes:
    """Returns the first bytes of a program: enough to tell whether they are HTTP.

    Raises _Refused for a line without end: pages name methods and targets as long as they like.
    """
    first = b""
    async with asyncio.timeout(None) as deadline:
        while _MAYBE.fullmatch(first or b"x"):
            if len(first) >= _MOST_HEAD:
                raise _Refused(f"the first line of a request has at most {_MOST_HEAD} bytes")
            data = await reader.read(_PIECE)
            if not data:
                return first
            first += data
            deadline.reschedule(asyncio.get_running_loop().time() + _HEAD_S)
    return first


async def _copied(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(_PIECE):
        writer.write(data)
        await writer.drain()


def _break_off(writer: asyncio.StreamWriter) -> None:
    """Resets a connection, so that the server ends both directions."""
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


def _is_held(table: Path, ends: list[str], users: Sequence[str]) -> bool:
    """Returns whether the table has a connection between these ends, of ``users`` if any."""
    try:
        rows = [line.split() for line in table.read_text("ascii").splitlines()]
    except FileNotFoundError:  # a kernel without IPv6
        return False
    found = [row for row in rows if row[1:3] == ends and row[3] in _STANDING and (not users or row[7] in users)]
    return any(row[9] != "0" for row in found)  # one that its program has closed is shown as root's


def _hex(address: str, port: int) -> str:
    """Returns an address as the kernel's table has it."""
    return f"{int.from_bytes(IPv4Address(address).packed, sys.byteorder):08X}:{port:04X}"
