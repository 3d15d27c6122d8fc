"""HTTP as the client needs it: one request, one streamed response. ``httpx_transport`` and ``sync`` implement it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import field
from typing import Protocol, TypeVar

from skillyard.client.errors import BadReply
from skillyard.values import dataclass

T = TypeVar("T")

CONNECT_TIMEOUT_S = 5.0

MAX_ANSWER = 64 * 1024 * 1024
"""Bytes of JSON that are taken from a server; the largest answers of ours have less than half of them."""


@dataclass(frozen=True, slots=True)
class Request:
    """``path`` begins with a slash and is joined to the server's URL. A streamed ``body`` is sent with
    ``length`` bytes announced, chunked when it is None. ``timeout`` is the longest silence in seconds."""

    method: str
    path: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | AsyncIterator[bytes] = b""
    length: int | None = None
    timeout: float | None = None


class Response(Protocol):
    @property
    def status(self) -> int: ...

    @property
    def headers(self) -> Mapping[str, str]:
        """Names in lower case."""
        ...

    def chunks(self) -> AsyncIterator[bytes]:
        """The body as it comes. Raises ConnectionLost when it ends early, ResponseTimeout."""
        ...


class Offloading(Protocol):
    async def offload(self, work: Callable[[], T]) -> T:
        """Do blocking file work where it does not stop others."""
        ...


class Transport(Offloading, Protocol):
    """Connections to one server. No redirect is followed and no proxy asked: the token goes to the server
    that was named and to nobody else."""

    def send(self, request: Request) -> AbstractAsyncContextManager[Response]:
        """Raises Unreachable before anything was sent, ConnectionLost and ResponseTimeout after. A response
        that comes before the body was sent whole ends the sending."""
        ...

    async def pause(self, seconds: float) -> None: ...

    async def close(self) -> None: ...


async def read_all(response: Response, maximum: int = MAX_ANSWER) -> bytes:
    """The whole body: for JSON, never for blobs. Raises BadReply for one that passes ``maximum`` bytes."""
    pieces, size = [], 0
    async for chunk in response.chunks():
        size += len(chunk)
        if size > maximum:
            raise BadReply(f"the server's answer has more than {maximum} bytes: no skillyard server there?")
        pieces.append(chunk)
    return b"".join(pieces)
