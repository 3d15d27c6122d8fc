"""Speaks HTTP with remote MCP servers through one proxy, within bounds."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator

import httpx2

from skillyard.domain.errors import ToolServerFault
from skillyard.ports.tools import LinkBounds, Remote

_ANSWERS = 4
"""An answer may be a stream of events: this many messages of the largest size fit into one."""


def client(remote: Remote, context: ssl.SSLContext, bounds: LinkBounds) -> httpx2.AsyncClient:
    """Returns a client that reaches its server through the proxy alone."""
    through = httpx2.AsyncHTTPTransport(proxy=httpx2.Proxy(remote.proxy), verify=context, trust_env=False)
    return httpx2.AsyncClient(
        headers=dict(remote.headers),
        transport=_Bounded(through, _ANSWERS * bounds.message_bytes),
        timeout=httpx2.Timeout(bounds.patience_s, read=None),
        trust_env=False,
    )


class _Bounded(httpx2.AsyncBaseTransport):
    """Breaks the connection of an answer that is larger than ``most`` bytes.

    It takes none that is packed: a few bytes of those may become any number.
    """

    def __init__(self, inner: httpx2.AsyncBaseTransport, most: int) -> None:
        self._inner = inner
        self._most = most

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        request.headers["accept-encoding"] = "identity"
        response = await self._inner.handle_async_request(request)
        if response.headers.get("content-encoding", "identity") != "identity":
            await response.aclose()
            raise ToolServerFault("it answers in an encoding that was not asked for")
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        response.stream = _Counted(response.stream, self._most)
        return response

    async def aclose(self) -> None:
        await self._inner.aclose()


class _Counted(httpx2.AsyncByteStream):
    def __init__(self, inner: httpx2.AsyncByteStream, most: int) -> None:
        self._inner = inner
        self._most = most

    async def __aiter__(self) -> AsyncIterator[bytes]:
        left = self._most
        async for chunk in self._inner:
            left -= len(chunk)
            if left < 0:
                raise httpx2.ReadError(f"it sent an answer of more than {self._most} bytes")
            yield chunk

    async def aclose(self) -> None:
        await self._inner.aclose()
