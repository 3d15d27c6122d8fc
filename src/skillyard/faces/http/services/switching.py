"""Websockets and tunnels: the question is judged, then bytes pass both ways as they are.

A websocket is that of RFC 6455 §4. A tunnel is a bare connection to a port, for programs alone: no page of a
browser can ask for it, since pages name no other upgrade than a websocket.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Awaitable, Callable

from starlette.types import Scope

from skillyard.domain.errors import SandboxGone
from skillyard.faces.http.errors import BadRequest
from skillyard.faces.http.replies import STATUS
from skillyard.faces.http.server import SWITCH, Stream
from skillyard.faces.http.services.exchange import Switched
from skillyard.faces.http.services.fields import listed
from skillyard.ports.sandbox import ByteStream

TUNNEL = b"skillyard-tcp"
"""The protocol that a request for a tunnel upgrades to."""
TUNNELLED = Switched([(b"upgrade", TUNNEL), (b"connection", b"Upgrade")], b"")
_PIECE = 65536
_TOUCH_S = 1.0


def check_offer(scope: Scope) -> bool:
    """Returns whether a request asks for a websocket. Raises BadRequest for one that asks wrongly, or for another."""
    fields = scope["headers"]
    upgrades = listed(value for name, value in fields if name == b"upgrade")
    if not upgrades or b"upgrade" not in listed(value for name, value in fields if name == b"connection"):
        return False
    names = [name for name, _ in fields]
    said = dict(fields)
    proper = (
        upgrades == {b"websocket"}
        and scope["method"] == "GET"
        and scope["http_version"] == "1.1"
        and SWITCH in scope.get("extensions", {})
        and said.get(b"sec-websocket-version") == b"13"
        and _is_key(said.get(b"sec-websocket-key", b""))
        and all(names.count(name) == 1 for name in (b"sec-websocket-key", b"sec-websocket-version"))
        and said.get(b"content-length", b"0") == b"0"
        and b"transfer-encoding" not in said
    )
    if not proper:
        raise BadRequest("Upgrade: only a websocket of version 13 is passed on")
    return True


def check_tunnel(scope: Scope) -> bool:
    """Returns whether a request asks for a tunnel. Raises BadRequest for one that asks wrongly."""
    fields = scope["headers"]
    if listed(value for name, value in fields if name == b"upgrade") != {TUNNEL}:
        return False
    names = {name for name, _ in fields}
    proper = (
        b"upgrade" in listed(value for name, value in fields if name == b"connection")
        and (scope["method"], scope["http_version"]) == ("GET", "1.1")
        and SWITCH in scope.get("extensions", {})
        and not names & {b"content-length", b"transfer-encoding", b"origin"}
    )
    if not proper:
        raise BadRequest("Upgrade: a tunnel is asked for by GET over HTTP/1.1, without a body and without Origin")
    return True


def _is_key(value: bytes) -> bool:
    try:
        return len(base64.b64decode(value, validate=True)) == 16
    except binascii.Error:
        return False


async def relay(scope: Scope, stream: ByteStream, switched: Switched, idle_s: float, *, halves: bool = False) -> None:
    """Passes bytes both ways until one side ends or both are silent for ``idle_s``.

    With ``halves`` the end of one direction is passed on, and the other one goes on.
    """
    client: Stream = scope["extensions"][SWITCH](switched.fields)
    scope[STATUS] = 101
    loop = asyncio.get_running_loop()
    touched = 0.0

    async def copy(
        read: Callable[[int], Awaitable[bytes]],
        write: Callable[[bytes], Awaitable[None]],
        end: Callable[[], Awaitable[None]],
    ) -> None:
        nonlocal touched
        while data := await read(_PIECE):
            await write(data)
            if loop.time() - touched > _TOUCH_S:
                touched = loop.time()
                deadline.reschedule(touched + idle_s)
        if halves:
            await end()

    both: list[asyncio.Task[None]] = []
    try:
        async with asyncio.timeout(idle_s) as deadline:
            if switched.first:
                await client.write(switched.first)
            both = [
                asyncio.create_task(copy(client.read, stream.write, stream.end)),
                asyncio.create_task(copy(stream.read, client.write, client.end)),
            ]
            await asyncio.wait(both, return_when=asyncio.FIRST_EXCEPTION if halves else asyncio.FIRST_COMPLETED)
    except (TimeoutError, SandboxGone, ConnectionError):
        return
    finally:
        for task in both:
            task.cancel()
        await asyncio.gather(*both, return_exceptions=True)
        client.close()
