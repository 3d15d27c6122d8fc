"""The outermost layer: whatever is raised within becomes an answer, and every answer is counted."""

from __future__ import annotations

from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from skillyard.faces.http.replies import refuse
from skillyard.faces.rpc.errors import CallerGone

Count = Callable[[str, int], None]
"""Told of every response: the path, and its status; 499 when the client did not wait for one."""

CLIENT_GONE = 499

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
    """ASGI middleware. Raises BrokenResponse when an answer that was begun cannot be completed."""

    def __init__(self, app: ASGIApp, count: Count) -> None:
        self._app = app
        self._count = count

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        status = 0

        async def secured(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], *_missing(message["headers"])]
            await send(message)

        try:
            await self._app(scope, receive, secured)
        except CallerGone as exc:
            raise BrokenResponse(str(exc)) from None
        except Exception as exc:
            if status:
                raise
            await refuse(scope, receive, secured, exc)
        finally:
            self._count(scope["path"], status or CLIENT_GONE)


def _missing(headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    present = {name for name, _ in headers}
    return [pair for pair in SECURITY_HEADERS if pair[0] not in present]
