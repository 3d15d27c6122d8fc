"""The transport of OpenSandbox's SDK with bounds on answers, which the SDK reads whole.

It is imported with the SDK, which alone brings httpx.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

import httpx

_MOST_ANSWER = 32 << 20


class BoundedTransport(httpx.AsyncBaseTransport):
    """Passes requests to ``inner``. A body that takes longer than ``most_s``, or is packed, or too long, is refused."""

    def __init__(self, inner: httpx.AsyncBaseTransport, most_s: float) -> None:
        self._inner, self._most_s = inner, most_s

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        request.headers["Accept-Encoding"] = "identity"
        answer = await self._inner.handle_async_request(request)
        assert isinstance(answer.stream, httpx.AsyncByteStream)
        if answer.headers.get("Content-Encoding", "identity") != "identity":
            await answer.aclose()
            raise httpx.ReadError("its answer is packed", request=request)
        answer.stream = _Body(answer.stream, time.monotonic() + self._most_s)
        return answer

    async def aclose(self) -> None:
        await self._inner.aclose()


class _Body(httpx.AsyncByteStream):
    def __init__(self, inner: httpx.AsyncByteStream, until: float) -> None:
        self._inner, self._until = inner, until

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for piece in self._inner:
            size += len(piece)
            if size > _MOST_ANSWER:
                raise httpx.ReadError(f"its answer is longer than {_MOST_ANSWER >> 20} MiB")
            if time.monotonic() > self._until:
                raise httpx.ReadTimeout("its answer comes too slowly")
            yield piece

    async def aclose(self) -> None:
        await self._inner.aclose()
