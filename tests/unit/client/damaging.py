"""A network that changes bytes on their way."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from skillyard.client.httpx_transport import HttpxTransport


class Damaging:
    """A transport that flips what comes."""

    def __init__(self, inner: HttpxTransport) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def send(self, request: Any) -> Any:
        return _Context(self._inner.send(request))


class _Context:
    def __init__(self, context: Any) -> None:
        self._context = context

    async def __aenter__(self) -> Any:
        return _Response(await self._context.__aenter__())

    async def __aexit__(self, *exc: Any) -> Any:
        return await self._context.__aexit__(*exc)


class _Response:
    def __init__(self, response: Any) -> None:
        self.status = response.status
        self.headers = response.headers
        self._response = response

    async def chunks(self) -> AsyncIterator[bytes]:
        async for chunk in self._response.chunks():
            yield bytes(byte ^ 1 for byte in chunk)
