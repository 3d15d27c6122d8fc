"""Sends answers: whole ones, errors, and refusals of a request whose body nobody will read.

:class:`Edge` is the outermost layer: it makes an answer of whatever is raised within, and counts every answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from skillyard.faces.http.errors import headers_of, status_of
from skillyard.faces.rpc.wire import CallerGone, dumps, error_object

JSON = "application/json"
PIECE = 64 * 1024
"""Bytes given to the transport at once, so that a slow reader holds no more than a few of them."""

LINGER_S = 1.0
LINGER_BYTES = 64 * 1024 * 1024
"""How much of an unwanted body is read away, so that the client gets to see the answer and not a reset."""


async def reply(
    send: Send, status: int, body: bytes = b"", *, kind: str = JSON, headers: Mapping[str, str] | None = None
) -> None:
    """Sends a whole response."""
    await start(send, status, {"content-type": kind, "content-length": str(len(body)), **(headers or {})})
    for at in range(PIECE, len(body), PIECE):
        await piece(send, body[at - PIECE : at])
    await send({"type": "http.response.body", "body": body[-(len(body) % PIECE or PIECE) :]})


async def start(send: Send, status: int, headers: Mapping[str, str]) -> None:
    raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": raw})


async def end(send: Send) -> None:
    await send({"type": "http.response.body", "body": b""})


async def piece(send: Send, data: bytes) -> None:
    """Sends one part of a body that has more. A client that does not take it is cut off by the server's sweep."""
    await send({"type": "http.response.body", "body": data, "more_body": True})


def refusal(exc: Exception) -> tuple[int, dict[str, str], bytes]:
    """Returns status, headers and body of the answer to a request that is refused with ``exc``."""
    body = dumps({"jsonrpc": "2.0", "id": None, "error": error_object(exc)})
    return status_of(exc), {"content-type": JSON, "content-length": str(len(body)), **headers_of(exc)}, body


Shape = Callable[[Scope, Exception], tuple[int, dict[str, str], bytes]]
"""Returns status, headers and body of the answer to a request that is refused."""


def rpc_shape(_: Scope, exc: Exception) -> tuple[int, dict[str, str], bytes]:
    """Returns the JSON-RPC form of a refusal."""
    return refusal(exc)


async def refuse(scope: Scope, receive: Receive, send: Send, exc: Exception, shape: Shape = rpc_shape) -> None:
    """Answers a request with ``exc`` in its shape, and closes the connection."""
    status, headers, body = shape(scope, exc)
    if _has_body(scope):
        headers["connection"] = "close"
    await start(send, status, headers)
    await piece(send, body)
    if _has_body(scope):
        await _read_away(receive)
    await end(send)


def _has_body(scope: Scope) -> bool:
    return any(
        name == b"transfer-encoding" or (name == b"content-length" and value.strip() != b"0")
        for name, value in scope["headers"]
    )


async def _read_away(receive: Receive) -> None:
    left = LINGER_BYTES
    try:
        async with asyncio.timeout(LINGER_S):
            while left > 0:
                message = await receive()
                if not message.get("more_body"):
                    return
                left -= len(message["body"])
    except TimeoutError:
        return


Count = Callable[[str, int], None]
"""Told of every response: the path, and its status; 499 when the client did not wait for one."""

CLIENT_GONE = 499
STATUS = "skillyard.status"
"""The key in a scope for the status of an answer that was not sent by ``send``."""

SECURITY_HEADERS: tuple[tuple[bytes, bytes], ...] = (
    (b"x-content-type-options", b"nosniff"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'; sandbox"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
)
"""Added to every response that does not set them itself."""


class BrokenResponse(Exception):
    """The connection has to be closed: its answer cannot be completed."""


class Edge:
    """ASGI middleware. Raises BrokenResponse when an answer that was begun cannot be completed.

    Answers that are ``foreign`` pass as they are; refusals are ours all the same, in the form that ``shape`` gives.
    """

    def __init__(self, app: ASGIApp, count: Count, *, foreign: bool = False, shape: Shape = rpc_shape) -> None:
        self._shape = shape
        self._app = app
        self._count = count
        self._foreign = foreign

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        status, refused = 0, False

        async def secured(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                if not self._foreign or refused:
                    message["headers"] = [*message["headers"], *_missing(message["headers"])]
            await send(message)

        try:
            await self._app(scope, receive, secured)
        except CallerGone as exc:
            raise BrokenResponse(str(exc)) from None
        except Exception as exc:
            if status:
                raise
            refused = True
            await refuse(scope, receive, secured, exc, self._shape)
        finally:
            self._count(scope["path"], status or scope.get(STATUS, CLIENT_GONE))


def _missing(headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    present = {name for name, _ in headers}
    return [pair for pair in SECURITY_HEADERS if pair[0] not in present]
